"""The worker of this process: claims runs into free slots, renews their leases and ends them.

It runs on the API's event loop and executes nothing itself: a `RunHandler` executes the graphs elsewhere. The worker
reports each run that it claimed exactly once: ended, handed back on shutdown, or dropped because its lease was lost.

A lease also ends by the worker's own clock. A worker that cannot reach the database does not learn that another worker
was given its run, so it stops every run whose lease it could not renew in time. A run that stopped because the
database failed is returned to the queue when the database answers again; that is not counted as a lost attempt.

Each renewal returns the cancellations of the runs. The worker first stops a cancelled run. When its nodes have really
stopped, `RunHandler.finish_cancelled` reads the state of its thread, and the worker writes the end of the run.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, Protocol
from uuid import UUID, uuid4

from prometheus_client import Counter, Gauge, Histogram

from portside.agent.encryption.context import enter_run_context
from portside.agent.queue import statements
from portside.agent.queue.active_run import ActiveRun, AttemptLost, RunState
from portside.agent.queue.returns import ReturningRuns
from portside.agent.queue.statements import LEASE_S
from portside.agent.queue.types import (
    Cancellation,
    ClaimedRun,
    EndedRun,
    EndOutcome,
    FinishedRun,
    ReservedSlots,
    RunResult,
)
from portside.agent.types.runs import CancelAction, RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.kernel.batching import Batcher
from portside.kernel.db import Database
from portside.kernel.disk import DiskWatch
from portside.kernel.logs import get_logger
from portside.kernel.pool import background
from portside.kernel.reconcile import Driver
from portside.kernel.supervision import Supervision
from portside.kernel.timeouts import wait_at_most
from portside.kernel.transient_errors import is_transient, log_failure

log = get_logger(__name__)
# How often a worker looks for runs without a notification: normally, and while its server rests.
POLL_S = 1.0
RESTING_POLL_S = 60.0
# How long runs may take to stop before they are handed back, and the chores to close.
HAND_BACK_AFTER_S = 5.0
CLOSED_WITHIN_S = 5.0

RENEW_EVERY_S = LEASE_S / 5
# How long the renewal loop waits for a result before it looks at the clock, and when it sends another renewal instead.
RENEWAL_CHECK_S = LEASE_S / 10
RENEWAL_TIMEOUT_S = LEASE_S / 2
# Results with larger values are written alone, so that they do not delay the ends of other runs.
BATCHED_VALUES_LIMIT_BYTES = 64 * 1024

RUNNING = Gauge("lg_api_workers_active", "Runs being executed by this process.")
SLOTS = Gauge("lg_api_workers_max", "Runs this process may execute at once.")
ENDED = Counter("lg_api_runs_total", "Runs ended by this process.", ["status"])
DURATION = Histogram(
    "lg_api_run_duration_seconds",
    "Time from the start of a run in this process to its end, in seconds.",
    ["status"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400),
)
WAITED = Histogram(
    "lg_api_run_queue_wait_time_1st_attempt",
    "Time from when a run could start to its first start, in seconds.",
    buckets=(0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600),
)
RETRIED = Counter("lg_api_run_retries_total", "Runs that this process started again after another attempt was lost.")
# The metrics of one status. Cached, because the lookup costs more than the count.
_get_ended = cache(ENDED.labels)
_get_duration = cache(DURATION.labels)


class RunHandler(Protocol):
    """Executes the runs that the worker claims."""

    async def execute(self, run: ActiveRun) -> RunResult:
        """Execute a run to its end."""
        ...

    async def finish_cancelled(self, run: ClaimedRun, cancellation: Cancellation) -> RunResult:
        """Return the result of a run that stopped because it was cancelled."""
        ...

    async def flush_events(self) -> None:
        """Store the events of stopped runs, so that the next worker continues behind them."""
        ...

    def on_end(self, run: ClaimedRun, result: RunResult | None) -> None:
        """Notify the run's followers of its end. Without a result the run continues in another process."""
        ...


class Renewal(NamedTuple):
    """A renewal of leases that was sent to the database at `sent_at`, by this process's clock."""

    runs: list[ActiveRun]
    sent_at: float
    task: asyncio.Task[dict[UUID, Cancellation | None]]

    @property
    def is_late(self) -> bool:
        """Whether the database has not answered for too long."""
        return not self.task.done() and time.monotonic() - self.sent_at > RENEWAL_TIMEOUT_S


class Intake(NamedTuple):
    """What keeps a worker from taking runs: the end of its server, and a disk that is nearly full."""

    draining: asyncio.Event
    disk: DiskWatch | None = None


