"""The moves of a run, each one trip to Postgres: admit, claim, renew, cancel, end, hand back.

What is asked of a run that was begun stands on its row, and reaches the worker that holds it with the renewal of the
lease. One that was never begun is ended by the database, in the same statement.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
from prometheus_client import Histogram

from portside.agent.sql import sql
from portside.agent.types.access import Filter
from portside.kernel.codec import dump_api, dump_user, load, without_nul
from portside.kernel.db import Database, Session

LEASE_S = 5.0
# No move takes so long of a database that is there; one that does not answer must not hold a run or a slot for longer.
ANSWERED_WITHIN_S = 15.0
_TRIP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ADMISSIONS = Histogram("lg_api_run_admission_seconds", "Time to admit a run, in seconds.", buckets=_TRIP_S)
CLAIMS = Histogram("lg_api_run_claim_seconds", "Time to claim a batch of runs, in seconds.", buckets=_TRIP_S)
THREADS_AT_ONCE = 200
_RULES = frozenset({"access", "new_thread"})
# What a client gets that waits for a run which is rolled back meanwhile.
GONE = dump_api({"__error__": {"error": "HTTPException", "message": "404: Run not found"}})


class Cancellation(NamedTuple):
    """What is asked of a run: to stop where it is, or to stop and leave nothing behind; and why, in words."""

    action: str
    reason: str


class ClaimedRun(msgspec.Struct, kw_only=True):
    """A run that this worker holds a lease on; `was_begun` tells that an earlier attempt may have left checkpoints,
    `waited_s` how long it could have been executed before it was claimed, `is_foreign` that another process admitted it
    and may have clients that follow it.
    """

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    kwargs: dict[str, Any]
    attempt: int
    is_temporary: bool
    was_begun: bool = False
    cancel_action: str | None = None
    cancel_reason: str | None = None
    waited_s: float = 0.0
    is_foreign: bool = False

    @property
    def is_passing(self) -> bool:
        """Whether nobody wrote to the run's thread before, and it goes when the run is over."""
        return self.is_temporary and self.attempt == 1 and not self.was_begun

    @property
    def cancellation(self) -> Cancellation | None:
        """What was asked of the run before it was claimed."""
        return _cancellation(self.cancel_action, self.cancel_reason)


class RequestKey(NamedTuple):
    """A client's name for what it asks, so that it may ask twice: unique in its scope, with a digest of what was asked.

    `place` is the place in a batch.
    """

    scope: UUID
    key: str
    digest: str
    place: int = 0


class AssistantChanged(Exception):
    """The assistant is not what it was when the run was made of it; nothing was admitted."""


class Admission(msgspec.Struct, kw_only=True):
    """A run that asks to be admitted to its thread.

    Its metadata is what it inherits, under its thread's, under its own. `seen` is when the assistant was last changed,
    where it is known from before and may have changed since. `access` is what the thread has to be like, and
    `new_thread` the metadata of one to be made, where there are rules about who may see which. It is counted
    under the name `asked_by` while it waits.
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
    seen: str | None = None
    access: Filter | None = None
    new_thread: dict[str, Any] | None = None
    asked_by: str | None = None

    @property
    def supersedes(self) -> bool:
        """Whether it stops the runs before it."""
        return self.strategy in ("interrupt", "rollback")

    def values(self) -> dict[str, Any]:
        """Return the parameters that the database admits it by."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _RULES}
        key = self.key or (None, None, None, None)
        return values | dict(zip(("key_scope", "key", "digest", "key_place"), key, strict=True))


class Asked(NamedTuple):
    """A run that asks to be admitted; whether it may start under the worker's lease, and a client waits for it."""

    admission: Admission
    starts: bool = False
    is_awaited: bool = False


class Admitted(msgspec.Struct):
    """How an admission went: `pending`, `running`, `busy`, `missing` or `locked`; with a key `repeated` or `reused`.

    The ids are those of the run first made, the metadata is all that it is labelled with.
    """

    outcome: str
    attempt: int
    created_at: Any
    run_id: UUID
    thread_id: UUID
    metadata: dict[str, Any]


