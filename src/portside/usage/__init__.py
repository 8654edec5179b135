"""Billable usage: how many traces arrived, by workspace, project, user or API key.

Reads what `tracing` counted at first receipt and the names that `identity` and `tracing` keep.
Writes counts of hours and days that are over, and nothing else.
"""
