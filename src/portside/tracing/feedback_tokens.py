"""Tokens that let people without an API key give feedback.

A token accepts one piece of feedback on one run, under one key, until it expires. Using it again replaces the feedback,
so an address that leaks cannot fill the database.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec

from portside.identity.types import Actor
from portside.kernel.clock import Moment, now
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task
from portside.kernel.user_json import dump_user
from portside.tracing.feedback import (
    Comment,
    Correction,
    FeedbackRequest,
    FeedbackSource,
    Key,
    Score,
    Value,
    store_feedback,
)
from portside.tracing.fields import to_utc
from portside.tracing.quotas import Quotas
from portside.tracing.sql import sql

PATH = "/feedback/tokens/"
MAX_TOKENS = 1000
_DEFAULT_LIFETIME = timedelta(hours=3)
_MAX_LIFETIME = timedelta(days=3660)


class FeedbackTokenNotFound(NotFound):
    """The feedback token does not exist or has expired; ask for a new one."""

    code = "feedback_token_not_found"


class Lifetime(msgspec.Struct):
    """The lifetime of a token."""

    days: Annotated[int, msgspec.Meta(ge=0, le=3660)] = 0
    hours: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    minutes: Annotated[int, msgspec.Meta(ge=0, le=6_000_000)] = 0


class TokenRequest(msgspec.Struct):
    """A token to create; by default it is valid for three hours."""

    run_id: UUID
    feedback_key: Key
    expires_in: Lifetime | None = None
    expires_at: Moment | None = None
    feedback_config: dict[str, Any] | None = None
    feedback_id: UUID | None = None


class TokenQuery(msgspec.Struct):
    """The run whose unexpired tokens to list."""

    run_id: UUID
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0


class Token(msgspec.Struct):
    """A token and the address that accepts the feedback."""

    id: UUID
    url: str
    expires_at: Moment
    feedback_key: str


class TokenFeedback(msgspec.Struct):
    """Feedback that is given with a token."""

    score: Score = None
    value: Value = None
    comment: Comment = None
    correction: Correction = None
    metadata: dict[str, Any] | None = None


class TokenFeedbackQuery(msgspec.Struct):
    """The same feedback as query parameters."""

    score: float | None = None
    value: str | None = None
    comment: str | None = None
    correction: str | None = None


async def create_tokens(db: Session, requests: list[TokenRequest], base_url: str, *, by: Actor) -> list[Token]:
    """Create tokens; the runs may arrive later. Raises Invalid for an expiry in the past or too far away."""
    tokens = [_to_token(request, base_url) for request in requests]
    await db.execute(
        sql.create_feedback_tokens,
        workspace_id=by.workspace_id,
        id=[token.id for token in tokens],
        run_id=[request.run_id for request in requests],
        key=[request.feedback_key for request in requests],
        config=[dump_user(request.feedback_config).decode() for request in requests],
        feedback_id=[request.feedback_id or uuid7() for request in requests],
        expires_at=[token.expires_at for token in tokens],
    )

    return tokens


def _to_token(request: TokenRequest, base_url: str) -> Token:
    token = uuid4()
    return Token(
        id=token,
        url=_build_url(base_url, token),
        expires_at=_compute_expiry(request),
        feedback_key=request.feedback_key,
    )


async def list_tokens(db: Session, query: TokenQuery, base_url: str, *, by: Actor) -> list[Token]:
    """List the tokens of a run, newest first."""
    page = {"run_id": query.run_id, "limit": query.limit, "offset": query.offset}
    rows = await db.fetch(sql.feedback_tokens_of_run, workspace_id=by.workspace_id, **page)
    return [Token(**dict(row), url=_build_url(base_url, row["id"])) for row in rows]


async def use_token(db: Database, quotas: Quotas, token: UUID, feedback: TokenFeedback | TokenFeedbackQuery) -> None:
    """Store feedback that is given with a token. Raises FeedbackTokenNotFound.

    Who gives it can do nothing about the workspace's limit of long-lived traces: once that is reached, the trace
    expires as it would without the feedback.
    """
    row = await db.fetchrow(sql.feedback_token, token=token)
    if row is None:
        raise FeedbackTokenNotFound

    metadata = feedback.metadata if isinstance(feedback, TokenFeedback) else None
    body = FeedbackRequest(
        key=row["key"],
        run_id=row["run_id"],
        score=feedback.score,
        value=feedback.value,
        comment=feedback.comment,
        correction=feedback.correction,
        feedback_source=FeedbackSource("app", metadata),
        feedback_config=row["config"],
        extend_trace_retention=await quotas.allows_longlived(row["workspace_id"]),
    )

    await store_feedback(db, row["workspace_id"], row["feedback_id"], body)


class ExpiredFeedbackTokens(Task):
    """Deletes expired feedback tokens, a batch at a time."""

    every_s = 300.0
    deletes = True
    batch = 2_000

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        count = await self._db.execute(sql.delete_expired_feedback_tokens, batch=self.batch)
        return Status({"feedback_tokens": count}, again=count == self.batch)


def _compute_expiry(request: TokenRequest) -> datetime:
    """Return the expiry of a token. Raises Invalid if it is in the past or too far away."""
    if request.expires_at is not None:
        field = "expires_at"
        expires_at = to_utc(request.expires_at, "expires_at")
    elif request.expires_in is not None:
        lifetime = msgspec.structs.asdict(request.expires_in)
        field = "expires_in"
        expires_at = now() + timedelta(**lifetime)
    else:
        return now() + _DEFAULT_LIFETIME

    if not now() < expires_at <= now() + _MAX_LIFETIME:
        raise Invalid.field(["body", field], "must end in the future, within ten years")

    return expires_at


def _build_url(base_url: str, token: UUID) -> str:
    return f"{base_url.rstrip('/')}{PATH}{token}"
