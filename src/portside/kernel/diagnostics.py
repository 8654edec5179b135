"""A look inside a running process: what its memory holds, and where its threads spend their time.

Both write or return names of types and of places in the code, never values: no secret gets into them. They cost the
process time while they work, so a server offers them only where its operator asked for it.
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
    """A heap dump or a profile is being made already; try again when it is done."""

    code = "diagnosis_under_way"


class HeapDump(msgspec.Struct):
    """Where a heap dump was written, and how large it is."""

    path: str
    bytes: int


class Diagnostics:
    """Makes one heap dump or profile at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_busy = asyncio.Lock()

    async def dump_heap(self) -> HeapDump:
        """Write a file of what the memory holds. Raises DiagnosisUnderWay."""
        return HeapDump(*await self._alone(self._write_heap))

    async def profile(self, seconds: float) -> str:
        """Watch all threads for so long; one line for each stack, and how often it was seen. Raises DiagnosisUnderWay.

        It is the form that flame graphs are drawn from: frames from outer to inner, joined by semicolons.
        """
        counted: Counter[str] = await self._alone(_sample, seconds)
        return "".join(f"{stack} {count}\n" for stack, count in counted.most_common())

    async def _alone(self, work: Any, *arguments: Any) -> Any:
        if self._is_busy.locked():
            raise DiagnosisUnderWay
        async with self._is_busy:
            return await asyncio.to_thread(work, *arguments)

    def _write_heap(self) -> tuple[str, int]:
        moment = now()
        content = json.dumps({"at": moment.isoformat(), "pid": os.getpid(), **_heap()}, indent=1).encode()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder.resolve() / f"heap-{moment:%Y%m%dT%H%M%S%f}-{os.getpid()}.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        return str(path), len(content)


def _heap() -> dict[str, Any]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for held in gc.get_objects():
        name = f"{type(held).__module__}.{type(held).__qualname__}"
        counts[name] += 1
        sizes[name] += sys.getsizeof(held, 0)
    types = [{"type": name, "count": counts[name], "bytes": size} for name, size in sizes.most_common(TOP)]
    return {
        "objects": sum(counts.values()),
        "bytes": sum(sizes.values()),
        "collector": {"thresholds": gc.get_threshold(), "generations": gc.get_stats()},
        "types": types,
        "allocations": _allocations(),
    }


def _allocations() -> list[dict[str, Any]] | None:
    """List the lines that hold the most memory; None where the process does not trace them (PYTHONTRACEMALLOC)."""
    if not tracemalloc.is_tracing():
        return None
    found = tracemalloc.take_snapshot().statistics("lineno")[:TOP]
    return [{"place": str(line.traceback), "count": line.count, "bytes": line.size} for line in found]


def _sample(seconds: float) -> Counter[str]:
    seen: Counter[str] = Counter()
    own, end = threading.get_ident(), time.monotonic() + seconds
    while time.monotonic() < end:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way to see other threads
            if ident != own:
                seen[";".join([names.get(ident, "thread"), *_stack(frame)])] += 1
        time.sleep(SAMPLE_S)
    return seen


def _stack(frame: FrameType | None) -> list[str]:
    stack: list[str] = []
    while frame is not None and len(stack) < MAX_STACK:
        stack.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return stack[::-1]
