"""Billable usage: the number of received traces by workspace, project, user or API key.

Reads the traces that `tracing` counted at first receipt, and the names in `identity` and `tracing`. Writes nothing but
totals of past hours and days.
"""
