"""Usage as CSV: one line for each combination of dimensions and bucket, in that order (spec: Granular usage).

Names are what users wrote, and a spreadsheet would run one that begins like a formula: such cells begin with an
apostrophe, which spreadsheets take for "this is text".
"""

import csv
import io
from collections.abc import AsyncIterator
from datetime import datetime
from functools import lru_cache

from portside.identity.types import Actor
from portside.kernel.db import Database
from portside.usage.counts import QUERIES, arguments, read_series
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
    csv.writer(buffer, lineterminator="\r\n").writerow(HEADER)
    given = await arguments(db, query, within, by)

    @lru_cache(maxsize=1000)
    def bounds(bucket: int) -> str:
        return f"{_moment(within.bucket(bucket))},{_moment(within.bucket(bucket + 1))}"

    async with db.transaction() as tx:
        async for row in tx.stream(QUERIES[query.group_by], **given):
            series = read_series(row)
            cells = _cells(series.dimensions)
            buffer.writelines(f"{bounds(bucket)},{cells},{traces}\r\n" for bucket, traces in series.traces.items())
            if buffer.tell() >= _CHUNK_BYTES:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
    yield buffer.getvalue()


def file_name(query: UsageQuery, within: Range) -> str:
    """Return what a browser may call the file."""
    return f"usage-by-{query.group_by.value}-{within.start:%Y%m%d}-{within.end:%Y%m%d}.csv"


def _cells(dimensions: dict[str, str | None]) -> str:
    """Write what the lines of a series have in common."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([defuse(dimensions.get(name)) for name in _DIMENSIONS])
    return line.getvalue()


def defuse(value: str | None) -> str:
    """Write a cell so that no spreadsheet takes it for a formula."""
    text = value or ""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
