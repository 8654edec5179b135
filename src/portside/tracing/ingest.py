"""Writes deliveries: runs, the traces they belong to, feedback and attachments, in one transaction.

A trace is counted at the first receipt of one of its runs, together with that run, so neither exists without the other.
Whole runs that nothing speaks for being there already are copied into the table, and merged where one is after all.
A child that came without its place under its parent leaves an empty row for that parent: the two deliveries then meet
on that row, and whichever commits last puts the child in its place, and then looks again below what it placed.
"""

from typing import Any
from uuid import UUID

from asyncpg import UniqueViolationError
from msgspec.json import decode as json_decode

from portside.identity.types import Actor
from portside.kernel.db import Database, Session, Transaction
from portside.tracing import projects
from portside.tracing.folding import fold
from portside.tracing.sql import sql
from portside.tracing.types import AttachmentWrite, Delivery, FeedbackWrite, RunWrite

_COLUMNS = tuple(name for name in RunWrite.__struct_fields__ if name not in {"is_post", "session_name"})
_COPIED = tuple(name for name in _COLUMNS if name != "tags")
# Of fewer runs a copy takes longer than a statement.
COPIED_FROM = 50
_FEEDBACK_COLUMNS = tuple(name for name in FeedbackWrite.__struct_fields__ if name != "extends_trace")


async def receive(db: Database, delivery: Delivery, *, by: Actor, tier: str = "longlived") -> None:
    """Store a delivery; the same one again changes nothing. Traces of projects without a tier of their own get `tier`.

    Raises Invalid for a project that does not exist.
    """
    runs = fold(delivery.runs)
    await _find_projects(db, by.workspace_id, runs)
    runs = _with_awaited_parents(runs)
    owner = {"workspace_id": by.workspace_id, "api_key_id": by.key_id, "user_id": by.user_id, "tier": tier}
    try:
        awaited = await _write(db, delivery, runs, owner, copies=_seem_new(runs))
    except UniqueViolationError:
        awaited = await _write(db, delivery, runs, owner, copies=False)
    while awaited:
        placed = await db.fetch(sql.place_children, workspace_id=by.workspace_id, ids=awaited)
        awaited = [row["id"] for row in placed if row["is_awaited"]]


async def _write(
    db: Database, delivery: Delivery, runs: list[RunWrite], owner: dict[str, Any], *, copies: bool
) -> list[UUID]:
    """Write all of a delivery or nothing; return the runs whose children wait for them.

    Raises UniqueViolationError if runs were to be copied and one is there.
    """
    if not (copies or delivery.feedback or delivery.attachments):
        return await _merge_runs(db, runs, owner)
    async with db.transaction() as tx:
        awaited = await (_copy_runs if copies else _merge_runs)(tx, runs, owner)
        await write_feedback(tx, owner["workspace_id"], delivery.feedback)
        await _write_attachments(tx, owner["workspace_id"], delivery.attachments)
    return awaited


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


def _seem_new(runs: list[RunWrite]) -> bool:
    """Whether runs are enough for a copy to pay, and all of them posted with their place."""
    return len(runs) >= COPIED_FROM and all(run.is_post and run.dotted_order is not None for run in runs)


async def _merge_runs(session: Session, runs: list[RunWrite], owner: dict[str, Any]) -> list[UUID]:
    """Lay runs over what is there, in one statement, and count their traces."""
    if not runs:
        return []
    columns = {name: _column(runs, name) for name in _COLUMNS}
    row = await session.fetchrow(sql.merge_runs, **owner, **columns)
    return (row and row["awaited"]) or []


def _column(runs: list[RunWrite], name: str) -> list[Any] | None:
    """Return what the runs say of a field; None where none says anything, which costs nothing to send."""
    values = [getattr(run, name) for run in runs]
    return values if any(value is not None for value in values) else None


async def _copy_runs(tx: Transaction, runs: list[RunWrite], owner: dict[str, Any]) -> list[UUID]:
    """Write runs that are not there, and count their traces. Raises UniqueViolationError."""
    workspace_id = owner["workspace_id"]
    rows = [
        (workspace_id, None if run.tags is None else json_decode(run.tags), *(getattr(run, name) for name in _COPIED))
        for run in runs
    ]
    await tx.copy("runs", ("workspace_id", "tags", *_COPIED), rows)
    places = {name: [getattr(run, name) for run in runs] for name in ("id", "trace_id", "project_id")}
    await tx.execute(sql.count_copied_traces, **owner, **places)
    return []


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
