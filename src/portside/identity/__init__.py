"""Who is asking: organizations, workspaces, users and API keys.

Authenticates requests of the platform's API and says what a caller may do; knows no deployment and no trace.
"""
