"""The state changes of a run, each one statement: admit, claim, renew, cancel, end, hand back.

The cancellation of a started run is stored on its row; its worker reads it with the next renewal of the lease. A run
that was never started is ended by the database, in the statement that cancels it.

`ReturningRuns` hands runs back. The tasks at the end are the queue's periodic chores: expired leases, threads of ended
stateless runs, old idempotency keys. Every process may run them at once: each batch skips rows that another process has
locked.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import UUID

import msgspec
from prometheus_client import Counter, Histogram

from portside.agent.encryption.context import stored_context
from portside.agent.sql import sql
from portside.agent.types.access import Filter
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Session
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.timeouts import timeout
from portside.kernel.user_json import dump_jsonb, without_nul

log = get_logger(__name__)
LEASE_S = 5.0
# A healthy database is much faster. One that does not answer must not occupy a run or a slot for longer.
STATEMENT_TIMEOUT_S = 15.0
# How long a worker that stops waits until its runs have returned to the queue.
RETURNED_WITHIN_S = 5.0
LONGEST_DELAY_S = 60.0
_STATEMENT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ADMISSIONS = Histogram("lg_api_run_admission_seconds", "Time to admit a run, in seconds.", buckets=_STATEMENT_S)
CLAIMS = Histogram("lg_api_run_claim_seconds", "Time to claim a batch of runs, in seconds.", buckets=_STATEMENT_S)
EXPIRED = Counter("lg_api_leases_expired_total", "Leases that ran out and were swept by this process.", ["outcome"])
# A statement locks the threads of the runs that it cancels, so it must be short.
THREADS_AT_ONCE = 200
# With these strategies a new run cancels the runs before it.
SUPERSEDING = frozenset({"interrupt", "rollback"})
# The result of a run that is rolled back while a client waits for it.
RUN_NOT_FOUND_RESULT = dump_api({"__error__": {"error": "HTTPException", "message": "404: Run not found"}})


class Cancellation(NamedTuple):
    """A request to stop a run: `interrupt` keeps its checkpoints, `rollback` removes them. `reason` is for people."""

    action: str
    reason: str


class ClaimedRun(msgspec.Struct, kw_only=True):
    """A run that this worker holds a lease on.

    `was_started`: an earlier attempt may have left checkpoints. `waited_s`: how long it could have been executed before
    it was claimed. `is_streamed_elsewhere`: a client of another process follows it from its creation. `is_suspect`: an
    executor crashed with it.
    """

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    kwargs: dict[str, Any]
    attempt: int
    is_temporary: bool
    was_started: bool = False
    cancel_action: str | None = None
    cancel_reason: str | None = None
    waited_s: float = 0.0
    is_streamed_elsewhere: bool = False
    is_suspect: bool = False

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt may have left checkpoints."""
        return self.was_started or self.attempt > 1

    @property
    def is_ephemeral(self) -> bool:
        """Whether this is the only attempt on a temporary thread: it has no checkpoints, and may need none."""
        return self.is_temporary and not self.is_retry

    @property
    def cancellation(self) -> Cancellation | None:
        """The cancellation that was requested before the run was claimed."""
        return None if self.cancel_action is None else Cancellation(self.cancel_action, self.cancel_reason or "")


class RequestKey(NamedTuple):
    """An idempotency key: unique in its scope, with a digest of the request, and the run's index in a batch."""

    scope: UUID
    key: str
    digest: str
    batch_index: int = 0


class AssistantChanged(Exception):
    """The assistant changed after the admission was prepared; nothing was admitted."""


