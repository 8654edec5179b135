"""The routes that take what other installations report about themselves; it is counted and dropped."""

from typing import Any

from prometheus_client import Counter

from portside.kernel.http.audit_actions import Unrecorded
from portside.kernel.http.routes import RouteOptions
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted

routes = Routes("tracing")
REPORTS = Counter("portside_reports_total", "Reports of other installations that were accepted and dropped.", ["kind"])
LOG_LINES = Counter("portside_reported_log_lines_total", "Log lines in those reports.")
_TELEMETRY = Unrecorded("accepts what clients report about themselves, and stores nothing")
_REPORT: RouteOptions = {"public": True, "max_body_bytes": 256 * 1024, "works_on_full_disk": True}


@routes.post("/v1/beacon", **_REPORT, audit=_TELEMETRY)
async def take_beacon(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - never changed
    """Accept the report of an installation; it is counted and dropped."""
    return _count_report("beacon", body)


@routes.post("/beacon", operation="prefixed_beacons_take", **_REPORT, audit=_TELEMETRY)
async def take_beacon_below_prefix(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - never changed
    """Accept the same report at `/api/v1/beacon`."""
    return _count_report("beacon", body)


@routes.post("/v1/metadata/submit", **_REPORT, audit=_TELEMETRY)
async def take_metadata(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - never changed
    """Accept the metadata of an installation; it is counted and dropped."""
    return _count_report("metadata", body)


@routes.post("/metadata/submit", operation="prefixed_metadata_take", **_REPORT, audit=_TELEMETRY)
async def take_metadata_below_prefix(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - as above
    """Accept the same metadata at `/api/v1/metadata/submit`."""
    return _count_report("metadata", body)


def _count_report(kind: str, body: dict[str, Any]) -> Accepted:
    REPORTS.labels(kind).inc()
    lines = body.get("logs")
    LOG_LINES.inc(len(lines) if isinstance(lines, list) else 0)
    return Accepted()
