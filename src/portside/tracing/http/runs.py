"""Runs, read again (contract: hosted API, section f.4)."""

from uuid import UUID

from portside.kernel.http.routes import Context, Routes
from portside.tracing import runs
from portside.tracing.runs import RunNotFound
from portside.tracing.types import Run, RunQuery

routes = Routes("tracing")


@routes.get("/runs/{run_id}", permission="runs:read", raises=(RunNotFound,))
async def show_run(ctx: Context, run_id: UUID, query: RunQuery) -> Run:
    """Return one run."""
    return await runs.show_run(ctx.db, run_id, query, by=ctx.actor)
