"""What every service stands on: settings, errors, typed routes, SSE, Postgres, reconcilers, secrets, logs.

Knows no product: nothing in here may mention deployments, runs, traces or keys.
"""
