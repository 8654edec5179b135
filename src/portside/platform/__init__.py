"""The platform put together: one server for the control plane and the hosted API, and the listener beside it.

The only place that makes the parts of the other rooms and joins them; it has no rules of its own.
"""
