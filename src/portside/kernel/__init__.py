"""Infrastructure of every service: settings, errors, typed routes, SSE, Postgres, periodic tasks, secrets, logs.

It has no product logic: no module here deals with deployments, runs, traces or keys.
"""
