"""Stopping runs, wherever they are executed, and deleting them.

What is asked is written on the run's row. The worker of this process is told to look at once, those of others by a
hint; without one they notice when they next renew their leases, within a second. A run that nobody began yet is ended
by the database itself. Only the worker that holds a run writes its end (`queue.worker`), so whoever waits for the
cancelled run to end waits until its nodes have stopped.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any
from uuid import UUID

import msgspec

from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import Cancellation, CancelledRun, CancelScope, Ending
from portside.agent.queue.worker import Worker
from portside.agent.runs.errors import NothingToCancel, RunNotFound, ThreadBusy
from portside.agent.runs.following import Following
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.types.access import Filter
from portside.agent.types.runs import CancelAction, CancelMany
from portside.kernel.db import Database
from portside.kernel.errors import Invalid
from portside.kernel.logs import get_logger

log = get_logger(__name__)
DISCONNECTED = "the client disconnected (on_disconnect=cancel)"
STATUSES = {"all": ["pending", "running"], "pending": ["pending"], "running": ["running"]}


class Cancelling:
    """Cancels and deletes runs."""

    def __init__(self, db: Database, worker: Worker, following: Following, hub: Hub, draining: asyncio.Event) -> None:
        self._db = db
        self._worker = worker
        self._following = following
        self._hub = hub
        self._draining = draining
        self._under_way: set[asyncio.Task[None]] = set()

    async def cancel(self, thread_id: UUID, run_id: UUID, action: CancelAction) -> None:
        """Ask a run to stop. Raises NothingToCancel when it is over or there is none."""
        reason = f"{action} requested via POST /threads/{thread_id}/runs/{run_id}/cancel"
        scope = CancelScope(thread_id=thread_id, run_ids=[run_id])
        if not await self._cancel(scope, Cancellation(action, reason)):
            await self._refuse(scope)

    async def cancel_many(self, body: CancelMany, action: CancelAction, seen: Filter | None) -> None:
        """Ask several runs to stop, on threads that are seen.

        Raises Invalid unless the body names them in one way, NothingToCancel.
        """
        scope = _scope(body)
        cancelled = [
            await self._cancel(each, Cancellation(action, f"{action} requested via POST /runs/cancel"))
            for each in ([scope] if seen is None else await self._seen(scope, seen))
        ]
        if any(cancelled):
            return
        if seen is not None:
            # Not even whether there is such a run.
            raise NothingToCancel
        await self._refuse(scope)

    async def _seen(self, scope: CancelScope, seen: Filter) -> list[CancelScope]:
        """Return a scope for each thread of a scope that is seen."""
        rows = await self._db.fetch(
            sql.threads_at_work, statuses=scope.statuses, thread_id=scope.thread_id, access=seen
        )
        return [msgspec.structs.replace(scope, thread_id=row["thread_id"]) for row in rows]

    async def assistant_deleted(self, assistant_id: UUID) -> None:
        """Stop the runs of an assistant that is gone. Those whose threads went with it are lost to their workers."""
        reason = f"interrupt requested via DELETE /assistants/{assistant_id}"
        await self._cancel(CancelScope(assistant_id=assistant_id), Cancellation("interrupt", reason))
        self.tell_workers()

    async def delete(self, thread_id: UUID, run_id: UUID) -> None:
        """Stop a run if need be and delete it with its checkpoints; returns when it is gone.

        Raises RunNotFound, and ThreadBusy when the run is over but another one builds on it just now.
        """
        deleted = await lifecycle.delete_run(self._db, self._worker.worker_id, thread_id, run_id)
        if deleted.outcome == "missing":
            raise RunNotFound("Run not found")
        if deleted.outcome == "busy":
            raise ThreadBusy(f"Thread {thread_id} has in-flight runs: delete the run when they are over")
        if deleted.outcome == "deleted":
            self._let_go(CancelledRun(thread_id, run_id, deleted.outcome))
            return
        if deleted.taken is not None:
            self._worker.begin(deleted.taken)
        self.tell_workers()
        await self._following.gone(thread_id, run_id)

    async def ending_with(self, source: AsyncIterator[bytes], thread_id: UUID, run_id: UUID) -> AsyncIterator[bytes]:
        """Pass on what a client is sent; one that leaves before the end takes the run with it."""
        is_over = False
        try:
            async for chunk in source:
                yield chunk
            is_over = True
        finally:
            if not is_over:
                self.client_left(thread_id, run_id)

    def client_left(self, thread_id: UUID, run_id: UUID) -> None:
        """Cancel the run of a client that disconnected. A server that stops cuts its clients off itself: no reason."""
        if not self._draining.is_set():
            scope = CancelScope(thread_id=thread_id, run_ids=[run_id])
            self._in_background(self._cancel_left(scope))

    async def _cancel_left(self, scope: CancelScope) -> None:
        try:
            await self._cancel(scope, Cancellation("interrupt", DISCONNECTED))
        except Exception:
            log.exception("the run of a client that left could not be cancelled", run_ids=str(scope.run_ids))

    async def _cancel(self, scope: CancelScope, cancellation: Cancellation) -> list[CancelledRun]:
        cancelled = await lifecycle.cancel_runs(self._db, scope, cancellation)
        for run in cancelled:
            self._let_go(run)
        if cancelled:
            self.tell_workers()
        return cancelled

    def tell_workers(self) -> None:
        """Have the workers look, here and elsewhere: there are runs to stop, and others may begin instead."""
        self._worker.look_for_cancels()
        self._worker.wake()
        self._hub.relay.say_work(claims=True, cancels=True)

    def _let_go(self, run: CancelledRun) -> None:
        if run.outcome == "interrupted":
            self._following.let_go(run.run_id, Ending(status="interrupted", thread_status=None))
        elif run.outcome == "deleted":
            self._following.let_go(run.run_id, Ending(status="rolled_back", thread_status=None))

    async def _refuse(self, scope: CancelScope) -> None:
        named = scope.run_ids or []
        if named and await self._db.fetchval(sql.has_run, thread_id=scope.thread_id, run_ids=named):
            raise NothingToCancel("No matching runs to cancel. Please verify that they are not over yet.")
        raise NothingToCancel

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


def _scope(body: CancelMany) -> CancelScope:
    by_ids = body.thread_id is not None or body.run_ids is not None
    if by_ids == (body.status is not None):
        raise Invalid.field(["body", "status"], "Give either a status, or thread_id and run_ids")
    if body.status is not None:
        return CancelScope(statuses=STATUSES[body.status])
    for name in ("thread_id", "run_ids"):
        if not getattr(body, name):
            raise Invalid.field(["body", name], "Field required", "missing")
    return CancelScope(thread_id=body.thread_id, run_ids=body.run_ids)
