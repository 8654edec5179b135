"""Responses that wait for a run: plain if it ends quickly, else kept alive until it ends.

A client may request links with a run (`feedback_keys`), by which people without an API key give feedback on it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.agent.http.context import Context
from portside.agent.runs.requests import FEEDBACK_FIELD
from portside.agent.types.runs import Run
from portside.kernel.codec import dump_api, load
from portside.kernel.http.sse import EventStream, StreamCut
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
NEWLINE = b"\n"
# The headers name the run, so a client that loses its connection can join it. It gets them after this time at most.
PLAIN_WITHIN_S = 1.0
# Only after this time does the server watch whether the client disconnects: watching costs as much as the rest of the
# wait, and most work ends earlier.
UNWATCHED_S = 0.05
LINKS_VALID_FOR = timedelta(hours=3)
LINKS_WITHIN_S = 5.0


async def respond_when_over(ctx: Context, work: Awaitable[bytes], cancels: Run | None = None) -> Response:
    """Respond plainly if the work ends quickly, else begin the response and keep it alive with newlines.

    If the client disconnects, the run `cancels` is cancelled. Work that raises StreamCut cuts the response off.
    """
    runs = ctx.services.runs
    result = asyncio.ensure_future(work)
    is_disconnected = False
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


def with_feedback(result: Awaitable[bytes], run: Run) -> Awaitable[bytes]:
    """Add feedback links to a run's result where the client sent `feedback_keys`.

    With a link, a person without an API key can give feedback on the run in the tracing platform. The links stand under
    `__feedback__`, by key.
    """
    keys = run.kwargs.get(FEEDBACK_FIELD)
    return _with_links(result, run.run_id, list(dict.fromkeys(keys))) if keys else result


async def _with_links(result: Awaitable[bytes], run_id: UUID, keys: list[str]) -> bytes:
    values: Any = load(await result)
    if not isinstance(values, dict):
        return dump_api(values)

    try:
        async with timeout(LINKS_WITHIN_S):
            links = await asyncio.to_thread(lambda: feedback_links(_langsmith_client(), run_id, keys))
    except Exception as exc:  # noqa: BLE001 - the result is worth more than the links
        log.warning("feedback links could not be created", run_id=str(run_id), error=type(exc).__name__)
        return dump_api(values)

    return dump_api({**values, "__feedback__": links})


def feedback_links(client: Any, run_id: UUID, keys: list[str]) -> dict[str, str]:
    """Create a link for each key that takes feedback on a run for some hours."""
    tokens = client.create_presigned_feedback_tokens(run_id, keys, expiration=LINKS_VALID_FOR)
    return {key: token.url for key, token in zip(keys, tokens, strict=True)}


@cache
def _langsmith_client() -> Any:
    # Imported here: it takes 20 MB, and only feedback links need it.
    from langsmith import Client

    return Client(auto_batch_tracing=False)
