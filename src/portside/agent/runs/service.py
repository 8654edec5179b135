"""Runs: made, executed, followed and listed.

The service sits between the queue, which decides when a run starts, the engine, which executes it, and the hub, which
carries its events. A client in the process that executes its run is woken by the run itself; one elsewhere asks the
database, which is slower and as true.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.assistants.records import Assistants
from portside.agent.engine import Engine
from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import Admission, Admitted, ClaimedRun, Ending
from portside.agent.queue.worker import Worker
from portside.agent.rows import from_row
from portside.agent.runs.edges import end_of, start_of
from portside.agent.runs.requests import Ids, ending_of, execution_request, refuse_unsupported, run_kwargs, run_metadata
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams.feed import Feed, Subscription
from portside.agent.streams.hub import Hub
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import TERMINAL, Run, RunCreate, RunListQuery
from portside.kernel.clock import iso
from portside.kernel.codec import dump_api, dump_user, load
from portside.kernel.db import Database, Session
from portside.kernel.errors import Conflict, NotFound, PortsideError
from portside.kernel.ids import uuid7

ELSEWHERE_POLL_S = 0.5


class RunNotFound(NotFound):
    """No run with this id exists on the thread."""

    code = "run_not_found"


class ThreadBusy(Conflict):
    """The thread already has a run; wait for it to finish, or choose another multitask_strategy."""

    code = "thread_busy"


class Made(NamedTuple):
    """A run that was just admitted, its feed in this process, and, where asked for, all its events."""

    run: Run
    feed: Feed
    followed: Subscription | None


class Scheduled(NamedTuple):
    """What a run that no client asked for brings along; without a thread it gets one of its own."""

    thread_id: UUID | None
    thread_metadata: dict[str, Any]
    configurable: dict[str, Any]


class Runs:
    """The runs of this server."""

    def __init__(
        self, db: Database, assistants: Assistants, engine: Engine, settings: AgentSettings, draining: asyncio.Event
    ) -> None:
        self._db = db
        self._assistants = assistants
        self._engine = engine
        self.hub = Hub(keep_s=settings.resumable_stream_ttl_seconds)
        self._timeout_s = settings.bg_job_timeout_secs
        self.worker = Worker(
            db, slots=settings.n_jobs_per_worker, execute=self.execute, on_end=self.on_end, draining=draining
        )

    async def create(
        self, thread_id: UUID | None, body: RunCreate, request_id: str, *, is_streamed: bool = False
    ) -> Made:
        """Admit a run, on a thread of its own where none is named.

        The feed is followed before the admission: a run that is claimed at once may be over when that returns.
        Raises Invalid, AssistantNotFound, ThreadNotFound and ThreadBusy.
        """
        refuse_unsupported(body)
        assistant = await self._assistants.resolve(body.assistant_id)
        ids = Ids(uuid7(), thread_id or uuid7(), request_id)
        feed = self.hub.open(ids.run_id, ids.thread_id, is_resumable=bool(body.stream_resumable))
        followed = feed.follow() if is_streamed else None
        admission = _admission(assistant, body, ids, is_stateless=thread_id is None)
        admitted = await lifecycle.admit_run(
            self._db, admission, self.worker.worker_id, has_free_slot=self.worker.free_slots > 0
        )
        _refuse(admitted, ids.thread_id)
        self._start(admission, admitted)
        return Made(_as_run(admission, admitted), feed, followed)

    async def admit_scheduled(
        self, session: Session, assistant: Assistant, body: RunCreate, scheduled: Scheduled
    ) -> str:
        """Admit a run inside the caller's transaction; the caller wakes the worker after it. Returns the outcome."""
        ids = Ids(uuid7(), scheduled.thread_id or uuid7(), "")
        admission = _admission(assistant, body, ids, is_stateless=scheduled.thread_id is None)
        admission.thread_metadata = {**scheduled.thread_metadata, **admission.thread_metadata}
        admission.kwargs["config"]["configurable"].update(scheduled.configurable)
        admitted = await lifecycle.admit_run(session, admission, self.worker.worker_id, has_free_slot=False)
        return admitted.outcome

    def _start(self, admission: Admission, admitted: Admitted) -> None:
        if admitted.outcome != "running":
            self.worker.wake()
            return
        self.worker.begin(
            ClaimedRun(
                run_id=admission.run_id,
                thread_id=admission.thread_id,
                assistant_id=admission.assistant_id,
                kwargs=load(dump_user(admission.kwargs)),
                attempt=admitted.attempt,
                is_temporary=admission.temporary,
            )
        )

    async def execute(self, run: ClaimedRun) -> Ending:
        """Execute a run that the worker holds; its events go to its feed."""
        feed = self.hub.begin(start_of(run))
        resume = run.attempt > 1 and await lifecycle.has_own_checkpoint(self._db, run)
        request = execution_request(run, resume=resume)
        try:
            outcome = await self._engine.execute(request, feed.publish, timeout_s=self._timeout_s)
        except TimeoutError:
            error = {"error": "TimeoutError", "message": f"the run took longer than {self._timeout_s:g} s"}
            ending = Ending(status="timeout", thread_status="error", error=error)
        except PortsideError as exc:
            # The graph never began, and would not at another attempt either.
            error = {"error": type(exc).__name__, "message": str(exc)}
            ending = Ending(status="error", thread_status="error", error=error)
        else:
            ending = ending_of(outcome)
        feed.ending = ending
        return ending

    def on_end(self, run: ClaimedRun, ending: Ending | None) -> None:
        """Let the followers of a run go; without an ending it goes on elsewhere."""
        feed = self.hub.find(run.run_id)
        if feed is not None:
            feed.ending = ending
        self.hub.close(run.run_id, end_of(run, ending))

    async def result(self, thread_id: UUID, run_id: UUID) -> bytes:
        """Wait until a run is over and return its final values as JSON. Raises RunNotFound."""
        feed = self.hub.find(run_id)
        while True:
            if (result := await _own_result(feed)) is not None:
                return result
            row = await self._db.fetchrow(sql.run_result, run_id=run_id, thread_id=thread_id)
            if row is None:
                # A stateless run leaves no row; it may have begun and ended here while the database answered.
                if (result := await _own_result(feed)) is not None:
                    return result
                raise RunNotFound("Run not found")
            if row["status"] in TERMINAL:
                return _stored_result(row)
            await self._pause(feed)

    async def _pause(self, feed: Feed | None) -> None:
        """Wait for the run in this process to end, or a moment for one elsewhere."""
        if feed is None or feed.ended.is_set():
            await asyncio.sleep(ELSEWHERE_POLL_S)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(feed.changed.wait(), ELSEWHERE_POLL_S)

    async def follow(
        self, thread_id: UUID, run_id: UUID, *, after: str | None, modes: frozenset[str] | None
    ) -> AsyncIterator[bytes]:
        """Follow a run: its events where it is executed here, else only its end. Raises RunNotFound."""
        run = await self.get(thread_id, run_id)
        feed = self.hub.find(run_id)
        if feed is None and run.status not in TERMINAL:
            feed = self.hub.open(run_id, thread_id, is_resumable=bool(run.kwargs.get("resumable")))
        if feed is None:
            return _nothing()
        return self.events(Made(run, feed, feed.follow(after=after, modes=modes)))

    async def events(self, made: Made) -> AsyncIterator[bytes]:
        """Yield the events of a run; while it has not started here, look whether it ended elsewhere."""
        run, feed = made.run, made.feed
        while not feed.is_started and not feed.ended.is_set():
            row = await self._db.fetchrow(sql.run_result, run_id=run.run_id, thread_id=run.thread_id)
            if not feed.is_started and (row is None or row["status"] in TERMINAL):
                return
            await self._pause(feed)
        async for chunk in made.followed or _nothing():
            yield chunk

    async def get(self, thread_id: UUID, run_id: UUID) -> Run:
        """Return a run. Raises RunNotFound."""
        row = await self._db.fetchrow(sql.get_run, run_id=run_id, thread_id=thread_id)
        if row is None:
            raise RunNotFound("Not Found")
        return from_row(Run, row)

    async def list(self, thread_id: UUID, query: RunListQuery) -> list[Run]:
        """List a thread's runs, newest first. Raises ThreadNotFound."""
        if await self._db.fetchrow(sql.graph_of_thread, thread_id=thread_id) is None:
            raise ThreadNotFound.of(thread_id)
        rows = await self._db.fetch(
            sql.list_runs, thread_id=thread_id, status=query.status, limit=query.limit, offset=query.offset
        )
        return [from_row(Run, row) for row in rows]


