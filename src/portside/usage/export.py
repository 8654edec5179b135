"""Usage as CSV: one line for each bucket and combination of dimensions (spec: Granular usage).

Names are what users wrote, and a spreadsheet would run one that begins like a formula: such cells begin with an
apostrophe, which spreadsheets take for "this is text".
"""

import csv
import io
from collections.abc import AsyncIterator
from datetime import datetime
from functools import lru_cache
from typing import Any

from portside.identity.types import Actor
from portside.kernel.db import Database
from portside.usage.counts import QUERIES, arguments
from portside.usage.ranges import Range
from portside.usage.types import UsageQuery

HEADER = (
    "Time Bucket Start", "Time Bucket End", "Workspace ID", "Workspace Name", "Project ID", "Project Name",
    "User ID", "User Email", "API Key Short Key", "Traces",
)  # fmt: skip
_DIMENSIONS = (
    "workspace_id", "workspace_name", "project_id", "project_name", "user_id", "user_email", "api_key_short_key",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_CHUNK_BYTES = 32_768


async def export_usage(db: Database, query: UsageQuery, within: Range, *, by: Actor) -> AsyncIterator[str]:
    """Yield the file piece by piece, whatever its size."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(HEADER)
    given = await arguments(db, query, within, by)
    # Buckets and combinations of dimensions come again and again.
    bounds = lru_cache(maxsize=1000)(lambda begin: (_moment(begin), _moment(begin + within.width)))
    cells = lru_cache(maxsize=10_000)(_cells)
    async with db.transaction() as tx:
        async for row in tx.stream(QUERIES[query.group_by], **given):
            writer.writerow((*bounds(row["time_bucket"]), *cells(*map(row.get, _DIMENSIONS)), row["traces"]))
            if buffer.tell() >= _CHUNK_BYTES:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
    yield buffer.getvalue()


def file_name(query: UsageQuery, within: Range) -> str:
    """Return what a browser may call the file."""
    return f"usage-by-{query.group_by.value}-{within.start:%Y%m%d}-{within.end:%Y%m%d}.csv"


def _cells(*dimensions: Any) -> tuple[str, ...]:
    return tuple(defuse(one) for one in dimensions)


def defuse(value: Any) -> str:
    """Write a cell so that no spreadsheet takes it for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
