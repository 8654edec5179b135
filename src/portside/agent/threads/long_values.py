"""Long lists of threads' values: in checkpoints, not in the rows of threads (docs/why/long-threads.md).

What clients receive is what a row that had the lists would give them, byte for byte. Only lists of messages and of
plain JSON data are left out of a row, so their JSON does not depend on the project's classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from portside.agent.checkpoints.serde import make_serde
from portside.agent.sql import sql
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Session
from portside.kernel.user_json import dump_user, without_nul

_serde = make_serde()
# Threads whose values are in memory together.
BATCH = 16
# How often a row is read again whose checkpoint was deleted in between.
ATTEMPTS = 3
_FIRST = UUID(int=0)
# A record of the database, or a dict with the same columns.
Row = Any


async def with_long_values(db: Session, rows: Sequence[Row], extract: Any = None) -> list[Row]:
    """Return rows of threads with their whole values, and what the paths of a search lead to in them."""
    completed: list[Row] = list(rows)
    lacking = [place for place, row in enumerate(rows) if row["long_values"] is not None]
    for start in range(0, len(lacking), BATCH):
        places = lacking[start : start + BATCH]
        batch = [await _with_lists(db, rows[place]) for place in places]
        joined = await _join(db, batch, extract=extract)
        for place, (row, _), found in zip(places, batch, joined, strict=True):
            completed[place] = whole = {**dict(row), "values": found["joined"]}
            if row.get("extracted") is not None:
                whole["extracted"] = found["joined_paths"]
    return completed


async def threads_matching(db: Session, values: Mapping[str, Any] | None) -> list[UUID] | None:
    """Return the threads that match a filter by lists that are not in their rows; None if no row can lack them.

    This reads all these threads: a slow way, for filters that no index answers either.
    """
    keys = [key for key, wanted in (values or {}).items() if isinstance(wanted, list)]
    if not keys:
        return None
    matching, after = [], _FIRST
    while rows := await db.fetch(sql.threads_with_long_values, keys=keys, after_id=after, limit=BATCH):
        batch = [await _with_lists(db, row) for row in rows]
        joined = await _join(db, batch, matching=dump_api(values).decode())
        matching += [row["thread_id"] for row, found in zip(rows, joined, strict=True) if found["is_matching"]]
        after = rows[-1]["thread_id"]
    return matching


async def _join(db: Session, batch: Sequence[tuple[Row, str]], **wanted: Any) -> list[Row]:
    extract = wanted.get("extract")
    return await db.fetch(
        sql.join_long_values,
        rows=[row["values"] for row, _ in batch],
        lists=[lists for _, lists in batch],
        extracteds=[row.get("extracted") or "{}" for row, _ in batch],
        matching=wanted.get("matching"),
        extract=None if extract is None else dump_api(extract).decode(),
    )


async def _with_lists(db: Session, row: Row) -> tuple[Row, str]:
    """Return a row with the JSON of its long lists, read again if their checkpoint was deleted in between."""
    for _ in range(ATTEMPTS):
        versions: dict[str, str] = {} if row["long_values"] is None else load(row["long_values"])
        found = await _read(db, row["thread_id"], versions)
        if len(found) == len(versions):
            break
        again = await db.fetchrow(sql.get_thread, thread_id=row["thread_id"])
        if again is None:
            break
        row = {**dict(row), "values": again["values"], "long_values": again["long_values"]}
    return row, "{" + ",".join(found) + "}"


async def _read(db: Session, thread_id: UUID, versions: Mapping[str, str]) -> list[str]:
    """Return the entries of a JSON object for the lists that are stored."""
    rows = await db.fetch(
        sql.read_long_values,
        thread_ids=[str(thread_id)] * len(versions),
        channels=list(versions),
        versions=list(versions.values()),
    )
    names = list(versions)
    return [
        f"{dump_api(names[row['place'] - 1]).decode()}:"
        f"{without_nul(dump_user(_serde.loads_for_json((row['kind'], row['data'])))).decode()}"
        for row in rows
    ]
