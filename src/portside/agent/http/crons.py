"""Crons over HTTP."""

from uuid import UUID

import msgspec

from portside.agent.access.service import get_caller
from portside.agent.assistants.records import AssistantNotFound
from portside.agent.crons.records import CronExists, CronIsPaused, CronNotFound
from portside.agent.crons.schedules import preview
from portside.agent.http.context import PAGING, Context, Routes, take_page
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.crons import (
    Cron,
    CronCreate,
    CronFilter,
    CronPatch,
    CronPreview,
    CronSearch,
    CronTimes,
    SelectedCron,
    ThreadCronCreate,
)
from portside.kernel.errors import BadRequest

routes = Routes("crons")
# The fields of a request that a project's handler sees and may change.
SEARCHED = ("assistant_id", "thread_id", "metadata", "limit", "offset")
COUNTED = ("assistant_id", "thread_id", "metadata")
PATCHED = ("metadata", "schedule")
# A request without a field that a handler could change.
NO_FIELDS = CronFilter()


@routes.post("/runs/crons", raises=(AssistantNotFound, BadRequest, CronExists))
async def create_cron(ctx: Context, body: CronCreate) -> Cron:
    """Create a cron whose runs get a thread each."""
    return await _create(ctx, None, body)


@routes.post("/threads/{thread_id}/runs/crons", raises=(AssistantNotFound, ThreadNotFound, BadRequest, CronExists))
async def create_thread_cron(ctx: Context, thread_id: UUID, body: ThreadCronCreate) -> Cron:
    """Create a cron whose runs go to one thread."""
    return await _create(ctx, thread_id, body)


async def _create(ctx: Context, thread_id: UUID | None, body: CronCreate | ThreadCronCreate) -> Cron:
    body, grant = await ctx.services.access.authorize_cron_create(
        get_caller(ctx), thread_id, body, msgspec.to_builtins(body)
    )
    return await ctx.services.crons.create(thread_id, body, grant)


@routes.post("/runs/crons/search", read_only=True, response_headers=PAGING)
async def search_crons(ctx: Context, body: CronSearch) -> list[SelectedCron]:
    """List the crons that match, newest first by default."""
    body, filters = await ctx.services.access.authorize_cron_search(get_caller(ctx), body, SEARCHED)
    return take_page(ctx, await ctx.services.crons.search(body, filters), body.offset or 0)


@routes.post("/runs/crons/count", read_only=True)
async def count_crons(ctx: Context, body: CronFilter) -> int:
    """Count the crons that match."""
    body, filters = await ctx.services.access.authorize_cron_search(get_caller(ctx), body, COUNTED)
    return await ctx.services.crons.count(body, filters)


@routes.post("/runs/crons/preview", read_only=True)
async def preview_cron(ctx: Context, body: CronPreview) -> CronTimes:
    """Return the next times of a schedule, which need not belong to a cron yet."""
    await ctx.services.access.authorize(get_caller(ctx), "crons", "search", {"metadata": {}})
    return preview(body)


@routes.get("/runs/crons/{cron_id}", raises=(CronNotFound,))
async def get_cron(ctx: Context, cron_id: UUID) -> Cron:
    """Return a cron."""
    await _authorize_cron(ctx, "read", cron_id)
    return await ctx.services.crons.get(cron_id)


@routes.patch("/runs/crons/{cron_id}", raises=(AssistantNotFound, BadRequest, CronNotFound))
async def update_cron(ctx: Context, cron_id: UUID, body: CronPatch) -> Cron:
    """Change a cron, pause it or resume it."""
    access = ctx.services.access
    caller = get_caller(ctx)
    if body.assistant_id is not None and not access.is_open:
        await access.authorize_assistant_use(caller, body.assistant_id)

    body, filters = await access.authorize_cron(caller, "update", cron_id, body, PATCHED)
    if not access.is_open:
        await ctx.services.crons.check(cron_id, filters)

    return await ctx.services.crons.patch(cron_id, body)


@routes.post("/runs/crons/{cron_id}/run", raises=(CronNotFound, CronIsPaused), status=202)
async def run_cron(ctx: Context, cron_id: UUID) -> Cron:
    """Run a cron once at once, as its owner; its schedule stays."""
    await _authorize_cron(ctx, "update", cron_id)
    return await ctx.services.crons.run_now(cron_id)


@routes.delete("/runs/crons/{cron_id}", raises=(CronNotFound,), status=204)
async def delete_cron(ctx: Context, cron_id: UUID) -> None:
    """Delete a cron. The runs that it created stay."""
    await _authorize_cron(ctx, "delete", cron_id)
    await ctx.services.crons.delete(cron_id)


async def _authorize_cron(ctx: Context, action: str, cron_id: UUID) -> None:
    access = ctx.services.access
    if not access.is_open:
        _, filters = await access.authorize_cron(get_caller(ctx), action, cron_id, NO_FIELDS)
        await ctx.services.crons.check(cron_id, filters)
