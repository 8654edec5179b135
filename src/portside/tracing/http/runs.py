"""Runs, read again and shared (contract: hosted API, section f.4)."""

from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.kernel.errors import Invalid
from portside.kernel.http.routes import Context, Routes, encode_response
from portside.tracing import retention, run_queries, run_stats, runs, runs_v2, sharing
from portside.tracing.figures import RunStats
from portside.tracing.filter_language import FilterInvalid
from portside.tracing.http.public import links_of
from portside.tracing.pages import CursorInvalid
from portside.tracing.projects import ProjectNotFound
from portside.tracing.retention import TracesToDelete
from portside.tracing.run_queries import FoundRuns, LimitTooLarge, RunPage
from portside.tracing.run_stats import StatsRequest
from portside.tracing.runs import RunNotFound
from portside.tracing.runs_v2 import RunItems, RunSelection, RunsQuery
from portside.tracing.sharing import Share, ShareRequest, ShareTokenTaken
from portside.tracing.types import Accepted, Run, RunQuery

routes = Routes("tracing")


@routes.get("/runs/{run_id}", permission="runs:read", raises=(RunNotFound,))
async def show_run(ctx: Context, run_id: UUID, query: RunQuery) -> Run:
    """Return one run."""
    return await runs.show_run(ctx.db, run_id, query, links_of(ctx), by=ctx.actor)


@routes.post("/runs/query", permission="runs:read", raises=(LimitTooLarge, CursorInvalid, FilterInvalid, Invalid))
async def query_runs(ctx: Context, body: RunPage) -> FoundRuns:
    """Find runs, newest first unless the body says otherwise, in pages that cursors lead through."""
    return await run_queries.query_runs(ctx.db, ctx.actor.workspace_id, body, links_of(ctx))


@routes.post("/runs/delete", status=202, permission="runs:delete", raises=(ProjectNotFound,))
async def delete_traces(ctx: Context, body: TracesToDelete) -> Accepted:
    """Delete traces of a project with all that belongs to them; what was billed stays."""
    await retention.delete_traces(ctx.db, ctx.actor.workspace_id, body)
    return Accepted("Deleted")


@routes.post("/v2/runs/query", permission="runs:read", raises=(CursorInvalid, FilterInvalid, Invalid))
async def query_runs_v2(ctx: Context, body: RunsQuery) -> RunItems:
    """Find runs of some projects in the newer form: what is selected in upper case, in pages of up to 1,000."""
    return await runs_v2.query_runs(ctx.db, ctx.actor.workspace_id, body, links_of(ctx))


@routes.get("/v2/runs/{run_id}", permission="runs:read", raises=(RunNotFound, Invalid))
async def show_run_v2(ctx: Context, run_id: UUID, query: RunSelection) -> dict[str, Any]:
    """Return what is selected of one run, in the newer form."""
    return await runs_v2.show_run(ctx.db, ctx.actor.workspace_id, run_id, query, links_of(ctx))


@routes.post("/runs/stats", permission="runs:read", raises=(FilterInvalid, Invalid), returns=RunStats)
async def show_stats(ctx: Context, body: StatsRequest) -> dict[str, Any]:
    """Return the figures of the runs that filters find; with `group_by` an object that has them for each group."""
    return await run_stats.stats_of_runs(ctx.db, ctx.actor.workspace_id, body)


@routes.put("/runs/{run_id}/share", permission="runs:share", raises=(RunNotFound, ShareTokenTaken, Invalid))
async def share_run(ctx: Context, run_id: UUID, body: ShareRequest = ShareRequest()) -> Share:  # noqa: B008
    """Share a run and all that is below it with whoever has the link."""
    return await sharing.share_run(ctx.db, run_id, body, by=ctx.actor)


@routes.get("/runs/{run_id}/share", permission="runs:read", returns=Share | None)
async def show_share(ctx: Context, run_id: UUID) -> Response:
    """Return how a run is shared; null where it is not."""
    shared = await sharing.find_share(ctx.db, run_id, by=ctx.actor)
    return encode_response(shared, 200) if shared else Response(b"null", media_type="application/json")


@routes.delete("/runs/{run_id}/share", status=204, permission="runs:share")
async def unshare_run(ctx: Context, run_id: UUID) -> None:
    """Stop sharing a run."""
    await sharing.unshare_run(ctx.db, run_id, by=ctx.actor)
