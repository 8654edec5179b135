"""Tokens that let somebody without a key give feedback on one run, under one name, until they expire.

A token is good for one piece of feedback: using it again replaces what was said before, so that an address that gets
around fills no database.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec

from portside.identity.types import Actor
from portside.kernel.clock import now
from portside.kernel.codec import dump_user
from portside.kernel.db import Database, Session
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.ids import uuid7
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
from portside.tracing.fields import aware
from portside.tracing.sql import sql

PATH = "/feedback/tokens/"
MAX_TOKENS = 1000
_LASTS_BY_DEFAULT = timedelta(hours=3)
_LASTS_AT_MOST = timedelta(days=3660)


class FeedbackTokenNotFound(NotFound):
    """There is no such feedback token, or it has expired; ask for a new one."""

    code = "feedback_token_not_found"


class Lifetime(msgspec.Struct):
    """How long a token lasts."""

    days: Annotated[int, msgspec.Meta(ge=0, le=3660)] = 0
    hours: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    minutes: Annotated[int, msgspec.Meta(ge=0, le=6_000_000)] = 0


class TokenRequest(msgspec.Struct):
    """What a token is to be good for; it lasts three hours unless the request says otherwise."""

    run_id: UUID
    feedback_key: Key
    expires_in: Lifetime | None = None
    expires_at: datetime | None = None
    feedback_config: dict[str, Any] | None = None
    feedback_id: UUID | None = None


class TokenQuery(msgspec.Struct):
    """Which tokens to list: those of one run that have not expired."""

    run_id: UUID
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0


class Token(msgspec.Struct):
    """A token and the address that takes the feedback."""

    id: UUID
    url: str
    expires_at: datetime
    feedback_key: str


class TokenFeedback(msgspec.Struct):
    """What somebody says who has a token."""

    score: Score = None
    value: Value = None
    comment: Comment = None
    correction: Correction = None
    metadata: dict[str, Any] | None = None


class TokenFeedbackQuery(msgspec.Struct):
    """The same in an address."""

    score: float | None = None
    value: str | None = None
    comment: str | None = None
    correction: str | None = None


async def create_tokens(db: Session, wanted: list[TokenRequest], base_url: str, *, by: Actor) -> list[Token]:
    """Make tokens; the runs may still be on their way. Raises Invalid for an expiry that makes no sense."""
    made = [(uuid4(), request, _expiry(request)) for request in wanted]
    await db.execute(
        sql.create_feedback_tokens,
        workspace_id=by.workspace_id,
        id=[token for token, _, _ in made],
        run_id=[request.run_id for request in wanted],
        key=[request.feedback_key for request in wanted],
        config=[dump_user(request.feedback_config).decode() for request in wanted],
        feedback_id=[request.feedback_id or uuid7() for request in wanted],
        expires_at=[expires_at for _, _, expires_at in made],
    )
    return [Token(token, _url(base_url, token), ends, request.feedback_key) for token, request, ends in made]


async def list_tokens(db: Session, query: TokenQuery, base_url: str, *, by: Actor) -> list[Token]:
    """List the tokens of a run, newest first."""
    page = {"run_id": query.run_id, "limit": query.limit, "offset": query.offset}
    rows = await db.fetch(sql.feedback_tokens_of_run, workspace_id=by.workspace_id, **page)
    return [Token(**dict(row), url=_url(base_url, row["id"])) for row in rows]


async def use_token(db: Database, token: UUID, said: TokenFeedback | TokenFeedbackQuery) -> None:
    """Store what somebody says by a token. Raises FeedbackTokenNotFound."""
    row = await db.fetchrow(sql.feedback_token, token=token)
    if row is None:
        raise FeedbackTokenNotFound
    metadata = said.metadata if isinstance(said, TokenFeedback) else None
    body = FeedbackRequest(
        key=row["key"],
        run_id=row["run_id"],
        score=said.score,
        value=said.value,
        comment=said.comment,
        correction=said.correction,
        feedback_source=FeedbackSource("app", metadata),
        feedback_config=row["config"],
    )
    await store_feedback(db, row["workspace_id"], row["feedback_id"], body)


def _expiry(request: TokenRequest) -> datetime:
    """Return when a token ends. Raises Invalid for the past and for what is too far away."""
    if request.expires_at is not None:
        field, ends = "expires_at", aware(request.expires_at)
    elif request.expires_in is not None:
        lasts = msgspec.structs.asdict(request.expires_in)
        field, ends = "expires_in", now() + timedelta(**lasts)
    else:
        return now() + _LASTS_BY_DEFAULT
    if not now() < ends <= now() + _LASTS_AT_MOST:
        raise Invalid.field(["body", field], "must end in the future, within ten years")
    return ends


def _url(base_url: str, token: UUID) -> str:
    return f"{base_url.rstrip('/')}{PATH}{token}"