class Ending(msgspec.Struct, kw_only=True):
    """How a run ended and what its thread looks like from then on; `values` is JSON.

    `rolled_back` is the end of a run that leaves no row. Without a thread status the thread stays as it was.
    """

    status: Literal["success", "error", "timeout", "interrupted", "rolled_back"]
    thread_status: Literal["idle", "interrupted", "error"] | None
    values: bytes | None = None
    interrupts: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def result(self) -> bytes:
        """Return what a client that waits for the run gets: the final values as JSON, or the error."""
        if self.status == "rolled_back":
            return GONE
        if self.error is not None and self.status == "error":
            return dump_api({"__error__": self.error})
        return self.values or b"null"


class Ended(NamedTuple):
    """What came of ending a run: `ended`, `lost`, `rollback` or `locked`, of which only the first wrote anything.

    `has_next` says that its thread has other runs, one of which may be ready now.
    """

    outcome: str
    has_next: bool


class Held(NamedTuple):
    """Slots that nobody else fills while runs end: how many may be claimed, and how many of these were free before.

    They are claimed where a thread of those that end has another run, or where this `looks` in any case.
    """

    claims: int
    free: int
    looks: bool


NOTHING_HELD = Held(0, 0, looks=False)


class End(NamedTuple):
    """A run that is over, and how."""

    run: ClaimedRun
    ending: Ending


class CancelledRun(msgspec.Struct):
    """A run that was cancelled: `stopping` under a worker, or already `interrupted` or `deleted`."""

    thread_id: UUID
    run_id: UUID
    outcome: str


class CancelScope(msgspec.Struct, kw_only=True):
    """Which runs to cancel: some of one thread, those of an assistant, or all that have one of the statuses."""

    thread_id: UUID | None = None
    run_ids: list[UUID] | None = None
    assistant_id: UUID | None = None
    statuses: list[str] = msgspec.field(default_factory=lambda: ["pending", "running"])


class DeletedRun(NamedTuple):
    """How far the deletion of a run is; one that is over was taken by this worker, to be rolled back."""

    outcome: str
    taken: ClaimedRun | None


async def admit_run(
    db: Session, admission: Admission, worker_id: UUID, *, has_free_slot: bool, is_awaited: bool = True
) -> Admitted:
    """Admit a run under its thread's lock; where the worker has a free slot it starts if nothing is before it.

    What a stateless run leaves goes with its end where a client of this process waits for that, else a minute later.
    Raises AssistantChanged.
    """
    values = admission.values()
    starter, waiter = worker_id if has_free_slot else None, worker_id if is_awaited else None
    query = sql.admit_run
    if admission.access is not None or admission.new_thread is not None:
        query = sql.admit_run_for
        values |= {"access": admission.access, "new_thread": admission.new_thread}
    with ADMISSIONS.time():
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            row = await db.fetchrow(query, **values, admitted_by=waiter, worker_id=starter, lease_s=LEASE_S)
    if row is None:
        raise AssistantChanged
    return Admitted(**dict(row))


async def admit_runs(
    db: Session, asked: Sequence[Asked], worker_id: UUID, *, waits: bool = True
) -> list[Admitted | None]:
    """Admit several, all or none. None is one whose assistant is not what it was when the run was made of it.

    Where it does not wait, a run on a thread that somebody else has locked is `locked`, and not admitted.
    """
    # A driver may bring UUIDs of its own kind, which the encoder of JSON values does not know.
    plain = [
        {name: str(value) if isinstance(value, UUID) else value for name, value in one.admission.values().items()}
        | {"access": one.admission.access, "starts": one.starts, "is_awaited": one.is_awaited}
        for one in asked
    ]
    with ADMISSIONS.time():
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            rows = await db.fetch(sql.admit_runs, admissions=plain, worker_id=worker_id, lease_s=LEASE_S, waits=waits)
    return [None if row["outcome"] is None else Admitted(**dict(row)) for row in rows]


async def claim_runs(db: Database, worker_id: UUID, limit: int) -> list[ClaimedRun]:
    """Take up to `limit` runs whose turn it is: the oldest first, moved by their priority."""
    with CLAIMS.time():
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            rows = await db.fetch(sql.claim_runs, worker_id=worker_id, lease_s=LEASE_S, limit=limit)
    return [ClaimedRun(**dict(row)) for row in rows]


