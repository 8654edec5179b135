"""Examples out of runs: the inputs, outputs and attachments of the run that an example comes from."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from portside.datasets.sql import sql
from portside.datasets.types import ExampleWrite, NewAttachment
from portside.kernel.db import Session
from portside.kernel.errors import Invalid


async def fill_from_runs(db: Session, workspace_id: UUID, writes: Sequence[ExampleWrite]) -> list[ExampleWrite]:
    """Return the writes with what they take of their runs. Raises Invalid for a run that is not there."""
    taking = [write for write in writes if _takes(write)]
    ids = [_source(write) for write in taking]
    rows = await db.fetch(sql.source_runs, workspace_id=workspace_id, ids=ids) if ids else []
    runs = {row["id"]: row for row in rows}
    filled = []
    for write in writes:
        if not _takes(write):
            filled.append(write)
            continue
        run_id = _source(write)
        if run_id not in runs:
            raise Invalid.field(["body", str(write.id), "source_run_id"], f"no run {run_id} exists in this workspace")
        files = await _attachments(db, workspace_id, run_id, write)
        changes: dict[str, Any] = {"attachments": [*write.attachments, *files]}
        if write.fields.use_source_run_io:
            changes["inputs"] = write.inputs or _object(runs[run_id]["inputs"]) or {}
            changes["outputs"] = write.outputs or _object(runs[run_id]["outputs"])
        filled.append(msgspec.structs.replace(write, **changes))
    return filled


def _takes(write: ExampleWrite) -> bool:
    return write.fields.use_source_run_io or bool(write.fields.use_source_run_attachments)


def _source(write: ExampleWrite) -> UUID:
    if write.fields.source_run_id is None:
        raise Invalid.field(["body", str(write.id), "source_run_id"], "Field required", "missing")
    return write.fields.source_run_id


async def _attachments(db: Session, workspace_id: UUID, run_id: UUID, write: ExampleWrite) -> list[NewAttachment]:
    names = None if write.fields.use_source_run_io else write.fields.use_source_run_attachments
    rows = await db.fetch(sql.attachments_of_run, workspace_id=workspace_id, run_id=run_id, names=names)
    given = {file.name for file in write.attachments}
    return [NewAttachment(**dict(row)) for row in rows if row["name"] not in given]


def _object(text: str | None) -> Any:
    """Return the object that JSON text holds; a run may hold anything, an example holds objects."""
    value = None if text is None else msgspec.json.decode(text)
    return value if value is None or isinstance(value, dict) else {"value": value}
