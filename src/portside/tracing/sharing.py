"""Runs that anybody may see who has the link: a run and all that is below it (contract: hosted API, section f.4)."""

from uuid import UUID, uuid4

import msgspec

from portside.identity.types import Actor
from portside.kernel.db import Session
from portside.kernel.errors import Conflict, NotFound
from portside.tracing.attachments import Links
from portside.tracing.runs import EVERYTHING, RunNotFound, show_runs
from portside.tracing.sql import sql
from portside.tracing.types import Run


class ShareTokenTaken(Conflict):
    """The share token belongs to another run; send another one, or none."""

    code = "share_token_taken"


class ShareNotFound(NotFound):
    """Nothing is shared by this link, or not any more."""

    code = "share_not_found"


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


async def show_shared_run(db: Session, token: UUID, links: Links, run_id: UUID | None = None) -> Run:
    """Return the shared run, or one below it. Raises ShareNotFound and RunNotFound."""
    row = await db.fetchrow(sql.shared_run, share_token=token)
    if row is None:
        raise ShareNotFound
    found = await show_runs(db, row["workspace_id"], [run_id or row["id"]], list(EVERYTHING), links)
    if not found or not f"{found[0].dotted_order}.".startswith(f"{row['dotted_order']}."):
        raise RunNotFound
    return found[0]
