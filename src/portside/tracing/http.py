"""The routes of tracing: ingest, projects, feedback, runs, shared runs, limits."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import msgspec
from prometheus_client import Counter
from starlette.responses import Response

from portside.kernel.errors import BodyTooLarge, Invalid, NotSupported
from portside.kernel.http.audit_actions import Action, Unrecorded
from portside.kernel.http.health import check_health
from portside.kernel.http.routes import JSON_OBJECT, RouteOptions, encode_response
from portside.kernel.large_reads import TooManyLargeReads
from portside.tracing import (
    attachments,
    feedback,
    feedback_tokens,
    ingest,
    ingest_parser,
    projects,
    quotas,
    refused_runs,
    retention,
    runs,
    runs_v2,
    sharing,
    stats,
    threads_v2,
    trace_runs,
)
from portside.tracing.attachments import AttachmentNotFound, DownloadLinks, DownloadQuery, LinkInvalid
from portside.tracing.bodies import EncodingBroken, EncodingUnknown, read_body
from portside.tracing.cursors import CursorInvalid
from portside.tracing.feedback import Feedback, FeedbackNotFound, FeedbackPatch, FeedbackQuery, RatedRequest
from portside.tracing.feedback_tokens import (
    MAX_TOKENS,
    FeedbackTokenNotFound,
    Token,
    TokenFeedback,
    TokenFeedbackQuery,
    TokenQuery,
    TokenRequest,
)
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.ingest import RunTooLarge
from portside.tracing.otlp_runs import parse_otlp
from portside.tracing.otlp_wire import JSON, OTLP_COST, PROTOBUF, is_json
from portside.tracing.otlp_wire import encode_response as encode_spans_response
from portside.tracing.projects import (
    CreateQuery,
    ProjectContested,
    ProjectExists,
    ProjectNotFound,
    ProjectPatch,
    ProjectQuery,
    ProjectRequest,
    ProjectShowQuery,
    ProjectsToDelete,
)
from portside.tracing.quotas import (
    LonglivedLimitReached,
    TracesLimitReached,
    UsageLimit,
    UsageLimitNotFound,
    UsageLimitRequest,
    UsageState,
)
from portside.tracing.refused_runs import RunsRefused
from portside.tracing.retention import TracesToDelete
from portside.tracing.runs import (
    FoundRuns,
    LimitTooLarge,
    RunPage,
    RunValueNotFound,
    RunValues,
    TracedRunNotFound,
    ValuesQuery,
)
from portside.tracing.runs_v2 import RunItems, RunSelection, RunsQuery
from portside.tracing.services import Context, PlatformInfo, Routes
from portside.tracing.sharing import (
    Share,
    SharedFeedbackQuery,
    SharedSelection,
    ShareNotFound,
    ShareRequest,
    ShareTokenTaken,
)
from portside.tracing.stats import RunStats, StatsRequest
from portside.tracing.threads_v2 import ThreadsQuery, TracedThreads
from portside.tracing.trace_runs import TraceQuery, TraceRuns
from portside.tracing.types import Accepted, IngestBatch, RunQuery, TracedRun, TracerSession

routes = Routes("tracing")
TokenRequests = Annotated[list[TokenRequest], msgspec.Meta(min_length=1, max_length=MAX_TOKENS)]
_MAX_PUBLIC_BYTES = 256 * 1024
_DATA = Unrecorded("traces and feedback are data")
_TELEMETRY = Unrecorded("accepts what clients report about themselves, and stores nothing")
_ABSENT = Unrecorded("answers 501")

_REFUSALS = (
    EncodingBroken,
    ProjectContested,
    BodyTooLarge,
    RunTooLarge,
    EncodingUnknown,
    Invalid,
    RunsRefused,
    TooManyLargeReads,
)
# Fields that tracers send in addition to those of runs are ignored. A body without runs is valid.
_ANYTHING: dict[str, Any] = {"type": "object", "propertyNames": True, "additionalProperties": True}
_LENIENT = {"application/json": _ANYTHING}
_PARTS = {"multipart/form-data": _ANYTHING}
_ON_NEW = (*_REFUSALS, TracesLimitReached)
_FILE: dict[str, Any] = {"raises": (LinkInvalid, AttachmentNotFound), "media_type": "application/octet-stream"}
_ON_QUERY = (ShareNotFound, LimitTooLarge, CursorInvalid, FilterInvalid, Invalid)
_FIRST_PAGE = RunPage()
_IDS = SharedSelection()
REPORTS = Counter("portside_reports_total", "Reports of other installations that were accepted and dropped.", ["kind"])
LOG_LINES = Counter("portside_reported_log_lines_total", "Log lines in those reports.")
_REPORT: RouteOptions = {"public": True, "max_body_bytes": 256 * 1024, "works_on_full_disk": True}


# Ingest


@routes.get("/info", public=True)
async def get_info(ctx: Context) -> PlatformInfo:
    """Return the region, versions and limits of this server, which SDKs read first."""
    return ctx.services.info


@routes.post("/runs/multipart", status=202, permission="runs:create", raises=_ON_NEW, consumes=_PARTS, audit=_DATA)
async def ingest_multipart_runs(ctx: Context) -> Accepted:
    """Store the runs, feedback and attachments of a multipart body, plain or compressed with zstd or gzip."""
    await ctx.services.quotas.check_traces(ctx.actor.workspace_id)
    return await _store_runs(ctx, ingest_parser.parse_multipart)


@routes.post("/runs/batch", status=202, permission="runs:create", raises=_ON_NEW, consumes=_LENIENT, audit=_DATA)
async def ingest_run_batch(ctx: Context) -> Accepted:
    """Store the runs of `{"post": […], "patch": […]}`."""
    await ctx.services.quotas.check_traces(ctx.actor.workspace_id)
    return await _store_runs(ctx, ingest_parser.parse_batch)


@routes.post("/runs", status=202, permission="runs:create", raises=_ON_NEW, consumes=JSON_OBJECT, audit=_DATA)
async def create_run(ctx: Context) -> Accepted:
    """Store one run."""
    await ctx.services.quotas.check_traces(ctx.actor.workspace_id)
    return await _store_runs(ctx, ingest_parser.parse_run)


@routes.patch("/runs/{run_id}", status=202, permission="runs:create", raises=_REFUSALS, consumes=_LENIENT, audit=_DATA)
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
    audit=_DATA,
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


async def _store(ctx: Context, parse: Callable[[bytes, str], IngestBatch], *, cost: int = 1) -> IngestBatch:
    """Read the body of the request and store the batch that `parse` makes of it; return what was stored."""
    services = ctx.services
    async with read_body(ctx.request, services.read_budget, services.ingest_limits, parse, cost=cost) as batch:
        max_run_bytes = services.ingest_limits.run_bytes
        await ingest.store_batch(
            ctx.db, batch, by=ctx.actor, tier=services.retention.default_tier, max_run_bytes=max_run_bytes
        )

    return batch


async def _store_runs(ctx: Context, parse: Callable[[bytes, str], IngestBatch]) -> Accepted:
    """Store a batch, and say which of its runs were refused."""
    batch = await _store(ctx, parse)
    refused_runs.raise_for_refused(batch)
    return Accepted()


# Projects (the API calls them sessions)


@routes.get("/sessions", permission="projects:read", raises=(FilterInvalid, Invalid))
async def list_projects(ctx: Context, query: ProjectQuery) -> list[TracerSession]:
    """List the workspace's projects, newest first unless the query sorts them."""
    return await projects.list_projects(ctx.db, ctx.actor.workspace_id, query)


