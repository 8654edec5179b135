"""Executing runs that the worker holds, and settling those that were stopped.

A run that is stopped is over when nothing of it runs any more. Its task is cancelled, and with it every node, subgraph
and child task that awaits; a node in a thread of its own cannot be cancelled and is waited for (`engine`). What the
engine gives up waiting for goes on in its thread: its result is dropped, its effects on the world are not. The same
holds for what a node started and does not await, and for graphs on other servers that it called.
"""

from collections.abc import Callable
from typing import Any

from portside.agent.encryption.codec import refuse_unreadable
from portside.agent.engine import Audience, Engine, Publish, RanTooLong
from portside.agent.graphs.execute import read_rest
from portside.agent.graphs.load import Graphs
from portside.agent.graphs.protocol import Outcome, RunRequest
from portside.agent.queue import lifecycle
from portside.agent.queue.leases import Leases
from portside.agent.queue.lifecycle import Cancellation, ClaimedRun, Ending
from portside.agent.runs.edges import end_of, start_of
from portside.agent.runs.requests import ending_of, execution_request
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.webhooks.policy import Webhooks
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError
from portside.kernel.logs import get_logger

log = get_logger(__name__)
NOTHING_LEFT = Outcome(values=None, interrupts={}, has_next=False, error=None)


class _Told:
    """Events on their way to a run's feed. They wait while the run may have gone to another worker.

    A process that was paused would otherwise tell its own clients what the next owner tells again, or tells otherwise.
    """

    def __init__(self, publish: Publish, is_ours: Callable[[], bool]) -> None:
        self._publish = publish
        self._is_ours = is_ours
        self._waiting: list[tuple[str, bytes]] = []

    def tell(self, events: list[tuple[str, bytes]]) -> None:
        """Pass events on, now or with the next ones."""
        if not self._is_ours():
            self._waiting += events
            return
        told, self._waiting = (self._waiting + events, []) if self._waiting else (events, self._waiting)
        if told:
            self._publish(told)


class Executions:
    """What the worker does with a run: execute it, settle it when it was stopped, and let its followers go."""

    def __init__(self, db: Database, engine: Engine, hub: Hub, webhooks: Webhooks, *, timeout_s: float) -> None:
        self._db = db
        self._engine = engine
        self._hub = hub
        self._webhooks = webhooks
        self._timeout_s = timeout_s

    async def execute(self, run: ClaimedRun, leases: Leases) -> Ending:
        """Execute a run; its events go to its feed, for as long as it is surely this worker's."""
        start = start_of(run)
        feed = await self._hub.prepare(start)
        await leases.sure(run)
        self._hub.begin(start)
        told = _Told(feed.publish, lambda: leases.is_sure(run))
        try:
            audience = Audience(told.tell, lambda: self._hub.known(feed), lambda: feed.is_heard)
            ending = await self._attempt(run, audience)
            await leases.sure(run)
        finally:
            told.tell([])
        await self._hub.conclude(run.run_id)
        return ending

    async def _attempt(self, run: ClaimedRun, audience: Audience) -> Ending:
        begun = run.was_begun or run.attempt > 1
        resume = begun and await lifecycle.has_own_checkpoint(self._db, run)
        request = execution_request(run, resume=resume)
        try:
            refuse_unreadable(run.kwargs)
            outcome = await self._engine.execute(request, audience, timeout_s=self._timeout_s)
            return ending_of(outcome)
        except RanTooLong:
            return await self._timed_out(run)
        except PortsideError as exc:
            # The graph never began, and would not at another attempt either.
            error = {"error": type(exc).__name__, "message": str(exc)}
            return Ending(status="error", thread_status="error", error=error)

    async def settle(self, run: ClaimedRun, cancellation: Cancellation) -> Ending:
        """Tell the end of a run that has stopped because it was cancelled; a rollback first removes what it left."""
        await self._hub.conclude(run.run_id)
        if cancellation.action == "rollback":
            return await self._roll_back(run)
        rest = await self._rest(execution_request(run, resume=False))
        error = {"error": "UserInterrupt", "message": cancellation.reason}
        return Ending(status="interrupted", error=error, **_thread_after(rest))

    async def _roll_back(self, run: ClaimedRun) -> Ending:
        await self._db.execute(sql.delete_checkpoints_of_runs, run_ids=[str(run.run_id)], thread_id=str(run.thread_id))
        before = await self._db.fetchval(sql.graph_before, thread_id=run.thread_id, run_id=run.run_id)
        request = execution_request(run, resume=False)
        if before in self._engine.graphs.ids():
            request.graph_id = before
        return Ending(status="rolled_back", **_thread_after(await self._rest(request)))

    def on_end(self, run: ClaimedRun, ending: Ending | None) -> None:
        """Let the followers of a run go; without an ending it goes on elsewhere."""
        feed = self._hub.find(run.run_id)
        if feed is not None:
            feed.ending = ending
        self._hub.close(run.run_id, end_of(run, ending))
        if ending is not None and run.kwargs.get("webhook"):
            self._webhooks.owed.set()

    async def _timed_out(self, run: ClaimedRun) -> Ending:
        rest = await self._rest(execution_request(run, resume=False))
        error = {"error": "TimeoutError", "message": f"the run took longer than {self._timeout_s:g} s"}
        after = _thread_after(rest) | {"thread_status": "error"}
        return Ending(status="timeout", error=error, **after)

    async def _rest(self, request: RunRequest) -> Outcome:
        """Read what a run that was stopped left. A graph that cannot tell any more leaves nothing to go on with."""

        async def reading(graphs: Graphs) -> Outcome:
            return await read_rest(graphs, request)

        try:
            return await self._engine.read(reading)
        except Exception:
            log.exception("the state of a stopped run could not be read", graph_id=request.graph_id)
            return NOTHING_LEFT


def _thread_after(rest: Outcome) -> dict[str, Any]:
    status = "interrupted" if rest.has_next else "idle"
    return {"thread_status": status, "values": rest.values, "interrupts": rest.interrupts}