class Admission(msgspec.Struct, kw_only=True):
    """A run to be admitted to its thread.

    The run's metadata is `inherited`, overridden by the thread's, overridden by `metadata`. `assistant_updated_at` is
    the time of the assistant's last change as this process read it. Where authorization rules apply, the thread must
    match `access`, and `new_thread` is the metadata of a thread that is made for the run. While it waits, the run
    counts towards the limit of `caller`. With `starts` it starts under this worker's lease when no run is before it.
    With `is_awaited` a client of this process waits for the result, so a stateless run's thread is deleted when the run
    ends; otherwise a minute later. With `is_streamed` that client follows the run's events.
    """

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    metadata: dict[str, Any]
    kwargs: dict[str, Any]
    strategy: str
    thread_metadata: dict[str, Any]
    create_thread: bool
    temporary: bool
    delay_s: float
    inherited: dict[str, Any] = {}
    thread_config: dict[str, Any] = {}
    priority: int = 0
    key: RequestKey | None = None
    assistant_updated_at: str | None = None
    access: Filter | None = None
    new_thread: dict[str, Any] | None = None
    caller: str | None = None
    starts: bool = False
    is_awaited: bool = False
    is_streamed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the form that the database function `admit_run` reads; the access filter is passed beside it."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "access"}
        if self.key is not None:
            values |= dict(zip(("key_scope", "key", "digest", "key_index"), self.key, strict=True))

        # A driver may return UUIDs of a class of its own, which the encoder of JSON values does not know.
        return {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}


class Admitted(msgspec.Struct):
    """The outcome of an admission: `pending`, `running`, `busy`, `missing`, `locked`; with a key `repeated`, `reused`.

    The ids are those of the run that the key was first used for. The metadata is the run's complete metadata.
    """

    outcome: str
    attempt: int
    created_at: Any
    run_id: UUID
    thread_id: UUID
    metadata: dict[str, Any]


class RunResult(msgspec.Struct, kw_only=True):
    """How a run ended, and the state of its thread from then on; `values` is JSON.

    A `rolled_back` run leaves no row. Without a thread status the thread stays as it was.
    """

    status: Literal["success", "error", "timeout", "interrupted", "rolled_back"]
    thread_status: Literal["idle", "interrupted", "error"] | None
    values: bytes | None = None
    row_values: bytes | None = None
    """The values without `long_values`, which are lists in a checkpoint: the versions of their channels."""
    long_values: dict[str, str] | None = None
    interrupts: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def as_json(self) -> bytes:
        """Return what a waiting client receives: the final values as JSON, or the error."""
        if self.status == "rolled_back":
            return RUN_NOT_FOUND_RESULT
        if self.error is not None and self.status == "error":
            return dump_api({"__error__": self.error})

        return self.values or b"null"


class EndOutcome(NamedTuple):
    """The outcome of ending a run: `ended`, `lost`, `rollback` or `locked`. Only `ended` wrote anything.

    `has_next`: its thread has other runs, one of which may be ready now.
    """

    outcome: str
    has_next: bool


class ReservedSlots(NamedTuple):
    """Slots of a worker that are reserved while runs end, so that runs can be claimed for them in the same statement.

    At most `limit` runs may be claimed; `free` of these slots were free before. Without `always_claim`, runs are
    claimed only when a thread of the ended runs has another run: a claim costs an index scan.
    """

    limit: int
    free: int
    always_claim: bool


NO_SLOTS = ReservedSlots(0, 0, always_claim=False)


class FinishedRun(NamedTuple):
    """A run whose execution is over, and its result."""

    run: ClaimedRun
    result: RunResult


class CancelledRun(msgspec.Struct):
    """The outcome of a cancellation: `stopping` under a worker, or already `interrupted` or `deleted`."""

    thread_id: UUID
    run_id: UUID
    outcome: str


class CancelScope(msgspec.Struct, kw_only=True):
    """The runs to cancel: some of one thread, those of an assistant, or all with one of the statuses."""

    thread_id: UUID | None = None
    run_ids: list[UUID] | None = None
    assistant_id: UUID | None = None
    statuses: list[str] = msgspec.field(default_factory=lambda: ["pending", "running"])


class DeletedRun(NamedTuple):
    """The outcome of a deletion. A run that had ended is `claimed` by this worker, which rolls it back."""

    outcome: str
    claimed: ClaimedRun | None