@routes.post(
    "/sessions",
    permission="projects:create",
    raises=(ProjectExists, Invalid),
    audit=Action("project.create", id_query="create_project"),
)
async def create_project(ctx: Context, query: CreateQuery, body: ProjectRequest) -> TracerSession:
    """Create a project; with `upsert`, change an existing one of the same name."""
    # The permission to create projects does not include the permission to change them.
    upserts = query.upsert and ctx.actor.may("projects:update")
    return await projects.create_project(ctx.db, ctx.actor.workspace_id, body, upsert=upserts)


@routes.get("/sessions/{session_id}", permission="projects:read", raises=(ProjectNotFound,))
async def get_project(ctx: Context, session_id: UUID, query: ProjectShowQuery) -> TracerSession:
    """Return one project, with statistics if requested."""
    return await projects.get_project_with_stats(ctx.db, ctx.actor.workspace_id, session_id, query)


@routes.patch(
    "/sessions/{session_id}",
    permission="projects:update",
    raises=(ProjectNotFound, ProjectExists, Invalid),
    audit=Action("project.update"),
)
async def update_project(ctx: Context, session_id: UUID, body: ProjectPatch) -> TracerSession:
    """Change a project; null leaves a field unchanged."""
    return await projects.update_project(ctx.db, ctx.actor.workspace_id, session_id, body)


