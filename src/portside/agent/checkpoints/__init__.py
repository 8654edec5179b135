"""Langgraph's checkpoints in Postgres.

`backend` encrypts the rows that `executor/checkpoints` makes of checkpoints, and writes them in batches. Threads are
known here only by their ids.
"""
