"""Health, version, metrics, API description and diagnostics of a server."""

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside import __version__
from portside.agent.http.services import AgentServices, Context, Routes
from portside.agent.problems import PROBLEMS, sends_traces
from portside.agent.queue.backlog import GAUGES_OF_DATABASE, Backlog, Slots
from portside.kernel.codec import dump_api
from portside.kernel.diagnostics import DiagnosisUnderWay, Diagnostics, HeapDump
from portside.kernel.errors import NotFound
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.health import Health, HealthChecks, check_all, show_metrics
from portside.kernel.http.openapi import ServerInfo
from portside.kernel.http.proxies import get_prefix
from portside.kernel.http.reference_page import reference_response
from portside.kernel.metrics import Family, Siblings, exposition, families, request_counts
from portside.kernel.version import full_version

routes = Routes("system")
bare_routes = Routes("system")
SERVER_INFO = ServerInfo("Portside agent server", __version__, ErrorFormat.TEXT, wants_key=False)
NO_CHECKS = HealthChecks({})


class HealthQuery(msgspec.Struct):
    """Whether to check the dependencies, and whether only a replica that serves traffic counts as healthy."""

    check_db: bool = True
    serving: bool = False


class Alive(msgspec.Struct):
    """Whether the server answers, where its configuration hides everything else."""

    ok: bool


class MetricsQuery(msgspec.Struct):
    """The form of the metrics: `json`; anything else is the Prometheus text format."""

    format: str = "prometheus"


class ApiMetrics(msgspec.Struct):
    """Requests that the HTTP server answered."""

    http_requests_total: list[dict[str, str | int]]


class Metrics(msgspec.Struct, omit_defaults=True):
    """The metrics as JSON. `problems`: servers that refuse this one, and executors that do not start.

    `idle_s` says for how many seconds this server has had no request and no run, and is absent if that is unknown.
    Where several processes answer at one address, the requests and slots are those of all of them.
    In a deployment `threads_by_revision` counts the threads that continue with the code of each revision.
    """

    queue: Backlog
    api: ApiMetrics
    workers: Slots
    problems: list[str] = []
    idle_s: float | None = None
    threads_by_revision: dict[UUID, int] | None = None


class Host(msgspec.Struct):
    """The deployment that a server belongs to."""

    kind: str
    project_id: str | None
    host_revision_id: str | None
    revision_id: str | None
    tenant_id: str | None


class Info(msgspec.Struct):
    """Versions, features, and the deployment of a server."""

    version: str
    langgraph_py_version: str
    flags: dict[str, bool]
    host: Host


@routes.get("/ok", public=True, returns=Health, responses={500: Health})
async def check_health(ctx: Context, query: HealthQuery) -> Response:
    """Answer 200 if every dependency answers, else 500."""
    return await _health(ctx, query)


async def _health(ctx: Context, query: HealthQuery) -> Response:
    health = await check_all(ctx.services.health if query.check_db else NO_CHECKS)
    is_ok = health.ok and (ctx.services.traffic.is_served or not query.serving)
    return Response(dump_api(health), 200 if is_ok else 500, media_type="application/json")


@routes.get("/", public=True, returns=Health, responses={500: Health})
async def check_root(ctx: Context, query: HealthQuery) -> Response:
    """Answer as /ok does."""
    return await _health(ctx, query)


@bare_routes.get("/ok", public=True, returns=Alive, responses={500: Alive})
async def say_ok(ctx: Context, query: HealthQuery) -> Response:
    """Answer without checking the dependencies."""
    is_ok = ctx.services.traffic.is_served or not query.serving
    return Response(dump_api(Alive(is_ok)), 200 if is_ok else 500, media_type="application/json")


@routes.get("/info", public=True)
async def get_info(ctx: Context) -> Info:
    """Return versions, features, and the deployment of this server."""
    settings = ctx.services.settings
    project = settings.deployment_id
    revision = settings.revision_id
    host = Host("self-hosted", project, revision, revision, settings.tenant_id)

    return Info(
        full_version(), ctx.services.libraries.get("langgraph", ""), _flags(ctx.services.api_description.tags), host
    )


def _flags(tags: frozenset[str]) -> dict[str, bool]:
    return {
        "assistants": "assistants" in tags,
        "crons": "crons" in tags,
        "langsmith": sends_traces(),
        "langsmith_tracing_replicas": False,
        "langsmith_tracing_session_on_runs": False,
    }


@routes.get("/metrics", public=True, media_type="text/plain", returns=Metrics)
async def get_metrics(ctx: Context, query: MetricsQuery) -> Any:
    """Return the metrics for Prometheus, or as JSON."""
    services = ctx.services
    if services.siblings is not None:
        return await _join_siblings(services, services.siblings, query)
    if query.format == "json":
        return await _collect_metrics(services)

    await services.monitor.set_gauges()
    return await show_metrics(ctx)


