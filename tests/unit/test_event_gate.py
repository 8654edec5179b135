"""The events of a run whose lease is unsure: they wait for it, up to a bound, and those of a lost run are dropped."""

import asyncio
import math
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from portside.agent import engine
from portside.agent.engine import EventGate
from portside.agent.queue.active_run import ActiveRun, RunState
from portside.agent.queue.types import ClaimedRun


class Gate(EventGate):
    """A gate that notes what it delivered."""

    def __init__(self, run: ActiveRun) -> None:
        self.delivered: list[str] = []
        super().__init__(lambda events: self.delivered.extend(name for name, _ in events), self.note_flush, run)

    def note_flush(self) -> None:
        self.delivered.append("flush")


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    run = ActiveRun(
        ClaimedRun(run_id=uuid4(), thread_id=uuid4(), assistant_id=uuid4(), kwargs={}, attempt=1, is_temporary=False)
    )
    run.task = asyncio.create_task(asyncio.Event().wait())
    run.state = RunState.EXECUTING
    run.leased_until = math.inf

    yield Gate(run)
    run.task.cancel()


async def test_events_wait_while_the_lease_is_unsure(gate: Gate):
    owned_until = gate.run.leased_until
    gate.run.leased_until = 0.0
    gate.publish([("a", b"1")])
    gate.publish([("b", b"2")])
    assert gate.delivered == []
    gate.run.renew(owned_until)
    gate.publish([("c", b"3")])

    assert gate.delivered == ["a", "b", "c"]


async def test_events_that_waited_are_published_before_checkpoints_are_written(gate: Gate):
    """No attempt after this one sends the events before a checkpoint again."""
    owned_until = gate.run.leased_until
    gate.run.leased_until = 0.0
    gate.publish([("a", b"1")])
    gate.run.renew(owned_until)
    gate.flush()
    assert gate.delivered == ["a", "flush"]


async def test_run_that_emits_more_than_can_wait_is_lost(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine, "HELD_LIMIT_BYTES", 100)
    owned_until = gate.run.leased_until
    gate.run.leased_until = 0.0
    gate.publish([("a", b"x" * 100)])
    assert gate.run.state is RunState.EXECUTING
    gate.publish([("b", b"x")])
    assert (gate.run.state, gate.run.task.cancelling()) == (RunState.LOST, 1)

    # A gap in the events would be worse than their end.
    gate.run.renew(owned_until)
    gate.publish([("c", b"x")])
    assert (gate.delivered, gate._waiting) == ([], [])


async def test_events_that_were_delivered_do_not_count_when_the_lease_is_unsure_again(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "HELD_LIMIT_BYTES", 100)

    for name in ("a", "b"):
        gate.run.leased_until = 0.0
        gate.publish([(name, b"x" * 60)])
        assert gate.run.state is RunState.EXECUTING
        gate.run.renew(math.inf)
        gate.publish([])

    assert gate.delivered == ["a", "b"]


async def test_lost_run_that_does_not_stop_keeps_no_events(gate: Gate):
    gate.run.leased_until = 0.0
    gate.publish([("a", b"1")])
    gate.run.lose()
    gate.publish([("b", b"2")])
    assert gate._waiting == []
