"""Builds: from a source and a graph configuration file to a folder with the source and a virtual environment.

`build.py` runs the steps of a build; each other module knows one tool or format. Nothing here knows the control plane.
"""
