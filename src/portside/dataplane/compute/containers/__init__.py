"""Compute by containers: servers of images, run by podman or docker on this machine.

`spec.py` reads what a revision asks for and refuses what one machine cannot give, `commands.py` writes the command
lines, `runtime.py` runs them. `images.py` fetches and pins images, `passages.py` lets containers reach what listens on
this machine only, and `replica.py` is one container from its start to its end. `relay.py` forwards connections.
"""
