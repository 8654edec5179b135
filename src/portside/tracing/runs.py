"""Runs, read again: one by its id, or several in the order of their ids."""

from typing import Any
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Record, Session
from portside.kernel.errors import NotFound
from portside.tracing.attachments import Links, find_attachments
from portside.tracing.sql import sql
from portside.tracing.types import Run, RunQuery

ATTACHMENTS = "s3_urls"
_JSON = ("inputs", "outputs", "extra", "events", "serialized", "feedback_stats")
_COSTS = ("prompt_cost", "completion_cost", "total_cost")
_NOTHING = {"inputs": b"{}"}  # SDKs refuse a run whose inputs are null
EVERYTHING = (*_JSON, ATTACHMENTS)


class RunNotFound(NotFound):
    """Run not found"""  # noqa: D415 - the exact text that clients know

    code = "run_not_found"


async def show_run(db: Session, run_id: UUID, query: RunQuery, links: Links, *, by: Actor) -> Run:
    """Return a run of the actor's workspace. Raises RunNotFound."""
    left_out = {"serialized": query.exclude_serialized, ATTACHMENTS: query.exclude_s3_stored_attributes}
    shown = [name for name in EVERYTHING if not left_out.get(name)]
    found = await show_runs(db, by.workspace_id, [run_id], shown, links)
    if not found:
        raise RunNotFound
    return found[0]


async def show_runs(db: Session, workspace_id: UUID, ids: list[UUID], shown: list[str], links: Links) -> list[Run]:
    """Return the runs of these ids that there are, in this order; of large fields those that are `shown`."""
    rows = await db.fetch(sql.runs_by_id, workspace_id=workspace_id, ids=ids, shown=shown)
    found = {row["id"]: _run(row, workspace_id) for row in rows}
    if ATTACHMENTS in shown:
        for run_id, attachments in (await find_attachments(db, workspace_id, found, links)).items():
            found[run_id].s3_urls = {f"attachment.{name}": one for name, one in attachments.items()}
    return [found[run_id] for run_id in ids if run_id in found]


def _run(row: Record, workspace_id: UUID) -> Run:
    fields: dict[str, Any] = dict(row)
    for name in _JSON:
        text = fields[name]
        fields[name] = msgspec.Raw(_NOTHING.get(name, b"null") if text is None else text.encode())
    for name in _COSTS:
        fields[name] = None if fields[name] is None else format(fields[name], "f")
    ancestors = [part[-36:] for part in row["dotted_order"].split(".")[:-1]]
    app_path = f"/o/{workspace_id}/projects/p/{row['session_id']}/r/{row['id']}"
    return Run(**fields, parent_run_ids=ancestors, app_path=app_path)
