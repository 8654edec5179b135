"""Datasets: examples with versions, splits and attachments; experiments on them; links that share them.

The runs and projects of experiments belong to `tracing`: an experiment is a project with a reference dataset. This
package never writes them.
"""
