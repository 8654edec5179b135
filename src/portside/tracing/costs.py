"""Costs of the past: the models in use, and costs that are computed again after prices have changed.

Costs are computed when a run is written, by the prices of that moment. A recomputation goes over the model runs of a
project or workspace in order of time, in small batches, and remembers how far it has come: it survives restarts and can
be cancelled. If a batch fails, its recomputation pauses, longer each time, and the others go on. Days whose runs have
begun to be deleted keep the usage that was counted (`daily_usage`).
"""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import msgspec

from portside.kernel.clock import Moment, now
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task
from portside.kernel.transient_errors import log_failure
from portside.tracing.fields import to_utc
from portside.tracing.otlp_usage import reread_extra
from portside.tracing.projects import get_project
from portside.tracing.rollups import find_counted_days
from portside.tracing.sql import sql

_MAX_MODELS = 1_000
_MAX_ERROR_CHARS = 500


class ModelsQuery(msgspec.Struct):
    """The last days whose usage is summed."""

    days: Annotated[int, msgspec.Meta(ge=1, le=366)] = 30


class ModelInUse(msgspec.Struct):
    """A model that runs named, its price today, and what it used. Costs are decimal text; null without any price."""

    provider: str
    name: str
    first_seen_at: datetime | None
    runs: int
    prompt_tokens: int
    completion_tokens: int
    total_cost: str | None
    unpriced_runs: int
    price_id: UUID | None
    price_name: str | None


async def list_models(db: Session, workspace_id: UUID, query: ModelsQuery) -> list[ModelInUse]:
    """List the models of a workspace: those without a price first, then those with the most runs."""
    end = now() + timedelta(minutes=1)
    period = await find_counted_days(db, end - timedelta(days=query.days), end)
    rows = await db.fetch(sql.models_in_use, workspace_id=workspace_id, limit=_MAX_MODELS, **period)
    return [ModelInUse(**dict(row)) for row in rows]


class RecomputationRequest(msgspec.Struct, kw_only=True):
    """The runs whose costs to compute again: of a project or all of them, by default of all time."""

    session_id: UUID | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None


class Recomputation(msgspec.Struct, kw_only=True):
    """How far a recomputation has come: `progress` from 0 to 1 by time, model runs read, and those that changed.

    `error` says why the last batch failed, and `retry_at` when it is tried again; both are null after a success.
    """

    id: UUID
    session_id: UUID | None
    session_name: str | None
    start_time: datetime
    end_time: datetime
    reached_time: datetime
    progress: float
    runs: int
    changed: int
    created_at: datetime
    finished_at: datetime | None
    cancelled_at: datetime | None
    error: str | None
    retry_at: datetime | None


class RecomputationNotFound(NotFound):
    """The workspace has no recomputation with this id, or it has finished."""

    code = "recomputation_not_found"


async def start_recomputation(db: Session, workspace_id: UUID, body: RecomputationRequest) -> Recomputation:
    """Begin to compute costs again; a background task does it. Raises ProjectNotFound and Invalid."""
    if body.session_id is not None:
        await get_project(db, workspace_id, body.session_id)  # raises if it is another workspace's

    start_time = to_utc(body.start_time, "start_time") if body.start_time else None
    end_time = to_utc(body.end_time, "end_time") if body.end_time else now()
    if start_time is not None and start_time >= end_time:
        raise Invalid.field(["body", "end_time"], "must be after start_time")

    recomputation_id = uuid7()
    await db.execute(
        sql.create_recomputation,
        id=recomputation_id,
        workspace_id=workspace_id,
        project_id=body.session_id,
        start_time=start_time,
        end_time=end_time,
    )

    return await get_recomputation(db, workspace_id, recomputation_id)


async def list_recomputations(db: Session, workspace_id: UUID) -> list[Recomputation]:
    """List the latest recomputations, the newest first."""
    return await _list_recomputations(db, workspace_id, None)


async def get_recomputation(db: Session, workspace_id: UUID, recomputation_id: UUID) -> Recomputation:
    """Return a recomputation. Raises RecomputationNotFound."""
    recomputations = await _list_recomputations(db, workspace_id, recomputation_id)
    if not recomputations:
        raise RecomputationNotFound

    return recomputations[0]


