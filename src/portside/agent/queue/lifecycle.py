"""The moves of a run, each one trip to Postgres: admit, claim, renew, finish, hand back, release."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from portside.agent.sql import sql
from portside.kernel.codec import dump_api, load, without_nul
from portside.kernel.db import Database, Session

LEASE_S = 5.0


class ClaimedRun(msgspec.Struct, kw_only=True):
    """A run that this worker holds a lease on."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    kwargs: dict[str, Any]
    attempt: int
    is_temporary: bool


class Admission(msgspec.Struct, kw_only=True):
    """A run that asks to be admitted to its thread."""

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


class Admitted(msgspec.Struct):
    """How an admission went: `pending`, `running`, `busy` or `missing`."""

    outcome: str
    attempt: int
    created_at: Any


class Ending(msgspec.Struct, kw_only=True):
    """How a run ended and what its thread looks like from then on; `values` is JSON."""

    status: str
    thread_status: str
    values: bytes | None = None
    interrupts: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def result(self) -> bytes:
        """Return what a client that waits for the run gets: the final values as JSON, or the error."""
        if self.error is not None and self.status == "error":
            return dump_api({"__error__": self.error})
        return self.values or b"null"


async def admit_run(db: Session, admission: Admission, worker_id: UUID, *, has_free_slot: bool) -> Admitted:
    """Admit a run under its thread's lock; where the worker has a free slot it starts if nothing is before it."""
    values = {name: getattr(admission, name) for name in admission.__struct_fields__}
    starter = worker_id if has_free_slot else None
    row = await db.fetchrow(sql.admit_run, **values, admitted_by=worker_id, worker_id=starter, lease_s=LEASE_S)
    assert row is not None  # noqa: S101 - the function always returns one row
    return Admitted(**dict(row))


async def claim_runs(db: Database, worker_id: UUID, limit: int) -> list[ClaimedRun]:
    """Take up to `limit` runs that are ready, oldest first."""
    rows = await db.fetch(sql.claim_runs, worker_id=worker_id, lease_s=LEASE_S, limit=limit)
    return [ClaimedRun(**dict(row)) for row in rows]


async def renew_leases(db: Database, worker_id: UUID, run_ids: Sequence[UUID]) -> set[UUID]:
    """Renew the leases of these runs; return those that are still this worker's."""
    rows = await db.fetch(sql.renew_leases, worker_id=worker_id, lease_s=LEASE_S, run_ids=list(run_ids))
    return {row["run_id"] for row in rows}


async def finish_run(db: Database, worker_id: UUID, run: ClaimedRun, ending: Ending) -> bool:
    """End a run and promote its thread's next one; False when the lease was lost and nothing was written."""
    finished: bool = await db.fetchval(
        sql.finish_run,
        run_id=run.run_id,
        worker_id=worker_id,
        attempt=run.attempt,
        status=ending.status,
        thread_status=ending.thread_status,
        values=_thread_values(ending),
        interrupts=ending.interrupts,
        error=ending.error,
    )
    return finished


def _thread_values(ending: Ending) -> str | None:
    """Return the values a thread keeps: what waits for an answer stands beside them, not in them."""
    if ending.values is None:
        return None
    values = ending.values
    if ending.interrupts:
        values = dump_api({key: value for key, value in load(values).items() if key != "__interrupt__"})
    return without_nul(values).decode()


async def has_own_checkpoint(db: Database, run: ClaimedRun) -> bool:
    """Whether an earlier attempt of this run left a checkpoint to go on from."""
    found: bool = await db.fetchval(sql.has_own_checkpoint, thread_id=str(run.thread_id), run_id=str(run.run_id))
    return found


async def hand_back_runs(db: Database, worker_id: UUID, run_ids: Sequence[UUID]) -> None:
    """Return runs to the queue; another worker goes on from their last checkpoints."""
    await db.execute(sql.hand_back_runs, worker_id=worker_id, run_ids=list(run_ids))
