"""Assistants as tools of the Model Context Protocol.

`rpc` reads messages and decides which revision of the protocol a request speaks, `tools` lists the assistants,
`service` answers the methods and runs the calls, `results` writes what a run returned, and `elicitation` asks people
the questions of an interrupted graph. The server keeps no session. docs/why/libraries.md says why this is our own.
"""
