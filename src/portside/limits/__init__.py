"""Rate limits of the hosted API: the budget of each request, and whether any of it is left.

The limits are data (`table.txt`), one row for each kind of request and caller, with limits for two regions. Budgets are
fixed windows that start with the first counted request; all processes share them through Postgres.
"""
