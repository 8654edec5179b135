"""What processes use, read from /proc; where there is none, nothing is known.

A replica leads a process group, and what it started is counted with it.
"""

import contextlib
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass
class Used:
    """The CPU seconds a group has used so far, and the bytes it holds in memory now."""

    cpu_s: float = 0.0
    memory: int = 0


def read_usage(groups: set[int]) -> dict[int, Used]:
    """Return what each of these process groups uses; empty where that cannot be told."""
    found: dict[int, Used] = defaultdict(Used)
    if not groups or not (_PROC / "self" / "stat").exists():
        return {}
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for entry in os.listdir(_PROC):  # noqa: PTH208 - names alone, of hundreds of processes every few seconds
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name in parentheses may hold spaces; what follows begins with the 3rd field, the state.
            fields = (_PROC / entry / "stat").read_text().rpartition(")")[2].split()
            if (group := int(fields[2])) in groups:
                found[group].cpu_s += (int(fields[11]) + int(fields[12])) / tick
                found[group].memory += int(fields[21]) * page
    return dict(found)
