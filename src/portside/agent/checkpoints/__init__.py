"""Langgraph's checkpoints in Postgres.

`postgres_backend` reads and writes the rows that `executor/checkpoints` makes of checkpoints, encrypted if configured,
and `writer` writes those of runs in batches, without the parts that they share (`shared_parts`). Threads are known here
only by their ids.
"""
