"""CPU and memory of replica processes: their limits, and what they use according to /proc.

A revision's CPU limit becomes a set of whole cores. The memory limit is checked by polling: a replica above its limit
is replaced, and killed at once only far above it. A limit on address space would not do, because interpreters reserve
much more than they use.

A replica leads a process group, so its children are counted with it. One read covers all processes and all deployments:
a read for each deployment would cost the square of their number. Without /proc, nothing is known.
"""

import asyncio
import contextlib
import math
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

# A replica that uses this many times its limit is killed at once, because all deployments share the machine's memory.
KILL_ABOVE = 1.25
_PROC = Path("/proc")
# Less than the time between two readings of one deployment, so that they differ.
_CACHED_S = 1.5


def choose_cores(deployment_id: UUID, cpu_limit: float | None) -> frozenset[int]:
    """Return the cores that a deployment's replicas may use.

    Empty means all of them: there is no limit, it is no less than the machine has, or the system cannot enforce one.
    """
    if cpu_limit is None or not hasattr(os, "sched_getaffinity"):
        return frozenset()

    cores = sorted(os.sched_getaffinity(0))
    count = math.ceil(cpu_limit)
    if count >= len(cores):
        return frozenset()

    # The first core depends on the deployment's id, so that small deployments do not all share core 0.
    first = deployment_id.int % len(cores)
    return frozenset((cores * 2)[first : first + count])


def limit_to_cores(pid: int, cores: frozenset[int]) -> None:
    """Run a process that has just started, and its children, on these cores only."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(pid, cores)


def describe_limits(cores: frozenset[int], memory: int | None) -> str:
    """Describe the limits of a replica for the deploy log."""
    cpu = f"cores {', '.join(str(core) for core in sorted(cores))}" if cores else "all cores of the machine"
    memory_text = (
        "memory is not limited" if memory is None else f"a replica above {memory // 2**20} MB of memory is replaced"
    )
    return f"Each replica may use {cpu}; {memory_text}"


@dataclass
class GroupUsage:
    """The CPU seconds that a process group has used so far, and the bytes of memory that it holds now."""

    cpu_s: float = 0.0
    memory: int = 0


@dataclass
class ProcessUsage:
    """The usage of process groups by their id, and when it was read (monotonic clock, seconds)."""

    read_at: float = 0.0
    groups: dict[int, GroupUsage] = field(default_factory=dict)


class UsageReader:
    """Reads the usage of process groups, at most once in 1.5 seconds however many callers there are. Thread-safe."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._latest = ProcessUsage(-_CACHED_S)
        self._reading: asyncio.Future[ProcessUsage] | None = None

    async def usage(self, groups: set[int]) -> ProcessUsage:
        """Return the usage of these groups, without any group on a system that has no /proc."""
        if not self._is_fresh():
            reading = self._reading
            if reading is None or reading.done() or reading.get_loop() is not asyncio.get_running_loop():
                reading = self._reading = asyncio.ensure_future(asyncio.to_thread(self.read, groups))

            await asyncio.shield(reading)

        return self._select(groups)

    def read(self, groups: set[int]) -> ProcessUsage:
        """Return what `usage` does, without an event loop."""
        with self._lock:
            if not self._is_fresh():
                is_known = (self._proc / "self" / "stat").exists()
                self._latest = ProcessUsage(time.monotonic(), _read_all(self._proc) if is_known else {})

        return self._select(groups)

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._latest.read_at < _CACHED_S

    def _select(self, groups: set[int]) -> ProcessUsage:
        latest = self._latest
        selection = {group: latest.groups[group] for group in groups & latest.groups.keys()}
        return ProcessUsage(latest.read_at, selection)


def _read_all(proc: Path) -> dict[int, GroupUsage]:
    groups: dict[int, GroupUsage] = defaultdict(GroupUsage)
    tick = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in os.listdir(proc):  # noqa: PTH208 - names only, of hundreds of processes every few seconds
        if not entry.isdigit():
            continue

        with contextlib.suppress(OSError, IndexError, ValueError):
            # The process name in parentheses may contain spaces. After it the line continues with field 3, the state.
            fields = _read_stat(f"{proc}/{entry}/stat").rpartition(b")")[2].split()
            group = int(fields[2])
            groups[group].cpu_s += (int(fields[11]) + int(fields[12])) / tick
            groups[group].memory += int(fields[21]) * page

    return dict(groups)


def _read_stat(path: str) -> bytes:
    """Read a line of /proc by system calls alone: a file object costs several times as much, for every process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


READER = UsageReader()
