"""Runs shared by links, which show a run and all that is below it (contract: hosted API, section f.4).

What whoever has the link sees is in `shared_views`.
"""

from uuid import UUID, uuid4

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Session
from portside.kernel.errors import Conflict
from portside.tracing.runs import RunNotFound
from portside.tracing.sql import sql


class ShareTokenTaken(Conflict):
    """The share token belongs to another run; send another one, or none."""

    code = "share_token_taken"


class ShareRequest(msgspec.Struct):
    """The token to share a run by; without one the server makes it."""

    share_token: UUID | None = None
    run_id: UUID | None = None


class Share(msgspec.Struct):
    """A run and the token that shows it."""

    run_id: UUID
    share_token: UUID


async def share_run(db: Session, run_id: UUID, request: ShareRequest, *, by: Actor) -> Share:
    """Share a run; one that is shared keeps its token. Raises RunNotFound and ShareTokenTaken."""
    owner = {"workspace_id": by.workspace_id, "run_id": run_id}
    await db.execute(sql.share_run, **owner, share_token=request.share_token or uuid4())
    shared = await find_share(db, run_id, by=by)
    if shared is None:
        if not await db.fetch(sql.run_exists, **owner):
            raise RunNotFound
        raise ShareTokenTaken
    return shared


async def find_share(db: Session, run_id: UUID, *, by: Actor) -> Share | None:
    """Return how a run is shared, None where it is not."""
    token = await db.fetchval(sql.share_of_run, workspace_id=by.workspace_id, run_id=run_id)
    return None if token is None else Share(run_id, token)


async def unshare_run(db: Session, run_id: UUID, *, by: Actor) -> None:
    """Stop sharing a run. Nothing happens where it was not shared."""
    await db.execute(sql.unshare_run, workspace_id=by.workspace_id, run_id=run_id)
