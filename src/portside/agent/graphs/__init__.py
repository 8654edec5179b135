"""Graphs: loading them from a project, running them, reading and changing their state.

`load` finds and prepares what the configuration names (`imports` and `factories` help it), `execute` runs one graph to
a stream of events (`protocol` is the seam, `events` the wire format, `commands` the steering), `state` is what a thread
looks like from outside, `describe` what a graph does: its drawing and its schemas. Queues, runs as records, and HTTP
are not known here.
"""
