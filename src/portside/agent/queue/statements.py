"""The state changes of a run, each one statement: admit, claim, renew, cancel, end, hand back.

The cancellation of a started run is stored on its row; its worker reads it with the next renewal of the lease. A run
that was never started is ended by the database, in the statement that cancels it.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from prometheus_client import Histogram

from portside.agent.encryption.context import stored_context
from portside.agent.queue.types import (
    Admission,
    AdmissionOutcome,
    Admitted,
    Cancellation,
    CancelledRun,
    CancelOutcome,
    CancelScope,
    ClaimedRun,
    DeletedRun,
    DeleteOutcome,
    EndedRun,
    EndOutcome,
    FinishedRun,
    ReservedSlots,
    RunResult,
)
from portside.agent.sql import sql
from portside.agent.types.runs import CancelAction
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Record, Session
from portside.kernel.timeouts import timeout
from portside.kernel.user_json import dump_jsonb, without_nul

LEASE_S = 5.0
# A healthy database is much faster. One that does not answer must not occupy a run or a slot for longer.
STATEMENT_TIMEOUT_S = 15.0
# A statement locks the threads of the runs that it cancels, so it must be short.
THREADS_AT_ONCE = 200

_STATEMENT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ADMISSIONS = Histogram("lg_api_run_admission_seconds", "Time to admit a run, in seconds.", buckets=_STATEMENT_S)
CLAIMS = Histogram("lg_api_run_claim_seconds", "Time to claim a batch of runs, in seconds.", buckets=_STATEMENT_S)


async def admit_runs(
    db: Session, admissions: Sequence[Admission], worker_id: UUID, *, wait: bool = True
) -> list[Admitted | None]:
    """Admit runs, all or none. None stands for a run whose assistant has changed since it was read.

    Without `wait` a run whose thread another transaction has locked is `LOCKED`, and not admitted.
    """
    if db.codec is not None:
        for admission in admissions:
            admission.kwargs |= stored_context()

    access_filters = [
        None if admission.access is None else dump_api(admission.access).decode() for admission in admissions
    ]

    with ADMISSIONS.time():
        async with timeout(STATEMENT_TIMEOUT_S):
            rows = await db.fetch(
                sql.admit_runs,
                admissions=[admission.as_json() for admission in admissions],
                access_filters=access_filters,
                worker_id=worker_id,
                lease_s=LEASE_S,
                wait=wait,
            )

    return [_to_admitted(row) for row in rows]


def _to_admitted(row: Record) -> Admitted | None:
    if row["outcome"] is None:
        return None

    return Admitted(
        outcome=AdmissionOutcome(row["outcome"]),
        attempt=row["attempt"],
        created_at=row["created_at"],
        run_id=row["run_id"],
        thread_id=row["thread_id"],
        metadata=row["metadata"],
    )


async def claim_runs(db: Database, worker_id: UUID, limit: int) -> list[ClaimedRun]:
    """Claim up to `limit` runs in the order of their queue positions: the oldest first, moved by their priority."""
    with CLAIMS.time():
        async with timeout(STATEMENT_TIMEOUT_S):
            rows = await db.fetch(sql.claim_runs, worker_id=worker_id, lease_s=LEASE_S, limit=limit)

    return [ClaimedRun(**dict(row)) for row in rows]


async def renew_leases(db: Database, worker_id: UUID, run_ids: Sequence[UUID]) -> dict[UUID, Cancellation | None]:
    """Renew the leases of these runs. Returns the runs that are still this worker's, each with its cancellation."""
    rows = await db.fetch(sql.renew_leases, worker_id=worker_id, lease_s=LEASE_S, run_ids=list(run_ids))
    return {row["run_id"]: _to_cancellation(row) for row in rows}


def _to_cancellation(row: Record) -> Cancellation | None:
    if row["cancel_action"] is None:
        return None

    return Cancellation(CancelAction(row["cancel_action"]), row["cancel_reason"] or "")


