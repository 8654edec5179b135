"""The event streaming protocol v2: what happens on a thread as one sequence of events, and commands (contract: 13).

`session` makes the sequence out of a thread's feed, `filters` and `readers` choose from it, `commands` acts on what
clients send. How frames travel (SSE, WebSocket) is not known here.
"""
