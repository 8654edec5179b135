"""Responses that wait for a run: plain if it ends quickly, else kept alive until it ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

from starlette.responses import Response

from portside.agent.http.services import Context
from portside.agent.types.runs import Run
from portside.kernel.http.sse import EventStream, StreamCut

NEWLINE = b"\n"
# The headers name the run, so a client that loses its connection can join it. It gets them after this time at most.
PLAIN_WITHIN_S = 1.0
# Only after this time does the server watch whether the client disconnects: watching costs as much as the rest of the
# wait, and most work ends earlier.
UNWATCHED_S = 0.05


async def respond_when_over(ctx: Context, work: Awaitable[bytes], cancels: Run | None = None) -> Response:
    """Respond plainly if the work ends quickly, else begin the response and keep it alive with newlines.

    If the client disconnects, the run `cancels` is cancelled. Work that raises StreamCut cuts the response off.
    """
    runs, result, is_disconnected = ctx.services.runs, asyncio.ensure_future(work), False
    await asyncio.wait([result], timeout=UNWATCHED_S)
    if not result.done():
        disconnected = asyncio.ensure_future(_client_disconnected(ctx))
        await asyncio.wait([result, disconnected], timeout=PLAIN_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        is_disconnected = disconnected.done()
        disconnected.cancel()
    # Work that was cut off still begins a response, which is then cut off. Clients may repeat a request that got no
    # response, or a 503, and the run would be executed twice; a response that has begun names the run to join.
    if result.done() and not isinstance(result.exception(), StreamCut):
        return Response(result.result(), media_type="application/json")
    if is_disconnected:
        result.cancel()
        if cancels is not None:
            runs.client_left(cancels.thread_id, cancels.run_id)
        return Response(media_type="application/json")
    source = _after_newline(result)
    if cancels is not None:
        source = runs.cancel_on_disconnect(source, cancels.thread_id, cancels.run_id)
    return EventStream(source, keep_alive=NEWLINE, media_type="application/json")


async def _client_disconnected(ctx: Context) -> None:
    while (await ctx.request.receive())["type"] != "http.disconnect":
        pass


async def _after_newline(result: asyncio.Future[bytes]) -> AsyncIterator[bytes]:
    try:
        yield NEWLINE
        yield await result
    finally:
        result.cancel()
