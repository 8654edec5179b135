"""Rate limits of the hosted API: which budget a request spends, and whether any of it is left.

The limits are data (`table.txt`), one row for each kind of request and caller, for two regions. Budgets are fixed
windows that start with the first request counted, shared by all processes through Postgres (spec: Limits).
"""
