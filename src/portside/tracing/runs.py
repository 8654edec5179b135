"""Runs, read again."""

from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Session
from portside.kernel.errors import NotFound
from portside.tracing.sql import sql
from portside.tracing.types import Run, RunQuery

_JSON = ("inputs", "outputs", "extra", "events", "serialized")
_NOTHING = {"inputs": b"{}"}  # SDKs refuse a run whose inputs are null


class RunNotFound(NotFound):
    """Run not found"""  # noqa: D415 - the exact text that clients know

    code = "run_not_found"


async def show_run(db: Session, run_id: UUID, query: RunQuery, *, by: Actor) -> Run:
    """Return a run of the actor's workspace. Raises RunNotFound."""
    row = await db.fetchrow(sql.run_by_id, workspace_id=by.workspace_id, run_id=run_id)
    if row is None:
        raise RunNotFound
    fields = dict(row)
    for name in _JSON:
        is_shown = fields[name] is not None and not (name == "serialized" and query.exclude_serialized)
        fields[name] = msgspec.Raw(fields[name].encode() if is_shown else _NOTHING.get(name, b"null"))
    app_path = f"/o/{by.workspace_id}/projects/p/{row['session_id']}/r/{run_id}"
    return Run(**fields, app_path=app_path)
