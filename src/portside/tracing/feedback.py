"""Feedback on runs and on projects, and tokens that let people without an API key give it.

Feedback is stored as the JSON text of the request, whether ingest or a request brought it; reads fill in defaults.

A token accepts one piece of feedback on one run, under one key, until it expires. Using it again replaces the feedback,
so an address that leaks cannot fill the database.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import msgspec

from portside.identity.types import Actor
from portside.kernel.clock import Moment, iso, now
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.http.json_validation import needs_any
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task
from portside.kernel.user_json import dump_user
from portside.tracing.fields import read_json, to_utc
from portside.tracing.ingest import write_feedback
from portside.tracing.projects import check_projects
from portside.tracing.sql import sql
from portside.tracing.types import FeedbackWrite

MAX_KEY_CHARS = 180
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)]
Score = bool | int | float | None
Value = bool | int | float | str | dict[str, Any] | None
Comment = str | None
Correction = str | dict[str, Any] | None
_BODY_FIELDS = ("score", "value", "comment", "correction", "feedback_source", "extra")
PATH = "/feedback/tokens/"
MAX_TOKENS = 1000
_DEFAULT_LIFETIME = timedelta(hours=3)
_MAX_LIFETIME = timedelta(days=3660)


class FeedbackNotFound(NotFound):
    """Feedback not found"""  # noqa: D415 - the exact text that clients know

    code = "feedback_not_found"


class FeedbackSource(msgspec.Struct):
    """The origin of feedback."""

    type: Literal["api", "model", "app", "auto_eval"] = "api"
    metadata: dict[str, Any] | None = None
    user_id: str | None = None
    user_name: str | None = None


class FeedbackRequest(msgspec.Struct, kw_only=True):
    """Feedback on a run, or on the project `session_id` without a run."""

    key: Key
    id: UUID | None = None
    run_id: UUID | None = None
    trace_id: UUID | None = None
    session_id: UUID | None = None
    start_time: Moment | float | None = None
    created_at: Moment | None = None
    modified_at: Moment | None = None
    score: Score = None
    value: Value = None
    comment: Comment = None
    correction: Correction = None
    feedback_source: FeedbackSource | None = None
    feedback_config: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None
    error: bool | None = None
    extend_trace_retention: bool = True


RatedRequest = Annotated[FeedbackRequest, needs_any("run_id", "session_id")]


class FeedbackPatch(msgspec.Struct):
    """Changes of feedback; null leaves a field unchanged."""

    score: Score = None
    value: Value = None
    comment: Comment = None
    correction: Correction = None
    feedback_config: dict[str, Any] | None = None


class FeedbackQuery(msgspec.Struct):
    """Filters of feedback."""

    run: list[UUID] | None = None
    session: list[UUID] | None = None
    key: list[str] | None = None
    source: list[Literal["api", "model", "app", "auto_eval"]] | None = None
    user: list[str] | None = None
    has_comment: bool | None = None
    has_score: bool | None = None
    level: Literal["run", "session"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0


class Feedback(msgspec.Struct, kw_only=True):
    """Feedback as the API returns it; user data is returned as sent."""

    id: UUID
    key: str
    run_id: UUID | None
    trace_id: UUID | None
    session_id: str | None
    created_at: str
    modified_at: Moment
    score: Any = None
    value: Any = None
    comment: Any = None
    correction: Any = None
    feedback_source: Any = None
    extra: Any = None


async def create_feedback(db: Database, body: FeedbackRequest, *, by: Actor) -> Feedback:
    """Store feedback; the same id replaces it. Raises Invalid without a run or project, and for an unknown project."""
    if body.run_id is None and body.session_id is None:
        raise Invalid.field(["body", "run_id"], "feedback needs a run (run_id) or a project (session_id)", "missing")

    if body.session_id is not None:
        await check_projects(db, by.workspace_id, {body.session_id})

    source = body.feedback_source or FeedbackSource()
    if by.user_id:
        source.user_id = str(by.user_id)

    body.feedback_source = source
    feedback_id = body.id or uuid7()
    await store_feedback(db, by.workspace_id, feedback_id, body)
    return await get_feedback(db, feedback_id, by=by)


async def store_feedback(db: Session, workspace_id: UUID, feedback_id: UUID, body: FeedbackRequest) -> None:
    """Write feedback as ingest does."""
    modified_at = to_utc(body.modified_at, "modified_at") if body.modified_at else now()
    body.created_at = to_utc(body.created_at, "created_at") if body.created_at else modified_at
    text = msgspec.json.encode(body).decode()
    write = FeedbackWrite(
        id=feedback_id,
        run_id=body.run_id,
        trace_id=body.trace_id,
        key=body.key,
        body=text,
        modified_at=modified_at,
        extends_trace=body.extend_trace_retention,
    )

    await write_feedback(db, workspace_id, [write])


async def list_feedback(db: Session, query: FeedbackQuery, *, by: Actor) -> list[Feedback]:
    """List feedback, last changed first."""
    return await find_feedback(db, by.workspace_id, query)


async def get_feedback(db: Session, feedback_id: UUID, *, by: Actor) -> Feedback:
    """Return one piece of feedback. Raises FeedbackNotFound."""
    items = await find_feedback(db, by.workspace_id, FeedbackQuery(), [feedback_id])
    if not items:
        raise FeedbackNotFound

    return items[0]


async def update_feedback(db: Database, feedback_id: UUID, patch: FeedbackPatch, *, by: Actor) -> Feedback:
    """Change feedback; null leaves a field unchanged. Raises FeedbackNotFound."""
    async with db.transaction() as tx:
        owner = {"workspace_id": by.workspace_id, "feedback_id": feedback_id}
        row = await tx.fetchrow(sql.feedback_to_change, **owner)
        if row is None:
            raise FeedbackNotFound

        changes = {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not None}
        body = dump_user({**_decode_body(row["body"]), **changes}).decode()
        await tx.execute(sql.change_feedback, **owner, body=body, modified_at=now())

    return await get_feedback(db, feedback_id, by=by)


async def delete_feedback(db: Session, feedback_id: UUID, *, by: Actor) -> None:
    """Delete feedback. Raises FeedbackNotFound."""
    if not await db.execute(sql.delete_feedback, workspace_id=by.workspace_id, feedback_id=feedback_id):
        raise FeedbackNotFound


async def find_feedback(
    db: Session, workspace_id: UUID, query: FeedbackQuery, ids: list[UUID] | None = None
) -> list[Feedback]:
    """Return the feedback of a workspace that matches a query and ids, last changed first."""
    rows = await db.fetch(
        sql.list_feedback,
        workspace_id=workspace_id,
        ids=ids,
        runs=query.run,
        sessions=None if query.session is None else [str(session) for session in query.session],
        keys=query.key,
        sources=query.source,
        users=query.user,
        has_comment=query.has_comment,
        has_score=query.has_score,
        level=query.level,
        limit=query.limit,
        offset=query.offset,
    )

    return [_to_feedback(row) for row in rows]


def _to_feedback(row: Record) -> Feedback:
    fields = dict(row)
    body = _decode_body(fields.pop("body"))
    created_at = body.get("created_at")
    fields["created_at"] = created_at if isinstance(created_at, str) else iso(row["modified_at"])
    fields.update({name: body.get(name) for name in _BODY_FIELDS})
    return Feedback(**fields)


def _decode_body(text: str) -> dict[str, Any]:
    body = read_json(text.encode(), object, "body")
    return body if isinstance(body, dict) else {}


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


async def use_token(db: Database, token: UUID, feedback: TokenFeedback | TokenFeedbackQuery) -> None:
    """Store feedback that is given with a token. Raises FeedbackTokenNotFound."""
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
