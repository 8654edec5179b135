"""Stores a batch of ingest: runs, traces, feedback and attachments in one transaction.

`ingest_parser.py` parses the body of a request into a batch, and `run_merge.py` merges its writes for the same run. A
trace is counted at the first receipt of one of its runs, together with that run, so neither exists without the other.

A child may arrive before its parent and without a dotted order. Ingest then writes an empty row for the parent: the two
requests meet on that row, and the one that commits last places the child under its parent, and then the children of
what it placed. A child that is a span of OpenTelemetry may wait for a run whose id it cannot know (`spans.py`).
"""

from contextlib import suppress
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from asyncpg import PostgresError, UniqueViolationError
from msgspec.json import decode as json_decode

from portside.identity.types import Actor
from portside.kernel.db import Database, Session, Transaction
from portside.kernel.errors import Forbidden, PortsideError, Problem, Unavailable
from portside.kernel.pool import is_conflict, retry_conflicts
from portside.tracing import projects, spans
from portside.tracing.bodies import DEFAULT_MAX_BYTES
from portside.tracing.feedback import write_feedback
from portside.tracing.pieces import RunPieces
from portside.tracing.refused_runs import drop_refused
from portside.tracing.run_merge import merge_repeated
from portside.tracing.sql import sql
from portside.tracing.types import AttachmentWrite, IngestBatch, RefusedRun, RunWrite

# COPY has a fixed cost: for fewer runs one statement is faster.
COPY_MIN_RUNS = 50
# Who manages the organization answers for its bill.
IMPORT_PERMISSION = "organization:manage"
_TEXT_FIELDS = ("tags", "error", "inputs", "outputs", "extra", "events", "serialized")
_COLUMNS = tuple(name for name in RunWrite.__struct_fields__ if name not in {"is_post", "session_name"})
_COPIED_COLUMNS = tuple(name for name in _COLUMNS if name != "tags")
# How the texts of interrupts begin; the SQL function `end_of_failed_run` looks at the rest.
_INTERRUPT_PREFIXES = ("GraphInterrupt", "NodeInterrupt", "GraphDrained", "[", "\n\n", "Graph drained: ")


class RunTooLarge(PortsideError):
    """With this request the run would hold more bytes than this server keeps for one run; send smaller runs."""

    status: ClassVar[int] = 413
    code = "run_too_large"


def require_import(actor: Actor) -> None:
    """Refuse an import of traces, which are not billed, by somebody who does not manage the organization.

    Raises Forbidden.
    """
    if not actor.may(IMPORT_PERMISSION):
        raise Forbidden(
            f"Imported traces are not billed, so this key needs the permission {IMPORT_PERMISSION}: use the key of an "
            "administrator of the organization."
        )


class _Extras(NamedTuple):
    """The rest of a batch beside its runs."""

    batch: IngestBatch
    large: list[UUID]
    """The runs whose stored size has to be checked."""
    max_run_bytes: int
    pieces: RunPieces

    def __bool__(self) -> bool:
        return bool(self.batch.feedback or self.batch.attachments or self.large or self.pieces)


async def store_batch(  # noqa: PLR0913 - one write with many parameters
    db: Database,
    batch: IngestBatch,
    *,
    by: Actor,
    tier: str = "longlived",
    max_run_bytes: int = DEFAULT_MAX_BYTES,
    imported: bool = False,
) -> None:
    """Store a batch; storing it again changes nothing. Traces of projects without a tier get `tier`.

    Imported traces are not billed; the caller decides who may import.

    Runs of projects that do not exist are added to those that are refused. Raises ProjectContested, RunTooLarge and
    Unavailable.
    """
    await _check_projects(db, by.workspace_id, batch)
    runs = merge_repeated(batch.runs)
    await _resolve_projects(db, by.workspace_id, runs)
    runs = _add_awaited_parents(runs)
    owner = {
        "workspace_id": by.workspace_id,
        "api_key_id": by.key_id,
        "user_id": by.user_id,
        "tier": tier,
        "imported": imported,
    }
    extras = _Extras(
        batch=batch,
        large=_find_large_writes(runs, max_run_bytes),
        max_run_bytes=max_run_bytes,
        pieces=RunPieces(by.workspace_id),
    )

    await extras.pieces.cut(runs)
    awaited_ids = await _write_until_stored(db, runs, owner, extras)
    awaited_ids += await spans.connect(db, by.workspace_id, batch)

    # Each round places the children of what the round before placed.
    while awaited_ids:
        rows = await db.fetch(sql.place_children, workspace_id=by.workspace_id, ids=awaited_ids)
        awaited_ids = [row["id"] for row in rows if row["is_awaited"]]

    interrupted_ids = [run.id for run in runs if run.error is not None and run.error.startswith(_INTERRUPT_PREFIXES)]
    if interrupted_ids:
        await db.execute(sql.mark_interrupted_traces, workspace_id=by.workspace_id, ids=interrupted_ids)


async def _write_until_stored(db: Database, runs: list[RunWrite], owner: dict[str, Any], extras: _Extras) -> list[UUID]:
    """Write a batch, again after a conflict with another transaction; return the runs that stored children wait for.

    The tracing SDKs drop a batch whose response is a 409, and send it again after a 503. Raises RunTooLarge, and
    Unavailable if each attempt conflicted.
    """
    copies = _are_probably_new(runs)

    async def write() -> list[UUID]:
        nonlocal copies

        if copies:
            # If one of the runs is stored already, the batch is merged, now and in later attempts.
            with suppress(UniqueViolationError):
                return await _write(db, runs, owner, extras, copies=True)
            copies = False

        return await _write(db, runs, owner, extras, copies=False)

    try:
        return await retry_conflicts(write)()
    except PostgresError as exc:
        if is_conflict(exc):
            raise Unavailable from exc
        raise


