"""Langgraph's checkpoints in Postgres.

`saver` is the checkpointer that graphs use, `writer` writes their checkpoints in batches, and `rows` converts them to
rows and back. Threads are known here only by their ids.
"""

from portside.agent.checkpoints.saver import PostgresSaver

__all__ = ["PostgresSaver"]
