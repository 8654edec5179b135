"""Events of runs on their way to clients, in this process and from other ones.

`event_log` keeps the events of a thread's runs and sends them to followers, through `buffers`, out of `history`. A
`run_stream` is one run of the log. `hub` finds both; `postgres_transport` brings events of other processes, out of what
`postgres_log` wrote, when a `bus` notifies it.
"""
