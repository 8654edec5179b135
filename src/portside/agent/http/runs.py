"""Runs over HTTP: in the background, waited for, and streamed; on a thread or without one."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

from starlette.responses import Response

from portside.agent.assistants.records import AssistantNotFound
from portside.agent.runs.service import Made, RunNotFound, Runs, ThreadBusy
from portside.agent.streams.events import asked_modes
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.runs import Run, RunCreate, RunListQuery, StreamQuery
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.sse import KEEP_ALIVE_S, EventStream

routes = Routes("runs")
NEWLINE = b"\n"
ON_CREATE = (AssistantNotFound, ThreadNotFound, ThreadBusy, BadRequest)


@routes.post("/threads/{thread_id}/runs", raises=ON_CREATE)
async def create_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Run:
    """Start a run in the background."""
    return _located(ctx, await _create(ctx, thread_id, body)).run


@routes.post("/threads/{thread_id}/runs/wait", raises=ON_CREATE)
async def wait_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Response:
    """Start a run and answer with its final values."""
    return await _wait(ctx, _located(ctx, await _create(ctx, thread_id, body), "join"))


@routes.post("/threads/{thread_id}/runs/stream", raises=ON_CREATE, media_type="text/event-stream")
async def stream_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Response:
    """Start a run and stream its events."""
    return _stream(ctx, await _create(ctx, thread_id, body, is_streamed=True))


@routes.post("/runs", raises=ON_CREATE)
async def create_stateless_run(ctx: Context, body: RunCreate) -> Run:
    """Start a run in the background on a thread of its own."""
    return _located(ctx, await _create(ctx, None, body)).run


@routes.post("/runs/wait", raises=ON_CREATE)
async def wait_stateless_run(ctx: Context, body: RunCreate) -> Response:
    """Run on a thread of its own and answer with the final values."""
    return await _wait(ctx, _located(ctx, await _create(ctx, None, body), "join"))


@routes.post("/runs/stream", raises=ON_CREATE, media_type="text/event-stream")
async def stream_stateless_run(ctx: Context, body: RunCreate) -> Response:
    """Run on a thread of its own and stream its events."""
    return _stream(ctx, await _create(ctx, None, body, is_streamed=True))


@routes.get("/threads/{thread_id}/runs", raises=(ThreadNotFound,))
async def list_runs(ctx: Context, thread_id: UUID, query: RunListQuery) -> list[Run]:
    """List the runs of a thread, newest first."""
    return await ctx.get(Runs).list(thread_id, query)


@routes.get("/threads/{thread_id}/runs/{run_id}", raises=(RunNotFound,))
async def get_run(ctx: Context, thread_id: UUID, run_id: UUID) -> Run:
    """Return a run."""
    return await ctx.get(Runs).get(thread_id, run_id)


@routes.get("/threads/{thread_id}/runs/{run_id}/join", raises=(RunNotFound,))
async def join_run(ctx: Context, thread_id: UUID, run_id: UUID, query: StreamQuery) -> Response:
    """Wait until a run is over and answer with its final values."""
    _refuse_cancel(query)
    await ctx.get(Runs).get(thread_id, run_id)
    return await _answer_when_over(ctx, thread_id, run_id)


@routes.get("/threads/{thread_id}/runs/{run_id}/stream", raises=(RunNotFound,), media_type="text/event-stream")
async def join_stream(ctx: Context, thread_id: UUID, run_id: UUID, query: StreamQuery) -> Response:
    """Follow the events of a run, from after the one that Last-Event-ID names where it is given."""
    _refuse_cancel(query)
    after = ctx.request.headers.get("last-event-id")
    modes = asked_modes(query.stream_mode)
    return EventStream(await ctx.get(Runs).follow(thread_id, run_id, after=after, modes=modes))


async def _create(ctx: Context, thread_id: UUID | None, body: RunCreate, *, is_streamed: bool = False) -> Made:
    return await ctx.get(Runs).create(thread_id, body, ctx.request.state.request_id, is_streamed=is_streamed)


def _located(ctx: Context, made: Made, rejoin: str | None = None) -> Made:
    """Say in headers where the run is found again (contract: run locators)."""
    path = f"/threads/{made.run.thread_id}/runs/{made.run.run_id}"
    ctx.headers["Content-Location"] = path
    if rejoin is not None:
        ctx.headers["Location"] = f"{path}/{rejoin}"
    return made


def _stream(ctx: Context, made: Made) -> Response:
    _located(ctx, made, "stream")
    return EventStream(ctx.get(Runs).events(made))


async def _wait(ctx: Context, made: Made) -> Response:
    return await _answer_when_over(ctx, made.run.thread_id, made.run.run_id)


async def _answer_when_over(ctx: Context, thread_id: UUID, run_id: UUID) -> Response:
    """Answer plainly when the run is quick; else begin at once and keep the connection alive with newlines."""
    result = asyncio.ensure_future(ctx.get(Runs).result(thread_id, run_id))
    done, _ = await asyncio.wait([result], timeout=KEEP_ALIVE_S)
    if done:
        return Response(result.result(), media_type="application/json")
    return EventStream(_once(result), keep_alive=NEWLINE, media_type="application/json")


async def _once(result: asyncio.Future[bytes]) -> AsyncIterator[bytes]:
    try:
        yield NEWLINE
        yield await result
    finally:
        result.cancel()


def _refuse_cancel(query: StreamQuery) -> None:
    if query.cancel_on_disconnect:
        raise Invalid.field(["query", "cancel_on_disconnect"], "not available yet", "not_supported")
