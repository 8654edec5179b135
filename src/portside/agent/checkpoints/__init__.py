"""Langgraph's checkpoints in Postgres.

`saver` encrypts and stores the rows that `executor/checkpoints` makes of checkpoints, and `writer` writes them in
batches. Threads are known here only by their ids.
"""

from portside.agent.checkpoints.saver import PostgresSaver

__all__ = ["PostgresSaver"]