async def admit_runs(
    db: Session, admissions: Sequence[Admission], worker_id: UUID, *, wait: bool = True
) -> list[Admitted | None]:
    """Admit runs, all or none. None stands for a run whose assistant has changed since it was read.

    Without `wait` a run whose thread another transaction has locked is `locked`, and not admitted.
    """
    if db.codec is not None:
        for admission in admissions:
            admission.kwargs |= stored_context()

    access = [None if admission.access is None else dump_api(admission.access).decode() for admission in admissions]
    with ADMISSIONS.time():
        async with timeout(STATEMENT_TIMEOUT_S):
            rows = await db.fetch(
                sql.admit_runs,
                admissions=[admission.as_json() for admission in admissions],
                access_filters=access,
                worker_id=worker_id,
                lease_s=LEASE_S,
                wait=wait,
            )

    return [None if row["outcome"] is None else Admitted(**dict(row)) for row in rows]


async def claim_runs(db: Database, worker_id: UUID, limit: int) -> list[ClaimedRun]:
    """Claim up to `limit` runs in the order of their queue positions: the oldest first, moved by their priority."""
    with CLAIMS.time():
        async with timeout(STATEMENT_TIMEOUT_S):
            rows = await db.fetch(sql.claim_runs, worker_id=worker_id, lease_s=LEASE_S, limit=limit)

    return [ClaimedRun(**dict(row)) for row in rows]


async def renew_leases(db: Database, worker_id: UUID, run_ids: Sequence[UUID]) -> dict[UUID, Cancellation | None]:
    """Renew the leases of these runs. Returns the runs that are still this worker's, each with its cancellation."""
    rows = await db.fetch(sql.renew_leases, worker_id=worker_id, lease_s=LEASE_S, run_ids=list(run_ids))
    return {
        row["run_id"]: Cancellation(row["cancel_action"], row["cancel_reason"] or "") if row["cancel_action"] else None
        for row in rows
    }


async def end_runs(
    db: Database,
    worker_id: UUID,
    finished: Sequence[FinishedRun],
    slots: ReservedSlots = NO_SLOTS,
    *,
    wait: bool = False,
) -> tuple[list[EndOutcome], list[ClaimedRun]]:
    """End runs and unblock the next ones of their threads, then claim runs for the reserved slots.

    Without `wait` a run whose thread another transaction has locked is `locked`, and has not ended.
    """
    rare: dict[str, list[str | None] | None] = {
        "interrupts": [_json_text(result.interrupts) for _, result in finished],
        "errors": [_json_text(result.error) for _, result in finished],
        "long_values": [_json_text(result.long_values) for _, result in finished],
        "webhook_values": [_webhook_values(*one) for one in finished],
    }

    if db.codec is None:
        # The driver encodes each item of a list; null in place of a list without values saves that.
        rare = {name: column if any(column or ()) else None for name, column in rare.items()}

    async with timeout(STATEMENT_TIMEOUT_S):
        rows = await db.fetch(
            sql.end_runs,
            worker_id=worker_id,
            run_ids=[run.run_id for run, _ in finished],
            thread_ids=[run.thread_id for run, _ in finished],
            attempts=[run.attempt for run, _ in finished],
            statuses=[result.status for _, result in finished],
            thread_statuses=[result.thread_status for _, result in finished],
            values=[_thread_values(result) for _, result in finished],
            **rare,
            wait=wait,
            lease_s=LEASE_S,
            claim_limit=slots.limit,
            always_claim=slots.always_claim,
        )

    # One row for each ended run, then one for each claimed run, which has no values in the first two columns.
    ended = [EndOutcome(row["outcome"], row["has_next"]) for row in rows[: len(finished)]]
    return ended, [ClaimedRun(**dict(list(row.items())[2:])) for row in rows[len(finished) :]]


async def cancel_runs(db: Database, scope: CancelScope, cancellation: Cancellation) -> list[CancelledRun]:
    """Cancel the runs of a scope, THREADS_AT_ONCE threads per statement. Returns those that had not ended yet."""
    found: list[CancelledRun] = []
    after: UUID | None = None
    while True:
        rows = await db.fetch(
            sql.cancel_runs,
            **msgspec.structs.asdict(scope),
            **cancellation._asdict(),
            after=after,
            limit=THREADS_AT_ONCE,
        )

        found += [CancelledRun(**dict(row)) for row in rows]
        if scope.thread_id is not None or not rows:
            return found

        after = found[-1].thread_id


