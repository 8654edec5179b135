"""Work that was cancelled is over when all its jobs in threads have ended."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from portside.executor import loops


async def test_jobs_that_end_at_once_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads switch between any two instructions, as a debugger or a Python without a global lock lets them."""

    def interleave(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename != loops.__file__:
            return None

        frame.f_trace_opcodes = True
        if event == "opcode":
            time.sleep(0.001)

        return interleave

    monkeypatch.setattr(loops, "work_left_behind", left_behind := threading.Event())
    monkeypatch.setattr(loops, "STOP_WITHIN_S", 600.0)
    end = threading.Event()
    threading.settrace(interleave)

    try:
        with ThreadPoolExecutor(16) as threads:
            jobs = [threads.submit(end.wait) for _ in range(16)]
            waiting = asyncio.create_task(loops._wait_for_jobs(*jobs))
            await asyncio.sleep(0)
            end.set()
            await waiting
    finally:
        threading.settrace(None)  # type: ignore[arg-type]

    assert not left_behind.is_set()
