"""Events of runs on their way to clients, in this process and from other ones.

A `thread_bridge` brings the events of a graph to the API's loop. `event_log` keeps those of a thread's runs and sends
them to followers, through `buffers`, out of `history`. A `run_stream` is one run of the log. `hub` finds both;
`postgres_transport` brings events of other processes, out of what `postgres_log` wrote, when a `bus` notifies it.
"""
