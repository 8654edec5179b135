"""Runs over HTTP: in the background, awaited or streamed, on a thread or stateless; cancelling and deleting them."""

from collections.abc import Awaitable
from typing import Any
from uuid import UUID

from starlette.responses import Response

from portside.agent.access.service import get_caller
from portside.agent.assistants.records import AssistantNotFound
from portside.agent.http.context import PAGING, Context, Routes
from portside.agent.http.waiting import respond_when_over, with_feedback
from portside.agent.queue.pending_limit import TooManyPendingRuns
from portside.agent.runs.errors import NothingToCancel, RunNotFound, ThreadBusy
from portside.agent.runs.service import Awaited, CreatedRun
from portside.agent.streams.events import parse_run_modes
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.runs import (
    CancelAction,
    CancelManyQuery,
    CancelQuery,
    FoundRun,
    JoinQuery,
    ListedRun,
    Run,
    RunBatch,
    RunCreate,
    RunListQuery,
    RunsToCancel,
    RunsToFind,
    StreamQuery,
)
from portside.agent.types.webhooks import WebhookDelivery
from portside.agent.webhooks.log import DeliveryNotFound
from portside.executor.errors import OtherLanguage
from portside.kernel.errors import BadRequest
from portside.kernel.http.headers import get_header
from portside.kernel.http.sse import EventStream

routes = Routes("runs")
LOCATED = ("Content-Location", "Location")
KEYED = ("Idempotency-Key",)
STREAMED: dict[str, Any] = {"media_type": "text/event-stream", "stays_open": True}
ON_CREATE = (
    AssistantNotFound,
    ThreadNotFound,
    ThreadBusy,
    OtherLanguage,
    RunNotFound,
    BadRequest,
    TooManyPendingRuns,
)


@routes.post("/threads/{thread_id}/runs", raises=ON_CREATE, response_headers=LOCATED[:1], request_headers=KEYED)
async def create_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Run:
    """Start a run in the background."""
    return _located(ctx, (await _create(ctx, thread_id, body)).run)


@routes.post(
    "/threads/{thread_id}/runs/wait", raises=ON_CREATE, response_headers=LOCATED, request_headers=KEYED, stays_open=True
)
async def wait_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Response:
    """Start a run, wait for its end and return its final values."""
    return await _wait(ctx, await _create(ctx, thread_id, body), body)


@routes.post(
    "/threads/{thread_id}/runs/stream", raises=ON_CREATE, response_headers=LOCATED, request_headers=KEYED, **STREAMED
)
async def stream_run(ctx: Context, thread_id: UUID, body: RunCreate) -> Response:
    """Start a run and stream its events."""
    return _stream(ctx, await _create(ctx, thread_id, body, awaited=Awaited.EVENTS), body)


@routes.post("/runs", raises=ON_CREATE, response_headers=LOCATED[:1], request_headers=KEYED)
async def create_stateless_run(ctx: Context, body: RunCreate) -> Run:
    """Start a stateless run in the background."""
    return _located(ctx, (await _create(ctx, None, body, awaited=Awaited.NOTHING)).run)


@routes.post("/runs/wait", raises=ON_CREATE, response_headers=LOCATED, request_headers=KEYED, stays_open=True)
async def wait_stateless_run(ctx: Context, body: RunCreate) -> Response:
    """Start a stateless run, wait for its end and return its final values."""
    return await _wait(ctx, await _create(ctx, None, body), body)


@routes.post("/runs/stream", raises=ON_CREATE, response_headers=LOCATED, request_headers=KEYED, **STREAMED)
async def stream_stateless_run(ctx: Context, body: RunCreate) -> Response:
    """Start a stateless run and stream its events."""
    return _stream(ctx, await _create(ctx, None, body, awaited=Awaited.EVENTS), body)


@routes.post(
    "/runs/batch",
    operation="runs_bulk_create",
    raises=(AssistantNotFound, BadRequest, TooManyPendingRuns),
    request_headers=KEYED,
)
async def create_runs(ctx: Context, body: RunBatch) -> list[Run]:
    """Start several stateless runs in the background: all of them or none."""
    access = ctx.services.access
    caller = get_caller(ctx)
    for run_body in body:
        await access.authorize_run(caller, None, run_body)

    key = ctx.request.headers.get("idempotency-key")
    return await ctx.services.runs.create_batch(body, ctx.request.state.request_id, key=key, caller=caller)


