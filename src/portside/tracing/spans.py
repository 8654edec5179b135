"""Connects spans of OpenTelemetry with runs that have ids of their own.

A span names its parent by the 8 bytes of the parent's span id, and its run waits for the id that is derived from them.
The parent's run has another id where an attribute gives it one, or where the tracing SDK made it: the SDK takes the
first half of the run's id as the span id that spans below it get.

Parent and child may arrive in any order and at the same time. Each looks for the other after it was committed, so that
the one that is committed last finds it.
"""

from uuid import UUID

from portside.kernel.db import Database
from portside.kernel.pool import retry_conflicts
from portside.tracing.sql import sql
from portside.tracing.types import IngestBatch, SpanAlias, SpanParent


async def connect(db: Database, workspace_id: UUID, batch: IngestBatch) -> list[UUID]:
    """Have waiting spans wait for the runs that their parents became; return those runs."""
    aliases = {alias for alias in batch.span_aliases if alias.alias_id != alias.run_id}
    if batch.span_parents:
        aliases |= await _find_parents(db, workspace_id, batch.span_parents)

    if not aliases:
        return []

    pairs = sorted(aliases)

    async def adopt() -> list[UUID]:
        rows = await db.fetch(
            sql.adopt_spans,
            workspace_id=workspace_id,
            alias_ids=[pair.alias_id for pair in pairs],
            run_ids=[pair.run_id for pair in pairs],
        )

        return sorted({row["run_id"] for row in rows})

    return await retry_conflicts(adopt)()


async def _find_parents(db: Database, workspace_id: UUID, parents: list[SpanParent]) -> set[SpanAlias]:
    """Return the stored runs that the parents of spans became."""
    distinct = sorted(set(parents))
    rows = await db.fetch(
        sql.runs_of_spans,
        workspace_id=workspace_id,
        alias_ids=[parent.alias_id for parent in distinct],
        trace_ids=[parent.trace_id for parent in distinct],
        first_ids=[UUID(bytes=parent.span_id + bytes(8)) for parent in distinct],
        last_ids=[UUID(bytes=parent.span_id + b"\xff" * 8) for parent in distinct],
    )

    return {SpanAlias(row["alias_id"], row["run_id"]) for row in rows}
