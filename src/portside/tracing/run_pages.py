"""Pages of the runs that meet a condition: their ids, in the order of their start.

A cursor holds the start time and id of the run next to which its page begins, so new runs do not move pages. A page
ends early when the next run would exceed the byte budget of one response.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from portside.kernel.db import Record, Session
from portside.kernel.large_reads import reserve_page
from portside.kernel.timeouts import timeout
from portside.tracing.conditions import Condition, ConditionBuilder, apply_condition, require_all
from portside.tracing.cursors import read_cursor, write_cursor
from portside.tracing.sql import sql

# How many runs a search looks at in one statement: twice as many as before if that took less than this time.
FIRST_WINDOW = 5_000
LAST_WINDOW = 160_000
QUICK_WINDOW_S = 0.2


class Cursors(msgspec.Struct):
    """The cursors of the next and the previous page."""

    next: str | None = None
    prev: str | None = None


class RunIdPage(msgspec.Struct):
    """The ids of the runs on a page, in order, and the cursors of its neighbours.

    `searched_to` is set where a search was stopped before the page was full: newer runs were looked at, older ones not.
    """

    ids: list[UUID]
    cursors: Cursors
    searched_to: datetime | None = None


class _CursorPosition(msgspec.Struct, array_like=True):
    """A decoded cursor: the run next to which the page begins, and whether the page lies before that run."""

    moment: datetime
    id: UUID
    is_backwards: bool
    is_searching: bool = False
    """Whether the previous pages were searched in windows, because few runs meet the condition."""


class SearchLimit(NamedTuple):
    """How long to search for rare runs, and the condition on the runs to look at."""

    seconds: float
    scope: Condition


async def find_page(  # noqa: PLR0913 - one statement with many parameters
    db: Session,
    condition: Condition,
    cursor: str | None,
    *,
    limit: int,
    fields: Iterable[str],
    descending: bool = True,
    search: SearchLimit | None = None,
) -> RunIdPage:
    """Return a page of the runs that meet a condition, as many as fit into one response with these large fields.

    With `search` the newest runs come first, and a page may be short or empty although more follow.

    Raises CursorInvalid and TooManyLargeReads.
    """
    position = None if cursor is None else read_cursor(cursor, _CursorPosition)
    is_backwards = position is not None and position.is_backwards
    goes_down = descending != is_backwards

    stop: _CursorPosition | None = None
    if search is not None and goes_down:
        rows, stop = await _search(db, condition, position, search, limit=limit + 1, fields=sorted(fields))
    else:
        statement, values = apply_condition(
            sql.newest_runs if goes_down else sql.oldest_runs,
            require_all([condition, *_build_condition_after(position, goes_down=goes_down)]),
            limit=limit + 1,
            fields=sorted(fields),
        )

        rows = await db.fetch(statement, **values)

    count = await reserve_page([row["bytes"] for row in rows[:limit]])
    runs = [(row["start_time"], row["id"]) for row in rows[:count]]
    if is_backwards:
        runs.reverse()

    ids = [run_id for _, run_id in runs]
    if stop is not None and len(rows) <= count:
        return RunIdPage(ids, Cursors(write_cursor(stop)), stop.moment)

    return RunIdPage(ids, _build_cursors(runs, position, has_more=len(rows) > count))


def _build_condition_after(position: _CursorPosition | None, *, goes_down: bool) -> list[Condition]:
    """Return the condition on runs that follow a position in the order of the list; none for the first page."""
    if position is None:
        return []

    neighbours = sql.when_before if goes_down else sql.when_after
    return [ConditionBuilder("page").build(neighbours, moment=position.moment, id=position.id)]


async def _search(  # noqa: PLR0913 - one search with many parameters
    db: Session,
    condition: Condition,
    position: _CursorPosition | None,
    search: SearchLimit,
    *,
    limit: int,
    fields: list[str],
) -> tuple[list[Record], _CursorPosition | None]:
    """Return the next runs that meet a condition, and where the search stopped if its time was over.

    One statement has half of the time: an index answers most conditions quickly. If that was not enough, the search
    looks at one window of runs after the other, until the page is full or the time is over.
    """
    deadline = time.monotonic() + search.seconds

    if position is None or not position.is_searching:
        statement, values = apply_condition(
            sql.newest_runs,
            require_all([condition, *_build_condition_after(position, goes_down=True)]),
            limit=limit,
            fields=fields,
        )

        with suppress(TimeoutError):
            async with timeout(search.seconds / 2):
                return await db.fetch(statement, **values), None

    rows: list[Record] = []
    size = FIRST_WINDOW
    while True:
        started_at = time.monotonic()
        before = _build_condition_after(position, goes_down=True)

        statement, values = apply_condition(sql.end_of_window, require_all([search.scope, *before]), rows=size)
        end = await db.fetchrow(statement, **values)
        window = [condition, *before]
        if end is not None:
            position = _CursorPosition(end["start_time"], end["id"], is_backwards=False, is_searching=True)
            window.append(ConditionBuilder("window").build(sql.when_not_before, moment=position.moment, id=position.id))

        statement, values = apply_condition(
            sql.newest_runs, require_all(window), limit=limit - len(rows), fields=fields
        )
        rows += await db.fetch(statement, **values)
        if end is None or len(rows) == limit:
            return rows, None
        if time.monotonic() >= deadline:
            return rows, position

        if time.monotonic() - started_at < QUICK_WINDOW_S:
            size = min(2 * size, LAST_WINDOW)


def _build_cursors(runs: list[tuple[datetime, UUID]], position: _CursorPosition | None, *, has_more: bool) -> Cursors:
    """Return cursors forwards if more runs follow, and backwards if the client came from there."""
    if not runs:
        return Cursors()

    is_backwards = position is not None and position.is_backwards
    has_next = is_backwards or has_more
    has_previous = has_more if is_backwards else position is not None
    after = _CursorPosition(*runs[-1], is_backwards=False)
    before = _CursorPosition(*runs[0], is_backwards=True)

    return Cursors(next=write_cursor(after) if has_next else None, prev=write_cursor(before) if has_previous else None)
