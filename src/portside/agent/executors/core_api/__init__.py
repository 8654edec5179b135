"""Executors on other machines: the core API over gRPC, and the bridge that speaks for executor processes.

Only this package imports gRPC, and only a server that speaks the core API imports this package.
"""
