"""The agent server: what one deployment runs.

Assistants, threads, runs and their streams over HTTP, a durable run queue on Postgres, and graphs executed off the
API's event loop. Imports `kernel` only; knows nothing of deployments.
"""
