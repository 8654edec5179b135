"""Langgraph's checkpoints as rows: the checkpointer that graphs use, and what encodes and decodes.

`saver` is the checkpointer, and `backend` the interface to what stores its rows. `rows` converts checkpoints to rows
and back with the serializer `serde`, which cannot execute code; `pieces` cuts long values, so that versions share them.
"""
