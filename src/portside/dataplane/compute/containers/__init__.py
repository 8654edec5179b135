"""Replicas as containers: servers of images, run by podman or docker on this machine.

`commands.py` reads the resource spec and writes the command lines, `runtime.py` runs them, and `container.py` is one
replica from its start to its removal. `manager.py` keeps the replicas of a release and prepares releases of one
deployment. TCP connections are forwarded to containers and from them by `compute/forwarding.py`.
"""
