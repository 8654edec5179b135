"""Health, version, metrics, and the API's description."""

import contextlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from portside import __version__
from portside.agent.http.context import Context, Routes
from portside.agent.http.services import AgentServices
from portside.agent.problems import PROBLEMS, sends_traces
from portside.agent.queue.backlog import GAUGES_OF_DATABASE, Backlog, Slots
from portside.kernel.codec import dump_api
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.health import NO_CHECKS, Health, build_metrics_response, check_all
from portside.kernel.http.openapi import ServerInfo, build_reference_response
from portside.kernel.http.proxies import get_prefix
from portside.kernel.metrics import Family, Siblings, count_requests, format_metrics, list_families
from portside.kernel.version import full_version

routes = Routes("system")
bare_routes = Routes("system")
SERVER_INFO = ServerInfo("Portside agent server", __version__, ErrorFormat.TEXT, wants_key=False)


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


@routes.get("/", operation="root_check", public=True, returns=Health, responses={500: Health})
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
    return Info(
        version=full_version(),
        langgraph_py_version=ctx.services.libraries.get("langgraph", ""),
        flags=_list_flags(ctx.services.api_description.tags),
        host=Host(
            kind="self-hosted",
            project_id=settings.deployment_id,
            host_revision_id=settings.revision_id,
            revision_id=settings.revision_id,
            tenant_id=settings.tenant_id,
        ),
    )


def _list_flags(tags: frozenset[str]) -> dict[str, bool]:
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
    return build_metrics_response()


async def _collect_metrics(services: AgentServices) -> Metrics:
    backlog = await services.monitor.get_backlog()
    idle_s = await services.monitor.get_idle_s(services.traffic)

    threads_by_revision = None
    # Without a count of the queue the database does not answer.
    if services.count_threads is not None and backlog.n_pending is not None:
        threads_by_revision = await services.count_threads(idle_s)

    return Metrics(
        queue=backlog,
        api=ApiMetrics(count_requests()),
        workers=services.monitor.slots,
        problems=PROBLEMS.current(),
        idle_s=idle_s,
        threads_by_revision=threads_by_revision,
    )


class WorkerDescription(msgspec.Struct, array_like=True):
    """The description that a process sends to the others at the same address: its metrics, in both forms."""

    families: list[Family]
    metrics: Metrics


async def describe_worker(services: AgentServices) -> bytes:
    """Describe this process to those that answer at the same address."""
    return msgspec.msgpack.encode(await _build_description(services))


async def _build_description(services: AgentServices) -> WorkerDescription:
    await services.monitor.set_gauges()
    return WorkerDescription(list_families(), await _collect_metrics(services))


async def _join_siblings(services: AgentServices, siblings: Siblings, query: MetricsQuery) -> Any:
    descriptions = {siblings.number: await _build_description(services)}
    for number, answer in (await siblings.ask()).items():
        # One that was killed in the middle of its answer is left out.
        with contextlib.suppress(msgspec.MsgspecError):
            descriptions[number] = msgspec.msgpack.decode(answer, type=WorkerDescription)

    if query.format == "json":
        return join_metrics([description.metrics for description in descriptions.values()])

    by_worker = {number: description.families for number, description in descriptions.items()}
    body, media_type = format_metrics(by_worker, GAUGES_OF_DATABASE)
    return Response(body, media_type=media_type)


def join_metrics(all_metrics: Sequence[Metrics]) -> Metrics:
    """Return the metrics of processes that answer at one address as those of one server."""
    totals: dict[tuple[Any, ...], dict[str, str | int]] = {}
    for metrics in all_metrics:
        for row in metrics.api.http_requests_total:
            labels = tuple(value for name, value in row.items() if name != "count")
            total = totals.setdefault(labels, {**row, "count": 0})
            total["count"] = int(total["count"]) + int(row["count"])

    slots = [metrics.workers for metrics in all_metrics]
    idle_times = [metrics.idle_s for metrics in all_metrics if metrics.idle_s is not None]
    is_idle_known = len(idle_times) == len(all_metrics)

    return msgspec.structs.replace(
        all_metrics[0],
        api=ApiMetrics(list(totals.values())),
        workers=Slots(
            max=sum(process.max for process in slots),
            active=sum(process.active for process in slots),
            available=sum(process.available for process in slots),
        ),
        problems=list(dict.fromkeys(problem for metrics in all_metrics for problem in metrics.problems)),
        idle_s=min(idle_times) if is_idle_known else None,
    )


@routes.get("/openapi.json", operation="openapi_get", public=True)
async def get_openapi(ctx: Context) -> Response:
    """Return the description of this API. Behind a proxy that takes a prefix off the path, `servers` has the prefix."""
    address = ctx.services.settings.public_url.rstrip("/") + get_prefix(ctx.request.scope)
    await ctx.services.api_description.prepare()
    document = ctx.services.api_description.get_document(address)
    return Response(document, media_type="application/json", headers={"Cache-Control": "no-cache"})


@routes.get("/docs", public=True, media_type="text/html")
async def get_docs(_ctx: Context) -> Response:
    """Show the description of this API as a page."""
    return build_reference_response()