async def renew_leases(db: Database, worker_id: UUID, run_ids: Sequence[UUID]) -> dict[UUID, Cancellation | None]:
    """Renew the leases of these runs; return those that are still this worker's, each with what is asked of it."""
    rows = await db.fetch(sql.renew_leases, worker_id=worker_id, lease_s=LEASE_S, run_ids=list(run_ids))
    return {row["run_id"]: _cancellation(row["cancel_action"], row["cancel_reason"]) for row in rows}


async def end_runs(
    db: Database, worker_id: UUID, ends: Sequence[End], held: Held = NOTHING_HELD, *, waits: bool = False
) -> tuple[list[Ended], list[ClaimedRun]]:
    """End runs and promote the next ones of their threads, then claim runs for the slots that are held.

    Where it does not wait, a run whose thread somebody else has locked is `locked`, and has not ended.
    """
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        rows = await db.fetch(
            sql.end_runs,
            worker_id=worker_id,
            run_ids=[run.run_id for run, _ in ends],
            thread_ids=[run.thread_id for run, _ in ends],
            attempts=[run.attempt for run, _ in ends],
            statuses=[ending.status for _, ending in ends],
            thread_statuses=[ending.thread_status for _, ending in ends],
            values=[_thread_values(ending) for _, ending in ends],
            interrupts=[_text(ending.interrupts) for _, ending in ends],
            errors=[_text(ending.error) for _, ending in ends],
            waits=waits,
            lease_s=LEASE_S,
            claims=held.claims,
            looks=held.looks,
        )
    ended = [Ended(row["outcome"], row["has_next"]) for row in rows[: len(ends)]]
    return ended, [ClaimedRun(**dict(list(row.items())[2:])) for row in rows[len(ends) :]]


async def end_run(db: Database, worker_id: UUID, run: ClaimedRun, ending: Ending) -> Ended:
    """End a run and promote its thread's next one, however long its thread is locked by others."""
    ended, _ = await end_runs(db, worker_id, [End(run, ending)], waits=True)
    return ended[0]


async def cancel_runs(db: Database, scope: CancelScope, cancellation: Cancellation) -> list[CancelledRun]:
    """Cancel the runs of a scope, some threads at a time. Returns those that were not over yet."""
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
    """Delete a run that was not begun, ask the end of one that was, take one that is over under this worker's lease."""
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
    taken = ClaimedRun(
        run_id=run_id,
        thread_id=thread_id,
        assistant_id=assistant_id,
        kwargs=kwargs,
        attempt=attempt,
        is_temporary=is_temporary,
        was_begun=True,
        cancel_action=cancellation.action,
        cancel_reason=cancellation.reason,
    )
    return DeletedRun(outcome, taken)


async def keep_result(db: Database, worker_id: UUID, run_id: UUID) -> None:
    """Let the result of a stateless run of another process outlive it for a minute."""
    await db.execute(sql.keep_result, worker_id=worker_id, run_id=run_id)


def _thread_values(ending: Ending) -> str | None:
    """Return the values a thread keeps: what waits for an answer stands beside them, not in them."""
    if ending.values is None:
        return None
    values = ending.values
    if ending.interrupts:
        values = dump_api({key: value for key, value in load(values).items() if key != "__interrupt__"})
    return without_nul(values).decode()


def _text(document: dict[str, Any] | None) -> str | None:
    return None if document is None else without_nul(dump_user(document)).decode()


async def has_own_checkpoint(db: Database, run: ClaimedRun) -> bool:
    """Whether an earlier attempt of this run left a checkpoint to go on from."""
    found: bool = await db.fetchval(sql.has_own_checkpoint, thread_id=str(run.thread_id), run_id=str(run.run_id))
    return found


def _cancellation(action: str | None, reason: str | None) -> Cancellation | None:
    return None if action is None else Cancellation(action, reason or "")


async def hand_back_runs(db: Database, worker_id: UUID, attempts: Mapping[UUID, int], *, delay_s: float = 0.0) -> None:
    """Return runs, each with the attempt that was made at it, to the queue; they go on from their last checkpoints."""
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        await db.execute(
            sql.hand_back_runs,
            worker_id=worker_id,
            run_ids=list(attempts),
            attempts=list(attempts.values()),
            delay_s=delay_s,
        )
