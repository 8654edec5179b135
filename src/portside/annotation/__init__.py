"""Annotation: queues of runs that wait for people's review, and configurations of feedback keys.

The feedback itself belongs to `tracing`; this package never writes runs.
"""
