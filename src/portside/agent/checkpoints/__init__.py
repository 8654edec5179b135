"""Langgraph's checkpoints in Postgres.

`backend` encrypts and stores the rows that `executor/checkpoints` makes of checkpoints, and `writer` writes them in
batches. Threads are known here only by their ids.
"""
