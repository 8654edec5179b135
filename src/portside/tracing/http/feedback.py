"""The routes of feedback, and of the tokens by which others give it."""

from typing import Annotated
from uuid import UUID

import msgspec

from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.tracing import feedback, feedback_tokens
from portside.tracing.feedback import Feedback, FeedbackNotFound, FeedbackPatch, FeedbackQuery, RatedRequest
from portside.tracing.feedback_tokens import MAX_TOKENS, Token, TokenQuery, TokenRequest
from portside.tracing.http.ingest import DATA
from portside.tracing.quotas import LonglivedLimitReached
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted

routes = Routes("tracing")
TokenRequests = Annotated[list[TokenRequest], msgspec.Meta(min_length=1, max_length=MAX_TOKENS)]


@routes.post("/feedback", permission="feedback:create", raises=(Invalid, LonglivedLimitReached), audit=DATA)
async def create_feedback(ctx: Context, body: RatedRequest) -> Feedback:
    """Store feedback on a run or on a project."""
    if body.run_id is not None and body.extend_trace_retention:
        await ctx.services.quotas.check_longlived(ctx.actor.workspace_id)
    return await feedback.create_feedback(ctx.db, body, by=ctx.actor)


@routes.get("/feedback", permission="feedback:read")
async def list_feedback(ctx: Context, query: FeedbackQuery) -> list[Feedback]:
    """List feedback, last changed first."""
    return await feedback.list_feedback(ctx.db, query, by=ctx.actor)


@routes.get("/feedback/{feedback_id}", permission="feedback:read", raises=(FeedbackNotFound,))
async def get_feedback(ctx: Context, feedback_id: UUID) -> Feedback:
    """Return one piece of feedback."""
    return await feedback.get_feedback(ctx.db, feedback_id, by=ctx.actor)


@routes.patch("/feedback/{feedback_id}", permission="feedback:update", raises=(FeedbackNotFound,), audit=DATA)
async def update_feedback(ctx: Context, feedback_id: UUID, body: FeedbackPatch) -> Feedback:
    """Change feedback; null leaves a field unchanged."""
    return await feedback.update_feedback(ctx.db, feedback_id, body, by=ctx.actor)


@routes.delete("/feedback/{feedback_id}", permission="feedback:delete", raises=(FeedbackNotFound,), audit=DATA)
async def delete_feedback(ctx: Context, feedback_id: UUID) -> Accepted:
    """Delete feedback."""
    await feedback.delete_feedback(ctx.db, feedback_id, by=ctx.actor)
    return Accepted("Deleted")


@routes.post(
    "/feedback/tokens",
    permission="feedback:create",
    raises=(Invalid,),
    audit=Action("feedback_token.create", id_query="create_feedback_tokens"),
)
async def create_feedback_tokens(ctx: Context, body: TokenRequest | TokenRequests) -> Token | list[Token]:
    """Create one token, or several for an array: addresses that accept feedback without an API key."""
    requests = body if isinstance(body, list) else [body]
    tokens = await feedback_tokens.create_tokens(ctx.db, requests, str(ctx.request.base_url), by=ctx.actor)
    return tokens if isinstance(body, list) else tokens[0]


@routes.get("/feedback/tokens", permission="feedback:create")
async def list_feedback_tokens(ctx: Context, query: TokenQuery) -> list[Token]:
    """List the tokens of a run that have not expired."""
    return await feedback_tokens.list_tokens(ctx.db, query, str(ctx.request.base_url), by=ctx.actor)
