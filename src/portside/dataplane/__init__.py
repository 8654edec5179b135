"""The data plane: a listener that turns the desired state of deployments into running agent servers.

It talks to the control plane over HTTP only (`api.py`), builds revisions (`builds/`), makes each deployment's database
(`databases.py`) and runs replicas (`compute/`). What is desired is decided elsewhere; nothing here accepts requests.
"""
