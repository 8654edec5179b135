"""Runs periodic background tasks.

A task is activated without input, periodically and on a signal. It is idempotent, does a bounded amount of work and
returns a status that operators can read. It does not retry: the next activation is the retry.
"""

import asyncio
from functools import partial
from typing import ClassVar

import msgspec

from portside.kernel.clock import now
from portside.kernel.logs import get_logger
from portside.kernel.pool import background
from portside.kernel.supervision import Supervision
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import wait_at_most
from portside.kernel.transient_errors import log_failure

log = get_logger(__name__)
# Short, because a task that searches for something in parts counts nothing until it finds it.
_PAUSE_S = 0.02


class Status(msgspec.Struct):
    """The counts of an activation. With `again`, the next one starts immediately.

    After an activation that counted nothing, it starts after a short pause.
    """

    did: dict[str, int] = {}
    again: bool = False


class TaskReport(msgspec.Struct):
    """The state of a task, for operators."""

    name: str
    every_s: float
    activations: int = 0
    failures: int = 0
    last_error: str | None = None
    last_at: str | None = None
    did: dict[str, int] = {}


class Task:
    """A periodic task. Subclasses set `every_s` and implement `activate`; a configured period overrides `every_s`."""

    every_s: ClassVar[float] = 5.0
    # Whether the task deletes expired data; the driver then logs how much it deleted.
    deletes: ClassVar[bool] = False

    def __init__(self, *, every_s: float | None = None) -> None:
        self.signal = asyncio.Event()
        self.report = TaskReport(type(self).__name__, every_s or self.every_s)

    async def activate(self) -> Status:
        """Do a bounded amount of work."""
        raise NotImplementedError


def get_pause(status: Status) -> float:
    """Return the seconds before the next activation after one with `again`.

    Rows that can never be deleted fill each batch again, and that must not keep a processor busy.
    """
    return 0.0 if any(status.did.values()) else _PAUSE_S


class Driver:
    """Runs tasks until it is closed. Activations of one task never overlap in this process.

    Raises ValueError for a task that is in the list twice: its activations would overlap.
    """

    def __init__(self, tasks: list[Task]) -> None:
        duplicates = {task.report.name for task in tasks if tasks.count(task) > 1}
        if duplicates:
            raise ValueError(f"tasks in the list twice: {', '.join(sorted(duplicates))}; name each once")

        self.tasks = tasks
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start every task's loop."""
        for task in self.tasks:
            name = task.report.name
            loop = Supervision(name).run(partial(self._run, task))
            self._loops.append(asyncio.create_task(loop, name=name))

    async def close(self) -> None:
        """Stop every loop, and cancel activations that run."""
        await cancel_and_wait(*self._loops)

    def reports(self) -> list[TaskReport]:
        """Return the report of each task."""
        return [task.report for task in self.tasks]

    async def _run(self, task: Task) -> None:
        while True:
            status = await self._activate(task)
            if status.again:
                await asyncio.sleep(get_pause(status))
                continue

            await wait_at_most(task.report.every_s, task.signal.wait())

            task.signal.clear()

    async def _activate(self, task: Task) -> Status:
        report = task.report
        report.activations += 1
        report.last_at = now().isoformat()

        try:
            with background():
                status = await task.activate()
        except Exception as exc:  # noqa: BLE001 - logged there
            report.failures += 1
            report.last_error = f"{type(exc).__name__}: {exc}"
            log_failure("task failed", exc, task=report.name)
            return Status()

        report.did = status.did
        if task.deletes:
            counts = {name: count for name, count in status.did.items() if count}
            if counts:
                log.info("expired data was deleted", task=report.name, **counts)

        return status
