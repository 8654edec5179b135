"""The driver of background work.

A task is activated with no input, on a period and on a signal. It is idempotent, does a bounded amount of work and
returns a status that operators can read. It never retries inside: the next activation is the retry.
"""

import asyncio
import contextlib
from typing import ClassVar

import msgspec

from portside.kernel.clock import now
from portside.kernel.logs import get_logger

log = get_logger(__name__)


class Status(msgspec.Struct):
    """What an activation did; `again` asks for the next one at once."""

    did: dict[str, int] = {}
    again: bool = False


class TaskReport(msgspec.Struct):
    """A task as operators see it."""

    name: str
    every_s: float
    activations: int = 0
    failures: int = 0
    last_error: str | None = None
    last_at: str | None = None
    did: dict[str, int] = {}


class Task:
    """One chore. Subclasses set `every_s` and write `activate`; a period that is configured is given instead."""

    every_s: ClassVar[float] = 5.0

    def __init__(self, *, every_s: float | None = None) -> None:
        self.signal = asyncio.Event()
        self.report = TaskReport(type(self).__name__, every_s or self.every_s)

    async def activate(self) -> Status:
        """Do a bounded amount of work."""
        raise NotImplementedError


class Driver:
    """Runs tasks until it is closed, each at most once at a time in this process."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start every task's loop."""
        self._running = [asyncio.create_task(self._run(task), name=task.report.name) for task in self.tasks]

    async def close(self) -> None:
        """Stop every loop; an activation under way is cancelled."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def reports(self) -> list[TaskReport]:
        """Return what each task did last."""
        return [task.report for task in self.tasks]

    async def _run(self, task: Task) -> None:
        while True:
            status = await self._activate(task)
            if status.again:
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task.signal.wait(), task.report.every_s)
            task.signal.clear()

    async def _activate(self, task: Task) -> Status:
        report = task.report
        report.activations += 1
        report.last_at = now().isoformat()
        try:
            status = await task.activate()
        except Exception as exc:
            report.failures += 1
            report.last_error = f"{type(exc).__name__}: {exc}"
            log.exception("task failed", task=report.name)
            return Status()
        report.did = status.did
        return status
