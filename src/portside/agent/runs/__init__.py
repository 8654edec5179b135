"""Runs: what clients ask of them, and what comes of it.

`requests` and `admission` turn a request into what is stored and executed, `execution` is what the worker does with a
run, `following` and `cancelling` are what clients do with one, and `service` joins them.
"""
