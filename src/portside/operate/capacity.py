"""How much work a machine holds, computed from figures that were measured on two cores.

`docs/guides/sizes.md` has the measurements and the arithmetic. What real agents need differs: their libraries take
memory, and their nodes take CPU. So these are sizes to begin with: nothing is refused because of them.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from portside.kernel import control_groups

# The platform, its listener, Postgres without its connections, the system, and a build.
PLATFORM_BYTES = 1_000_000_000
# The server of a deployment that is awake, with its part of Postgres.
SERVER_BYTES = 45_000_000
# What executes its graphs, which ends some minutes after the last run.
EXECUTOR_BYTES = 55_000_000
# Its packages, if no other deployment has the same, and its database at the beginning.
DISK_BYTES = 100_000_000
# A deployment that is awake holds three connections. Some are the platform's own, and a tenth stays free.
CONNECTIONS = 3
OWN_CONNECTIONS = 40
SHARE_OF_CONNECTIONS = 0.9
# A run that streams twenty tokens in a second takes 14 ms of the server and 4 ms of Postgres in it.
STREAM_SECONDS = 0.018


class Machine(NamedTuple):
    """What a machine has. `disk_bytes` are those that are free, without the reserve."""

    cores: int
    memory_bytes: int
    disk_bytes: int
    connections: int


class Capacity(NamedTuple):
    """How many deployments may be awake while few of them execute, or all of them, and how many runs may stream."""

    idle: int
    executing: int
    streams: int


def compute_capacity(machine: Machine) -> Capacity:
    """Return how much work a machine holds."""
    memory = max(0, machine.memory_bytes - PLATFORM_BYTES)
    by_connections = int((machine.connections - OWN_CONNECTIONS) * SHARE_OF_CONNECTIONS) // CONNECTIONS
    by_disk = max(0, machine.disk_bytes) // DISK_BYTES

    return Capacity(
        idle=min(memory // SERVER_BYTES, by_connections, by_disk),
        executing=min(memory // (SERVER_BYTES + EXECUTOR_BYTES), by_connections, by_disk),
        streams=int(machine.cores / STREAM_SECONDS),
    )


def read_memory_bytes(groups: Path = control_groups.ROOT, own_group: Path = control_groups.OWN_GROUP) -> int:
    """Return the memory of this machine, or less if the control group of this process has a limit."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in control_groups.read_limits("memory.max", groups, own_group):
        # A group without a limit says `max`.
        with contextlib.suppress(ValueError):
            memory = min(memory, int(limit))

    return memory
