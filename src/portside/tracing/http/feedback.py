"""Feedback, and the tokens for those who have no key (contract: hosted API, section f.4)."""

from typing import Annotated
from uuid import UUID

import msgspec

from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing import feedback, feedback_tokens
from portside.tracing.feedback import Feedback, FeedbackNotFound, FeedbackPatch, FeedbackQuery, FeedbackRequest
from portside.tracing.feedback_tokens import (
    FeedbackTokenNotFound,
    Token,
    TokenFeedback,
    TokenFeedbackQuery,
    TokenQuery,
    TokenRequest,
)
from portside.tracing.quotas import LonglivedLimitReached, Quotas
from portside.tracing.types import Accepted

routes = Routes("tracing")
_MAX_PUBLIC_BYTES = 256 * 1024
TokenRequests = Annotated[list[TokenRequest], msgspec.Meta(min_length=1, max_length=feedback_tokens.MAX_TOKENS)]


@routes.post("/feedback", permission="feedback:create", raises=(Invalid, LonglivedLimitReached))
async def create_feedback(ctx: Context, body: FeedbackRequest) -> Feedback:
    """Store feedback on a run or on a project."""
    if body.run_id is not None and body.extend_trace_retention:
        await ctx.get(Quotas).check_longlived(ctx.actor.workspace_id)
    return await feedback.create_feedback(ctx.db, body, by=ctx.actor)


@routes.get("/feedback", permission="feedback:read")
async def list_feedback(ctx: Context, query: FeedbackQuery) -> list[Feedback]:
    """List feedback, what was changed last first."""
    return await feedback.list_feedback(ctx.db, query, by=ctx.actor)


@routes.get("/feedback/{feedback_id}", permission="feedback:read", raises=(FeedbackNotFound,))
async def show_feedback(ctx: Context, feedback_id: UUID) -> Feedback:
    """Return one piece of feedback."""
    return await feedback.show_feedback(ctx.db, feedback_id, by=ctx.actor)


@routes.patch("/feedback/{feedback_id}", permission="feedback:update", raises=(FeedbackNotFound,))
async def update_feedback(ctx: Context, feedback_id: UUID, body: FeedbackPatch) -> Feedback:
    """Change feedback; null means unchanged."""
    return await feedback.update_feedback(ctx.db, feedback_id, body, by=ctx.actor)


@routes.delete("/feedback/{feedback_id}", permission="feedback:delete", raises=(FeedbackNotFound,))
async def delete_feedback(ctx: Context, feedback_id: UUID) -> Accepted:
    """Delete feedback."""
    await feedback.delete_feedback(ctx.db, feedback_id, by=ctx.actor)
    return Accepted("Deleted")


@routes.post("/feedback/tokens", permission="feedback:create", raises=(Invalid,))
async def create_feedback_tokens(ctx: Context, body: TokenRequest | TokenRequests) -> Token | list[Token]:
    """Make one token, or several of an array: addresses that take feedback without a key."""
    wanted = body if isinstance(body, list) else [body]
    made = await feedback_tokens.create_tokens(ctx.db, wanted, _base(ctx), by=ctx.actor)
    return made if isinstance(body, list) else made[0]


@routes.get("/feedback/tokens", permission="feedback:create")
async def list_feedback_tokens(ctx: Context, query: TokenQuery) -> list[Token]:
    """List the tokens of a run that have not expired."""
    return await feedback_tokens.list_tokens(ctx.db, query, _base(ctx), by=ctx.actor)


@routes.get("/feedback/tokens/{token}", public=True, raises=(FeedbackTokenNotFound,))
async def give_feedback_by_address(ctx: Context, token: UUID, query: TokenFeedbackQuery) -> Accepted:
    """Store what the address says, which needs no key but the token."""
    await feedback_tokens.use_token(ctx.db, token, query)
    return Accepted()


@routes.post("/feedback/tokens/{token}", public=True, raises=(FeedbackTokenNotFound,), max_body_bytes=_MAX_PUBLIC_BYTES)
async def give_feedback(ctx: Context, token: UUID, body: TokenFeedback = TokenFeedback()) -> Accepted:  # noqa: B008
    """Store what the body says, which needs no key but the token."""
    await feedback_tokens.use_token(ctx.db, token, body)
    return Accepted()


def _base(ctx: Context) -> str:
    return str(ctx.request.base_url)
