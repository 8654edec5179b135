"""Diagnostics of a running process: heap dumps, and profiles of its threads.

Both contain names of types and positions in the code, never values, so they contain no secrets. They slow the process
down while they run, so a server offers them only if its operator enabled them.
"""

import asyncio
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from portside.kernel.clock import now
from portside.kernel.errors import Conflict

TOP = 200
SAMPLE_S = 0.01
MAX_STACK = 60


class DiagnosisUnderWay(Conflict):
    """A heap dump or a profile is already running; try again when it has finished."""

    code = "diagnosis_under_way"


class HeapDump(msgspec.Struct):
    """Where a heap dump was written, and how large it is."""

    path: str
    bytes: int


class Diagnostics:
    """Runs one heap dump or profile at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = asyncio.Lock()

    async def dump_heap(self) -> HeapDump:
        """Write a file that lists the types of all objects. Raises DiagnosisUnderWay."""
        dump: HeapDump = await self._run_exclusively(self._write_heap)
        return dump

    async def profile(self, seconds: float) -> str:
        """Sample all threads for `seconds`, and return a line with the count of each stack. Raises DiagnosisUnderWay.

        This is the input format of flame graphs: frames from outer to inner, joined by semicolons.
        """
        counts: Counter[str] = await self._run_exclusively(_sample, seconds)
        return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())

    async def _run_exclusively(self, work: Any, *arguments: Any) -> Any:
        if self._lock.locked():
            raise DiagnosisUnderWay

        async with self._lock:
            return await asyncio.to_thread(work, *arguments)

    def _write_heap(self) -> HeapDump:
        time = now()
        heap = {"at": time.isoformat(), "pid": os.getpid(), **_describe_heap()}
        content = json.dumps(heap, indent=1).encode()

        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

        path = self._folder.resolve() / f"heap-{time:%Y%m%dT%H%M%S%f}-{os.getpid()}.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)

        return HeapDump(path=str(path), bytes=len(content))


def _describe_heap() -> dict[str, Any]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for item in gc.get_objects():
        name = f"{type(item).__module__}.{type(item).__qualname__}"
        counts[name] += 1
        sizes[name] += sys.getsizeof(item, 0)

    types = [{"type": name, "count": counts[name], "bytes": size} for name, size in sizes.most_common(TOP)]
    return {
        "objects": sum(counts.values()),
        "bytes": sum(sizes.values()),
        "collector": {"thresholds": gc.get_threshold(), "generations": gc.get_stats()},
        "types": types,
        "allocations": _list_allocations(),
    }


def _list_allocations() -> list[dict[str, Any]] | None:
    """List the lines that allocated the most memory; None if tracing is off (PYTHONTRACEMALLOC)."""
    if not tracemalloc.is_tracing():
        return None

    lines = tracemalloc.take_snapshot().statistics("lineno")[:TOP]
    return [{"place": str(line.traceback), "count": line.count, "bytes": line.size} for line in lines]


def _sample(seconds: float) -> Counter[str]:
    """Count the stacks of all threads but this one, once also where the process was paused until the end."""
    counts: Counter[str] = Counter()
    this_thread = threading.get_ident()
    end = time.monotonic() + seconds
    while True:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way to see other threads
            if ident != this_thread:
                stack = [names.get(ident, "thread"), *_list_frames(frame)]
                counts[";".join(stack)] += 1

        if time.monotonic() >= end:
            return counts

        time.sleep(SAMPLE_S)


def _list_frames(frame: FrameType | None) -> list[str]:
    stack: list[str] = []
    while frame is not None and len(stack) < MAX_STACK:
        stack.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back

    return stack[::-1]
