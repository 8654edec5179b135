"""The run queue: admission, claims, leases and the ends of runs.

It knows nothing of graphs or HTTP. No code outside this package writes the status of a run.
"""
