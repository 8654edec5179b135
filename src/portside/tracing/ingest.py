"""Writes deliveries: runs, the traces they belong to, feedback and attachments, in one transaction.

A trace is counted at the first receipt of one of its runs, together with that run, so neither exists without the other.
A child that came without its place under its parent leaves an empty row for that parent: the two deliveries then meet
on that row, and whichever commits last puts the child in its place, and then looks again below what it placed.
"""

from uuid import UUID

from portside.identity.types import Actor
from portside.kernel.db import Database, Session
from portside.tracing import projects
from portside.tracing.folding import fold
from portside.tracing.sql import sql
from portside.tracing.types import AttachmentWrite, Delivery, FeedbackWrite, RunWrite

_COLUMNS = tuple(name for name in RunWrite.__struct_fields__ if name not in {"is_post", "session_name"})
_FEEDBACK_COLUMNS = tuple(name for name in FeedbackWrite.__struct_fields__ if name != "extends_trace")


async def receive(db: Database, delivery: Delivery, *, by: Actor, tier: str = "longlived") -> None:
    """Store a delivery; the same one again changes nothing. Traces of projects without a tier of their own get `tier`.

    Raises Invalid for a project that does not exist.
    """
    runs = fold(delivery.runs)
    await _find_projects(db, by.workspace_id, runs)
    runs = _with_awaited_parents(runs)
    async with db.transaction() as tx:
        awaited = await _write_runs(tx, runs, by, tier)
        await write_feedback(tx, by.workspace_id, delivery.feedback)
        await _write_attachments(tx, by.workspace_id, delivery.attachments)
    while awaited:
        placed = await db.fetch(sql.place_children, workspace_id=by.workspace_id, ids=awaited)
        awaited = [row["id"] for row in placed if row["is_awaited"]]


async def _find_projects(db: Session, workspace_id: UUID, runs: list[RunWrite]) -> None:
    """Give each run its project: by id, else by name; a posted run that names none goes to the default project."""
    if given := {run.project_id for run in runs if run.project_id is not None}:
        await projects.check_projects(db, workspace_id, given)
    for run in runs:
        if run.is_post and run.session_name is None:
            run.session_name = projects.DEFAULT_PROJECT
    nameless = [run for run in runs if run.project_id is None and run.session_name is not None]
    if not nameless:
        return
    ids = await projects.ensure_projects(db, workspace_id, {run.session_name or "" for run in nameless})
    for run in nameless:
        run.project_id = ids[run.session_name or ""]


def _with_awaited_parents(runs: list[RunWrite]) -> list[RunWrite]:
    parents = {run.parent_run_id for run in runs if run.is_post and run.dotted_order is None and run.parent_run_id}
    if not parents:
        return runs
    return fold([*runs, *(RunWrite(id=parent, is_awaited=True) for parent in parents)])


async def _write_runs(tx: Session, runs: list[RunWrite], by: Actor, tier: str) -> list[UUID]:
    """Write runs and count their traces; return the runs whose children wait for them."""
    if not runs:
        return []
    columns = {name: [getattr(run, name) for run in runs] for name in _COLUMNS}
    owner = {"workspace_id": by.workspace_id, "api_key_id": by.key_id, "user_id": by.user_id, "tier": tier}
    return [row["id"] for row in await tx.fetch(sql.write_runs, **owner, **columns)]


async def write_feedback(tx: Session, workspace_id: UUID, feedback: list[FeedbackWrite]) -> None:
    """Write feedback; of one piece the latest stays. It makes traces long-lived, unless it says otherwise."""
    latest = list({item.id: item for item in sorted(feedback, key=lambda item: item.modified_at)}.values())
    if latest:
        columns = {name: [getattr(item, name) for item in latest] for name in _FEEDBACK_COLUMNS}
        await tx.execute(sql.write_feedback, workspace_id=workspace_id, **columns)
        if run_ids := [item.run_id for item in latest if item.run_id is not None and item.extends_trace]:
            await tx.execute(sql.extend_traces, workspace_id=workspace_id, run_ids=run_ids)


async def _write_attachments(tx: Session, workspace_id: UUID, attachments: list[AttachmentWrite]) -> None:
    latest = list({(item.run_id, item.name): item for item in attachments}.values())
    if latest:
        columns = {name: [getattr(item, name) for item in latest] for name in AttachmentWrite.__struct_fields__}
        await tx.execute(sql.write_attachments, workspace_id=workspace_id, **columns)