@routes.delete(
    "/sessions/{session_id}",
    status=202,
    permission="projects:delete",
    raises=(ProjectNotFound,),
    audit=Action("project.delete"),
)
async def delete_project(ctx: Context, session_id: UUID) -> Accepted:
    """Delete a project and its runs; billing records stay."""
    await projects.get_project(ctx.db, ctx.actor.workspace_id, session_id)
    await projects.delete_projects(ctx.db, ctx.actor.workspace_id, [session_id])
    return Accepted()


@routes.delete(
    "/sessions",
    operation="projects_bulk_delete",
    status=202,
    permission="projects:delete",
    raises=(Invalid,),
    audit=Action("project.delete", id_fields=("session_ids",)),
)
async def delete_projects(ctx: Context, query: ProjectsToDelete) -> Accepted:
    """Delete several projects and their runs; unknown ids are ignored."""
    await projects.delete_projects(ctx.db, ctx.actor.workspace_id, query.session_ids)
    return Accepted()


# Feedback and feedback tokens


@routes.post("/feedback", permission="feedback:create", raises=(Invalid, LonglivedLimitReached), audit=_DATA)
async def create_feedback(ctx: Context, body: RatedRequest) -> Feedback:
    """Store feedback on a run or on a project."""
    if body.run_id is not None and body.extend_trace_retention:
        await ctx.services.quotas.check_longlived(ctx.actor.workspace_id)
    return await feedback.create_feedback(ctx.db, body, by=ctx.actor)


@routes.get("/feedback", permission="feedback:read")
async def list_feedback(ctx: Context, query: FeedbackQuery) -> list[Feedback]:
    """List feedback, last changed first."""
    return await feedback.list_feedback(ctx.db, query, by=ctx.actor)


@routes.get("/feedback/{feedback_id}", permission="feedback:read", raises=(FeedbackNotFound,))
async def get_feedback(ctx: Context, feedback_id: UUID) -> Feedback:
    """Return one piece of feedback."""
    return await feedback.get_feedback(ctx.db, feedback_id, by=ctx.actor)


@routes.patch("/feedback/{feedback_id}", permission="feedback:update", raises=(FeedbackNotFound,), audit=_DATA)
async def update_feedback(ctx: Context, feedback_id: UUID, body: FeedbackPatch) -> Feedback:
    """Change feedback; null leaves a field unchanged."""
    return await feedback.update_feedback(ctx.db, feedback_id, body, by=ctx.actor)


@routes.delete("/feedback/{feedback_id}", permission="feedback:delete", raises=(FeedbackNotFound,), audit=_DATA)
async def delete_feedback(ctx: Context, feedback_id: UUID) -> Accepted:
    """Delete feedback."""
    await feedback.delete_feedback(ctx.db, feedback_id, by=ctx.actor)
    return Accepted("Deleted")


@routes.post(
    "/feedback/tokens",
    permission="feedback:create",
    raises=(Invalid,),
    audit=Action("feedback_token.create", id_query="create_feedback_tokens"),
)
async def create_feedback_tokens(ctx: Context, body: TokenRequest | TokenRequests) -> Token | list[Token]:
    """Create one token, or several for an array: addresses that accept feedback without an API key."""
    requests = body if isinstance(body, list) else [body]
    tokens = await feedback_tokens.create_tokens(ctx.db, requests, str(ctx.request.base_url), by=ctx.actor)
    return tokens if isinstance(body, list) else tokens[0]


@routes.get("/feedback/tokens", permission="feedback:create")
async def list_feedback_tokens(ctx: Context, query: TokenQuery) -> list[Token]:
    """List the tokens of a run that have not expired."""
    return await feedback_tokens.list_tokens(ctx.db, query, str(ctx.request.base_url), by=ctx.actor)


