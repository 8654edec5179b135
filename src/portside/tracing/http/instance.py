"""What programs ask of an installation beside traces: its health, reports of others, and what it does not do.

The platform reports to nobody, and needs no reports. Those of programs that are told to send them are taken, counted
for operators (`/metrics`) and dropped.
"""

from typing import Any
from uuid import UUID

from prometheus_client import Counter
from starlette.responses import Response

from portside.kernel.errors import NotBuilt
from portside.kernel.http.health import check_health
from portside.kernel.http.routes import Context, Routes
from portside.tracing.types import Accepted

routes = Routes("tracing")
REPORTS = Counter("portside_reports_total", "Reports of other installations that were taken and dropped.", ["kind"])
LOG_LINES = Counter("portside_reported_log_lines_total", "Log lines in those reports.")
_REPORT: dict[str, Any] = {"public": True, "max_body_bytes": 256 * 1024}


class NoModel(NotBuilt):
    """Nothing is generated here, because this platform has no model of its own; ask a model from an agent."""

    code = "no_model"


class NoRules(NotBuilt):
    """There are no automation rules here that could be triggered."""

    code = "no_rules"


@routes.get("/info/health", public=True)
async def show_instance_health(ctx: Context) -> Response:
    """Answer 200 when every dependency answers, 500 when one does not, as `/ok` does."""
    answer: Response = await check_health(ctx)
    return answer


@routes.post("/v1/beacon", **_REPORT)
async def take_beacon(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - never changed
    """Take the report of an installation; it is counted and dropped."""
    return _take("beacon", body)


@routes.post("/beacon", **_REPORT)
async def take_beacon_below_prefix(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - never changed
    """Take the same at `/api/v1/beacon`."""
    return _take("beacon", body)


@routes.post("/v1/metadata/submit", **_REPORT)
async def take_metadata(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - never changed
    """Take the metadata of an installation; they are counted and dropped."""
    return _take("metadata", body)


@routes.post("/metadata/submit", **_REPORT)
async def take_metadata_below_prefix(_ctx: Context, body: dict[str, Any] = {}) -> Accepted:  # noqa: B006 - as above
    """Take the same at `/api/v1/metadata/submit`."""
    return _take("metadata", body)


@routes.post("/generate", permission="prompts:create", raises=(NoModel,))
async def generate(_ctx: Context) -> Accepted:
    """Answer 501: it would take a model, and there is none."""
    raise NoModel


@routes.post("/runs/rules/trigger", permission="rules:update", raises=(NoRules,))
async def trigger_rules(_ctx: Context) -> Accepted:
    """Answer 501: there are no automation rules."""
    raise NoRules


@routes.post("/runs/rules/{rule_id}/trigger", permission="rules:update", raises=(NoRules,))
async def trigger_rule(_ctx: Context, rule_id: UUID) -> Accepted:
    """Answer 501: there are no automation rules."""
    raise NoRules(f"There are no automation rules here, and none with the id {rule_id}.")


def _take(kind: str, body: dict[str, Any]) -> Accepted:
    REPORTS.labels(kind).inc()
    lines = body.get("logs")
    LOG_LINES.inc(len(lines) if isinstance(lines, list) else 0)
    return Accepted()
