"""The control plane: deployments, their revisions, and the desired state that listeners apply.

It stores the desired state and what listeners report, and owns the state machine of revisions. It does not build or
start anything, and it never calls a listener: listeners poll it (`http.py`). Its API is that of
LangGraph's control plane (docs/compatibility.md).
"""
