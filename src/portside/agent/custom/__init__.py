"""The project's own code around the routes: its web application, the headers it wants to see, and calls to itself.

`application` joins a project's routes and middleware with ours, `lifespan` starts and stops it, `loopback` is how
graphs and routes call the server they run in, `cache` is what they may keep for a while. What any of them is allowed is
not decided here but in `access`.
"""
