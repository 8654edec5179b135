"""The lifespan of the project's application: started before the server is ready, stopped when its runs are over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from portside.kernel.errors import UserMistake
from portside.kernel.logs import get_logger

log = get_logger(__name__)


@asynccontextmanager
async def started(
    app: Any, state: dict[str, Any], mistake_of: Callable[[BaseException], UserMistake]
) -> AsyncIterator[None]:
    """Keep an application started; what its lifespan yields goes into `state`.

    Raises the UserMistake that is made of what the start fails with. What the stop fails with is only logged: the
    server is leaving, and the rest of it has to be stopped as well.
    """
    asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    # One task for both ends: what is opened in a lifespan may only be closed in the task that opened it.
    task = asyncio.create_task(app(scope, asked.get, told.put))
    try:
        if failure := await _said(asked, told, task, "startup"):
            raise mistake_of(failure) from failure
        yield
        if failure := await _said(asked, told, task, "shutdown"):
            log.error("the application of the project failed while it stopped", exc_info=failure)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _said(
    asked: "asyncio.Queue[dict[str, str]]", told: "asyncio.Queue[dict[str, str]]", task: "asyncio.Task[None]", step: str
) -> BaseException | None:
    """Ask for a step and wait until it is done; return what it failed with."""
    asked.put_nowait({"type": f"lifespan.{step}"})
    answer = asyncio.create_task(told.get())
    await asyncio.wait([answer, task], return_when=asyncio.FIRST_COMPLETED)
    if answer.done() and answer.result()["type"] == f"lifespan.{step}.complete":
        return None
    answer.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return RuntimeError(f"its lifespan was cancelled at the {step}")
    return task.exception() or RuntimeError(f"its lifespan ended without a word about the {step}")
