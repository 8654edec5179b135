"""What a server says of itself: health, what it is, its metrics and its API (contract: System routes)."""

import importlib.metadata
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
from langsmith.utils import tracing_is_enabled
from starlette.responses import Response

from portside import __version__
from portside.agent.queue.backlog import Backlog, Monitor, Slots
from portside.agent.settings import AgentSettings
from portside.kernel.codec import dump_api
from portside.kernel.http.health import Health, HealthChecks, check_all, show_metrics
from portside.kernel.http.openapi import Described
from portside.kernel.http.reference import reference_response
from portside.kernel.http.refusals import ErrorForm
from portside.kernel.http.routes import Context, Routes
from portside.kernel.metrics import requests_answered

routes = Routes("system")
bare_routes = Routes("system")
DESCRIBED = Described("Portside agent server", __version__, ErrorForm.TEXT, wants_key=False)
NO_CHECKS = HealthChecks({})


class Traffic(msgspec.Struct):
    """Whether this replica answers on the deployment's own address yet."""

    is_served: bool = True


class Manual:
    """What this server tells of its API: the OpenAPI document, and which groups of routes there are."""

    def __init__(self, write: Callable[[], bytes], tags: frozenset[str]) -> None:
        self.tags = tags
        self._write = write

    @cached_property
    def openapi(self) -> bytes:
        """The document, written when somebody asks for it first: most servers are never asked."""
        return self._write()


class HealthQuery(msgspec.Struct):
    """Whether to ask the dependencies, and whether only a replica that has taken over traffic counts as healthy."""

    check_db: bool = True
    serving: bool = False


class Alive(msgspec.Struct):
    """Whether the server is there, where its configuration hides everything else about it."""

    ok: bool


class MetricsQuery(msgspec.Struct):
    """The form of the metrics: `json`; anything else is the Prometheus text format."""

    format: str = "prometheus"


class ApiMetrics(msgspec.Struct):
    """What the HTTP server answered."""

    http_requests_total: list[dict[str, str | int]]


class Metrics(msgspec.Struct):
    """The metrics as JSON."""

    queue: Backlog
    api: ApiMetrics
    workers: Slots


class Host(msgspec.Struct):
    """The deployment that a server belongs to."""

    kind: str
    project_id: str | None
    host_revision_id: str | None
    revision_id: str | None
    tenant_id: str | None


class Info(msgspec.Struct):
    """Versions, what the server can do, and where it belongs."""

    version: str
    langgraph_py_version: str
    flags: dict[str, bool]
    host: Host


@routes.get("/ok", public=True, returns=Health, answers={500: Health})
async def check_health(ctx: Context, query: HealthQuery) -> Response:
    """Answer 200 when every dependency answers, 500 when one does not."""
    return await _health(ctx, query)


async def _health(ctx: Context, query: HealthQuery) -> Response:
    health = await check_all(ctx.get(HealthChecks) if query.check_db else NO_CHECKS)
    is_ok = health.ok and (ctx.get(Traffic).is_served or not query.serving)
    return Response(dump_api(health), 200 if is_ok else 500, media_type="application/json")


@routes.get("/", public=True, returns=Health, answers={500: Health})
async def check_root(ctx: Context, query: HealthQuery) -> Response:
    """Answer as /ok does."""
    return await _health(ctx, query)


@bare_routes.get("/ok", public=True, returns=Alive, answers={500: Alive})
async def say_ok(ctx: Context, query: HealthQuery) -> Response:
    """Answer that the server is there, without a look at its dependencies."""
    is_ok = ctx.get(Traffic).is_served or not query.serving
    return Response(dump_api(Alive(is_ok)), 200 if is_ok else 500, media_type="application/json")


@routes.get("/info", public=True)
async def show_info(ctx: Context) -> Info:
    """Return versions, what this server can do, and the deployment it belongs to."""
    settings = ctx.get(AgentSettings)
    project, revision = settings.deployment_id, settings.revision_id
    host = Host("self-hosted", project, revision, revision, settings.tenant_id)
    return Info(__version__, importlib.metadata.version("langgraph"), _flags(ctx.get(Manual).tags), host)


def _flags(tags: frozenset[str]) -> dict[str, bool]:
    return {
        "assistants": "assistants" in tags,
        "crons": "crons" in tags,
        "langsmith": bool(tracing_is_enabled()),
        "langsmith_tracing_replicas": False,
        "langsmith_tracing_session_on_runs": False,
    }


@routes.get("/metrics", public=True, media_type="text/plain", returns=Metrics)
async def show_metrics_as(ctx: Context, query: MetricsQuery) -> Any:
    """Return the metrics for Prometheus, or as JSON."""
    monitor = ctx.get(Monitor)
    if query.format == "json":
        return Metrics(await monitor.backlog(), ApiMetrics(requests_answered()), monitor.slots())
    await monitor.set_gauges()
    return await show_metrics(ctx)


@routes.get("/openapi.json", public=True)
async def show_openapi(ctx: Context) -> Response:
    """Return the description of this API."""
    return Response(ctx.get(Manual).openapi, media_type="application/json")


@routes.get("/docs", public=True, media_type="text/html")
async def show_docs(_ctx: Context) -> Response:
    """Show the description of this API as a page."""
    return reference_response()
