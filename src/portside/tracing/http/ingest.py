"""The routes that receive runs and spans."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.kernel.http.audit_actions import Unrecorded
from portside.kernel.http.routes import JSON_OBJECT
from portside.tracing import ingest, ingest_parser, refused_runs
from portside.tracing.bodies import BODY_ERRORS, read_body
from portside.tracing.feedback import leave_retention
from portside.tracing.ingest import RunTooLarge, require_import
from portside.tracing.otlp_runs import parse_otlp
from portside.tracing.otlp_wire import JSON, OTLP_COST, PROTOBUF, is_json
from portside.tracing.otlp_wire import encode_response as encode_spans_response
from portside.tracing.projects import ProjectContested
from portside.tracing.quotas import TracesLimitReached
from portside.tracing.refused_runs import RunsRefused
from portside.tracing.services import Context, Routes
from portside.tracing.types import Accepted, IngestBatch, IngestQuery

routes = Routes("tracing")
DATA = Unrecorded("traces and feedback are data")
_REFUSALS = (ProjectContested, *BODY_ERRORS, RunTooLarge, RunsRefused)
_ON_NEW = (*_REFUSALS, TracesLimitReached)
# Fields that tracers send in addition to those of runs are ignored. A body without runs is valid.
_ANYTHING: dict[str, Any] = {"type": "object", "propertyNames": True, "additionalProperties": True}
_LENIENT = {"application/json": _ANYTHING}
_PARTS = {"multipart/form-data": _ANYTHING}


@routes.post("/runs/multipart", status=202, permission="runs:create", raises=_ON_NEW, consumes=_PARTS, audit=DATA)
async def ingest_multipart_runs(ctx: Context, query: IngestQuery) -> Accepted:
    """Store the runs, feedback and attachments of a multipart body, plain or compressed with zstd or gzip.

    With `imported` the traces are not billed; this needs the permission organization:manage.
    """
    if query.imported:
        require_import(ctx.actor)
    else:
        await ctx.services.quotas.check_traces(ctx.actor.workspace_id)

    return await _store_runs(ctx, ingest_parser.parse_multipart, imported=query.imported)


@routes.post("/runs/batch", status=202, permission="runs:create", raises=_ON_NEW, consumes=_LENIENT, audit=DATA)
async def ingest_run_batch(ctx: Context) -> Accepted:
    """Store the runs of `{"post": […], "patch": […]}`."""
    await ctx.services.quotas.check_traces(ctx.actor.workspace_id)
    return await _store_runs(ctx, ingest_parser.parse_batch)


@routes.post("/runs", status=202, permission="runs:create", raises=_ON_NEW, consumes=JSON_OBJECT, audit=DATA)
async def create_run(ctx: Context) -> Accepted:
    """Store one run."""
    await ctx.services.quotas.check_traces(ctx.actor.workspace_id)
    return await _store_runs(ctx, ingest_parser.parse_run)


@routes.patch("/runs/{run_id}", status=202, permission="runs:create", raises=_REFUSALS, consumes=_LENIENT, audit=DATA)
async def update_run(ctx: Context, run_id: UUID) -> Accepted:
    """Store changes of a run; null leaves a field unchanged. The update may arrive before the run."""
    return await _store_runs(ctx, ingest_parser.build_update_parser(run_id))


@routes.post(
    "/otel/v1/traces",
    permission="runs:create",
    raises=_ON_NEW,
    consumes={PROTOBUF: {"type": "string", "contentEncoding": "binary"}, JSON: _ANYTHING},
    body_optional=True,
    returns=dict[str, Any],
    media_type=PROTOBUF,
    audit=DATA,
)
async def ingest_spans(ctx: Context) -> Response:
    """Store the spans of an OpenTelemetry exporter as runs: protobuf or JSON, plain or compressed.

    A run goes to the project that its span names (`langsmith.trace.session_name`), else to the project in the header
    `Langsmith-Project`.
    """
    await ctx.services.quotas.check_traces(ctx.actor.workspace_id)
    project = ctx.request.headers.get("langsmith-project") or None
    batch = await _store(ctx, partial(parse_otlp, project=project), cost=OTLP_COST)
    rejected, message = refused_runs.describe_partial_success(batch)
    as_json = is_json(ctx.request.headers.get("content-type", ""))

    return Response(encode_spans_response(rejected, message, as_json=as_json), media_type=JSON if as_json else PROTOBUF)


async def _store_runs(ctx: Context, parse: Callable[[bytes, str], IngestBatch], *, imported: bool = False) -> Accepted:
    """Store a batch, and say which of its runs were refused."""
    batch = await _store(ctx, parse, imported=imported)
    refused_runs.raise_for_refused(batch)
    return Accepted()


async def _keep_limit(ctx: Context, batch: IngestBatch) -> None:
    """Have feedback extend nothing beyond the workspace's limit: refusing it would lose the runs of the same body."""
    if not await ctx.services.quotas.allows_longlived(ctx.actor.workspace_id):
        for feedback in batch.feedback:
            leave_retention(feedback)


async def _store(
    ctx: Context, parse: Callable[[bytes, str], IngestBatch], *, cost: int = 1, imported: bool = False
) -> IngestBatch:
    """Read the body of the request and store the batch that `parse` makes of it; return what was stored."""
    services = ctx.services
    async with read_body(ctx.request, services.read_budget, services.ingest_limits, parse, cost=cost) as batch:
        max_run_bytes = services.ingest_limits.run_bytes
        if batch.feedback and not imported:
            await _keep_limit(ctx, batch)

        await ingest.store_batch(
            ctx.db,
            batch,
            by=ctx.actor,
            tier=services.retention.default_tier,
            max_run_bytes=max_run_bytes,
            imported=imported,
        )

    return batch