@routes.get(
    "/feedback/tokens/{token}", operation="feedback_addresses_open", public=True, raises=(FeedbackTokenNotFound,)
)
async def give_feedback_by_address(ctx: Context, token: UUID, query: TokenFeedbackQuery) -> Accepted:
    """Store the feedback in the query; the token replaces the API key."""
    await feedback_tokens.use_token(ctx.db, token, query)
    return Accepted()


@routes.post(
    "/feedback/tokens/{token}",
    public=True,
    raises=(FeedbackTokenNotFound,),
    max_body_bytes=_MAX_PUBLIC_BYTES,
    audit=_DATA,
)
async def give_feedback(ctx: Context, token: UUID, body: TokenFeedback = TokenFeedback()) -> Accepted:  # noqa: B008
    """Store the feedback in the body; the token replaces the API key."""
    await feedback_tokens.use_token(ctx.db, token, body)
    return Accepted()


# Runs


@routes.get("/runs/{run_id}", permission="runs:read", raises=(TracedRunNotFound,))
async def get_run(ctx: Context, run_id: UUID, query: RunQuery) -> TracedRun:
    """Return one run."""
    return await runs.get_run(ctx.db, run_id, query, build_links(ctx), by=ctx.actor)


@routes.post(
    "/runs/query", permission="runs:read", read_only=True, raises=(LimitTooLarge, CursorInvalid, FilterInvalid, Invalid)
)
async def query_runs(ctx: Context, body: RunPage) -> FoundRuns:
    """Find runs, newest first unless the body orders them, in pages with cursors."""
    return await runs.query_runs(ctx.db, ctx.actor.workspace_id, body, build_links(ctx))


@routes.post(
    "/runs/delete",
    status=202,
    permission="runs:delete",
    raises=(ProjectNotFound,),
    works_on_full_disk=True,
    audit=Action("trace.delete", id_fields=("session_id", "trace_ids")),
)
async def delete_traces(ctx: Context, body: TracesToDelete) -> Accepted:
    """Delete traces of a project with their runs, feedback and attachments; billing records stay."""
    await retention.delete_traces(ctx.db, ctx.actor.workspace_id, body)
    return Accepted("Deleted")


@routes.post("/v2/runs/query", permission="runs:read", read_only=True, raises=(CursorInvalid, FilterInvalid, Invalid))
async def query_v2_runs(ctx: Context, body: RunsQuery) -> RunItems:
    """Find runs of projects with selected fields, in pages of up to 1,000."""
    return await runs_v2.query_runs(ctx.db, ctx.actor.workspace_id, body, build_links(ctx))


@routes.get("/v2/runs/{run_id}", permission="runs:read", raises=(TracedRunNotFound, Invalid))
async def get_v2_run(ctx: Context, run_id: UUID, query: RunSelection) -> dict[str, Any]:
    """Return the selected fields of one run."""
    return await runs_v2.get_run(ctx.db, ctx.actor.workspace_id, run_id, query, build_links(ctx))


@routes.post("/runs/stats", permission="runs:read", read_only=True, raises=(FilterInvalid, Invalid), returns=RunStats)
async def get_run_stats(ctx: Context, body: StatsRequest) -> dict[str, Any]:
    """Return statistics of the runs that match filters; with `group_by`, an object with those of each group."""
    return await stats.get_stats(ctx.db, ctx.actor.workspace_id, body)


@routes.get("/runs/{run_id}/values", permission="runs:read", raises=(TracedRunNotFound,))
async def get_run_values(ctx: Context, run_id: UUID, query: ValuesQuery) -> RunValues:
    """Return the size and the beginning of each value of a run: inputs, outputs, error, extra, events, serialized."""
    return await runs.get_values(ctx.db, ctx.actor.workspace_id, run_id, query)


@routes.get(
    "/runs/{run_id}/values/{name}",
    permission="runs:read",
    raises=(TracedRunNotFound, RunValueNotFound),
    media_type="application/json",
)
async def download_run_value(ctx: Context, run_id: UUID, name: str) -> Response:
    """Return one whole value of a run as a file; an error is plain text."""
    return await runs.download_value(ctx.db, ctx.actor.workspace_id, run_id, name)


