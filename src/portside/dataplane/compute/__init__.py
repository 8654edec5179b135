"""Compute of type `process`: the servers of deployments as processes of this machine.

`process.py` is one replica, `running.py` keeps one alive, `serving.py` is what a deployment's address leads to.
"""
