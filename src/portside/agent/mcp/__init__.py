"""Agents as tools of the Model Context Protocol (contract: MCP).

Each assistant is a tool. `messages` reads JSON-RPC, `versions` decides by which revision of the protocol a request is
answered, `tools` tells which tools there are, `calls` runs them and `methods` joins these. Nothing of a client is
remembered between its requests. It is our own because three methods need no server framework, whose import would make
every cold start of an agent slower.
"""
