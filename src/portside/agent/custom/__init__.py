"""The project's own code around the routes.

`application` serves the project's web application together with ours, `loopback` lets graphs and routes call the server
that they run in, and `cache` is the cache of the SDK. What that code is allowed to do is decided in `access`.
"""
