"""Processes as they are known across restarts: a process id alone may belong to somebody else by now.

A mark is the id together with the moment the process started, so that a reused id is never mistaken for it.
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import msgspec


class ProcessMark(msgspec.Struct, frozen=True):
    """One process: its id and what tells it from a later one with the same id."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessMark | None":
        """Return the mark of a process that runs, or None when there is none."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return _started(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is still there."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process and all it started, if it is still there; it must lead a group of its own."""
        if self.is_alive:
            kill_group(self.pid)


def ending(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def kill_group(group: int) -> None:
    """Kill what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _started(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return _started_on_linux(pid)
    shown = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    text = shown.stdout.strip()
    return None if not text or text.startswith("Z") else text.split(None, 1)[1]


def _started_on_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces; state is the 3rd field of the line, the start time the 22nd.
    fields = stat.rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"
