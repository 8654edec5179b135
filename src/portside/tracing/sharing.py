"""Sharing a run by a link, which gives access to the run and all runs below it. `shared_runs.py` reads them."""

from uuid import UUID, uuid4

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Session
from portside.kernel.errors import Conflict
from portside.tracing.runs import TracedRunNotFound
from portside.tracing.sql import sql


class ShareTokenTaken(Conflict):
    """The share token belongs to another run; send another token, or none."""

    code = "share_token_taken"


class ShareRequest(msgspec.Struct):
    """The token to share a run with; the server generates one if it is missing."""

    share_token: UUID | None = None
    run_id: UUID | None = None


class Share(msgspec.Struct):
    """A run and its share token."""

    run_id: UUID
    share_token: UUID


async def share_run(db: Session, run_id: UUID, request: ShareRequest, *, by: Actor) -> Share:
    """Share a run; a shared run keeps its token. Raises TracedRunNotFound and ShareTokenTaken."""
    owner = {"workspace_id": by.workspace_id, "run_id": run_id}
    await db.execute(sql.share_run, **owner, share_token=request.share_token or uuid4())

    shared = await find_share(db, run_id, by=by)
    if shared is None:
        if not await db.fetch(sql.run_exists, **owner):
            raise TracedRunNotFound
        raise ShareTokenTaken

    return shared


async def find_share(db: Session, run_id: UUID, *, by: Actor) -> Share | None:
    """Return the share of a run; None if it is not shared."""
    token = await db.fetchval(sql.share_of_run, workspace_id=by.workspace_id, run_id=run_id)
    return None if token is None else Share(run_id, token)


async def unshare_run(db: Session, run_id: UUID, *, by: Actor) -> None:
    """Stop sharing a run; no error if it is not shared."""
    await db.execute(sql.unshare_run, workspace_id=by.workspace_id, run_id=run_id)
