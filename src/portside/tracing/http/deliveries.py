"""Deliveries, answered with 202 once they are stored, and `/info` (contract: hosted API, sections f.2 and f.3)."""

from functools import partial
from uuid import UUID

from starlette.responses import Response

from portside.kernel.errors import BodyTooLarge, Invalid
from portside.kernel.http.routes import Context, Routes
from portside.tracing import deliveries
from portside.tracing.encodings import EncodingBroken, EncodingUnknown
from portside.tracing.info import Info
from portside.tracing.ingest import receive
from portside.tracing.otlp.spans import from_otlp
from portside.tracing.otlp.wire import JSON, PROTOBUF
from portside.tracing.projects import ProjectContested
from portside.tracing.quotas import Quotas, TracesLimitReached
from portside.tracing.retention import Retention
from portside.tracing.types import Accepted

routes = Routes("tracing")
_REFUSALS = (EncodingBroken, ProjectContested, BodyTooLarge, EncodingUnknown, Invalid)
_ON_NEW = (*_REFUSALS, TracesLimitReached)


@routes.get("/info", public=True)
async def show_info(ctx: Context) -> Info:
    """Tell SDKs where they are and how to deliver."""
    return ctx.get(Info)


@routes.post("/runs/multipart", status=202, permission="runs:create", raises=_ON_NEW)
async def ingest_multipart(ctx: Context) -> Accepted:
    """Store the runs, feedback and attachments of a multipart body, plain or compressed with zstd or gzip."""
    await ctx.get(Quotas).check_traces(ctx.actor.workspace_id)
    request = ctx.request
    delivery = await deliveries.read(await request.body(), request.headers, deliveries.from_multipart)
    await receive(ctx.db, delivery, by=ctx.actor, tier=ctx.get(Retention).default_tier)
    return Accepted()


@routes.post("/runs/batch", status=202, permission="runs:create", raises=_ON_NEW)
async def ingest_batch(ctx: Context) -> Accepted:
    """Store the runs of `{"post": […], "patch": […]}`."""
    await ctx.get(Quotas).check_traces(ctx.actor.workspace_id)
    request = ctx.request
    delivery = await deliveries.read(await request.body(), request.headers, deliveries.from_batch)
    await receive(ctx.db, delivery, by=ctx.actor, tier=ctx.get(Retention).default_tier)
    return Accepted()


@routes.post("/runs", status=202, permission="runs:create", raises=_ON_NEW)
async def create_run(ctx: Context) -> Accepted:
    """Store one run."""
    await ctx.get(Quotas).check_traces(ctx.actor.workspace_id)
    request = ctx.request
    delivery = await deliveries.read(await request.body(), request.headers, deliveries.from_run)
    await receive(ctx.db, delivery, by=ctx.actor, tier=ctx.get(Retention).default_tier)
    return Accepted()


@routes.patch("/runs/{run_id}", status=202, permission="runs:create", raises=_REFUSALS)
async def update_run(ctx: Context, run_id: UUID) -> Accepted:
    """Store what changed of a run; null means unchanged. The run itself may still be on its way."""
    request = ctx.request
    delivery = await deliveries.read(await request.body(), request.headers, deliveries.from_update(run_id))
    await receive(ctx.db, delivery, by=ctx.actor, tier=ctx.get(Retention).default_tier)
    return Accepted()


@routes.post("/otel/v1/traces", permission="runs:create", raises=_ON_NEW)
async def ingest_otlp(ctx: Context) -> Response:
    """Store the spans of an OpenTelemetry exporter as runs: protobuf or JSON, plain or compressed.

    They go to the project that each names (`langsmith.trace.session_name`), else to that of the header
    `Langsmith-Project`.
    """
    await ctx.get(Quotas).check_traces(ctx.actor.workspace_id)
    request = ctx.request
    project = request.headers.get("langsmith-project") or None
    reader = partial(from_otlp, project=project)
    await receive(
        ctx.db,
        await deliveries.read(await request.body(), request.headers, reader),
        by=ctx.actor,
        tier=ctx.get(Retention).default_tier,
    )
    is_json = request.headers.get("content-type", "").startswith(JSON)
    return Response(b"{}" if is_json else b"", media_type=JSON if is_json else PROTOBUF)