async def delete_run(db: Database, worker_id: UUID, thread_id: UUID, run_id: UUID) -> DeletedRun:
    """Delete a run that never started; cancel one that is executed; claim one that has ended, to be rolled back."""
    cancellation = Cancellation("rollback", "run deleted")
    row = await db.fetchrow(
        sql.delete_run,
        run_id=run_id,
        thread_id=thread_id,
        worker_id=worker_id,
        lease_s=LEASE_S,
        reason=cancellation.reason,
    )

    assert row is not None  # noqa: S101 - the function always returns one row
    outcome, *columns = row.values()
    if outcome != "reopened":
        return DeletedRun(outcome, None)

    assistant_id, kwargs, attempt, is_temporary = columns
    claimed = ClaimedRun(
        run_id=run_id,
        thread_id=thread_id,
        assistant_id=assistant_id,
        kwargs=kwargs,
        attempt=attempt,
        is_temporary=is_temporary,
        was_started=True,
        cancel_action=cancellation.action,
        cancel_reason=cancellation.reason,
    )

    return DeletedRun(outcome, claimed)


async def keep_result(db: Database, worker_id: UUID, run_id: UUID) -> None:
    """Keep the result of a stateless run of another process for a minute after its end."""
    await db.execute(sql.keep_result, worker_id=worker_id, run_id=run_id)


def _webhook_values(run: ClaimedRun, result: RunResult) -> str | None:
    """Return the whole values for a run's webhook, if the thread's row will lack some of them."""
    if result.long_values is None or not run.kwargs.get("webhook"):
        return None
    return _thread_values(msgspec.structs.replace(result, row_values=None))


def _thread_values(result: RunResult) -> str | None:
    """Return the values a thread keeps: open interrupts are stored beside them, not in them."""
    if result.values is None:
        return None
    if result.row_values is not None:
        return without_nul(result.row_values).decode()

    values = result.values
    if result.interrupts:
        values = dump_api({key: value for key, value in load(values).items() if key != "__interrupt__"})

    return without_nul(values).decode()


def _json_text(document: dict[str, Any] | None) -> str | None:
    return None if document is None else dump_jsonb(document)


async def has_own_checkpoint(db: Database, run: ClaimedRun) -> bool:
    """Whether an earlier attempt at this run left a checkpoint to resume from."""
    found: bool = await db.fetchval(sql.has_own_checkpoint, thread_id=str(run.thread_id), run_id=str(run.run_id))
    return found


async def hand_back_runs(
    db: Database, worker_id: UUID, attempts: Mapping[UUID, int], *, delay_s: float = 0.0, is_suspect: bool = False
) -> None:
    """Return runs, each with its attempt, to the queue; they continue from their last checkpoints."""
    async with timeout(STATEMENT_TIMEOUT_S):
        await db.execute(
            sql.hand_back_runs,
            worker_id=worker_id,
            run_ids=list(attempts),
            attempts=list(attempts.values()),
            delay_s=delay_s,
            is_suspect=is_suspect,
        )


async def lose_attempt(db: Database, worker_id: UUID, run: ClaimedRun, *, max_retries: int) -> int | None:
    """Let the lease of a lost attempt run out now, so that the next sweep counts it and releases the run.

    Returns how many attempts were lost if the run may not be tried again, and then leaves its lease as it is.
    """
    async with timeout(STATEMENT_TIMEOUT_S):
        attempts: int | None = await db.fetchval(
            sql.lose_attempt, worker_id=worker_id, run_id=run.run_id, attempt=run.attempt, max_retries=max_retries
        )

    return attempts


