"""Crons over HTTP: on a thread, or with a thread for each run."""

from uuid import UUID

from portside.agent.assistants.records import AssistantNotFound
from portside.agent.crons.records import CronNotFound, Crons
from portside.agent.http.paging import PAGING, show_page
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.crons import (
    Cron,
    CronCreate,
    CronFilter,
    CronPatch,
    CronSearch,
    SelectedCron,
    ThreadCronCreate,
)
from portside.kernel.errors import BadRequest
from portside.kernel.http.routes import Context, Routes

routes = Routes("crons")


@routes.post("/runs/crons", raises=(AssistantNotFound, BadRequest))
async def create_cron(ctx: Context, body: CronCreate) -> Cron:
    """Make a cron whose runs get a thread each."""
    return await ctx.get(Crons).create(None, body)


@routes.post("/threads/{thread_id}/runs/crons", raises=(AssistantNotFound, ThreadNotFound, BadRequest))
async def create_thread_cron(ctx: Context, thread_id: UUID, body: ThreadCronCreate) -> Cron:
    """Make a cron whose runs go to one thread."""
    return await ctx.get(Crons).create(thread_id, body)


@routes.post("/runs/crons/search", headers=PAGING)
async def search_crons(ctx: Context, body: CronSearch) -> list[SelectedCron]:
    """List the crons that match, newest first unless told otherwise."""
    return show_page(ctx, await ctx.get(Crons).search(body), body.offset or 0)


@routes.post("/runs/crons/count")
async def count_crons(ctx: Context, body: CronFilter) -> int:
    """Count the crons that match."""
    return await ctx.get(Crons).count(body)


@routes.get("/runs/crons/{cron_id}", raises=(CronNotFound,))
async def get_cron(ctx: Context, cron_id: UUID) -> Cron:
    """Return a cron."""
    return await ctx.get(Crons).get(cron_id)


@routes.patch("/runs/crons/{cron_id}", raises=(AssistantNotFound, BadRequest, CronNotFound))
async def patch_cron(ctx: Context, cron_id: UUID, body: CronPatch) -> Cron:
    """Change a cron, pause it or let it go on."""
    return await ctx.get(Crons).patch(cron_id, body)


@routes.delete("/runs/crons/{cron_id}", raises=(CronNotFound,), status=204)
async def delete_cron(ctx: Context, cron_id: UUID) -> None:
    """Delete a cron; the runs it made stay."""
    await ctx.get(Crons).delete(cron_id)
