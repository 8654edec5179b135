"""The platform: one server for the control plane and the hosted API, and the process of its listener.

Only this package constructs and connects the services of the other packages; it has no logic of its own.
"""
