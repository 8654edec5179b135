"""Executors on other machines: the core API over gRPC, and the bridge that speaks for executor processes.

Only this package imports gRPC, and only a server that speaks the core API imports this package.
"""

import os

# Otherwise gRPC does work of its own in each process that is forked, which crashes some of them before they become what
# they were started for. A bridge starts executors while gRPC works in other threads. gRPC reads this at its first use.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
