"""Datasets: examples with their versions, splits and attachments; experiments on them; links that share them.

Runs and projects of experiments are tracing's own: an experiment is a project with a reference dataset. This room never
writes them.
"""