@routes.post(
    "/runs/cancel", operation="runs_bulk_cancel", raises=(NothingToCancel,), status=204, works_on_full_disk=True
)
async def cancel_runs(ctx: Context, query: CancelManyQuery, body: RunsToCancel) -> None:
    """Cancel several runs: those with a status, or some of a thread."""
    metadata: dict[str, Any] = {"run_ids": body.run_ids, "status": body.status}
    value = {"thread_id": body.thread_id, "action": query.action, "metadata": metadata}
    allowed = await ctx.services.access.authorize(get_caller(ctx), "threads", "update", value)
    await ctx.services.runs.cancel_many(body, CancelAction(query.action), allowed)


@routes.post("/runs/search", read_only=True, response_headers=PAGING[1:])
async def search_runs(ctx: Context, body: RunsToFind) -> list[FoundRun]:
    """List runs across threads: the queue in its order, failed runs, or those of a cron, newest first."""
    value: dict[str, Any] = {"metadata": {}, "status": body.status, "limit": body.limit, "offset": body.offset}
    allowed = await ctx.services.access.authorize(get_caller(ctx), "threads", "search", value)

    page = await ctx.services.runs.search(body, allowed)
    if page.has_more:
        ctx.headers[PAGING[1]] = str((body.offset or 0) + len(page.items))

    return page.items


@routes.get("/threads/{thread_id}/runs", raises=(ThreadNotFound,))
async def list_runs(ctx: Context, thread_id: UUID, query: RunListQuery) -> list[ListedRun]:
    """List the runs of a thread, newest first."""
    value: dict[str, Any] = {"metadata": {}, "status": query.status, "limit": query.limit, "offset": query.offset}
    await ctx.services.access.authorize_thread(get_caller(ctx), "search", thread_id, value)
    return await ctx.services.runs.list(thread_id, query)


@routes.get("/threads/{thread_id}/runs/{run_id}", raises=(RunNotFound,))
async def get_run(ctx: Context, thread_id: UUID, run_id: UUID) -> Run:
    """Return a run."""
    await _authorize_read(ctx, thread_id, run_id)
    return await ctx.services.runs.get(thread_id, run_id)


@routes.delete("/threads/{thread_id}/runs/{run_id}", raises=(RunNotFound, ThreadBusy), status=204)
async def delete_run(ctx: Context, thread_id: UUID, run_id: UUID) -> None:
    """Delete a run with its checkpoints; an active run is cancelled first."""
    await ctx.services.access.authorize_thread(get_caller(ctx), "delete", thread_id, {"run_id": run_id})
    await ctx.services.runs.delete(thread_id, run_id)


@routes.post(
    "/threads/{thread_id}/runs/{run_id}/cancel",
    raises=(NothingToCancel,),
    status=202,
    responses={202: None, 200: dict[str, str]},
    stays_open=True,
    works_on_full_disk=True,
)
async def cancel_run(ctx: Context, thread_id: UUID, run_id: UUID, query: CancelQuery) -> Response:
    """Cancel a run. With `wait` the server answers when its nodes have stopped and its end is stored."""
    runs = ctx.services.runs
    await _authorize_cancel(ctx, thread_id, run_id, query.action)
    await runs.cancel(thread_id, run_id, CancelAction(query.action))

    if not query.wait:
        return Response(status_code=202)

    _locate(ctx, thread_id, run_id, "join")
    return await respond_when_over(ctx, _empty_after(runs.result(thread_id, run_id)))


@routes.get("/threads/{thread_id}/runs/{run_id}/join", raises=(RunNotFound,), stays_open=True)
async def join_run(ctx: Context, thread_id: UUID, run_id: UUID, query: JoinQuery) -> Response:
    """Wait for the end of a run and return its final values."""
    await _authorize_read(ctx, thread_id, run_id, cancels=query.cancel_on_disconnect)
    run = await ctx.services.runs.get(thread_id, run_id)
    return await _join(ctx, run, cancels_on_disconnect=query.cancel_on_disconnect)


@routes.get("/runs/{run_id}/join", raises=(RunNotFound,), stays_open=True)
async def join_stateless_run(ctx: Context, run_id: UUID, query: JoinQuery) -> Response:
    """Wait for the end of a run, found by its id alone, and return its final values."""
    thread_id = await _find_thread(ctx, run_id, cancels=query.cancel_on_disconnect)
    run = await ctx.services.runs.get(thread_id, run_id)
    return await _join(ctx, run, cancels_on_disconnect=query.cancel_on_disconnect)


@routes.get("/threads/{thread_id}/runs/{run_id}/stream", raises=(RunNotFound,), **STREAMED)
async def join_run_stream(ctx: Context, thread_id: UUID, run_id: UUID, query: StreamQuery) -> Response:
    """Stream the events of a run, after the one that Last-Event-ID names."""
    await _authorize_read(ctx, thread_id, run_id, cancels=query.cancel_on_disconnect)
    return await _follow(ctx, thread_id, run_id, query)


