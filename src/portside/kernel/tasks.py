"""Tasks that run beside the code that began them: they are kept until they end, waited for, and cancelled.

An event loop refers to its tasks only weakly. One that nothing else refers to may vanish before it has ended, so
whoever begins a task without awaiting it keeps it in a `TaskSet`.

The module needs nothing but the standard library, because executors import it.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class TaskSet:
    """The tasks of one owner that have not ended. What a task raises is its own matter: it handles its failures."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Future[Any]]:
        return iter(list(self._tasks))

    def spawn(self, work: Coroutine[Any, Any, T], *, context: Context | None = None) -> asyncio.Task[T]:
        """Begin a task, and keep it until it has ended."""
        task = asyncio.create_task(work, context=context)
        self.add(task)
        return task

    def add(self, task: asyncio.Future[Any]) -> None:
        """Keep a task that has begun until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, within_s: float | None = None) -> None:
        """Wait until all tasks have ended, for at most some seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have stopped."""
        await cancel_and_wait(*self._tasks)


async def cancel_and_wait(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancel tasks, and wait until they have stopped. What they raise is dropped; None is a task that never began."""
    begun_tasks = [task for task in tasks if task is not None]
    for task in begun_tasks:
        task.cancel()

    await asyncio.gather(*begun_tasks, return_exceptions=True)
