"""Runs over HTTP: in the background, waited for, and streamed; on a thread or without one; cancelled and deleted."""

from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.agent.access.service import Access, caller_of
from portside.agent.assistants.records import AssistantNotFound
from portside.agent.http.waiting import answer_when_over
from portside.agent.queue.crowding import TooManyPendingRuns
from portside.agent.runs.errors import NothingToCancel, RunNotFound, ThreadBusy
from portside.agent.runs.feedback import with_feedback
from portside.agent.runs.following import Made
from portside.agent.runs.service import Awaited, Runs
from portside.agent.streams.events import asked_modes
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.runs import (
    CancelMany,
    CancelManyQuery,
    CancelQuery,
    JoinQuery,
    ListedRun,
    Run,
    RunBatch,
    RunCreate,
    RunListQuery,
    StreamQuery,
)
from portside.kernel.errors import BadRequest
from portside.kernel.http.routes import Context, Routes
from portside.kernel.http.sse import EventStream

routes = Routes("runs")
LOCATED = ("Content-Location", "Location")
KEYED = ("Idempotency-Key",)
STREAMED: dict[str, Any] = {"media_type": "text/event-stream", "stays_open": True}
ON_CREATE = (AssistantNotFound, ThreadNotFound, ThreadBusy, RunNotFound, BadRequest, TooManyPendingRuns)


@routes.post("/threads/{thread_id}/runs", raises=ON_CREATE, headers=LOCATED[:1], takes=KEYED)
async def create_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Run:
    """Start a run in the background."""
    return _located(ctx, (await _create(ctx, thread_id, body)).run)


@routes.post("/threads/{thread_id}/runs/wait", raises=ON_CREATE, headers=LOCATED, takes=KEYED, stays_open=True)
async def wait_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Response:
    """Start a run and answer with its final values."""
    return await _wait(ctx, await _create(ctx, thread_id, body), body)


@routes.post("/threads/{thread_id}/runs/stream", raises=ON_CREATE, headers=LOCATED, takes=KEYED, **STREAMED)
async def stream_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Response:
    """Start a run and stream its events."""
    return _stream(ctx, await _create(ctx, thread_id, body, awaited="events"), body)


@routes.post("/runs", raises=ON_CREATE, headers=LOCATED[:1], takes=KEYED)
async def create_stateless_run(ctx: Context, body: RunCreate) -> Run:
    """Start a run in the background on a thread of its own."""
    return _located(ctx, (await _create(ctx, None, body, awaited="nothing")).run)


@routes.post("/runs/wait", raises=ON_CREATE, headers=LOCATED, takes=KEYED, stays_open=True)
async def wait_stateless_run(ctx: Context, body: RunCreate) -> Response:
    """Run on a thread of its own and answer with the final values."""
    return await _wait(ctx, await _create(ctx, None, body), body)


@routes.post("/runs/stream", raises=ON_CREATE, headers=LOCATED, takes=KEYED, **STREAMED)
async def stream_stateless_run(ctx: Context, body: RunCreate) -> Response:
    """Run on a thread of its own and stream its events."""
    return _stream(ctx, await _create(ctx, None, body, awaited="events"), body)


@routes.post("/runs/batch", raises=(AssistantNotFound, BadRequest, TooManyPendingRuns), takes=KEYED)
async def create_runs(ctx: Context, body: RunBatch) -> list[Run]:
    """Start several runs in the background, each on a thread of its own: all of them or none."""
    access, caller = ctx.get(Access), caller_of(ctx)
    for each in body:
        await access.start_run(caller, None, each)
    return await ctx.get(Runs).create_batch(body, ctx.request.state.request_id, key=_key(ctx), caller=caller)