class ReturningRuns:
    """The attempts that one worker has to return to the queue; they continue from their last checkpoints.

    A run returns because it never started here, because the database or an executor failed, because its lease was lost,
    or because the worker stops. The worker notes an attempt at once and returns it with the next renewal of its leases,
    until the database answers. An attempt that is never returned, because the process is killed, ends with its lease,
    and counts as lost.
    """

    def __init__(self, db: Database, worker_id: UUID) -> None:
        self._db = db
        self._worker_id = worker_id

        # For each run its attempt, and whether an executor crashed with it.
        self._attempts: dict[UUID, tuple[int, bool]] = {}
        self._returning: asyncio.Task[None] | None = None

    def add(self, run_id: UUID, attempt: int, *, is_suspect: bool = False) -> None:
        """Note an attempt that has to be returned."""
        self._attempts[run_id] = attempt, is_suspect

    def start(self) -> None:
        """Return what was noted, in a task: a row may be locked, and the leases of other runs must be renewed."""
        if self._attempts and (self._returning is None or self._returning.done()):
            self._returning = asyncio.create_task(self.return_noted())

    async def return_noted(self) -> None:
        """Return what was noted. Attempts that the database does not take now stay noted."""
        attempts = self._attempts
        self._attempts = {}
        try:
            for run_id, (attempt, is_suspect) in attempts.items():
                delay_s = min(LONGEST_DELAY_S, 2.0 ** (attempt - 1))
                await hand_back_runs(
                    self._db, self._worker_id, {run_id: attempt}, delay_s=delay_s, is_suspect=is_suspect
                )
        except Exception as failure:  # noqa: BLE001 - tried again with the next renewal
            self._attempts = {**attempts, **self._attempts}
            log.warning("runs could not be returned yet", reason=f"{type(failure).__name__}: {failure}")

    async def finish(self, stopped: dict[UUID, int]) -> None:
        """Hand back the attempts that were stopped with the worker, and return what was noted, in a bounded time."""
        for run_id in stopped:
            # It is handed back without a delay.
            self._attempts.pop(run_id, None)

        finishing = asyncio.create_task(self._finish(stopped))
        # Not cancelled after that: a call on a dead connection may not even notice it.
        await asyncio.wait([finishing], timeout=RETURNED_WITHIN_S)

        failure = finishing.exception() if finishing.done() else TimeoutError("the database does not answer")
        runs = len(stopped) + len(self._attempts)
        if failure is not None:
            log.warning("runs were not handed back; their leases will run out", runs=runs, reason=str(failure))
        elif stopped:
            log.info("runs handed back", runs=len(stopped))

    async def _finish(self, stopped: dict[UUID, int]) -> None:
        if stopped:
            await hand_back_runs(self._db, self._worker_id, stopped)

        if self._returning is not None:
            await asyncio.wait([self._returning])

        await self.return_noted()


class ExpiredLeases(Task):
    """Returns runs with expired leases to the queue; after too many lost attempts a run ends with an error instead."""

    every_s: ClassVar[float] = 1.0
    batch: ClassVar[int] = 200

    def __init__(self, db: Database, *, max_retries: int, on_released: Callable[[], None]) -> None:
        super().__init__()
        self._db = db
        self._max_attempts = max_retries + 1
        self._on_released = on_released

    async def activate(self) -> Status:
        """Release one batch."""
        async with timeout(STATEMENT_TIMEOUT_S):
            rows = await self._db.fetch(sql.release_expired_runs, limit=self.batch, max_attempts=self._max_attempts)

        for row in rows:
            log.warning("a run's worker was lost", run_id=str(row["run_id"]), outcome=row["outcome"])
            EXPIRED.labels(row["outcome"]).inc()

        if rows:
            self._on_released()

        return Status(did={"released": len(rows)}, again=len(rows) == self.batch)


class DueThreads(Task):
    """Deletes the threads of stateless runs when the time in which clients may fetch the result is over."""

    every_s: ClassVar[float] = 15.0
    batch: ClassVar[int] = 500

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted = await self._db.execute(sql.delete_due_threads, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


class LapsedRunKeys(Task):
    """Clears idempotency keys that are older than a day."""

    every_s: ClassVar[float] = 60.0
    batch: ClassVar[int] = 1000

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Clear one batch."""
        cleared = await self._db.execute(sql.clear_run_keys, limit=self.batch)
        return Status(did={"forgotten": cleared}, again=cleared == self.batch)
