"""Runs: made, followed, listed, cancelled and deleted.

The service joins the queue, which decides when a run starts, the executions, which say what the worker does with one,
and the hub, which carries its events. Public to the rooms above: `Runs.create` and what it returns (`Made`),
`Runs.admit_scheduled`, `Runs.events`, `Runs.follow`, `Runs.result`, `Runs.cancel`, and `Runs.hub` and `Runs.worker`
themselves. How runs are cancelled is told in `cancelling`, how they are executed and stopped in `execution`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.assistants.records import Assistants
from portside.agent.engine import Engine
from portside.agent.queue import lifecycle
from portside.agent.queue.lifecycle import Admission, Admitted
from portside.agent.queue.worker import Worker
from portside.agent.rows import from_row
from portside.agent.runs.admission import admission_of, begun_run, refuse_outcome, shown_run
from portside.agent.runs.cancelling import Cancelling
from portside.agent.runs.errors import RunNotFound
from portside.agent.runs.execution import Executions
from portside.agent.runs.following import Following, Made
from portside.agent.runs.requests import Ids, refuse_unsupported
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import CancelAction, CancelMany, ListedRun, Run, RunCreate, RunListQuery
from portside.kernel.db import Database, Session
from portside.kernel.ids import uuid7

SUPERSEDING = frozenset({"interrupt", "rollback"})


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
        self.hub = Hub(keep_s=settings.resumable_stream_ttl_seconds)
        executions = Executions(db, engine, self.hub, timeout_s=settings.bg_job_timeout_secs)
        self.worker = Worker(db, executions, slots=settings.slots, draining=draining)
        self._following = Following(db, self.hub, self.worker)
        self._cancelling = Cancelling(db, self.worker, self._following, draining)

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
        admission = admission_of(assistant, body, ids, is_stateless=thread_id is None)
        admitted = await lifecycle.admit_run(
            self._db, admission, self.worker.worker_id, has_free_slot=self.worker.free_slots > 0
        )
        refuse_outcome(admitted, ids.thread_id)
        self._start(admission, admitted)
        return Made(shown_run(admission, admitted), feed, followed)

    async def create_batch(self, bodies: list[RunCreate], request_id: str) -> list[Run]:
        """Admit stateless runs, all or none. Raises Invalid and AssistantNotFound."""
        assistants: dict[str, Assistant] = {}
        for body in bodies:
            refuse_unsupported(body)
            if body.assistant_id not in assistants:
                assistants[body.assistant_id] = await self._assistants.resolve(body.assistant_id)
        admissions = [
            admission_of(assistants[body.assistant_id], body, Ids(uuid7(), uuid7(), request_id), is_stateless=True)
            for body in bodies
        ]
        admitted = await lifecycle.admit_runs(self._db, admissions, self.worker.worker_id)
        self.worker.wake()
        return [shown_run(*pair) for pair in zip(admissions, admitted, strict=True)]

    async def admit_scheduled(
        self, session: Session, assistant: Assistant, body: RunCreate, scheduled: Scheduled
    ) -> str:
        """Admit a run inside the caller's transaction; the caller wakes the worker after it. Returns the outcome."""
        ids = Ids(uuid7(), scheduled.thread_id or uuid7(), "")
        admission = admission_of(assistant, body, ids, is_stateless=scheduled.thread_id is None)
        admission.thread_metadata = {**scheduled.thread_metadata, **admission.thread_metadata}
        admission.kwargs["config"]["configurable"].update(scheduled.configurable)
        admitted = await lifecycle.admit_run(session, admission, self.worker.worker_id, has_free_slot=False)
        return admitted.outcome

    def _start(self, admission: Admission, admitted: Admitted) -> None:
        if admitted.outcome == "running":
            self.worker.begin(begun_run(admission, admitted))
            return
        if admission.strategy in SUPERSEDING:
            self.worker.look_for_cancels()
        self.worker.wake()

    async def get(self, thread_id: UUID, run_id: UUID) -> Run:
        """Return a run. Raises RunNotFound."""
        row = await self._db.fetchrow(sql.get_run, run_id=run_id, thread_id=thread_id)
        if row is None:
            raise RunNotFound("Not Found")
        return from_row(Run, row)

    async def list(self, thread_id: UUID, query: RunListQuery) -> list[ListedRun]:
        """List a thread's runs, newest first, with the fields that were selected. Raises ThreadNotFound."""
        rows = await self._db.fetch(
            sql.list_runs,
            thread_id=thread_id,
            status=query.status,
            with_metadata=not query.select or "metadata" in query.select,
            with_kwargs=not query.select or "kwargs" in query.select,
            limit=query.limit,
            offset=query.offset,
        )
        if not rows and await self._db.fetchrow(sql.graph_of_thread, thread_id=thread_id) is None:
            raise ThreadNotFound.of(thread_id)
        fields = query.select or ListedRun.__struct_fields__
        runs = [from_row(Run, row) for row in rows]
        return [ListedRun(**{name: getattr(run, name) for name in fields}) for run in runs]

    async def thread_of(self, run_id: UUID) -> UUID:
        """Return the thread of a run that a client names without one. Raises RunNotFound."""
        thread_id: UUID | None = await self._db.fetchval(sql.thread_of_run, run_id=run_id)
        if thread_id is None:
            raise RunNotFound("Run not found")
        return thread_id

    async def result(self, thread_id: UUID, run_id: UUID) -> bytes:
        """Wait until a run is over and return its final values as JSON; of one that is gone, the error that says so."""
        return await self._following.result(thread_id, run_id)

    def events(self, made: Made) -> AsyncIterator[bytes]:
        """Yield the events of a run that was just made."""
        return self._following.events(made)

    async def follow(
        self, thread_id: UUID, run_id: UUID, *, after: str | None, modes: frozenset[str] | None
    ) -> AsyncIterator[bytes]:
        """Follow a run: its events where it is executed here, else only its end. Raises RunNotFound."""
        return self._following.follow(await self.get(thread_id, run_id), after=after, modes=modes)

    def ending_with(self, source: AsyncIterator[bytes], thread_id: UUID, run_id: UUID) -> AsyncIterator[bytes]:
        """Pass on what a client is sent; one that leaves before the end takes the run with it."""
        return self._cancelling.ending_with(source, thread_id, run_id)

    def client_left(self, thread_id: UUID, run_id: UUID) -> None:
        """Cancel the run of a client that disconnected."""
        self._cancelling.client_left(thread_id, run_id)

    async def cancel(self, thread_id: UUID, run_id: UUID, action: CancelAction) -> None:
        """Ask a run to stop; `result` returns when it has. Raises NothingToCancel."""
        await self._cancelling.cancel(thread_id, run_id, action)

    async def cancel_many(self, body: CancelMany, action: CancelAction) -> None:
        """Ask several runs to stop. Raises Invalid and NothingToCancel."""
        await self._cancelling.cancel_many(body, action)

    async def delete(self, thread_id: UUID, run_id: UUID) -> None:
        """Stop a run if need be and delete it with its checkpoints. Raises RunNotFound and ThreadBusy."""
        await self._cancelling.delete(thread_id, run_id)