@routes.post("/runs/cancel", raises=(NothingToCancel,), status=204)
async def cancel_runs(ctx: Context, query: CancelManyQuery, body: CancelMany) -> None:
    """Stop several runs: those of a status, or some of a thread."""
    asked: dict[str, Any] = {"run_ids": body.run_ids, "status": body.status}
    value = {"thread_id": body.thread_id, "action": query.action, "metadata": asked}
    seen = await ctx.get(Access).may(caller_of(ctx), "threads", "update", value)
    await ctx.get(Runs).cancel_many(body, query.action, seen)


@routes.get("/threads/{thread_id}/runs", raises=(ThreadNotFound,))
async def list_runs(ctx: Context, thread_id: UUID, query: RunListQuery) -> list[ListedRun]:
    """List the runs of a thread, newest first."""
    value: dict[str, Any] = {"metadata": {}, "status": query.status, "limit": query.limit, "offset": query.offset}
    await ctx.get(Access).see_thread(caller_of(ctx), "search", thread_id, value)
    return await ctx.get(Runs).list(thread_id, query)


@routes.get("/threads/{thread_id}/runs/{run_id}", raises=(RunNotFound,))
async def get_run(ctx: Context, thread_id: UUID, run_id: UUID) -> Run:
    """Return a run."""
    await _see(ctx, thread_id, run_id)
    return await ctx.get(Runs).get(thread_id, run_id)


@routes.delete("/threads/{thread_id}/runs/{run_id}", raises=(RunNotFound, ThreadBusy), status=204)
async def delete_run(ctx: Context, thread_id: UUID, run_id: UUID) -> None:
    """Delete a run with its checkpoints; one under way is stopped first."""
    await ctx.get(Access).see_thread(caller_of(ctx), "delete", thread_id, {"run_id": run_id})
    await ctx.get(Runs).delete(thread_id, run_id)


@routes.post(
    "/threads/{thread_id}/runs/{run_id}/cancel",
    raises=(NothingToCancel,),
    status=202,
    answers={202: None, 200: dict[str, str]},
    stays_open=True,
)
async def cancel_run(ctx: Context, thread_id: UUID, run_id: UUID, query: CancelQuery) -> Response:
    """Stop a run. With `wait` the answer comes when its nodes have stopped and its end is written."""
    runs = ctx.get(Runs)
    await _may_cancel(ctx, thread_id, run_id, query.action)
    await runs.cancel(thread_id, run_id, query.action)
    if not query.wait:
        return Response(status_code=202)
    _locate(ctx, thread_id, run_id, "join")
    return await answer_when_over(ctx, _nothing_after(runs.result(thread_id, run_id)))


@routes.get("/threads/{thread_id}/runs/{run_id}/join", raises=(RunNotFound,), stays_open=True)
async def join_run(ctx: Context, thread_id: UUID, run_id: UUID, query: JoinQuery) -> Response:
    """Wait until a run is over and answer with its final values."""
    await _see(ctx, thread_id, run_id, cancels=query.cancel_on_disconnect)
    run = await ctx.get(Runs).get(thread_id, run_id)
    return await _join(ctx, run, takes_run_along=query.cancel_on_disconnect)


@routes.get("/runs/{run_id}/join", raises=(RunNotFound,), stays_open=True)
async def join_stateless_run(ctx: Context, run_id: UUID, query: JoinQuery) -> Response:
    """Wait until a run that is named without its thread is over and answer with its final values."""
    thread_id = await _thread_of(ctx, run_id, cancels=query.cancel_on_disconnect)
    run = await ctx.get(Runs).get(thread_id, run_id)
    return await _join(ctx, run, takes_run_along=query.cancel_on_disconnect)


@routes.get("/threads/{thread_id}/runs/{run_id}/stream", raises=(RunNotFound,), **STREAMED)
async def join_stream(ctx: Context, thread_id: UUID, run_id: UUID, query: StreamQuery) -> Response:
    """Follow the events of a run, from after the one that Last-Event-ID names where it is given."""
    await _see(ctx, thread_id, run_id, cancels=query.cancel_on_disconnect)
    return await _follow(ctx, thread_id, run_id, query)


