"""Assistants as agents of the A2A protocol: cards that describe them, messages that become runs, and tasks.

A context of the protocol is a thread, a task is a run of it with those that answered its questions, and an artifact is
what a task left. Both versions of the protocol are spoken, 0.3 and 1.0: the name of the method says which
(`dialects`). Everything inside is written in the words of 0.3. Contract: section 10.
"""
