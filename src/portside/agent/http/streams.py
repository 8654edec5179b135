"""A thread's events as server-sent events, over all its runs (contract: section 12.4)."""

import asyncio
from uuid import UUID

from starlette.responses import Response

from portside.agent.access.service import Access, caller_of
from portside.agent.streams.events import resume_place, thread_modes
from portside.agent.streams.hub import Hub
from portside.agent.types.streams import ThreadStreamQuery
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.sse import EventStream

routes = Routes("threads")


@routes.get("/threads/{thread_id}/stream", media_type="text/event-stream", stays_open=True)
async def stream_thread(ctx: Context, thread_id: UUID, query: ThreadStreamQuery) -> Response:
    """Follow a thread, which need not exist yet: the events of its runs, or only their beginnings and ends."""
    modes = thread_modes([*(query.stream_modes or ()), *(query.stream_mode or ())])
    after = resume_place(ctx.request.headers.get("last-event-id"))
    access = ctx.get(Access)
    watch = await access.watch_thread(caller_of(ctx), thread_id)
    followed = await ctx.get(Hub).follow_thread(thread_id, modes, after)
    return EventStream(watch.over(followed), draining=ctx.get(asyncio.Event))
