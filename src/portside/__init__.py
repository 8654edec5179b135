"""Portside: the open platform that deploys and runs agents.

`ARCHITECTURE.md` is the map; each package below is one part of it.
"""

__version__ = "0.1.0"
