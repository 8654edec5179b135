"""The lease and the cancellation of one active run, without a database."""

import asyncio
import math
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from portside.agent.queue.active_run import ActiveRun, RunState
from portside.agent.queue.types import Cancellation, ClaimedRun
from portside.agent.types.runs import CancelAction

INTERRUPT = Cancellation(CancelAction.INTERRUPT, "")
ROLLBACK = Cancellation(CancelAction.ROLLBACK, "")


@pytest.fixture
async def run() -> AsyncIterator[ActiveRun]:
    claimed = ClaimedRun(
        run_id=uuid4(), thread_id=uuid4(), assistant_id=uuid4(), kwargs={}, attempt=1, is_temporary=False
    )
    active = ActiveRun(claimed)
    active.leased_until = math.inf
    active.task = asyncio.create_task(asyncio.Event().wait())

    yield active
    active.task.cancel()


async def test_executing_run_is_cancelled_once(run: ActiveRun):
    run.state = RunState.EXECUTING
    run.cancel(INTERRUPT)
    run.cancel(ROLLBACK)
    assert (run.state, run.cancellation, run.task.cancelling()) == (RunState.CANCELLING, INTERRUPT, 1)


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.ENDING, RunState.LOST])
async def test_cancelling_a_run_that_does_not_execute_is_only_noted(run: ActiveRun, state: RunState):
    run.state = state
    run.cancel(INTERRUPT)
    assert (run.state, run.cancellation, run.task.cancelling()) == (state, INTERRUPT, 0)


@pytest.mark.parametrize("state", [RunState.EXECUTING, RunState.CANCELLING])
async def test_lost_run_is_stopped(run: ActiveRun, state: RunState):
    run.state = state
    run.lose()
    run.lose()
    assert (run.state, run.task.cancelling()) == (RunState.LOST, 1)


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.ENDING])
async def test_run_whose_end_is_being_written_is_not_stopped(run: ActiveRun, state: RunState):
    run.state = state
    run.lose()
    assert (run.state, run.task.cancelling()) == (state, 0)


async def test_renewal_lets_a_run_go_on_whose_lease_ran_out(run: ActiveRun):
    assert run.is_owned
    await asyncio.wait_for(run.wait_until_owned(), 60)
    owned_until = run.leased_until
    run.leased_until = 0.0
    assert not run.is_owned
    waiting = asyncio.create_task(run.wait_until_owned())

    await asyncio.sleep(0)
    # A renewal that is over already changes nothing.
    run.renew(0.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    run.renew(owned_until)
    await asyncio.wait_for(waiting, 60)
    assert run.is_owned
