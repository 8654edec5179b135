"""Assistants as agents of the A2A protocol.

A context of the protocol is a thread. A task is a run together with the runs that answered its questions. An artifact
is the output of a task. The server speaks versions 0.3 and 1.0 of the protocol; the method's name says which one the
client speaks. Internally everything has the form of 0.3, and `versions` translates; `agents` writes cards in both.
"""
