"""What graphs remember: langgraph's checkpoints in Postgres.

`saver` is the checkpointer that graphs are given, `rows` turns checkpoints into rows and back. Which runs and threads
there are is not known here; a thread is just the text it is named by.
"""

from portside.agent.checkpoints.saver import PostgresSaver

__all__ = ["PostgresSaver"]
