"""Long lists of threads' values: in checkpoints, not in the rows of threads (docs/why/long-threads.md).

Clients receive the same bytes as if the row held the lists. Only lists of messages and of plain JSON data are left out
of a row, so their JSON does not depend on the project's classes.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from portside.agent.encryption.codec import UNDECRYPTABLE, find_encryptor, value_at
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption_handlers import CannotDecrypt
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Session
from portside.kernel.errors import Invalid
from portside.kernel.large_reads import current_read
from portside.kernel.logs import get_logger
from portside.kernel.user_json import dump_user, without_nul

if TYPE_CHECKING:
    from portside.executor.checkpoints.serde import SafeSerializer

# How many rows, without their lists, are in memory together.
BATCH = 16
# How often a row is read again whose checkpoint was deleted in between.
ATTEMPTS = 3
# How many threads a search by a list reads, and for how long: any client may ask for it, and every list is decoded.
MAX_SCANNED = 1000
SCAN_S = 20.0
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
log = get_logger(__name__)
# A record of the database, or a dict with the same columns.
Row = Any


async def with_long_values(db: Session, rows: Sequence[Row], extract: Any = None, *, marks: bool = False) -> list[Row]:
    """Return rows of threads with their whole values, and what the paths of a search lead to in them.

    Raises ResponseTooLarge that says how many of the threads one response may hold, and CannotDecrypt. With `marks`
    values that cannot be decrypted are replaced by the reason.
    """
    whole_rows: list[Row] = list(rows)
    for place, row in enumerate(rows):
        if row["long_values"] is None:
            continue

        try:
            whole_rows[place] = await _complete(db, row, extract)
        except CannotDecrypt as exc:
            if not marks:
                raise

            # One bad row must not hide the others.
            log.warning("long values cannot be decrypted", thread_id=str(row["thread_id"]), reason=exc.message)
            whole_rows[place] = {**dict(row), "values": dump_api({UNDECRYPTABLE: exc.message}).decode()}

        reservation = current_read()
        if reservation is not None:
            reservation.check_objects(place)

    return whole_rows


async def _complete(db: Session, row: Row, extract: Any) -> Row:
    base, lists = await _read_lists(db, row)
    if find_encryptor(db) is not None:
        return _join_here(base, lists, extract)

    join = await _join(db, base, lists, extract=extract)
    whole = {**dict(base), "values": join["joined"]}
    if base.get("extracted") is not None:
        whole["extracted"] = join["joined_paths"]

    return whole


def _join_here(base: Row, lists: str, extract: Any) -> Row:
    """Join decrypted values without sending them to Postgres, in the order of keys of `jsonb`: the short ones first."""
    parts = _RAW_OBJECT.decode(base["values"] or "{}") | _RAW_OBJECT.decode(lists)
    names = sorted(parts, key=lambda key: (len(key.encode()), key.encode()))

    whole = {**dict(base), "values": dump_api({key: parts[key] for key in names}).decode()}
    if base.get("extracted") is not None:
        values = load(whole["values"])
        extracted = load(base["extracted"])
        for path in extract or ():
            if path["root"] == "values":
                extracted[path["alias"]] = value_at(values, path["path"])

        whole["extracted"] = dump_api(extracted).decode()

    return whole


async def find_matching_threads(db: Session, filters: Mapping[str, Any]) -> list[UUID] | None:
    """Return the threads that match a filter by lists that are not in their rows; None if no row can lack them.

    `filters` are those of the whole search: `ids`, `metadata`, `values`, `status` and `access`. No index answers a
    filter by a list, so the lists of every thread that matches the rest are read, one thread after the other. Raises
    Invalid if that are too many, and for a filter by what is encrypted in rows.
    """
    values = filters["values"] or {}
    keys = [key for key, value in values.items() if isinstance(value, list)]
    if not keys:
        return None

    encryptor = find_encryptor(db)
    if encryptor is not None:
        await encryptor.refuse_encrypted(values, ModelField("thread", "values"), ["body", "values"])

    rows = await db.fetch(sql.find_threads_with_long_values, **filters, keys=keys, limit=MAX_SCANNED + 1)
    candidates: list[UUID] = [row["thread_id"] for row in rows]
    if len(candidates) > MAX_SCANNED:
        raise _too_slow(keys[0], f"more than {MAX_SCANNED} threads have such a list")

    json_filter = dump_api(values).decode()
    matching_ids = []
    deadline = time.monotonic() + SCAN_S

    for start in range(0, len(candidates), BATCH):
        batch = candidates[start : start + BATCH]
        for row in await db.fetch(sql.read_threads_with_long_values, thread_ids=batch):
            if time.monotonic() > deadline:
                raise _too_slow(keys[0], f"reading such lists of {len(candidates)} threads takes over {SCAN_S:.0f} s")

            base, lists = await _read_lists(db, row)
            join = await _join(db, base, lists, matching=json_filter)
            if join["is_matching"]:
                matching_ids.append(row["thread_id"])

        reservation = current_read()
        if reservation is not None:
            # None of it is in the response.
            reservation.used = 0

    return matching_ids


def _too_slow(key: str, why: str) -> Invalid:
    advice = "narrow the search by ids, metadata, status or another value, or keep what you search by in metadata"
    return Invalid.field(["body", "values", key], f"no index answers a filter by a list, and {why}; {advice}")


@cache
def _serde() -> "SafeSerializer":
    # A server without graphs imports their libraries for long lists alone.
    from portside.executor.checkpoints.serde import make_serde

    return make_serde()


async def _join(db: Session, row: Row, lists: str, *, matching: str | None = None, extract: Any = None) -> Row:
    return await db.fetchrow(
        sql.join_long_values,
        rows=[row["values"]],
        lists=[lists],
        extracteds=[row.get("extracted") or "{}"],
        matching=matching,
        extract=None if extract is None else dump_api(extract).decode(),
    )


async def _read_lists(db: Session, row: Row) -> tuple[Row, str]:
    """Return a row with the JSON of its long lists, read again if their checkpoint was deleted in between."""
    for _ in range(ATTEMPTS):
        versions: dict[str, str] = {} if row["long_values"] is None else load(row["long_values"])
        entries = await _read_entries(db, row["thread_id"], versions)
        if len(entries) == len(versions):
            break

        again = await db.fetchrow(sql.get_thread, thread_id=row["thread_id"])
        if again is None:
            break

        row = {**dict(row), "values": again["values"], "long_values": again["long_values"]}

    return row, "{" + ",".join(entries) + "}"


async def _read_entries(db: Session, thread_id: UUID, versions: Mapping[str, str]) -> list[str]:
    """Return the entries of a JSON object for the lists that are stored."""
    entries = []
    for name, version in versions.items():
        # One after the other: a single row may be as large as it is (`kernel.large_reads`).
        row = await db.fetchrow(sql.read_long_value, thread_id=str(thread_id), channel=name, version=version)
        if row is not None:
            value = _serde().loads_for_json((row["kind"], row["value_datas"][0]))
            entries.append(f"{dump_api(name).decode()}:{without_nul(dump_user(value)).decode()}")

    return entries
