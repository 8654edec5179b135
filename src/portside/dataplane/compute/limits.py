"""What is held of a revision's limits by processes: CPU in whole cores, memory by looking.

A process that has outgrown its memory is replaced before it is ended, and killed only far beyond its limit. A limit on
address space would be no substitute: interpreters reserve much more than they use.
"""

import contextlib
import math
import os
from uuid import UUID

# From here on a process is killed at once, because the machine's memory is everybody's.
KILL_BEYOND = 1.25


def cores_for(deployment_id: UUID, cpu_limit: float | None) -> frozenset[int]:
    """Return the cores a deployment's replicas may use; empty is no limit, or one the machine cannot exceed or hold."""
    if cpu_limit is None or not hasattr(os, "sched_getaffinity"):
        return frozenset()
    cores, count = sorted(os.sched_getaffinity(0)), math.ceil(cpu_limit)
    if count >= len(cores):
        return frozenset()
    # Where a deployment's cores begin depends on its id, so that small ones do not all share the first core.
    first = deployment_id.int % len(cores)
    return frozenset((cores * 2)[first : first + count])


def confine(pid: int, cores: frozenset[int]) -> None:
    """Let a process that has just begun, and what it starts, run on these cores alone."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(pid, cores)


def applied(cores: frozenset[int], memory: int | None) -> str:
    """Say which limits hold, for the deploy log."""
    cpu = f"cores {', '.join(str(core) for core in sorted(cores))}" if cores else "all cores of the machine"
    held = "no limit of memory" if memory is None else f"a replica above {memory // 2**20} MB is replaced"
    return f"Each replica may use {cpu}; {held}"
