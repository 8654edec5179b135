"""Webhooks: calls to the addresses that clients named, when their runs end.

`policy` decides which addresses may be called, and `deliveries` calls them. The database itself records
a delivery that is due, in the transaction that ends a run.
"""
