"""Langgraph's checkpoints in Postgres.

`saver` stores the rows that `executor/checkpoints` makes of checkpoints, `row_encryption` encrypts them, and `writer`
writes them in batches. Threads are known here only by their ids.
"""

from portside.agent.checkpoints.saver import PostgresSaver

__all__ = ["PostgresSaver"]
