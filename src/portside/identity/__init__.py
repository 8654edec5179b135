"""Organizations, workspaces, users and API keys.

Authenticates the requests of the platform's API and checks permissions. Does not know deployments or traces.
"""
