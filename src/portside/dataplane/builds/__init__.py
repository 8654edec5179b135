"""Building: from a repository and a ref to a folder with the source and a virtual environment that runs it.

`revision.py` tells the story; the other modules each know one tool or format. Nothing here knows the control plane.
"""
