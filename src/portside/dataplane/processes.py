"""Processes that are recognised across restarts of the listener, when an id alone may belong to another process.

A process is identified by its id together with its start time. When a recorded identity was lost, the processes of a
folder are found by an environment variable that they inherit, on systems that show it (Linux).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_POLL_S = 0.2
_KILL_ROUNDS = 20
_CHUNK = 65_536


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process id, and the start time that distinguishes the process from a later one with the same id."""

    pid: int
    started: str

    @classmethod
    def find(cls, pid: int) -> "ProcessIdentity | None":
        """Return the identity of a running process, or None when no process has this id."""
        start_time = _read_start_time(pid)
        return None if start_time is None else cls(pid, start_time)

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return _read_start_time(self.pid) == self.started

    async def wait(self) -> None:
        """Wait until the process has ended. It need not be a child of this one."""
        if not await self._wait_for_descriptor():
            while self.is_alive:  # noqa: ASYNC110 - the system does not report it
                await asyncio.sleep(_POLL_S)

    async def _wait_for_descriptor(self) -> bool:
        """Wait for the end by a descriptor of the process, which costs nothing meanwhile; False without one."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # Not Linux, no descriptors left, or the process has ended.
            return False

        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        try:
            loop.add_reader(descriptor, ended.set)
            # Only now is it certain that the descriptor is of this very process.
            if self.is_alive:
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process group that the process leads, if the process still runs."""
        if self.is_alive:
            kill_group(self.pid)


def kill_group(group: int) -> None:
    """Kill the remaining processes of a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def find_processes(variable: str, folder: Path) -> list[int]:
    """Return the ids of the processes whose environment variable names a folder or one below it."""
    pids = []
    for pid in _list_process_ids():
        path = _read_variable(pid, variable)
        if path is not None and path.is_relative_to(folder):
            pids.append(pid)

    return pids


def kill_processes(variable: str, folder: Path) -> None:
    """Kill every process whose environment variable names a folder or one below it."""
    # Repeat until none is found, because one of them may have started another meanwhile.
    for _round in range(_KILL_ROUNDS):
        pids = find_processes(variable, folder)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

        if not pids:
            return


def find_leaders(variable: str, folder: Path, argument: str) -> list[tuple[Path, ProcessIdentity]]:
    """Return those of these processes that lead a session and were started with this argument, with their folders.

    Both conditions exclude the children of such a process, which inherit the variable.
    """
    leaders = []
    for pid in _list_process_ids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) != pid or argument.encode() not in _read(pid, "cmdline").split(b"\0"):
                continue

            path = _read_variable(pid, variable)
            identity = ProcessIdentity.find(pid)
            if identity is not None and path is not None and path.is_relative_to(folder):
                leaders.append((path, identity))

    return leaders


def _list_process_ids() -> Iterator[int]:
    for name in os.listdir(_PROC) if _PROC.is_dir() else ():  # noqa: PTH208 - names only, of more than a thousand
        if name.isdigit():
            yield int(name)


def _read_variable(pid: int, variable: str) -> Path | None:
    name = f"\0{variable}=".encode()
    with contextlib.suppress(OSError):
        environment = b"\0" + _read(pid, "environ")
        # Few processes have it, and the others cost nothing more.
        start = environment.find(name)
        if start >= 0:
            return Path(os.fsdecode(environment[start + len(name) :].partition(b"\0")[0]))

    return None


def _read(pid: int, file: str) -> bytes:
    """Read a file of /proc by system calls alone: a file object costs several times as much, for every process."""
    descriptor = os.open(f"/proc/{pid}/{file}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, _CHUNK):
            parts.append(part)
    finally:
        os.close(descriptor)

    return b"".join(parts)


def _read_start_time(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return _read_start_time_on_linux(pid)

    process = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    text = process.stdout.strip()

    # A zombie (state Z) has ended already.
    return None if not text or text.startswith("Z") else text.split(None, 1)[1]


def _read_start_time_on_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None

    # The process name in parentheses may contain spaces. Field 3 of the line is the state, field 22 the start time in
    # ticks since boot, hence the boot id.
    fields = stat.rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"
