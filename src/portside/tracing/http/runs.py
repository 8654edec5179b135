"""The routes that find, read, share and delete runs, traces and threads."""

from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.routes import encode_response
from portside.tracing import retention, runs, runs_v2, sharing, stats, threads_v2, trace_runs
from portside.tracing.cursors import CursorInvalid
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.http.links import build_links
from portside.tracing.projects import ProjectNotFound
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
from portside.tracing.services import Context, Routes
from portside.tracing.sharing import Share, ShareRequest, ShareTokenTaken
from portside.tracing.stats import RunStats, StatsRequest
from portside.tracing.threads_v2 import ThreadsQuery, TracedThreads
from portside.tracing.trace_runs import TraceQuery, TraceRuns
from portside.tracing.types import Accepted, RunQuery, TracedRun

routes = Routes("tracing")


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
