"""Graphs: importing them from a project, executing them, describing them, and their state.

`imports` and `load` import what the configuration names. `executor` is the interface to what executes runs, `execute`
the implementation in this process. `events` and `channels` convert a run's stream for clients. `state` reads and
updates the state of a thread, and `describe` draws a graph and makes its schemas. This package knows neither queues,
stored runs, nor HTTP.
"""
