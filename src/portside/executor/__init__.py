"""Everything that touches a project's code: importing it, executing its graphs, and their states and descriptions.

`requests` defines the calls of an agent server to graphs, as plain data. `imports` and `load` import the objects that a
configuration names. `execute` executes graphs on the current event loop, `channels` converts their streams for clients,
and `graph_operations` reads and updates the states of threads, draws graphs and makes their schemas. `checkpoints` has
the checkpointer that graphs see, and `loops` the event loops on which all of this runs.

In a process of its own, `process` serves the agent server's calls over a `link`, with the `messages` of both sides;
`server_calls` makes the calls of graphs to the server, and `sdk` those of LangGraph's SDK.

The package knows neither queues, stored runs nor the database, and needs nothing but the libraries that langgraph
itself brings, so that it can run in a project's own environment.
"""