def _admission(assistant: Assistant, body: RunCreate, ids: Ids, *, is_stateless: bool) -> Admission:
    metadata = run_metadata(assistant, body)
    is_temporary = is_stateless and body.on_completion != "keep"
    kwargs = run_kwargs(assistant, body, ids, metadata) | {"temporary": is_temporary}
    return Admission(
        run_id=ids.run_id,
        thread_id=ids.thread_id,
        assistant_id=assistant.assistant_id,
        metadata=metadata,
        kwargs=kwargs,
        strategy=body.multitask_strategy or "enqueue",
        thread_metadata={"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)},
        create_thread=is_stateless or body.on_not_exist == "create",
        temporary=is_temporary,
        delay_s=max(0.0, body.after_seconds or 0.0),
    )


def _refuse(admitted: Admitted, thread_id: UUID) -> None:
    if admitted.outcome == "missing":
        raise ThreadNotFound.of(thread_id)
    if admitted.outcome == "busy":
        raise ThreadBusy(
            "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
        )


def _as_run(admission: Admission, admitted: Admitted) -> Run:
    moment = iso(admitted.created_at)
    return Run(
        run_id=admission.run_id,
        thread_id=admission.thread_id,
        assistant_id=admission.assistant_id,
        metadata=admission.metadata,
        status="pending",
        kwargs=admission.kwargs,
        multitask_strategy=admission.strategy,
        created_at=moment,
        updated_at=moment,
        error=None,
    )


async def _own_result(feed: Feed | None) -> bytes | None:
    """Wait for a run that is executed in this process; None when it is not, or was handed back."""
    if feed is None or not feed.is_started:
        return None
    await feed.ended.wait()
    ending: Ending | None = feed.ending
    return None if ending is None else ending.result()


def _stored_result(row: Any) -> bytes:
    """Return what a run that is over left on its thread, as a waiting client gets it."""
    if row["error"] is not None:
        return dump_api({"__error__": row["error"]})
    values: bytes = (row["values"] or "null").encode()
    waiting = [asked for interrupts in (row["interrupts"] or {}).values() for asked in interrupts]
    if not waiting:
        return values
    return dump_api({**(load(values) or {}), "__interrupt__": waiting})


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield
