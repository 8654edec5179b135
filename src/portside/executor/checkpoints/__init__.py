"""Langgraph's checkpoints as rows: the checkpointer that graphs use, and its encoding.

`saver` is the checkpointer, and `backend` the interface to the storage of its rows. `rows` converts checkpoints to rows
and back with the serializer `serde`, which cannot execute code; `pieces` cuts long values, so that versions share them.
"""
