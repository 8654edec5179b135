"""Runs: creating, following, cancelling, reading and deleting them.

`requests` turns a client's request into the admission that the queue stores; `service` has the operations that routes
call, and connects the queue, the executor and the streams.
"""