async def end_runs(
    db: Database,
    worker_id: UUID,
    finished_runs: Sequence[FinishedRun],
    slots: ReservedSlots | None = None,
    *,
    wait: bool = False,
) -> tuple[list[EndedRun], list[ClaimedRun]]:
    """End runs and unblock the next ones of their threads, then claim runs for the reserved slots.

    Without `wait` a run whose thread another transaction has locked is `LOCKED`, and has not ended.
    """
    slots = slots or ReservedSlots()
    runs = [run for run, _ in finished_runs]
    results = [result for _, result in finished_runs]

    rare_columns: dict[str, list[str | None] | None] = {
        "interrupts": [_json_text(result.interrupts) for result in results],
        "errors": [_json_text(result.error) for result in results],
        "long_values": [_json_text(result.long_values) for result in results],
        "webhook_values": [_webhook_values(run, result) for run, result in finished_runs],
    }
    if db.codec is None:
        # The driver encodes each item of a list; null in place of a list without values saves that.
        rare_columns = {name: column if any(column or ()) else None for name, column in rare_columns.items()}

    async with timeout(STATEMENT_TIMEOUT_S):
        rows = await db.fetch(
            sql.end_runs,
            worker_id=worker_id,
            run_ids=[run.run_id for run in runs],
            thread_ids=[run.thread_id for run in runs],
            attempts=[run.attempt for run in runs],
            statuses=[result.status for result in results],
            thread_statuses=[result.thread_status for result in results],
            values=[_thread_values(result) for result in results],
            **rare_columns,
            wait=wait,
            lease_s=LEASE_S,
            claim_limit=slots.limit,
            always_claim=slots.always_claim,
        )

    ended_rows = rows[: len(runs)]
    claimed_rows = rows[len(runs) :]
    return (
        [EndedRun(EndOutcome(row["outcome"]), row["has_next"]) for row in ended_rows],
        # These have no values in the first two columns, which tell how a run ended.
        [ClaimedRun(**dict(list(row.items())[2:])) for row in claimed_rows],
    )


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


async def cancel_runs(db: Database, scope: CancelScope, cancellation: Cancellation) -> list[CancelledRun]:
    """Cancel the runs of a scope, THREADS_AT_ONCE threads per statement. Returns those that had not ended yet."""
    runs: list[CancelledRun] = []
    after: UUID | None = None

    while True:
        rows = await db.fetch(
            sql.cancel_runs,
            **msgspec.structs.asdict(scope),
            **cancellation._asdict(),
            after=after,
            limit=THREADS_AT_ONCE,
        )
        runs += [CancelledRun(row["thread_id"], row["run_id"], CancelOutcome(row["outcome"])) for row in rows]
        if scope.thread_id is not None or not rows:
            return runs

        after = runs[-1].thread_id


async def delete_run(db: Database, worker_id: UUID, thread_id: UUID, run_id: UUID) -> DeletedRun:
    """Delete a run that never started; cancel one that is executed; claim one that has ended, to be rolled back."""
    cancellation = Cancellation(CancelAction.ROLLBACK, "run deleted")
    row = await db.fetchrow(
        sql.delete_run,
        run_id=run_id,
        thread_id=thread_id,
        worker_id=worker_id,
        lease_s=LEASE_S,
        reason=cancellation.reason,
    )

    assert row is not None  # noqa: S101 - the function always returns one row
    outcome = DeleteOutcome(row["outcome"])
    if outcome is not DeleteOutcome.REOPENED:
        return DeletedRun(outcome, None)

    run = ClaimedRun(
        run_id=run_id,
        thread_id=thread_id,
        assistant_id=row["assistant_id"],
        kwargs=row["kwargs"],
        attempt=row["attempt"],
        is_temporary=row["is_temporary"],
        was_started=True,
        cancel_action=cancellation.action,
        cancel_reason=cancellation.reason,
    )
    return DeletedRun(outcome, run)


async def keep_result(db: Database, worker_id: UUID, run_id: UUID) -> None:
    """Keep the result of a stateless run of another process for a minute after its end."""
    await db.execute(sql.keep_result, worker_id=worker_id, run_id=run_id)


async def has_own_checkpoint(db: Database, run: ClaimedRun) -> bool:
    """Whether an earlier attempt at this run left a checkpoint to resume from."""
    exists: bool = await db.fetchval(sql.has_own_checkpoint, thread_id=str(run.thread_id), run_id=str(run.run_id))
    return exists


async def hand_back_runs(
    db: Database, worker_id: UUID, attempts: Mapping[UUID, int], *, delay_s: float = 0.0, is_suspect: bool = False
) -> None:
    """Return runs to the queue, each with the number of its attempt; they continue from their last checkpoints."""
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
        lost_attempts: int | None = await db.fetchval(
            sql.lose_attempt, worker_id=worker_id, run_id=run.run_id, attempt=run.attempt, max_retries=max_retries
        )

    return lost_attempts