class Worker:
    """Executes up to `slots` runs at once."""

    def __init__(self, db: Database, handler: RunHandler, intake: Intake, *, slots: int, max_retries: int = 3) -> None:
        self.worker_id: UUID = uuid4()
        self.slots = slots
        """How many runs are executed at once."""
        self.ended_at = time.monotonic()
        """When the last run ended here, of the monotonic clock; at first when the worker began."""
        self.disk = intake.disk

        self._db = db
        self._handler = handler
        self._max_retries = max_retries
        self._draining = intake.draining
        self._is_accepting = False
        self._has_stopped = False

        self._active: dict[UUID, ActiveRun] = {}
        # Slots for runs that are being admitted or claimed.
        self._reserved = 0
        # Whether runs may be waiting in the queue: no slot was free at the last claim, or it failed.
        self._is_behind = False
        self._ends: Batcher[FinishedRun, EndedRun] = Batcher(self._write_ends)
        self._returns = ReturningRuns(db, self.worker_id)

        self._renewal: Renewal | None = None
        # When the last renewal that was answered was sent, by this process's clock.
        self._renewed_at = time.monotonic()
        self._renewal_due = asyncio.Event()
        self._claims_due = asyncio.Event()
        self._poll_s = POLL_S
        self._loops: list[asyncio.Task[None]] = []
        self._chores = Driver([])
        if intake.disk is not None:
            # Pending runs are claimed once there is room again.
            intake.disk.subscribe(on_change=self.wake, on_critical=self.suspend_runs)

        SLOTS.set(slots)
        RUNNING.set_function(lambda: len(self._active))

    def start(self, chores: Driver) -> None:
        """Start to claim runs, to renew leases and to do the queue's chores."""
        self._is_accepting = True
        self._chores = chores
        chores.start()

        self._loops = [
            asyncio.create_task(Supervision("claims of runs").run(self._claim_loop)),
            asyncio.create_task(Supervision("renewals of leases").run(self._renew_loop)),
        ]

    def set_slots(self, slots: int) -> None:
        """Execute up to this many runs at once from now on; those that are executed continue."""
        self.slots = slots
        SLOTS.set(slots)
        self.wake()

    def wake(self) -> None:
        """Claim runs now: some may be ready."""
        self._claims_due.set()

    def rest(self, *, is_resting: bool) -> None:
        """Look for runs less often while the server rests, or as often as before."""
        self._poll_s = RESTING_POLL_S if is_resting else POLL_S
        if not is_resting:
            self.wake()

    def check_cancellations(self) -> None:
        """Look now whether runs of this worker were cancelled; otherwise the next renewal finds them."""
        self._renewal_due.set()

    def renew_overdue(self) -> bool:
        """Whether this process stood still until leases of its runs ran out; then they are renewed now.

        Nobody else may have taken the runs: whoever sweeps expired leases in this process has to wait for the answer.
        """
        if time.monotonic() - self._renewed_at <= LEASE_S:
            return False

        is_overdue = any(not run.is_owned and run.state is not RunState.LOST for run in self._active.values())
        if is_overdue:
            self._renewal_due.set()

        return is_overdue

    @property
    def is_working(self) -> bool:
        """Whether the worker claims runs and renews leases, or has begun to stop."""
        return not self._is_accepting or not any(loop.done() for loop in self._loops)

    @property
    def busy_slots(self) -> int:
        """The number of runs this worker holds."""
        return len(self._active)

    @property
    def free_slots(self) -> int:
        """The number of runs that may start now."""
        return max(0, self.available_slots - self._reserved)

    @property
    def available_slots(self) -> int:
        """The number of slots without a run. Those for which runs are just being claimed count as well."""
        if not self._is_accepting or self.lacks_disk:
            return 0

        return max(0, self.slots - len(self._active))

    @property
    def lacks_disk(self) -> bool:
        """Whether the disk is nearly full, so that runs wait in the queue."""
        return self.disk is not None and self.disk.shortage is not None

    @contextlib.contextmanager
    def reserve_slot(self) -> Iterator[bool]:
        """Reserve a slot for a run that is being admitted. Yields whether one was free."""
        slots = min(1, self.free_slots)
        self._reserved += slots
        try:
            yield slots > 0
        finally:
            self._reserved -= slots
            if self._is_behind:
                self._claims_due.set()

    def begin(self, run: ClaimedRun) -> None:
        """Execute a run that this worker holds the lease of, or end it if it was cancelled before."""
        if self._has_stopped:
            # It was being admitted when the worker stopped, and nothing would renew its lease.
            self._returns.add(run.run_id, run.attempt)
            self._returns.start()
            self._handler.on_end(run, None)
            return

        active_run = ActiveRun(run)
        if active_run.cancellation is None and run.attempt > 1:
            RETRIED.inc()
        elif active_run.cancellation is None and not run.was_started:
            WAITED.observe(run.waited_s)

        # A worker that was paused may claim a run that it lost and has not stopped yet.
        previous = self._active.get(run.run_id)
        if previous is not None:
            previous.leased_until = 0.0
            previous.lose()

        self._active[run.run_id] = active_run
        active_run.task = asyncio.create_task(self._run(active_run, previous))

    def return_run(self, run_id: UUID, attempt: int, *, is_suspect: bool = False) -> None:
        """Return a run to the queue with the next renewal: it never started here, or was stopped by an outage."""
        self._returns.add(run_id, attempt, is_suspect=is_suspect)

    def suspend_runs(self) -> None:
        """Stop the runs being executed and return them to the queue; they resume from their last checkpoints."""
        runs = [run for run in self._active.values() if run.state is RunState.EXECUTING]
        if runs:
            log.warning("runs return to the queue: the disk is nearly full", runs=len(runs))

        for run in runs:
            run.lose()

    async def wait_for_end(self, run_id: UUID, timeout_s: float) -> None:
        """Wait for the end of a run that this worker executes, or for the timeout."""
        run = self._active.get(run_id)
        if run is None:
            await asyncio.sleep(timeout_s)
        else:
            await asyncio.wait([run.task], timeout=timeout_s)

    # Stopping

    async def drain(self, grace_s: float, hurry: asyncio.Event | None = None) -> None:
        """Take no more runs, let active ones end within the grace period or until `hurry` is set, hand the rest back.

        This takes at most HAND_BACK_AFTER_S, RETURNED_WITHIN_S of the returns and twice CLOSED_WITHIN_S longer than the
        grace period, whatever nodes and the database do. Runs that could not be handed back are released when their
        leases run out.
        """
        self._is_accepting = False
        await self._wait_for_runs(grace_s, hurry or asyncio.Event())
        self._has_stopped = True

        runs = list(self._active.values())
        for run in runs:
            run.task.cancel()

        if runs:
            await asyncio.wait([run.task for run in runs], timeout=HAND_BACK_AFTER_S)
            await asyncio.wait([asyncio.create_task(self._handler.flush_events())], timeout=CLOSED_WITHIN_S)

        await self._returns.finish({run.claimed.run_id: run.claimed.attempt for run in runs})

        for loop in self._loops:
            loop.cancel()

        closing = [asyncio.create_task(self._chores.close()), *self._loops]
        await asyncio.wait(closing, timeout=CLOSED_WITHIN_S)

    async def _wait_for_runs(self, grace_s: float, hurry: asyncio.Event) -> None:
        hurrying = asyncio.create_task(hurry.wait())
        running = {run.task for run in self._active.values()}
        deadline = time.monotonic() + grace_s

        while running and not hurry.is_set():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                break

            ended_tasks, _ = await asyncio.wait(
                {*running, hurrying}, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED
            )
            running -= ended_tasks

        hurrying.cancel()

    # Claims

    async def _claim_loop(self) -> None:
        # A draining server executes what its last clients ask for, but takes nothing else from the queue.
        is_woken = True
        while not self._draining.is_set():
            self._is_behind = self.free_slots <= 0
            if not self._is_behind:
                # A claim that no notification caused runs at low priority: it leaves connections to requests.
                with contextlib.nullcontext() if is_woken else background():
                    has_filled_slots = await self._claim()

                # Otherwise nothing is left to claim. Another look would reserve the free slots for its duration, and
                # the next admission would find none, wait in the queue and cause the look after that.
                if has_filled_slots:
                    is_woken = True
                    continue

            await wait_at_most(self._poll_s, self._claims_due.wait())

            is_woken = self._claims_due.is_set()
            self._claims_due.clear()

    async def _claim(self) -> bool:
        """Claim runs for all free slots and start them. Returns whether every slot got a run."""
        slots = self._reserve_slots(ending=0)
        runs: list[ClaimedRun] = []
        try:
            runs = await statements.claim_runs(self._db, self.worker_id, slots.limit)
        except Exception as failure:  # noqa: BLE001 - tried again in a second
            log_failure("claiming runs failed, and is tried again", failure)
            self._is_behind = True
        finally:
            self._fill_slots(slots, runs)

        return bool(runs) and len(runs) >= slots.limit

    def _reserve_slots(self, *, ending: int) -> ReservedSlots:
        """Reserve the free slots, and those that `ending` runs leave, for runs that are claimed with their ends."""
        if not self._is_accepting or self._draining.is_set() or self.lacks_disk:
            return ReservedSlots()

        free = self.free_slots
        # Slots may have become fewer than the runs.
        missing = max(0, len(self._active) + self._reserved - self.slots)
        self._reserved += free

        return ReservedSlots(limit=max(0, free + ending - missing), free=free, always_claim=self._is_behind)

    def _fill_slots(self, slots: ReservedSlots, runs: list[ClaimedRun]) -> None:
        """Start claimed runs in the reserved slots."""
        self._reserved -= slots.free
        for run in runs:
            self.begin(run)

    # Leases

    async def _renew_loop(self) -> None:
        while True:
            await wait_at_most(RENEW_EVERY_S, self._renewal_due.wait())

            self._renewal_due.clear()
            if self._active:
                await self._renew_leases()

            self._returns.start()

    async def _renew_leases(self) -> None:
        renewal = self._send_renewal()
        await asyncio.wait([renewal.task], timeout=RENEWAL_CHECK_S)

        cancellations = self._get_cancellations(renewal)
        if cancellations is None:
            self._lose_expired_runs()
            return

        for run in renewal.runs:
            run_id = run.claimed.run_id
            if self._active.get(run_id) is not run:
                continue

            if run_id not in cancellations:
                # The run is another worker's, or deleted.
                run.lose()
                continue

            run.renew(renewal.sent_at + LEASE_S)
            cancellation = cancellations[run_id]
            if cancellation is not None:
                run.cancel(cancellation)

    def _lose_expired_runs(self) -> None:
        now = time.monotonic()
        for run in list(self._active.values()):
            if run.leased_until < now:
                run.lose()

    def _send_renewal(self) -> Renewal:
        """Return the renewal under way, or send one. One that takes too long is replaced."""
        renewal = self._renewal
        if renewal is not None and renewal.is_late:
            # Not awaited: a call on a dead connection may not even notice that it is cancelled.
            renewal.task.cancel()
            renewal.task.add_done_callback(_retrieve_exception)
            renewal = None

        if renewal is None:
            runs = list(self._active.values())
            call = statements.renew_leases(self._db, self.worker_id, [run.claimed.run_id for run in runs])
            renewal = Renewal(runs, sent_at=time.monotonic(), task=asyncio.create_task(call))
            self._renewal = renewal

        return renewal

    def _get_cancellations(self, renewal: Renewal) -> dict[UUID, Cancellation | None] | None:
        """Return the runs that are still this worker's, with their cancellations; None if there is no result yet."""
        if not renewal.task.done():
            log.warning("leases are not renewed yet: the database does not answer")
            return None

        self._renewal = None
        failure = renewal.task.exception()
        if failure is not None:
            log.warning("leases could not be renewed", reason=f"{type(failure).__name__}: {failure}")
            return None

        self._renewed_at = renewal.sent_at
        return renewal.task.result()

    # Execution

    async def _run(self, run: ActiveRun, previous: ActiveRun | None) -> None:
        claimed = run.claimed
        if self._db.codec is not None:
            enter_run_context(claimed.run_id, claimed.kwargs)

        result: RunResult | None = None
        try:
            if previous is not None:
                await asyncio.wait([previous.task])

            result = await self._end(claimed, await self._execute(run))
        except Exception as failure:  # noqa: BLE001 - handled there
            # Nothing is written of a lost run, however it stopped. It returns to the queue below.
            if run.state is not RunState.LOST:
                result = await self._handle_failure(claimed, failure)
        finally:
            run.leased_until = 0.0
            if self._active.get(claimed.run_id) is run:
                del self._active[claimed.run_id]

            if run.state is RunState.LOST:
                log.warning("a run was stopped: its lease was lost or ran out", run_id=str(claimed.run_id))
                self.return_run(claimed.run_id, claimed.attempt)

            self.ended_at = time.monotonic()
            if result is not None:
                _get_ended(result.status).inc()
                _get_duration(result.status).observe(time.monotonic() - run.started_at)

            self._handler.on_end(claimed, result)

            # Runs that come later are announced, or found by the periodic claim.
            if self._is_behind:
                self._claims_due.set()

    async def _execute(self, run: ActiveRun) -> RunResult:
        """Execute a run until it ends or is cancelled. Raises CancelledError if it is lost or the worker stops."""
        if run.cancellation is None:
            run.state = RunState.EXECUTING
            try:
                return await self._handler.execute(run)
            except asyncio.CancelledError:
                # Take back the one cancellation that stopped the run. More are left when the worker itself stops.
                task = asyncio.current_task()
                if run.state is not RunState.CANCELLING or task is None or task.uncancel() > 0:
                    raise
            finally:
                if run.state is not RunState.LOST:
                    run.state = RunState.ENDING

        run.state = RunState.ENDING
        assert run.cancellation is not None  # noqa: S101 - only a cancelled run comes here
        return await self._handler.finish_cancelled(run.claimed, run.cancellation)

    async def _handle_failure(self, run: ClaimedRun, failure: Exception) -> RunResult | None:
        """Return a run to the queue when the database failed; end it with an error after any other failure."""
        if isinstance(failure, AttemptLost):
            return await self._lose_attempt(run, failure)

        if is_transient(failure):
            log_failure(
                "a run is interrupted and resumes when the database answers again", failure, run_id=str(run.run_id)
            )
            self.return_run(run.run_id, run.attempt)
            return None

        log.error("a run could not be ended", run_id=str(run.run_id), exc_info=failure)
        error = {"error": type(failure).__name__, "message": str(failure)}
        try:
            return await self._end(
                run, RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=error)
            )
        except Exception:
            log.exception("a run could not be ended with an error; its lease will run out", run_id=str(run.run_id))
            return None

    async def _lose_attempt(self, run: ClaimedRun, failure: AttemptLost) -> RunResult | None:
        """Let a run be tried again, or end it with an error after too many lost attempts."""
        log.warning("an attempt at a run was lost", run_id=str(run.run_id), attempt=run.attempt, reason=str(failure))
        if not failure.is_counted:
            self.return_run(run.run_id, run.attempt, is_suspect=failure.is_suspect)
            return None

        try:
            attempts = await statements.lose_attempt(self._db, self.worker_id, run, max_retries=self._max_retries)
            if attempts is None:
                return None

            message = f"the worker was lost {attempts} times while executing this run; the last time {failure}"
            error = {"error": "WorkerLost", "message": message}
            return await self._end(
                run, RunResult(status=RunStatus.ERROR, thread_status=ThreadStatus.ERROR, error=error)
            )
        except Exception as exc:  # noqa: BLE001 - the sweep does it
            log_failure("a lost attempt could not be released; its lease will run out", exc, run_id=str(run.run_id))
            return None

    # Ends

    async def _end(self, run: ClaimedRun, result: RunResult) -> RunResult | None:
        """Write the end of a run; None when the lease was lost and nothing was written."""
        ended_run = await self.end_run(run, result)
        if ended_run.outcome is EndOutcome.ROLLBACK:
            # A client asked for the rollback while the run ended.
            result = await self._handler.finish_cancelled(run, Cancellation(CancelAction.ROLLBACK, ""))
            ended_run = await self.end_run(run, result)

        if ended_run.outcome is not EndOutcome.ENDED:
            log.warning("a run ended after its lease was lost", run_id=str(run.run_id))
            return None

        return result

    async def end_run(self, run: ClaimedRun, result: RunResult) -> EndedRun:
        """Write the end of a run, with others that end at the same moment; large values and encrypted ones go alone."""
        finished_run = FinishedRun(run, result)
        is_small = len(result.values or b"") <= BATCHED_VALUES_LIMIT_BYTES
        if is_small and self._db.codec is None:
            ended_run = await self._ends.submit(finished_run)
            if ended_run.outcome is not EndOutcome.LOCKED:
                return ended_run

        (ended_run,) = await self._write_ends([finished_run], wait=True)
        return ended_run

    async def _write_ends(self, finished_runs: list[FinishedRun], *, wait: bool = False) -> list[EndedRun]:
        """Write ends, and claim runs in the same statement for the slots that they leave."""
        slots = self._reserve_slots(ending=len(finished_runs))
        ended_runs: list[EndedRun] = []
        next_runs: list[ClaimedRun] = []
        try:
            ended_runs, next_runs = await statements.end_runs(
                self._db, self.worker_id, finished_runs, slots=slots, wait=wait
            )
        finally:
            self._fill_slots(slots, next_runs)

            has_claimed = bool(ended_runs) and (slots.always_claim or any(run.has_next for run in ended_runs))
            if has_claimed:
                self._is_behind = len(next_runs) >= slots.limit

        return ended_runs


def _retrieve_exception(task: asyncio.Task[dict[UUID, Cancellation | None]]) -> None:
    """Retrieve the exception of an abandoned renewal, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
