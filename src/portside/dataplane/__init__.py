"""The data plane: a listener that brings deployments to their desired state.

It polls the control plane over HTTP (`api.py`), builds revisions (`builds/`), creates each deployment's database
and runs its replicas (`compute/`). The control plane decides what is desired; nothing here accepts
requests.
"""
