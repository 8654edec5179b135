"""Retention: tiers of traces and the deletion of expired ones.

A trace gets the tier of its project when it is first received. Feedback on one of its runs makes it long-lived, unless
the feedback opts out. The row of a deleted trace stays, because it was billed.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from portside.kernel.clock import now
from portside.kernel.db import Database, Query, Session
from portside.kernel.reconcile import Status, Task
from portside.tracing.projects import get_project
from portside.tracing.sql import sql

Tier = Literal["shortlived", "longlived"]
_BATCH = 200
_FIRST = (UUID(int=0), UUID(int=0))
_LAST = (UUID(int=2**128 - 1), UUID(int=2**128 - 1))
# Nothing was received before this time.
_NEVER = datetime(1, 1, 2, tzinfo=UTC)


class TraceRetention(msgspec.Struct, frozen=True):
    """Days to keep traces of each tier (0: for ever), and the tier of projects without one."""

    shortlived_days: int = 14
    longlived_days: int = 400
    default_tier: Tier = "longlived"


class TracesToDelete(msgspec.Struct, forbid_unknown_fields=True):
    """Traces of a project to delete."""

    session_id: UUID
    trace_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]


async def delete_traces(db: Database, workspace_id: UUID, body: TracesToDelete) -> None:
    """Delete traces; ids outside the project are ignored. Raises ProjectNotFound."""
    await get_project(db, workspace_id, body.session_id)
    async with db.transaction() as tx:
        rows = await tx.fetch(
            sql.traces_of_project, workspace_id=workspace_id, project_id=body.session_id, trace_ids=body.trace_ids
        )
        await _delete_traces(tx, [(workspace_id, row["trace_id"]) for row in rows])


async def extend_traces(db: Session, workspace_id: UUID, run_ids: list[UUID]) -> None:
    """Make the traces of runs long-lived."""
    await db.execute(sql.extend_traces, workspace_id=workspace_id, run_ids=run_ids)


class ExpiredTraces(Task):
    """Deletes expired traces, a batch of each tier at a time.

    A batch takes a fraction of a second, so ingest for one of its runs never waits long.
    """

    every_s = 300.0
    deletes = True
    traces_at_once = 2_000
    runs_at_once = 20_000

    def __init__(self, db: Database, retention: TraceRetention) -> None:
        super().__init__()
        self._db = db
        self._days: dict[Tier, int] = {"shortlived": retention.shortlived_days, "longlived": retention.longlived_days}

    async def activate(self) -> Status:
        """Delete one batch of each tier."""
        counts = dict[str, int]()
        again = False

        for tier, days in self._days.items():
            if days:
                counts[f"{tier}_traces"], has_more = await self._expire(tier, days)
                again |= has_more

        return Status(counts, again=again)

    async def _expire(self, tier: Tier, days: int) -> tuple[int, bool]:
        """Return the number of deleted traces of a tier, and whether there may be more."""
        limits = {"traces": self.traces_at_once, "runs": self.runs_at_once}
        async with self._db.transaction() as tx:
            rows = await tx.fetch(sql.due_traces, tier=tier, before=now() - timedelta(days=days), **limits)
            due = {(row["workspace_id"], row["trace_id"]) for row in rows}
            if tier == "shortlived":
                extended = await tx.fetch(sql.extend_due_traces, **_to_columns(sorted(due)))
                due -= {(row["workspace_id"], row["trace_id"]) for row in extended}

            await _delete_traces(tx, sorted(due))

        expired_count = rows[0]["found"] if rows else 0
        return len(rows), expired_count > len(rows) or expired_count == self.traces_at_once


class OrphanedData(Task):
    """Deletes what no trace takes along when it expires.

    - Runs that arrived after their trace expired: the task scans all traces in the order of their ids, some at a time,
      and starts again at the end. So ingest does not have to check whether a trace has expired.
    - Runs without a trace, which belong to no tier.
    - Feedback and attachments without a run. They may arrive before it, so they are kept as long as the trace could be.
    """

    every_s = 300.0
    deletes = True
    scan_traces = 10_000

    def __init__(self, db: Database, retention: TraceRetention) -> None:
        super().__init__()
        self._db = db
        self._retention = retention
        self._after = _FIRST

    async def activate(self) -> Status:
        """Scan some traces, and delete one batch of each other kind."""
        counts = {
            "late_traces": await self._delete_late_runs(),
            "stray_runs": await self._delete_strays(),
            "orphaned_feedback": await self._delete_orphans(sql.delete_orphaned_feedback),
            "orphaned_attachments": await self._delete_orphans(sql.delete_orphaned_attachments),
        }

        return Status(counts, again=_BATCH in counts.values())

    async def _delete_late_runs(self) -> int:
        after_workspace, after_trace = self._after
        start = {"after_workspace": after_workspace, "after_trace": after_trace}
        async with self._db.transaction() as tx:
            row = await tx.fetchrow(sql.scan_end, **start, traces=self.scan_traces)
            until = _LAST if row is None else (row["workspace_id"], row["trace_id"])
            traces = await tx.fetch(
                sql.late_traces, **start, until_workspace=until[0], until_trace=until[1], batch=_BATCH
            )

            await _delete_traces(tx, [(trace["workspace_id"], trace["trace_id"]) for trace in traces])

        if len(traces) < _BATCH:
            self._after = _FIRST if row is None else until

        return len(traces)

    async def _delete_strays(self) -> int:
        retention = self._retention
        count = await self._db.fetchval(
            sql.delete_stray_runs,
            nameless_before=_compute_limit(retention.shortlived_days),
            named_before=_compute_limit(retention.longlived_days),
            batch=_BATCH,
        )

        return int(count or 0)

    async def _delete_orphans(self, query: Query) -> int:
        # The tier of a run that never arrived is unknown, so its trace could be of the tier that is kept longer.
        days = (self._retention.shortlived_days, self._retention.longlived_days)
        if not all(days):
            return 0

        return int(await self._db.fetchval(query, before=now() - timedelta(days=max(days)), batch=_BATCH) or 0)


def _compute_limit(days: int) -> datetime:
    """Return the moment before which everything has expired after so many days; 0 days keep it for ever."""
    return now() - timedelta(days=days) if days else _NEVER


async def empty_workspace(db: Session, workspace_id: UUID) -> bool:
    """Delete a batch of a workspace's runs, or everything else if none is left; return whether there may be more."""
    batch = _BATCH * 10
    if await db.fetchval(sql.empty_workspace_of_runs, workspace_id=workspace_id, batch=batch) == batch:
        return True

    await db.execute(sql.empty_workspace, workspace_id=workspace_id)
    return False


async def _delete_traces(tx: Session, traces: list[tuple[UUID, UUID]]) -> None:
    if traces:
        await tx.execute(sql.delete_traces, **_to_columns(traces))


def _to_columns(traces: list[tuple[UUID, UUID]]) -> dict[str, list[UUID]]:
    return {
        "workspace_ids": [workspace_id for workspace_id, _ in traces],
        "trace_ids": [trace_id for _, trace_id in traces],
    }