@routes.get("/v2/traces/{trace_id}/runs", permission="runs:read", raises=(TracedRunNotFound, FilterInvalid, Invalid))
async def list_trace_runs(ctx: Context, trace_id: UUID, query: TraceQuery) -> TraceRuns:
    """List the runs of a trace with selected fields, in the order of their start."""
    return await trace_runs.list_runs_of_trace(ctx.db, ctx.actor.workspace_id, trace_id, query, build_links(ctx))


@routes.post(
    "/v2/threads/query", permission="runs:read", read_only=True, raises=(CursorInvalid, FilterInvalid, Invalid)
)
async def query_threads(ctx: Context, body: ThreadsQuery) -> TracedThreads:
    """Find the threads of a project, the last active first."""
    return await threads_v2.query_threads(ctx.db, ctx.actor.workspace_id, body)


@routes.put(
    "/runs/{run_id}/share",
    permission="runs:share",
    raises=(TracedRunNotFound, ShareTokenTaken, Invalid),
    audit=Action("run.share"),
)
async def share_run(ctx: Context, run_id: UUID, body: ShareRequest = ShareRequest()) -> Share:  # noqa: B008
    """Share a run and the runs below it by a link."""
    return await sharing.share_run(ctx.db, run_id, body, by=ctx.actor)


@routes.get("/runs/{run_id}/share", permission="runs:read", returns=Share | None)
async def get_run_share(ctx: Context, run_id: UUID) -> Response:
    """Return the share of a run; null if it is not shared."""
    shared = await sharing.find_share(ctx.db, run_id, by=ctx.actor)
    return encode_response(shared, 200) if shared else Response(b"null", media_type="application/json")


@routes.delete("/runs/{run_id}/share", status=204, permission="runs:share", audit=Action("run.unshare"))
async def unshare_run(ctx: Context, run_id: UUID) -> None:
    """Stop sharing a run."""
    await sharing.unshare_run(ctx.db, run_id, by=ctx.actor)


# Shared runs and downloads, without an API key


@routes.get("/public/{share_token}/run", public=True, raises=(ShareNotFound,))
async def get_shared_run(ctx: Context, share_token: UUID) -> TracedRun:
    """Return a shared run, without an API key."""
    return await sharing.get_shared_run(ctx.db, share_token, build_links(ctx))


@routes.get("/public/{share_token}/run/{run_id}", public=True, raises=(ShareNotFound, TracedRunNotFound))
async def get_shared_trace_run(ctx: Context, share_token: UUID, run_id: UUID) -> TracedRun:
    """Return a run below a shared one, without an API key."""
    return await sharing.get_shared_run(ctx.db, share_token, build_links(ctx), run_id)


@routes.get("/public/{share_token}/run/{run_id}/values", public=True, raises=(ShareNotFound, TracedRunNotFound))
async def get_shared_run_values(ctx: Context, share_token: UUID, run_id: UUID, query: ValuesQuery) -> RunValues:
    """Return the size and the beginning of each value of a shared run, without an API key."""
    return await sharing.get_shared_values(ctx.db, share_token, run_id, query)


@routes.get(
    "/public/{share_token}/run/{run_id}/values/{name}",
    public=True,
    raises=(ShareNotFound, TracedRunNotFound, RunValueNotFound),
    media_type="application/json",
)
async def download_shared_run_value(ctx: Context, share_token: UUID, run_id: UUID, name: str) -> Response:
    """Return one whole value of a shared run as a file, without an API key; an error is plain text."""
    return await sharing.download_shared_value(ctx.db, share_token, run_id, name)


@routes.post(
    "/public/{share_token}/runs/query",
    public=True,
    read_only=True,
    raises=_ON_QUERY,
    max_body_bytes=_MAX_PUBLIC_BYTES,
)
async def query_shared_runs(ctx: Context, share_token: UUID, body: RunPage = _FIRST_PAGE) -> FoundRuns:
    """Find runs among a shared run and the runs below it, without an API key."""
    return await sharing.query_shared_runs(ctx.db, share_token, body, build_links(ctx))


