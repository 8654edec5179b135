"""A set keeps its tasks until they have ended, and no longer."""

import asyncio
import contextvars

from portside.kernel.tasks import TaskSet, cancel_and_wait


async def test_task_is_kept_until_it_has_ended():
    tasks = TaskSet()
    event = asyncio.Event()
    task = tasks.spawn(event.wait())
    assert list(tasks) == [task]

    event.set()
    await tasks.wait()
    assert task.done()
    assert len(tasks) == 0


async def test_wait_ends_after_its_time_and_leaves_the_task():
    tasks = TaskSet()
    task = tasks.spawn(asyncio.Event().wait())
    await tasks.wait(0)
    assert not task.done()

    await tasks.cancel()
    assert task.cancelled()
    await tasks.wait()


async def test_failed_task_stops_neither_the_wait_nor_the_cancellation():
    async def fail() -> None:
        raise ValueError

    tasks = TaskSet()
    failing = tasks.spawn(fail())
    waiting = tasks.spawn(asyncio.Event().wait())
    await tasks.cancel()
    assert failing.done()
    assert waiting.cancelled()


async def test_cancellation_waits_for_the_cleanup():
    steps = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await cancel_and_wait(task, None)
    assert steps == ["cleaned up"]


async def test_task_gets_the_context_that_it_is_given():
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")

    async def read() -> str:
        return variable.get()

    tasks = TaskSet()
    assert await tasks.spawn(read()) == "mine"
    assert await tasks.spawn(read(), context=contextvars.Context()) == "none"
