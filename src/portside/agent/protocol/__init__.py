"""The event streaming protocol v2: a thread's events as one numbered sequence, and commands.

`sequence` makes the sequence out of a thread's event log, `wire` defines the messages, and `commands` acts on them. The
routes in `http.threads` send the frames, by SSE or over a WebSocket.
"""
