"""Everything that touches a project's code: importing it, executing its graphs, and their states and descriptions.

`requests` has what an agent server asks of graphs and what it gets, as plain data. `imports` and `load` import what a
configuration names. `execute` executes graphs on the current event loop, `channels` converts their streams for clients,
and `operations` does everything else: `state` reads and updates the state of a thread, `descriptions` draws a graph and
makes its schemas. `checkpoints` has the checkpointer that graphs see, and `loops` the event loops that all of it runs
on.

In a process of its own, `process` serves the agent server's calls over a `link`, with the `messages` of both sides;
`remote` has what graphs ask of the server, and `sdk` the SDK's ways to it.

The package knows neither queues, stored runs nor the database, and needs nothing but the libraries that langgraph
itself brings, so that it can run in a project's own environment.
"""
