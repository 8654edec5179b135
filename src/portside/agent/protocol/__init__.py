"""The event streaming protocol v2: a thread's events as one numbered sequence, and commands (contract: 13).

`sequence` makes the sequence out of a thread's event log, `wire` defines the messages, `commands` acts on them. How
frames travel (SSE, WebSocket) is a matter of `http.protocol`.
"""
