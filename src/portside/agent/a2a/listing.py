"""Lists of tasks, in pages that cursors lead through."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.a2a.agents import Agent
from portside.agent.a2a.dialects import old_state
from portside.agent.a2a.errors import BadParams
from portside.agent.a2a.params import Listing
from portside.agent.a2a.tasks import ACTIVE, TERMINAL, Standing
from portside.agent.graphs.execute import UNKNOWN_INTERRUPT
from portside.agent.sql import sql
from portside.agent.types.access import Filter
from portside.kernel.db import Database

DEFAULT_SIZE = 50
STATES = ACTIVE | TERMINAL | {"input-required", "rejected", "auth-required"}
EVERY_STATE = frozenset({"", "unspecified"})


class Page(NamedTuple):
    """Some of the tasks, how many there are in all, how many a page has at most, and where the next one begins."""

    standings: list[Standing]
    total: int
    size: int
    next_token: str


async def list_tasks(db: Database, agent: Agent, asked: Listing, access: Filter | None) -> Page:
    """Return a page of the tasks of an assistant on threads that fit a filter. Raises BadParams."""
    size = asked.page_size or DEFAULT_SIZE
    before_at, before_id = _cursor(asked.page_token) if asked.page_token else (None, None)
    values: dict[str, Any] = {
        "assistant_id": agent.assistant_id,
        "thread_id": _uuid(asked.context_id) if asked.context_id else None,
        "state": _state(asked.status),
        "after": _moment(asked.status_timestamp_after) if asked.status_timestamp_after else None,
        "access": access,
        "came_late": UNKNOWN_INTERRUPT,
        "before_at": before_at,
        "before_id": before_id,
    }
    rows = await db.fetch(sql.a2a_tasks, **values, limit=size + 1)
    page = rows[:size]
    token = _token(page[-1]["updated_at"], page[-1]["run_id"]) if len(rows) > size else ""
    return Page([Standing.of(row) for row in page], rows[0]["total"] if rows else 0, size, token)


def _state(given: str | None) -> str | None:
    state = old_state(given or "")
    if state in EVERY_STATE:
        return None
    if state not in STATES:
        raise BadParams("Invalid params: params.status: there is no such state of a task")
    return state


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise BadParams("Invalid params: params.contextId: a context is named by a UUID") from None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadParams("Invalid params: params.statusTimestampAfter: expected a moment as in ISO 8601") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _token(moment: datetime, run_id: UUID) -> str:
    return base64.urlsafe_b64encode(f"{moment.isoformat()} {run_id}".encode()).decode()


def _cursor(token: str) -> tuple[datetime, UUID]:
    try:
        moment, _, run_id = base64.urlsafe_b64decode(token).decode().partition(" ")
        return datetime.fromisoformat(moment), UUID(run_id)
    except (ValueError, binascii.Error):
        raise BadParams("Invalid params: params.pageToken: this is no token of an earlier page") from None