@routes.get("/runs/{run_id}/stream", raises=(RunNotFound,), **STREAMED)
async def join_stateless_stream(ctx: Context, run_id: UUID, query: StreamQuery) -> Response:
    """Follow the events of a run that is named without its thread."""
    thread_id = await _thread_of(ctx, run_id, cancels=query.cancel_on_disconnect)
    return await _follow(ctx, thread_id, run_id, query)


async def _create(ctx: Context, thread_id: UUID | None, body: RunCreate, awaited: Awaited = "end") -> Made:
    grant = (await ctx.get(Access).start_run(caller_of(ctx), thread_id, body))._replace(key=_key(ctx))
    return await ctx.get(Runs).create(thread_id, body, ctx.request.state.request_id, awaited=awaited, grant=grant)


async def _see(ctx: Context, thread_id: UUID, run_id: UUID, *, cancels: bool = False) -> None:
    """Let those in who may read the thread, and cancel its runs where the client's leaving does that."""
    await ctx.get(Access).see_thread(caller_of(ctx), "read", thread_id, {"run_id": run_id})
    if cancels:
        await _may_cancel(ctx, thread_id, run_id, "interrupt")


async def _may_cancel(ctx: Context, thread_id: UUID, run_id: UUID, action: str) -> None:
    value = {"action": action, "metadata": {"run_ids": [run_id], "status": None}}
    await ctx.get(Access).see_thread(caller_of(ctx), "update", thread_id, value)


async def _thread_of(ctx: Context, run_id: UUID, *, cancels: bool) -> UUID:
    """Return the thread of a run that is named without it; who may not see it learns nothing of it."""
    thread_id = await ctx.get(Runs).thread_of(run_id)
    try:
        await _see(ctx, thread_id, run_id, cancels=cancels)
    except ThreadNotFound as exc:
        raise RunNotFound from exc
    return thread_id


def _key(ctx: Context) -> str | None:
    return ctx.request.headers.get("idempotency-key")


def _located(ctx: Context, run: Run) -> Run:
    _locate(ctx, run.thread_id, run.run_id)
    return run


def _locate(ctx: Context, thread_id: UUID, run_id: UUID, rejoin: str | None = None) -> None:
    """Say in headers where the run is found again (contract: run locators)."""
    path = f"/threads/{thread_id}/runs/{run_id}"
    ctx.headers["Content-Location"] = path
    if rejoin is not None:
        ctx.headers["Location"] = f"{path}/{rejoin}"


def _stream(ctx: Context, made: Made, body: RunCreate) -> Response:
    runs, run = ctx.get(Runs), made.run
    _locate(ctx, run.thread_id, run.run_id, "stream")
    source = runs.events(made)
    goes_along = body.on_disconnect == "cancel"
    return EventStream(runs.ending_with(source, run.thread_id, run.run_id) if goes_along else source)


async def _follow(ctx: Context, thread_id: UUID, run_id: UUID, query: StreamQuery) -> Response:
    runs, after = ctx.get(Runs), ctx.request.headers.get("last-event-id")
    source = await runs.follow(thread_id, run_id, after=after, modes=asked_modes(query.stream_mode))
    _locate(ctx, thread_id, run_id, "stream")
    return EventStream(runs.ending_with(source, thread_id, run_id) if query.cancel_on_disconnect else source)


async def _wait(ctx: Context, made: Made, body: RunCreate) -> Response:
    return await _join(ctx, made.run, takes_run_along=body.on_disconnect == "cancel")


async def _join(ctx: Context, run: Run, *, takes_run_along: bool) -> Response:
    _locate(ctx, run.thread_id, run.run_id, "join")
    result = ctx.get(Runs).result(run.thread_id, run.run_id)
    return await answer_when_over(ctx, with_feedback(result, run), run if takes_run_along else None)


async def _nothing_after(work: Awaitable[bytes]) -> bytes:
    await work
    return b"{}"
