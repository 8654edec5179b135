"""Answers that clients wait for: plain where they come quickly, kept alive where they take their time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

from starlette.responses import Response

from portside.agent.runs.service import Runs
from portside.agent.types.runs import Run
from portside.kernel.http.routes import Context
from portside.kernel.http.sse import EventStream

NEWLINE = b"\n"
# For so long at most a client does not know which run it has made, and where to join it should the connection break.
PLAIN_WITHIN_S = 1.0


async def answer_when_over(ctx: Context, work: Awaitable[bytes], taken_along: Run | None = None) -> Response:
    """Answer plainly when it is quick; else begin at once and keep the connection alive with newlines.

    A client that leaves is noticed in either case, and takes the run along that is named.
    """
    runs, result = ctx.get(Runs), asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_client_gone(ctx))
    await asyncio.wait([result, gone], timeout=PLAIN_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
    is_gone = gone.done()
    gone.cancel()
    if result.done():
        return Response(result.result(), media_type="application/json")
    if is_gone:
        result.cancel()
        if taken_along is not None:
            runs.client_left(taken_along.thread_id, taken_along.run_id)
        return Response(media_type="application/json")
    source = _once(result)
    if taken_along is not None:
        source = runs.ending_with(source, taken_along.thread_id, taken_along.run_id)
    return EventStream(source, keep_alive=NEWLINE, media_type="application/json")


async def _client_gone(ctx: Context) -> None:
    while (await ctx.request.receive())["type"] != "http.disconnect":
        pass


async def _once(result: asyncio.Future[bytes]) -> AsyncIterator[bytes]:
    try:
        yield NEWLINE
        yield await result
    finally:
        result.cancel()
