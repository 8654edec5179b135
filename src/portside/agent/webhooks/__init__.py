"""Webhooks: the ends of runs told to the addresses that clients named for them.

`policy` says which addresses may be called, `signing` how a call shows that it is ours, `payloads` what is told, and
`deliveries` calls. What is owed is noted by the database itself, in the transaction that ends a run (migration 0035).
"""
