"""Crons over HTTP: on a thread, or with a thread for each run."""

from uuid import UUID

import msgspec

from portside.agent.access.service import Access, caller_of
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
# What of a request a handler is told, and may change.
SEARCHED = ("assistant_id", "thread_id", "metadata", "limit", "offset")
COUNTED = ("assistant_id", "thread_id", "metadata")
PATCHED = ("metadata", "schedule")
NOTHING = CronFilter()


@routes.post("/runs/crons", raises=(AssistantNotFound, BadRequest))
async def create_cron(ctx: Context, body: CronCreate) -> Cron:
    """Make a cron whose runs get a thread each."""
    return await _create(ctx, None, body)


@routes.post("/threads/{thread_id}/runs/crons", raises=(AssistantNotFound, ThreadNotFound, BadRequest))
async def create_thread_cron(ctx: Context, thread_id: UUID, body: ThreadCronCreate) -> Cron:
    """Make a cron whose runs go to one thread."""
    return await _create(ctx, thread_id, body)


async def _create(ctx: Context, thread_id: UUID | None, body: CronCreate | ThreadCronCreate) -> Cron:
    body, grant = await ctx.get(Access).make_cron(caller_of(ctx), thread_id, body, msgspec.to_builtins(body))
    return await ctx.get(Crons).create(thread_id, body, grant)


@routes.post("/runs/crons/search", headers=PAGING)
async def search_crons(ctx: Context, body: CronSearch) -> list[SelectedCron]:
    """List the crons that match, newest first unless told otherwise."""
    body, seen = await ctx.get(Access).see_crons(caller_of(ctx), body, SEARCHED)
    return show_page(ctx, await ctx.get(Crons).search(body, seen), body.offset or 0)


@routes.post("/runs/crons/count")
async def count_crons(ctx: Context, body: CronFilter) -> int:
    """Count the crons that match."""
    body, seen = await ctx.get(Access).see_crons(caller_of(ctx), body, COUNTED)
    return await ctx.get(Crons).count(body, seen)


@routes.get("/runs/crons/{cron_id}", raises=(CronNotFound,))
async def get_cron(ctx: Context, cron_id: UUID) -> Cron:
    """Return a cron."""
    await _see(ctx, "read", cron_id)
    return await ctx.get(Crons).get(cron_id)


@routes.patch("/runs/crons/{cron_id}", raises=(AssistantNotFound, BadRequest, CronNotFound))
async def patch_cron(ctx: Context, cron_id: UUID, body: CronPatch) -> Cron:
    """Change a cron, pause it or let it go on."""
    access, caller = ctx.get(Access), caller_of(ctx)
    if body.assistant_id is not None and not access.is_open:
        await access.use_assistant(caller, body.assistant_id)
    body, seen = await access.see_cron(caller, "update", cron_id, body, PATCHED)
    if not access.is_open:
        await ctx.get(Crons).check(cron_id, seen)
    return await ctx.get(Crons).patch(cron_id, body)


@routes.delete("/runs/crons/{cron_id}", raises=(CronNotFound,), status=204)
async def delete_cron(ctx: Context, cron_id: UUID) -> None:
    """Delete a cron; the runs it made stay."""
    await _see(ctx, "delete", cron_id)
    await ctx.get(Crons).delete(cron_id)


async def _see(ctx: Context, action: str, cron_id: UUID) -> None:
    access = ctx.get(Access)
    if not access.is_open:
        _, seen = await access.see_cron(caller_of(ctx), action, cron_id, NOTHING)
        await ctx.get(Crons).check(cron_id, seen)