@routes.post(
    "/v2/public/{share_token}/runs/query",
    public=True,
    read_only=True,
    raises=_ON_QUERY,
    max_body_bytes=_MAX_PUBLIC_BYTES,
)
async def list_shared_v2_runs(ctx: Context, share_token: UUID, body: SharedSelection = _IDS) -> RunItems:
    """Return selected fields of a shared run and the runs below it, without an API key."""
    return await sharing.list_shared_runs_v2(ctx.db, share_token, body, build_links(ctx))


@routes.get("/public/{share_token}/feedbacks", public=True, raises=(ShareNotFound,))
async def list_shared_feedback(ctx: Context, share_token: UUID, query: SharedFeedbackQuery) -> list[Feedback]:
    """List the feedback on a shared run and the runs below it, without an API key and without authors."""
    return await sharing.list_shared_feedback(ctx.db, share_token, query)


@routes.get(f"/{attachments.PATH}", public=True, **_FILE)
async def download_attachment(ctx: Context, query: DownloadQuery) -> Response:
    """Return the attachment that a link names. Runs contain fresh links, which last an hour."""
    return await attachments.download(ctx.db, ctx.services.box, query)


def build_links(ctx: Context) -> DownloadLinks:
    """Return the links of a request, below the address that the client used."""
    return DownloadLinks(ctx.services.box, str(ctx.request.base_url))


# Usage limits


@routes.get("/usage-limits", permission="workspaces:read")
async def list_usage_limits(ctx: Context) -> list[UsageLimit]:
    """List the monthly limits that the workspace has set for itself."""
    return await quotas.list_limits(ctx.db, ctx.actor.workspace_id)


@routes.put(
    "/usage-limits",
    permission="workspaces:manage",
    works_on_full_disk=True,
    audit=Action("usage_limit.update", id_fields=("limit_type",)),
)
async def put_usage_limit(ctx: Context, body: UsageLimitRequest) -> UsageLimit:
    """Set a limit; it replaces the limit of the same type."""
    return await quotas.put_limit(ctx.db, ctx.services.quotas, ctx.actor.workspace_id, body)


@routes.delete(
    "/usage-limits/{limit_id}",
    status=204,
    permission="workspaces:manage",
    raises=(UsageLimitNotFound,),
    audit=Action("usage_limit.delete"),
)
async def delete_usage_limit(ctx: Context, limit_id: UUID) -> None:
    """Delete a limit."""
    await quotas.delete_limit(ctx.db, ctx.services.quotas, ctx.actor.workspace_id, limit_id)


@routes.get("/workspaces/current/usage_limits", permission="workspaces:read")
async def get_usage_state(ctx: Context) -> UsageState:
    """Return whether a limit is reached, so that new traces are refused."""
    return await quotas.get_state(ctx.db, ctx.actor.workspace_id)


# Health, reports of other installations, and operations that this platform does not offer


class NoModel(NotSupported):
    """The platform has no model of its own and generates nothing; call a model from an agent."""

    code = "no_model"


class NoRules(NotSupported):
    """The platform has no automation rules to trigger."""

    code = "no_rules"


@routes.get("/info/health", public=True)
async def get_instance_health(ctx: Context) -> Response:
    """Return 200 if every dependency responds and 500 otherwise, like `/ok`."""
    return await check_health(ctx)


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


@routes.post("/generate", operation="generations_create", permission="prompts:create", raises=(NoModel,), audit=_ABSENT)
async def generate(_ctx: Context) -> Accepted:
    """Return 501: the platform has no model."""
    raise NoModel


@routes.post(
    "/runs/rules/trigger", operation="rules_bulk_trigger", permission="rules:update", raises=(NoRules,), audit=_ABSENT
)
async def trigger_rules(_ctx: Context) -> Accepted:
    """Return 501: the platform has no automation rules."""
    raise NoRules


@routes.post("/runs/rules/{rule_id}/trigger", permission="rules:update", raises=(NoRules,), audit=_ABSENT)
async def trigger_rule(_ctx: Context, rule_id: UUID) -> Accepted:
    """Return 501: the platform has no automation rules."""
    raise NoRules(f"This platform has no automation rules, and none with the id {rule_id}.")


def _count_report(kind: str, body: dict[str, Any]) -> Accepted:
    REPORTS.labels(kind).inc()
    lines = body.get("logs")
    LOG_LINES.inc(len(lines) if isinstance(lines, list) else 0)
    return Accepted()
