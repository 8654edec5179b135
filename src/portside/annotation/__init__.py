"""Annotation: queues of runs that wait for people's judgement, and what the feedback that they give means.

The feedback itself is `tracing`'s; nothing here writes runs.
"""