@routes.get("/runs/{run_id}/stream", raises=(RunNotFound,), **STREAMED)
async def join_stateless_run_stream(ctx: Context, run_id: UUID, query: StreamQuery) -> Response:
    """Stream the events of a run, found by its id alone."""
    thread_id = await _find_thread(ctx, run_id, cancels=query.cancel_on_disconnect)
    return await _follow(ctx, thread_id, run_id, query)


async def _create(ctx: Context, thread_id: UUID | None, body: RunCreate, awaited: Awaited = Awaited.END) -> CreatedRun:
    services = ctx.services
    request_id = ctx.scope["state"]["request_id"]
    grant = await services.access.authorize_run(get_caller(ctx), thread_id, body)
    grant = grant._replace(key=get_header(ctx.scope, b"idempotency-key"))
    return await services.runs.create(thread_id, body, request_id, awaited=awaited, grant=grant)


async def _authorize_read(ctx: Context, thread_id: UUID, run_id: UUID, *, cancels: bool = False) -> None:
    """Check that the caller may read the thread, and cancel its runs if its disconnect cancels them."""
    await ctx.services.access.authorize_thread(get_caller(ctx), "read", thread_id, {"run_id": run_id})
    if cancels:
        await _authorize_cancel(ctx, thread_id, run_id, CancelAction.INTERRUPT)


async def _authorize_cancel(ctx: Context, thread_id: UUID, run_id: UUID, action: str) -> None:
    value = {"action": action, "metadata": {"run_ids": [run_id], "status": None}}
    await ctx.services.access.authorize_thread(get_caller(ctx), "update", thread_id, value)


async def _find_thread(ctx: Context, run_id: UUID, *, cancels: bool) -> UUID:
    """Return the thread of a run. For a caller that may not read it the run does not exist."""
    thread_id = await ctx.services.runs.find_thread(run_id)
    try:
        await _authorize_read(ctx, thread_id, run_id, cancels=cancels)
    except ThreadNotFound as exc:
        raise RunNotFound from exc

    return thread_id


def _located(ctx: Context, run: Run) -> Run:
    _locate(ctx, run.thread_id, run.run_id)
    return run


def _locate(ctx: Context, thread_id: UUID, run_id: UUID, rejoin: str | None = None) -> None:
    """Set the headers that locate the run, and with `rejoin` the one by which clients join it again."""
    path = f"/threads/{thread_id}/runs/{run_id}"
    ctx.headers["Content-Location"] = path
    if rejoin is not None:
        ctx.headers["Location"] = f"{path}/{rejoin}"


def _stream(ctx: Context, created_run: CreatedRun, body: RunCreate) -> Response:
    runs = ctx.services.runs
    run = created_run.run
    _locate(ctx, run.thread_id, run.run_id, "stream")
    source = runs.events(created_run)
    if body.on_disconnect == "cancel":
        source = runs.cancel_on_disconnect(source, run.thread_id, run.run_id)

    return EventStream(source)


async def _follow(ctx: Context, thread_id: UUID, run_id: UUID, query: StreamQuery) -> Response:
    runs = ctx.services.runs
    after = ctx.request.headers.get("last-event-id")
    source = await runs.follow(thread_id, run_id, after=after, modes=parse_run_modes(query.stream_mode))
    if query.cancel_on_disconnect:
        source = runs.cancel_on_disconnect(source, thread_id, run_id)

    _locate(ctx, thread_id, run_id, "stream")
    return EventStream(source)


async def _wait(ctx: Context, created_run: CreatedRun, body: RunCreate) -> Response:
    return await _join(ctx, created_run.run, cancels_on_disconnect=body.on_disconnect == "cancel")


async def _join(ctx: Context, run: Run, *, cancels_on_disconnect: bool) -> Response:
    _locate(ctx, run.thread_id, run.run_id, "join")
    result = ctx.services.runs.result(run.thread_id, run.run_id)
    return await respond_when_over(ctx, with_feedback(result, run), run if cancels_on_disconnect else None)


async def _empty_after(work: Awaitable[bytes]) -> bytes:
    await work
    return b"{}"


@routes.get("/threads/{thread_id}/runs/{run_id}/webhook", raises=(DeliveryNotFound, ThreadNotFound))
async def get_webhook_delivery(ctx: Context, thread_id: UUID, run_id: UUID) -> WebhookDelivery:
    """Return the webhook delivery of a run that ended, with each attempt."""
    await ctx.services.access.authorize_thread(get_caller(ctx), "read", thread_id)
    return await ctx.services.webhook_log.get(thread_id, run_id)