async def _collect_metrics(services: AgentServices) -> Metrics:
    monitor = services.monitor
    backlog = await monitor.get_backlog()
    count = services.count_threads
    idle_s = await monitor.get_idle_s(services.traffic)

    # Without a count of the queue the database does not answer.
    threads = None if count is None or backlog.n_pending is None else await count(idle_s)
    return Metrics(backlog, ApiMetrics(request_counts()), monitor.slots, PROBLEMS.current(), idle_s, threads)


class WorkerDescription(msgspec.Struct, array_like=True):
    """The description that a process sends to the others at the same address: its metrics, in both forms."""

    families: list[Family]
    metrics: Metrics


async def describe_worker(services: AgentServices) -> bytes:
    """Describe this process to those that answer at the same address."""
    return msgspec.msgpack.encode(await _build_description(services))


async def _build_description(services: AgentServices) -> WorkerDescription:
    await services.monitor.set_gauges()
    return WorkerDescription(families(), await _collect_metrics(services))


async def _join_siblings(services: AgentServices, siblings: Siblings, query: MetricsQuery) -> Any:
    descriptions = {siblings.number: await _build_description(services)}
    for number, answer in (await siblings.ask()).items():
        # One that was killed in the middle of its answer is left out.
        with contextlib.suppress(msgspec.MsgspecError):
            descriptions[number] = msgspec.msgpack.decode(answer, type=WorkerDescription)

    if query.format == "json":
        return join_metrics([description.metrics for description in descriptions.values()])

    by_worker = {number: description.families for number, description in descriptions.items()}
    body, media_type = exposition(by_worker, GAUGES_OF_DATABASE)
    return Response(body, media_type=media_type)


def join_metrics(all_metrics: Sequence[Metrics]) -> Metrics:
    """Return the metrics of processes that answer at one address as those of one server."""
    counts: dict[tuple[Any, ...], dict[str, str | int]] = {}
    for row in (row for metrics in all_metrics for row in metrics.api.http_requests_total):
        key = tuple(value for name, value in row.items() if name != "count")
        total = counts.setdefault(key, {**row, "count": 0})
        total["count"] = int(total["count"]) + int(row["count"])

    slots = [metrics.workers for metrics in all_metrics]
    idle = [metrics.idle_s for metrics in all_metrics]
    return msgspec.structs.replace(
        all_metrics[0],
        api=ApiMetrics(list(counts.values())),
        workers=Slots(*(sum(figures) for figures in zip(*map(msgspec.structs.astuple, slots), strict=True))),
        problems=list(dict.fromkeys(problem for metrics in all_metrics for problem in metrics.problems)),
        idle_s=None if None in idle else min(s for s in idle if s is not None),
    )


@routes.get("/openapi.json", public=True)
async def get_openapi(ctx: Context) -> Response:
    """Return the description of this API. Behind a proxy that takes a prefix off the path, `servers` has the prefix."""
    address = ctx.services.settings.public_url.rstrip("/") + get_prefix(ctx.request.scope)
    await ctx.services.api_description.prepare()
    described = ctx.services.api_description.at(address)
    return Response(described, media_type="application/json", headers={"Cache-Control": "no-cache"})


@routes.get("/docs", public=True, media_type="text/html")
async def get_docs(_ctx: Context) -> Response:
    """Show the description of this API as a page."""
    return reference_response()


# The routes below exist only if the operator sets DEBUG_FOLDER.
debug_routes = Routes("debugging", works_on_full_disk=True)
# A caller that may deploy can read everything in the server anyway.
DEBUG_PERMISSION = "deployments:update"


class ProfileQuery(msgspec.Struct):
    """How many seconds to sample."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5


@debug_routes.post("/heapdump", permission=DEBUG_PERMISSION, raises=(DiagnosisUnderWay,))
async def dump_heap(ctx: Context) -> HeapDump:
    """Write the objects in memory, by type, to a file on the server, and return its path."""
    return await _diagnostics(ctx).dump_heap()


@debug_routes.get("/profile", permission=DEBUG_PERMISSION, raises=(DiagnosisUnderWay,), media_type="text/plain")
async def profile(ctx: Context, query: ProfileQuery) -> Response:
    """Sample the stacks of all threads; one line for each stack with its count, the input of flame graphs."""
    return Response(await _diagnostics(ctx).profile(query.seconds), media_type="text/plain")


def _diagnostics(ctx: Context) -> Diagnostics:
    diagnostics = ctx.services.diagnostics
    if diagnostics is None:
        raise NotFound

    return diagnostics
