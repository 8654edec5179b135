"""The front: one address for the platform and all agents, served by a Caddy that this package starts and configures.

`config.py` writes Caddy's configuration, `caddy.py` runs the program, `front.py` keeps the routes up to date, and
`portside ingress` prints configurations for proxies in front of it.
"""
