"""What needs no key but a link: shared runs, their feedback, attachments (contract: hosted API, section f.4)."""

from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.kernel.crypto import SecretBox
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing import attachments, shared_views
from portside.tracing.attachments import AttachmentNotFound, Links
from portside.tracing.feedback import Feedback
from portside.tracing.filter_language import FilterInvalid
from portside.tracing.links import DownloadQuery, LinkInvalid
from portside.tracing.pages import CursorInvalid
from portside.tracing.run_queries import FoundRuns, LimitTooLarge, RunPage
from portside.tracing.runs import RunNotFound
from portside.tracing.runs_v2 import RunItems
from portside.tracing.shared_views import SharedFeedbackQuery, SharedSelection, ShareNotFound
from portside.tracing.types import Run

routes = Routes("tracing")
_FILE: dict[str, Any] = {"raises": (LinkInvalid, AttachmentNotFound), "media_type": "application/octet-stream"}
_MAX_BYTES = 256 * 1024
_ON_QUERY = (ShareNotFound, LimitTooLarge, CursorInvalid, FilterInvalid, Invalid)
_FIRST_PAGE, _IDS = RunPage(), SharedSelection()


@routes.get("/public/{share_token}/run", public=True, raises=(ShareNotFound,))
async def show_shared_run(ctx: Context, share_token: UUID) -> Run:
    """Return a shared run, without a key."""
    return await shared_views.show_shared_run(ctx.db, share_token, links_of(ctx))


@routes.get("/public/{share_token}/run/{run_id}", public=True, raises=(ShareNotFound, RunNotFound))
async def show_run_below_shared(ctx: Context, share_token: UUID, run_id: UUID) -> Run:
    """Return a run below a shared one, without a key."""
    return await shared_views.show_shared_run(ctx.db, share_token, links_of(ctx), run_id)


@routes.post("/public/{share_token}/runs/query", public=True, raises=_ON_QUERY, max_body_bytes=_MAX_BYTES)
async def query_shared_runs(ctx: Context, share_token: UUID, body: RunPage = _FIRST_PAGE) -> FoundRuns:
    """Find runs among a shared one and those below it, without a key."""
    return await shared_views.query_shared_runs(ctx.db, share_token, body, links_of(ctx))


@routes.post("/v2/public/{share_token}/runs/query", public=True, raises=_ON_QUERY, max_body_bytes=_MAX_BYTES)
async def tell_shared_runs(ctx: Context, share_token: UUID, body: SharedSelection = _IDS) -> RunItems:
    """Return a shared run and those below it in the newer form, without a key."""
    return await shared_views.tell_shared_runs(ctx.db, share_token, body, links_of(ctx))


@routes.get("/public/{share_token}/feedbacks", public=True, raises=(ShareNotFound,))
async def list_shared_feedback(ctx: Context, share_token: UUID, query: SharedFeedbackQuery) -> list[Feedback]:
    """List the feedback on a shared run and those below it, without a key and without who gave it."""
    return await shared_views.list_shared_feedback(ctx.db, share_token, query)


@routes.get(f"/{attachments.PATH}", public=True, **_FILE)
async def download_attachment(ctx: Context, query: DownloadQuery) -> Response:
    """Return the attachment that a link is for; links come with runs and are good for an hour."""
    return await attachments.download(ctx.db, ctx.get(SecretBox), query)


def links_of(ctx: Context) -> Links:
    """Return what makes links below the address of a request."""
    return Links(ctx.get(SecretBox), str(ctx.request.base_url))
