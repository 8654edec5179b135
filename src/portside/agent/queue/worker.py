"""The worker of this process: claims runs into free slots, keeps their leases and ends them.

It runs on the API's event loop and does no work of its own; graphs are executed elsewhere, behind `Work`. What it
claims it reports once, whatever happens: ended, handed back on shutdown, or dropped when the lease was lost.

Each renewal of the leases tells what is asked of the runs. One that is cancelled is stopped first; when it has really
stopped, `Work.settle` tells what its thread looks like, and that ends it.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Protocol
from uuid import UUID, uuid4

from prometheus_client import Counter, Gauge, Histogram

from portside.agent.encryption.context import begin_run
from portside.agent.queue import lifecycle
from portside.agent.queue.endings import Endings
from portside.agent.queue.leases import Leases
from portside.agent.queue.lifecycle import LEASE_S, NOTHING_HELD, Cancellation, ClaimedRun, Ending, Held
from portside.kernel.db import Database
from portside.kernel.logs import get_logger
from portside.kernel.outages import is_outage
from portside.kernel.reconcile import Driver

log = get_logger(__name__)
POLL_S = 1.0
HAND_BACK_AFTER_S = 5.0
CLOSED_WITHIN_S = 5.0
RUNNING = Gauge("lg_api_workers_active", "Runs being executed by this process.")
SLOTS = Gauge("lg_api_workers_max", "Runs this process may execute at once.")
ENDED = Counter("lg_api_runs_total", "Runs ended by this process.", ["status"])
DURATION = Histogram(
    "lg_api_run_duration_seconds",
    "Time from where this process began a run to its end, in seconds.",
    ["status"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400),
)
WAITED = Histogram(
    "lg_api_run_queue_wait_time_1st_attempt",
    "Time from where a run might start to where it was begun for the first time, in seconds.",
    buckets=(0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600),
)
RETRIED = Counter("lg_api_run_retries_total", "Runs that this process began again after another attempt was lost.")


class Work(Protocol):
    """What is to be done with a run that the worker holds."""

    async def execute(self, run: ClaimedRun, leases: Leases) -> Ending:
        """Execute it to its end; the leases tell whether it is surely ours still."""
        ...

    async def settle(self, run: ClaimedRun, cancellation: Cancellation) -> Ending:
        """Tell the end of one that has stopped because it was cancelled."""
        ...

    def on_end(self, run: ClaimedRun, ending: Ending | None) -> None:
        """Let those know who follow it; without an ending it goes on elsewhere."""
        ...


class Worker:
    """Executes up to `slots` runs at once."""

    def __init__(self, db: Database, work: Work, *, slots: int, draining: asyncio.Event) -> None:
        self.worker_id: UUID = uuid4()
        self.slots = slots
        self._db = db
        self._work = work
        self._leases = Leases(db, self.worker_id)
        self._endings = Endings(db, self.worker_id, self)
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._executing: set[UUID] = set()
        self._cancelled: dict[UUID, Cancellation] = {}
        self._lost: set[UUID] = set()
        self._wake = asyncio.Event()
        self._look = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._is_accepting = False
        # Slots that are spoken for, by runs that are being admitted or claimed.
        self._held = 0
        # Whether runs may wait that were not taken: no slot was free at the last look, or it failed.
        self._is_behind = False
        self._draining = draining
        self._chores = Driver([])
        SLOTS.set(slots)

    def start(self, chores: Driver) -> None:
        """Begin to claim runs, to renew leases and to do the queue's chores."""
        self._is_accepting = True
        self._chores = chores
        chores.start()
        self._loops = [asyncio.create_task(self._claim()), asyncio.create_task(self._renew())]

    def wake(self) -> None:
        """Say that there may be runs to claim."""
        self._wake.set()

    def look_for_cancels(self) -> None:
        """Say that runs were cancelled, maybe some of this worker's; without it they are noticed within a second."""
        self._look.set()

    @property
    def free_slots(self) -> int:
        """How many more runs may start now."""
        return max(0, self.slots - len(self._running) - self._held) if self._is_accepting else 0

    @contextlib.contextmanager
    def slot(self) -> Iterator[bool]:
        """Hold a slot for a run that is being admitted; tell whether there is one."""
        held = min(1, self.free_slots)
        self._held += held
        try:
            yield bool(held)
        finally:
            self._held -= held
            if self._is_behind:
                self._wake.set()

    def hold(self, ending: int) -> Held:
        """Hold the slots that are free, and those that so many runs leave, for what is claimed with their ends."""
        if not self._is_accepting or self._draining.is_set():
            return NOTHING_HELD
        free = self.free_slots
        self._held += free
        return Held(free + ending, free, looks=self._is_behind)

    def fill(self, held: Held, claimed: list[ClaimedRun], *, has_looked: bool) -> None:
        """Begin what was claimed for slots that were held."""
        self._held -= held.free
        for run in claimed:
            self.begin(run)
        if has_looked:
            self._is_behind = len(claimed) >= held.claims

    def give_back(self, run_id: UUID, attempt: int) -> None:
        """Return a run that nobody began to the queue."""
        self._leases.return_later(run_id, attempt)

    @property
    def is_working(self) -> bool:
        """Whether runs are claimed and leases renewed, or the worker has begun to stop."""
        return not self._is_accepting or not any(loop.done() for loop in self._loops)

    @property
    def busy_slots(self) -> int:
        """How many runs this worker holds."""
        return len(self._running)

    def begin(self, run: ClaimedRun) -> None:
        """Execute a run that this worker holds the lease of, or end it if it was cancelled before."""
        if run.cancellation is None and run.attempt > 1:
            RETRIED.inc()
        elif run.cancellation is None and not run.was_begun:
            WAITED.observe(run.waited_s)
        # A worker that was paused may claim a run that it lost and has not stopped yet.
        before = self._running.get(run.run_id)
        if before is not None:
            self._give_up(run.run_id)
        self._leases.take(run)
        self._running[run.run_id] = asyncio.create_task(self._run(run, before))
        RUNNING.set(len(self._running))

    async def ended(self, run_id: UUID, within_s: float) -> None:
        """Wait for the end of a run that this worker holds, or for some time."""
        task = self._running.get(run_id)
        if task is None:
            await asyncio.sleep(within_s)
        else:
            await asyncio.wait([task], timeout=within_s)

    async def drain(self, grace_s: float, hurry: asyncio.Event | None = None) -> None:
        """Take no more runs, let those under way end within the grace or until told to hurry, and hand the rest back.

        It takes at most HAND_BACK_AFTER_S and twice CLOSED_WITHIN_S longer than the grace, whatever nodes and the
        database do; runs that could not be handed back are found when their leases run out.
        """
        self._is_accepting = False
        await self._let_end(grace_s, hurry or asyncio.Event())
        left = dict(self._running)
        attempts = self._leases.attempts(left)
        for task in left.values():
            task.cancel()
        if left:
            await asyncio.wait(list(left.values()), timeout=HAND_BACK_AFTER_S)
            await self._hand_back(attempts)
        for loop in self._loops:
            loop.cancel()
        closing = [asyncio.create_task(self._chores.close()), *self._loops]
        await asyncio.wait(closing, timeout=CLOSED_WITHIN_S)

    async def _let_end(self, within_s: float, hurry: asyncio.Event) -> None:
        hurried = asyncio.create_task(hurry.wait())
        running, until = set(self._running.values()), time.monotonic() + within_s
        while running and not hurry.is_set() and (left_s := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait({*running, hurried}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            running -= done
        hurried.cancel()

    async def _hand_back(self, attempts: dict[UUID, int]) -> None:
        handing = asyncio.create_task(lifecycle.hand_back_runs(self._db, self.worker_id, attempts))
        await asyncio.wait([handing], timeout=CLOSED_WITHIN_S)
        failure = handing.exception() if handing.done() else TimeoutError("the database does not answer")
        if failure is not None:
            log.warning("runs were not handed back; their leases will run out", runs=len(attempts), reason=str(failure))
        else:
            log.info("runs handed back", runs=len(attempts))

    async def _claim(self) -> None:
        # A server that drains still executes what its last clients ask for, but takes nothing else from the queue.
        while not self._draining.is_set():
            self._is_behind = self.free_slots <= 0
            claimed = [] if self._is_behind else await self._claim_batch()
            if not claimed:
                await self._wait_for_work()

    async def _claim_batch(self) -> list[ClaimedRun]:
        held, claimed = self.hold(0), []
        try:
            claimed = await lifecycle.claim_runs(self._db, self.worker_id, held.claims)
        except Exception:
            log.exception("claiming failed")
            self._is_behind = True
        finally:
            self.fill(held, claimed, has_looked=False)
        return claimed

    async def _wait_for_work(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), POLL_S)
        self._wake.clear()

    async def _renew(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), LEASE_S / 5)
            self._look.clear()
            if held := list(self._running):
                await self._renew_held(held)
            await self._leases.hand_back_returning()

    async def _renew_held(self, held: list[UUID]) -> None:
        renewed = await self._leases.renew(held)
        if renewed is None:
            for run_id in self._leases.run_out(held):
                self._give_up(run_id)
            return
        for run_id in renewed.asked:
            cancellation = renewed.ours.get(run_id)
            if cancellation is not None and run_id not in self._cancelled and run_id in self._running:
                self._cancelled[run_id] = cancellation
                self._stop(run_id)
            # One that is just being ended may be missing because its end is committed and the answer on its way.
            elif run_id not in renewed.ours:
                self._give_up(run_id)

    def _give_up(self, run_id: UUID) -> None:
        """Stop a run that is not this worker's any more, or soon will not be."""
        if run_id in self._executing and run_id not in self._lost:
            self._lost.add(run_id)
            self._stop(run_id)

    def _stop(self, run_id: UUID) -> None:
        if run_id in self._executing:
            self._running[run_id].cancel()

    async def _execute_held(self, run: ClaimedRun) -> Ending:
        """Execute a run to its end, or to where it is cancelled."""
        if run.run_id not in self._cancelled:
            self._executing.add(run.run_id)
            try:
                return await self._work.execute(run, self._leases)
            except asyncio.CancelledError:
                if run.run_id not in self._cancelled or run.run_id in self._lost or not _goes_on():
                    raise
            finally:
                self._executing.discard(run.run_id)
        return await self._work.settle(run, self._cancelled[run.run_id])

    async def _end(self, run: ClaimedRun, ending: Ending) -> Ending | None:
        """Write the end of a run; None when the lease was lost and nothing was written."""
        ended = await self._endings.end(run, ending)
        if ended.outcome == "rollback":
            ending = await self._work.settle(run, Cancellation("rollback", ""))
            ended = await self._endings.end(run, ending)
        if ended.outcome != "ended":
            log.warning("a run ended after its lease was lost", run_id=str(run.run_id))
            return None
        return ending

    async def _run(self, run: ClaimedRun, before: asyncio.Task[None] | None) -> None:
        ending: Ending | None = None
        began = time.monotonic()
        begin_run(run.run_id, run.kwargs)
        try:
            if before is not None:
                await asyncio.wait([before])
            if run.cancellation is not None:
                self._cancelled[run.run_id] = run.cancellation
            ending = await self._end(run, await self._execute_held(run))
        except Exception as failure:  # noqa: BLE001 - dealt with there
            ending = await self._deal_with(failure, run)
        finally:
            if self._running.get(run.run_id) is asyncio.current_task():
                self._running.pop(run.run_id)
                self._leases.drop(run.run_id)
            if run.run_id in self._lost:
                self._leases.return_later(run.run_id, run.attempt)
            self._cancelled.pop(run.run_id, None)
            self._lost.discard(run.run_id)
            RUNNING.set(len(self._running))
            if ending is not None:
                ENDED.labels(ending.status).inc()
                DURATION.labels(ending.status).observe(time.monotonic() - began)
            self._work.on_end(run, ending)
            # Whatever else comes to wait is announced, or found by the look of each second.
            if self._is_behind:
                self._wake.set()

    async def _deal_with(self, failure: Exception, run: ClaimedRun) -> Ending | None:
        """Give back a run that the database failed; end one in an error that cannot be stored or ended otherwise."""
        if is_outage(failure):
            log.warning("a run stops until the database is well", run_id=str(run.run_id), reason=str(failure))
            self._leases.return_later(run.run_id, run.attempt)
            return None
        log.error("a run could not be ended", run_id=str(run.run_id), exc_info=failure)
        error = {"error": type(failure).__name__, "message": str(failure)}
        try:
            return await self._end(run, Ending(status="error", thread_status="error", error=error))
        except Exception:
            log.exception("a run could not be ended in an error either; its lease will run out", run_id=str(run.run_id))
            return None


def _goes_on() -> bool:
    """Take back the one cancellation that stopped the run; False when the worker itself is told to stop as well."""
    task = asyncio.current_task()
    return task is not None and task.uncancel() == 0
