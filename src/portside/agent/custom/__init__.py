"""The project's own code around the routes.

`web_app` serves the project's web application together with the server's routes, `loopback` lets graphs and
routes call the server that they run in, and `cache` is the cache of the SDK. `access` decides what that code may do.
"""
