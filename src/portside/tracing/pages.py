"""Pages of runs by time. A cursor tells the run where the page before ended, so that new runs move nothing."""

import base64
import binascii
from datetime import datetime
from uuid import UUID

import msgspec

from portside.kernel.db import Session
from portside.kernel.errors import BadRequest
from portside.tracing.conditions import Condition, Conditions, all_of, narrow
from portside.tracing.fields import aware
from portside.tracing.sql import sql


class CursorInvalid(BadRequest):
    """The cursor is none of this server; begin with the first page again."""

    code = "cursor_invalid"


class Cursors(msgspec.Struct):
    """Where the page after and the page before begin."""

    next: str | None = None
    prev: str | None = None


class Page(msgspec.Struct):
    """The runs of a page, in its order, and where to go on."""

    ids: list[UUID]
    cursors: Cursors


class _Place(msgspec.Struct, array_like=True):
    """A cursor: the run beside which a page begins, and whether that lies behind it."""

    moment: datetime
    id: UUID
    is_backwards: bool


async def find_page(db: Session, asked: Condition, cursor: str | None, *, limit: int, descending: bool = True) -> Page:
    """Return a page of the runs that meet a condition. Raises CursorInvalid."""
    place = None if cursor is None else _read_cursor(cursor)
    is_backwards = place is not None and place.is_backwards
    goes_down = descending != is_backwards
    if place is not None:
        beside = sql.when_before if goes_down else sql.when_after
        asked = all_of([asked, Conditions("page").of(beside, moment=place.moment, id=place.id)])
    statement, values = narrow(sql.newest_runs if goes_down else sql.oldest_runs, asked, limit=limit + 1)
    rows = await db.fetch(statement, **values)
    found = [(row["start_time"], row["id"]) for row in rows[:limit]]
    if is_backwards:
        found.reverse()
    return Page([run_id for _, run_id in found], _cursors(found, place, has_more=len(rows) > limit))


def _cursors(found: list[tuple[datetime, UUID]], place: _Place | None, *, has_more: bool) -> Cursors:
    """Tell where to go on from a page: forwards if more follows, backwards if it was come to from there."""
    if not found:
        return Cursors()
    is_backwards = place is not None and place.is_backwards
    follows, precedes = (True, has_more) if is_backwards else (has_more, place is not None)
    after, before = _Place(*found[-1], is_backwards=False), _Place(*found[0], is_backwards=True)
    return Cursors(_write_cursor(after) if follows else None, _write_cursor(before) if precedes else None)


def _write_cursor(place: _Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _read_cursor(text: str) -> _Place:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=_Place)
        place.moment = aware(place.moment)
    except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError) as exc:
        raise CursorInvalid from exc
    return place