async def cancel_recomputation(db: Session, workspace_id: UUID, recomputation_id: UUID) -> None:
    """Stop a recomputation after its current batch; what it has changed stays. Raises RecomputationNotFound."""
    if await db.fetchval(sql.cancel_recomputation, id=recomputation_id, workspace_id=workspace_id) is None:
        raise RecomputationNotFound


async def _list_recomputations(db: Session, workspace_id: UUID, recomputation_id: UUID | None) -> list[Recomputation]:
    """List the latest recomputations, or only the one with this id."""
    rows = await db.fetch(sql.recomputations, workspace_id=workspace_id, id=recomputation_id)
    return [Recomputation(**dict(row), progress=_compute_progress(row)) for row in rows]


def _compute_progress(row: Record) -> float:
    """Return how much of the time between start and end is done, from 0 to 1."""
    length = row["end_time"] - row["start_time"]
    if row["finished_at"] or not length:
        return 1.0

    share: float = (row["reached_time"] - row["start_time"]) / length
    return min(max(share, 0.0), 1.0)


class RecomputedCosts(Task):
    """Computes costs again, one batch of each recomputation in turn.

    A batch that fails is tried again after a pause, which doubles up to an hour; other recomputations go on meanwhile.
    """

    every_s = 2.0
    batch = 500
    first_pause_s = 2.0
    longest_pause_s = 3600.0

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._last_id: UUID | None = None
        """The recomputation whose batch was done last."""

    async def activate(self) -> Status:
        """Do one batch, unless another process is doing so."""
        recomputation: Record | None = None
        try:
            async with self._db.transaction() as tx:
                recomputation = await tx.fetchrow(sql.next_recomputation, last_id=self._last_id)
                if recomputation is None:
                    self._last_id = None
                    return Status()

                self._last_id = recomputation["id"]
                return await self._compute_batch(tx, recomputation)
        except Exception as exc:
            if recomputation is None:
                raise

            await self._postpone(recomputation, exc)
            return Status({"failed": 1}, again=True)

    async def _compute_batch(self, tx: Transaction, recomputation: Record) -> Status:
        position = {
            "workspace_id": recomputation["workspace_id"],
            "project_id": recomputation["project_id"],
            "reached_time": recomputation["reached_time"],
            "reached_id": recomputation["reached_id"],
            "end_time": recomputation["end_time"],
            "batch": self.batch,
        }
        reread_ids = await self._read_attributes(tx, recomputation["workspace_id"], position)

        result = await tx.fetchrow(sql.recompute_batch, **position, reread=reread_ids)
        assert result is not None  # noqa: S101 - an aggregate has one row
        is_finished = result["runs"] < self.batch

        await tx.execute(
            sql.advance_recomputation,
            id=recomputation["id"],
            runs=result["runs"],
            changed=result["changed"],
            reached_time=None if is_finished else result["reached_time"],
            reached_id=result["reached_id"],
            is_finished=is_finished,
        )

        return Status({"runs": result["runs"], "changed": result["changed"]}, again=True)

    async def _read_attributes(self, tx: Transaction, workspace_id: UUID, position: dict[str, Any]) -> list[UUID]:
        """Read the attributes of OpenTelemetry again that a batch has in its metadata; return the runs that changed."""
        rows = await tx.fetch(sql.runs_with_counts_in_metadata, **position)
        extras = {row["id"]: extra for row in rows if (extra := reread_extra(row["extra"])) is not None}
        if extras:
            await tx.execute(
                sql.replace_extras, workspace_id=workspace_id, ids=list(extras), extras=list(extras.values())
            )

        return list(extras)

    async def _postpone(self, recomputation: Record, failure: Exception) -> None:
        pause_s = min(self.first_pause_s * 2 ** recomputation["failures"], self.longest_pause_s)
        log_failure(
            "costs could not be computed again; the batch is tried again later",
            failure,
            recomputation=str(recomputation["id"]),
            workspace=str(recomputation["workspace_id"]),
            pause_s=pause_s,
        )

        await self._db.execute(
            sql.postpone_recomputation,
            id=recomputation["id"],
            pause_s=pause_s,
            error=_describe_failure(failure)[:_MAX_ERROR_CHARS],
        )


def _describe_failure(failure: Exception) -> str:
    """Return what the owner of the runs may read: what Postgres said of them, but nothing of the platform's inside."""
    if isinstance(failure, asyncpg.PostgresError):
        return str(failure)
    return f"The platform could not compute a batch of runs ({type(failure).__name__}); its log names the cause."