async def _write(
    db: Database, runs: list[RunWrite], owner: dict[str, Any], extras: _Extras, *, copies: bool
) -> list[UUID]:
    """Write a whole batch or nothing; return the runs that stored children wait for.

    Raises UniqueViolationError if the runs were to be copied and one exists, and RunTooLarge.
    """
    if not (copies or extras):
        return await _merge_runs(db, runs, owner)

    workspace_id = owner["workspace_id"]
    batch = extras.batch
    async with db.transaction() as tx:
        if extras.pieces:
            await extras.pieces.store(tx)

        write_runs = _copy_runs if copies else _merge_runs
        awaited_ids = await write_runs(tx, runs, owner)
        if extras.pieces:
            await extras.pieces.store_users(tx)

        if extras.large:
            sizes = await tx.fetch(sql.sizes_of_runs, workspace_id=workspace_id, ids=extras.large)
            if any(row["bytes"] > extras.max_run_bytes for row in sizes):
                raise RunTooLarge(
                    f"With this request a run would hold more than {extras.max_run_bytes} bytes, the limit of this "
                    "server for one run (setting INGEST_MAX_RUN_BYTES); send smaller inputs and outputs."
                )

        await write_feedback(tx, workspace_id, batch.feedback)
        await _write_attachments(tx, workspace_id, batch.attachments)

    return awaited_ids


def _find_large_writes(runs: list[RunWrite], max_run_bytes: int) -> list[UUID]:
    """Return the runs whose stored size has to be checked.

    A field is replaced and never appended to. So a run whose writes are all below this share of the limit stays below
    the limit, whatever other requests wrote: each of the text fields has at most 4 bytes for each character.
    """
    share = max_run_bytes // (4 * len(_TEXT_FIELDS))
    return [run.id for run in runs if sum(len(getattr(run, name) or "") for name in _TEXT_FIELDS) > share]


async def _check_projects(db: Session, workspace_id: UUID, batch: IngestBatch) -> None:
    """Refuse the runs of projects that do not exist."""
    project_ids = {run.project_id for run in batch.runs if run.project_id is not None}
    if not project_ids:
        return

    unknown_ids = await projects.find_unknown_projects(db, workspace_id, project_ids)
    for run in batch.runs:
        if run.project_id in unknown_ids:
            problem = f"no project {run.project_id} exists in this workspace"
            batch.refused.append(RefusedRun(run.id, [Problem(["body", "session_id"], problem, "value_error")]))

    drop_refused(batch)


async def _resolve_projects(db: Session, workspace_id: UUID, runs: list[RunWrite]) -> None:
    """Set the project of each run: by id, else by name. A posted run that names none goes to the default project."""
    for run in runs:
        if run.is_post and run.session_name is None:
            run.session_name = projects.DEFAULT_PROJECT

    unresolved_runs = [run for run in runs if run.project_id is None and run.session_name is not None]
    if not unresolved_runs:
        return

    ids = await projects.ensure_projects(db, workspace_id, {run.session_name or "" for run in unresolved_runs})
    for run in unresolved_runs:
        run.project_id = ids[run.session_name or ""]


def _add_awaited_parents(runs: list[RunWrite]) -> list[RunWrite]:
    """Return the runs with an empty write for each parent whose position its child waits for."""
    parent_ids = {run.parent_run_id for run in runs if run.is_post and run.dotted_order is None and run.parent_run_id}
    if not parent_ids:
        return runs

    parents = [RunWrite(id=parent_id, is_awaited=True) for parent_id in parent_ids]
    return merge_repeated([*runs, *parents])


def _are_probably_new(runs: list[RunWrite]) -> bool:
    """Whether a copy pays: enough runs, all of them posted with their position, so probably none of them is stored."""
    return len(runs) >= COPY_MIN_RUNS and all(run.is_post and run.dotted_order is not None for run in runs)


async def _merge_runs(session: Session, runs: list[RunWrite], owner: dict[str, Any]) -> list[UUID]:
    """Merge runs into the stored ones in one statement, and count their traces."""
    if not runs:
        return []

    columns = {name: _get_column(runs, name) for name in _COLUMNS}
    row = await session.fetchrow(sql.merge_runs, **owner, **columns)
    return [] if row is None else row["awaited"] or []


def _get_column(runs: list[RunWrite], name: str) -> list[Any] | None:
    """Return the values of a field; None if all are null, because an array of nulls costs time to send."""
    values = [getattr(run, name) for run in runs]
    return values if any(value is not None for value in values) else None


async def _copy_runs(tx: Transaction, runs: list[RunWrite], owner: dict[str, Any]) -> list[UUID]:
    """Insert new runs with COPY, and count their traces. Raises UniqueViolationError if one is stored already."""
    workspace_id = owner["workspace_id"]
    rows = [
        (
            workspace_id,
            None if run.tags is None else json_decode(run.tags),
            *(getattr(run, name) for name in _COPIED_COLUMNS),
        )
        for run in runs
    ]

    await tx.copy("runs", ("workspace_id", "tags", *_COPIED_COLUMNS), rows)
    positions = {name: [getattr(run, name) for run in runs] for name in ("id", "trace_id", "project_id")}
    await tx.execute(sql.count_copied_traces, **owner, **positions)

    return []


async def _write_attachments(tx: Session, workspace_id: UUID, attachments: list[AttachmentWrite]) -> None:
    latest = list({(item.run_id, item.name): item for item in attachments}.values())
    if latest:
        columns = {name: [getattr(item, name) for item in latest] for name in AttachmentWrite.__struct_fields__}
        await tx.execute(sql.write_attachments, workspace_id=workspace_id, **columns)
