"""Usage and costs as CSV files.

The file of usage has one line for each combination of dimensions and bucket, and is streamed. Users choose the names in
both files, so cells are escaped by the rules of `kernel.escaping`.
"""

import csv
import io
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime
from functools import lru_cache

from portside.identity.types import Actor
from portside.kernel.db import Database
from portside.kernel.escaping import escape_formula
from portside.kernel.spool import spooled
from portside.usage.costs import COST_DIMENSIONS, COST_FIELDS, Costs, CostsQuery
from portside.usage.counts import QUERIES, UsageSeries, build_arguments, to_series
from portside.usage.ranges import Range
from portside.usage.types import Dimensions, UsageQuery

USAGE_HEADER = (
    "Time Bucket Start",
    "Time Bucket End",
    "Workspace ID",
    "Workspace Name",
    "Project ID",
    "Project Name",
    "User ID",
    "User Email",
    "API Key Short Key",
    "Traces",
)
_USAGE_DIMENSIONS = (
    "workspace_id",
    "workspace_name",
    "project_id",
    "project_name",
    "user_id",
    "user_email",
    "api_key_short_key",
)
_CHUNK_BYTES = 32_768


async def export_usage(db: Database, query: UsageQuery, time_range: Range, *, by: Actor) -> AsyncIterator[str]:
    """Yield the file in pieces, so that its size is not limited by memory.

    One statement reads all counts, so they are of one moment, however slowly the client reads the file. Raises
    DownloadTooLarge and TooManyDownloads before the first piece.
    """
    arguments = await build_arguments(db, query, time_range, by=by)

    @lru_cache(maxsize=1000)
    def format_bucket(bucket: int) -> str:
        start = _format_time(time_range.bucket_start(bucket))
        end = _format_time(time_range.bucket_start(bucket + 1))
        return f"{start},{end}"

    async def read() -> AsyncGenerator[UsageSeries]:
        async with db.transaction() as tx:
            async for row in tx.stream(QUERIES[query.group_by], **arguments):
                yield to_series(row)

    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(USAGE_HEADER)

    async for series in spooled(read(), UsageSeries):
        cells = _format_dimensions(series.dimensions)
        buffer.writelines(f"{format_bucket(bucket)},{cells},{traces}\r\n" for bucket, traces in series.traces.items())

        if buffer.tell() >= _CHUNK_BYTES:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()

    yield buffer.getvalue()


def build_file_name(query: UsageQuery, time_range: Range) -> str:
    """Return the name under which browsers store the file of usage."""
    return f"usage-by-{query.group_by.value}-{time_range.start:%Y%m%d}-{time_range.end:%Y%m%d}.csv"


def costs_to_csv(costs: Costs, query: CostsQuery) -> str:
    """Convert records of costs to CSV, with a column for each dimension of the query."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    dimensions = COST_DIMENSIONS[query.group_by]
    figures = ("traces", *COST_FIELDS)
    writer.writerow(["time_bucket", *dimensions, *figures])

    for record in costs.usage:
        names = [escape_formula(record.dimensions.get(name) or "") for name in dimensions]
        numbers = [getattr(record, name) for name in figures]
        writer.writerow([_format_time(record.time_bucket), *names, *numbers])

    return buffer.getvalue()


def _format_dimensions(dimensions: Dimensions) -> str:
    """Return the cells that all lines of a series share."""
    line = io.StringIO()
    cells = [escape_formula(dimensions.get(name) or "") for name in _USAGE_DIMENSIONS]
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _format_time(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
