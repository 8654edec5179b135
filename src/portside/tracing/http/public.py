"""The routes that need no API key: shared runs, links to attachments, and addresses that accept feedback."""

from uuid import UUID

from starlette.responses import Response

from portside.kernel.errors import Invalid
from portside.tracing import attachments, feedback_tokens, shared_runs
from portside.tracing.attachments import AttachmentNotFound, DownloadQuery, LinkInvalid
from portside.tracing.cursors import CursorInvalid
from portside.tracing.feedback import Feedback
from portside.tracing.feedback_tokens import FeedbackTokenNotFound, TokenFeedback, TokenFeedbackQuery
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.http.ingest import DATA
from portside.tracing.http.links import build_links
from portside.tracing.runs import (
    FoundRuns,
    LimitTooLarge,
    RunPage,
    RunValueNotFound,
    RunValues,
    TracedRunNotFound,
    ValuesQuery,
)
from portside.tracing.runs_v2 import RunItems
from portside.tracing.services import Context, Routes
from portside.tracing.shared_runs import SharedFeedbackQuery, SharedSelection, ShareNotFound
from portside.tracing.types import Accepted, TracedRun

routes = Routes("tracing")
_MAX_PUBLIC_BYTES = 256 * 1024
_ON_QUERY = (ShareNotFound, LimitTooLarge, CursorInvalid, FilterInvalid, Invalid)
_FIRST_PAGE = RunPage()
_IDS = SharedSelection()


@routes.get("/public/{share_token}/run", public=True, raises=(ShareNotFound,))
async def get_shared_run(ctx: Context, share_token: UUID) -> TracedRun:
    """Return a shared run, without an API key."""
    return await shared_runs.get_shared_run(ctx.db, share_token, build_links(ctx))


@routes.get("/public/{share_token}/run/{run_id}", public=True, raises=(ShareNotFound, TracedRunNotFound))
async def get_shared_trace_run(ctx: Context, share_token: UUID, run_id: UUID) -> TracedRun:
    """Return a run below a shared one, without an API key."""
    return await shared_runs.get_shared_run(ctx.db, share_token, build_links(ctx), run_id)


@routes.get("/public/{share_token}/run/{run_id}/values", public=True, raises=(ShareNotFound, TracedRunNotFound))
async def get_shared_run_values(ctx: Context, share_token: UUID, run_id: UUID, query: ValuesQuery) -> RunValues:
    """Return the size and the beginning of each value of a shared run, without an API key."""
    return await shared_runs.get_shared_values(ctx.db, share_token, run_id, query)


@routes.get(
    "/public/{share_token}/run/{run_id}/values/{name}",
    public=True,
    raises=(ShareNotFound, TracedRunNotFound, RunValueNotFound),
    media_type="application/json",
)
async def download_shared_run_value(ctx: Context, share_token: UUID, run_id: UUID, name: str) -> Response:
    """Return one whole value of a shared run as a file, without an API key; an error is plain text."""
    return await shared_runs.download_shared_value(ctx.db, share_token, run_id, name)


@routes.post(
    "/public/{share_token}/runs/query",
    public=True,
    read_only=True,
    raises=_ON_QUERY,
    max_body_bytes=_MAX_PUBLIC_BYTES,
)
async def query_shared_runs(ctx: Context, share_token: UUID, body: RunPage = _FIRST_PAGE) -> FoundRuns:
    """Find runs among a shared run and the runs below it, without an API key."""
    return await shared_runs.query_shared_runs(ctx.db, share_token, body, build_links(ctx))


@routes.post(
    "/v2/public/{share_token}/runs/query",
    public=True,
    read_only=True,
    raises=_ON_QUERY,
    max_body_bytes=_MAX_PUBLIC_BYTES,
)
async def list_shared_v2_runs(ctx: Context, share_token: UUID, body: SharedSelection = _IDS) -> RunItems:
    """Return selected fields of a shared run and the runs below it, without an API key."""
    return await shared_runs.list_shared_runs_v2(ctx.db, share_token, body, build_links(ctx))


@routes.get("/public/{share_token}/feedbacks", public=True, raises=(ShareNotFound,))
async def list_shared_feedback(ctx: Context, share_token: UUID, query: SharedFeedbackQuery) -> list[Feedback]:
    """List the feedback on a shared run and the runs below it, without an API key and without authors."""
    return await shared_runs.list_shared_feedback(ctx.db, share_token, query)


@routes.get(
    f"/{attachments.PATH}",
    public=True,
    raises=(LinkInvalid, AttachmentNotFound),
    media_type="application/octet-stream",
)
async def download_attachment(ctx: Context, query: DownloadQuery) -> Response:
    """Return the attachment that a link names. Runs contain fresh links, which last an hour."""
    return await attachments.download(ctx.db, ctx.services.box, query)


@routes.get(
    "/feedback/tokens/{token}", operation="feedback_addresses_open", public=True, raises=(FeedbackTokenNotFound,)
)
async def give_feedback_by_address(ctx: Context, token: UUID, query: TokenFeedbackQuery) -> Accepted:
    """Store the feedback in the query; the token replaces the API key."""
    await feedback_tokens.use_token(ctx.db, ctx.services.quotas, token, query)
    return Accepted()


@routes.post(
    "/feedback/tokens/{token}",
    public=True,
    raises=(FeedbackTokenNotFound,),
    max_body_bytes=_MAX_PUBLIC_BYTES,
    audit=DATA,
)
async def give_feedback(ctx: Context, token: UUID, body: TokenFeedback = TokenFeedback()) -> Accepted:  # noqa: B008
    """Store the feedback in the body; the token replaces the API key."""
    await feedback_tokens.use_token(ctx.db, ctx.services.quotas, token, body)
    return Accepted()
