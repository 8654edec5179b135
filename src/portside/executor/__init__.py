"""Everything that touches a project's code: importing it, executing its graphs, and their states and descriptions.

`requests` has what an agent server asks of graphs and what it gets, as plain data. `imports` and `load` import what a
configuration names. `execute` executes graphs on the current event loop, `channels` converts their streams for clients,
and `operations` does everything else: `state` reads and updates the state of a thread, `descriptions` draws a graph and
makes its schemas. `loops` has the event loops that all of it runs on. The package knows neither queues, stored runs nor
HTTP, and needs nothing but the libraries that langgraph itself brings, so that it can run in a project's own
environment.
"""
