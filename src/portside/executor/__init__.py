"""Everything that touches a project's code: importing it, executing its graphs, and their states and descriptions.

`imports` and `load` import what a configuration names. `requests` has what goes into the execution of a graph and what
comes out; `execute` executes graphs on the current event loop, and `channels` converts their streams for clients.
`state` reads and updates the state of a thread. The package knows neither queues, stored runs nor HTTP, and needs
nothing but the libraries that langgraph itself brings, so that it can run in a project's own environment.
"""
