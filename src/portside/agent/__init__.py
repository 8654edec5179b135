"""The agent server, of which a deployment runs replicas.

Assistants, threads, runs and their streams over HTTP, a durable run queue on Postgres, and graphs executed off the
API's event loop. Imports only `kernel` and `executor`; knows nothing of deployments.
"""
