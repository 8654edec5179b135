"""An executor that does not answer is killed, unless there is a reason for its silence."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.executors import member
from portside.agent.executors.member import Executor, ExecutorFailed
from portside.agent.queue.active_run import ActiveRun
from portside.agent.queue.types import ClaimedRun
from portside.executor import messages
from portside.executor.link import CALL, CANCEL, ERROR, PONG, RESULT, Link
from portside.executor.messages import ExecutorHello, Pong
from tests.unit.executor_peer import Peer

# Powers of two, so that sums of them are exact.
ROUND_S = 1 / 128
SILENT_ROUNDS = 4
HEARTBEAT_S = SILENT_ROUNDS * ROUND_S
MOST_ROUNDS = 100
AGES_S = 3600.0
KILLED = "did not answer for 0.03125 s"


class CountedLink(Link):
    """A link that counts the rounds in which the server waits in vain for a pong, and can be paused for the first."""

    rounds = 0
    paused_rounds = 0
    answered_in_round: int | None = None
    peer: Peer

    @property
    def is_reading_paused(self) -> bool:
        """Whether this side reads nothing; the server asks once in each round."""
        self.rounds += 1
        if self.rounds == MOST_ROUNDS:
            self.abort("the test ends, because the server has not killed the executor")

        if self.rounds == self.answered_in_round:
            self.peer.send(PONG, 0, Pong(memory_bytes=7))

        return self.rounds <= self.paused_rounds

    @is_reading_paused.setter
    def is_reading_paused(self, value: bool) -> None:
        pass


class SilentExecutor(Executor):
    """An executor that answers nothing by itself, and serves one call."""

    link: CountedLink

    def __init__(self, language: str, heartbeat_s: float = HEARTBEAT_S) -> None:
        link = CountedLink({})
        link.peer = Peer(link)
        hello = ExecutorHello(protocol=1, language=language, pid=1)
        super().__init__(link, hello, name="silent", heartbeat_s=heartbeat_s)

        self.calls = 1


@pytest.fixture(autouse=True)
def _rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "PING_EVERY_S", ROUND_S)


def from_now(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_silent_executor_is_killed() -> None:
    executor = SilentExecutor("Python")
    await executor._beat()
    assert await executor.link.wait_closed() == KILLED
    assert executor._killed_because == KILLED
    assert executor.link.rounds == SILENT_ROUNDS


async def test_a_run_is_no_reason_for_the_silence_of_a_python_executor() -> None:
    """Its link has a thread of its own, which answers while a node computes."""
    executor = SilentExecutor("Python")
    executor.deadlines[1] = from_now(AGES_S)
    await executor._beat()
    assert executor._killed_because == KILLED
    assert not executor.went_silent.is_set()


async def test_executor_is_not_silent_while_this_server_reads_nothing() -> None:
    executor = SilentExecutor("Python")
    executor.link.paused_rounds = 3 * SILENT_ROUNDS
    await executor._beat()
    assert executor._killed_because == KILLED
    assert executor.link.rounds == executor.link.paused_rounds + SILENT_ROUNDS


async def test_an_answer_ends_the_silence() -> None:
    executor = SilentExecutor("Python")
    executor.link.answered_in_round = SILENT_ROUNDS - 1
    await executor._beat()
    assert executor.memory_bytes == 7
    assert executor.link.rounds == SILENT_ROUNDS - 1 + SILENT_ROUNDS


async def test_javascript_executor_that_a_run_blocks_is_replaced_instead_of_killed() -> None:
    executor = SilentExecutor("JavaScript (Node.js)")
    executor.deadlines[1] = from_now(AGES_S)
    beats = asyncio.create_task(executor._beat())
    await asyncio.wait(
        [beats, silent := asyncio.ensure_future(executor.went_silent.wait())], return_when="FIRST_COMPLETED"
    )
    assert silent.done()

    assert executor.is_retiring
    assert not executor.link.is_closed

    # It goes on computing until its run is over its time limit.
    executor.deadlines[1] = from_now(-AGES_S)
    await beats
    assert executor._killed_because is not None


async def test_javascript_executor_without_a_run_is_killed() -> None:
    executor = SilentExecutor("JavaScript (Node.js)")
    await executor._beat()
    assert executor._killed_because == KILLED
    assert not executor.went_silent.is_set()


async def test_javascript_executor_whose_run_is_over_its_time_limit_is_killed() -> None:
    executor = SilentExecutor("JavaScript (Node.js)")
    executor.deadlines = {1: from_now(AGES_S), 2: from_now(-AGES_S)}
    await executor._beat()
    assert executor._killed_because == KILLED
    assert not executor.is_retiring


async def test_javascript_executor_has_a_while_to_end_a_run_that_is_over_its_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member, "ENDS_WITHIN_S", 2 * AGES_S)
    executor = SilentExecutor("JavaScript (Node.js)", heartbeat_s=2 * AGES_S)
    executor.deadlines[1] = from_now(-AGES_S)
    assert executor._is_busy()
    executor.deadlines[1] = from_now(-3 * AGES_S)
    assert not executor._is_busy()


async def cancel_call(executor: SilentExecutor) -> "asyncio.Task[None]":
    """Return a call that the executor was sent, and whose caller has cancelled it."""
    call = asyncio.create_task(executor.unless_silent(executor.link.call(messages.EXECUTE)))
    assert await executor.link.peer.next_frame() == (CALL, 1)
    call.cancel()
    assert await executor.link.peer.next_frame() == (CANCEL, 1)
    return call


async def test_javascript_executor_that_does_not_end_a_cancelled_run_is_killed() -> None:
    executor = SilentExecutor("JavaScript (Node.js)")
    executor.deadlines[1] = from_now(AGES_S)
    call = await cancel_call(executor)
    await executor._beat()
    assert executor._killed_because is not None

    with pytest.raises(asyncio.CancelledError):
        await call


async def test_javascript_executor_that_has_ended_a_cancelled_run_may_compute_another() -> None:
    executor = SilentExecutor("JavaScript (Node.js)", heartbeat_s=0.0)
    executor.deadlines[1] = from_now(AGES_S)
    call = await cancel_call(executor)
    executor.link.peer.send(ERROR, 1, {"code": "cancelled", "message": "the call was cancelled"})

    with pytest.raises(asyncio.CancelledError):
        await call

    assert executor._is_busy()


async def test_call_that_a_blocked_executor_has_not_begun_fails() -> None:
    """Another executor serves it then."""
    executor = SilentExecutor("JavaScript (Node.js)")
    call = asyncio.create_task(executor.unless_silent(executor.link.call(messages.EXECUTE)))
    assert await executor.link.peer.next_frame() == (CALL, 1)
    executor.went_silent.set()

    with pytest.raises(ExecutorFailed, match="is blocked by a node"):
        await call

    # The executor is told to leave the call out when its loop runs again.
    assert await executor.link.peer.next_frame() == (CANCEL, 1)


@pytest.mark.parametrize(("language", "has_begun"), [("JavaScript (Node.js)", True), ("Python", False)])
async def test_other_calls_wait_for_the_answer_of_a_silent_executor(language: str, *, has_begun: bool) -> None:
    executor = SilentExecutor(language)
    executor.went_silent.set()
    call = asyncio.create_task(executor.unless_silent(executor.link.call(messages.EXECUTE), lambda: has_begun))
    assert await executor.link.peer.next_frame() == (CALL, 1)
    executor.link.peer.send(RESULT, 1, "an answer")
    assert await call == "an answer"


async def test_a_lease_ends_by_the_clock_of_the_executor_no_later_than_here() -> None:
    """What its clock showed is old when it arrives: the message that took least says most about it."""
    executor = SilentExecutor("Python")
    now = time.monotonic()
    assert executor.clock_s(now) == 0.0
    for delay_s in (500.0, 0.0, 1000.0):
        executor._clock.observe(now + 10_000.0 - delay_s)

    assert now + 9_900.0 < executor.clock_s(now) <= now + 10_000.0


async def test_only_leases_that_are_surely_held_are_sent_to_an_executor() -> None:
    executor = SilentExecutor("Python")
    executor._clock.observe(time.monotonic())
    sent: list[Any] = []

    async def call(_method: str, body: Any) -> None:
        sent.append(body)

    executor.link.call = call  # type: ignore[method-assign,assignment]
    for number, left_s in ((1, 3600.0), (2, -1.0)):
        fields = {"kwargs": {}, "attempt": 1, "is_temporary": False}
        run = ActiveRun(ClaimedRun(run_id=uuid4(), thread_id=uuid4(), assistant_id=uuid4(), **fields))
        run.leased_until = time.monotonic() + left_s
        executor.leased_runs[number] = run

    executor.send_leases()
    executor.send_leases()
    for _ in range(3):
        await asyncio.sleep(0)

    assert [[number for number, _ in message.leases] for message in sent] == [[1]]
