"""A time limit raises TimeoutError, also in the cleanup of a cancelled task, and it never hides a cancellation."""

import asyncio

import pytest

from portside.kernel.timeouts import cleanup_timeout, timeout, wait_at_most

both = pytest.mark.parametrize("limit", [timeout, cleanup_timeout])


@both
async def test_limit_holds_in_the_cleanup_of_a_cancelled_task(limit):
    has_begun = asyncio.Event()

    async def clean_up() -> None:
        try:
            has_begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(TimeoutError):
                async with limit(0):
                    await asyncio.Event().wait()

            raise

    task = asyncio.create_task(clean_up())
    await has_begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    # What the limit took back is its own cancellation, and no other.
    assert task.cancelling() == 1


@both
async def test_limit_that_was_exceeded_does_not_hide_a_cancellation(limit):
    async def wait() -> None:
        async with limit(600) as entered:
            task = asyncio.current_task()
            assert task is not None

            # The limit expires and the task is cancelled before the task goes on.
            entered.reschedule(0)
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(wait())


@both
async def test_limit_leaves_other_errors_alone(limit):
    with pytest.raises(ValueError, match="mine"):
        async with limit(0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("mine") from None

    async with limit(None) as entered:
        await asyncio.sleep(0)

    assert not entered.expired()


async def test_wait_says_whether_the_work_ended_in_time():
    event = asyncio.Event()
    assert not await wait_at_most(0, event.wait())

    event.set()
    assert await wait_at_most(600, event.wait())
    assert await wait_at_most(None, event.wait())


async def test_wait_cancels_what_takes_too_long():
    task = asyncio.ensure_future(asyncio.Event().wait())
    assert not await wait_at_most(0, task)
    assert task.cancelled()


async def test_wait_does_not_hide_a_cancellation():
    waiting = asyncio.create_task(wait_at_most(600, asyncio.Event().wait()))
    await asyncio.sleep(0)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
