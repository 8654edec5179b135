"""Feedback on runs and on projects.

Feedback is stored as the JSON text of the request, whether ingest or a request brought it; reads fill in defaults.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.identity.types import Actor
from portside.kernel.clock import Moment, iso, now
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.http.json_validation import needs_any
from portside.kernel.ids import uuid7
from portside.kernel.user_json import dump_user
from portside.tracing.fields import read_json, to_utc
from portside.tracing.projects import check_projects
from portside.tracing.sql import sql
from portside.tracing.types import FeedbackWrite

MAX_KEY_CHARS = 180
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)]
Score = bool | int | float | None
Value = bool | int | float | str | dict[str, Any] | None
Comment = str | None
Correction = str | dict[str, Any] | None
_COLUMNS = tuple(name for name in FeedbackWrite.__struct_fields__ if name != "extends_trace")
_BODY_FIELDS = ("score", "value", "comment", "correction", "feedback_source", "extra")


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
    """Write the feedback of a request, as ingest writes that of a batch."""
    modified_at = to_utc(body.modified_at, "modified_at") if body.modified_at else now()
    body.created_at = to_utc(body.created_at, "created_at") if body.created_at else modified_at
    write = FeedbackWrite(
        id=feedback_id,
        run_id=body.run_id,
        trace_id=body.trace_id,
        key=body.key,
        body=msgspec.json.encode(body).decode(),
        modified_at=modified_at,
        extends_trace=body.extend_trace_retention,
    )

    await write_feedback(db, workspace_id, [write])


def leave_retention(feedback: FeedbackWrite) -> None:
    """Have feedback extend no trace, also not that of a run that comes later."""
    fields = msgspec.json.decode(feedback.body, type=dict[str, msgspec.Raw])
    fields["extend_trace_retention"] = msgspec.Raw(b"false")

    feedback.body = msgspec.json.encode(fields).decode()
    feedback.extends_trace = False


async def write_feedback(tx: Session, workspace_id: UUID, feedback: list[FeedbackWrite]) -> None:
    """Write feedback; the latest write of an id wins. Feedback makes its trace long-lived unless it says otherwise."""
    by_time = sorted(feedback, key=lambda item: item.modified_at)
    latest = list({item.id: item for item in by_time}.values())
    if not latest:
        return

    columns = {name: [getattr(item, name) for item in latest] for name in _COLUMNS}
    await tx.execute(sql.write_feedback, workspace_id=workspace_id, **columns)

    run_ids = [item.run_id for item in latest if item.run_id is not None and item.extends_trace]
    if run_ids:
        await tx.execute(sql.extend_traces, workspace_id=workspace_id, run_ids=run_ids)


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
