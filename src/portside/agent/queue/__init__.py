"""Which run starts next and who holds it: admission, claims, leases, the end of a run.

Knows nothing of graphs or HTTP. No code outside this package writes a run's status.
"""
