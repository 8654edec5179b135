"""Runs: made, followed, listed, cancelled and deleted.

The service joins the queue, which decides when a run starts, the executions, which say what the worker does with one,
and the hub, which carries its events. Public to the rooms above: `Runs.create` and what it returns (`Made`),
`Runs.admit_scheduled`, `Runs.events`, `Runs.follow`, `Runs.result`, `Runs.cancel`, and `Runs.hub` and `Runs.worker`
themselves. How runs are cancelled is told in `cancelling`, how they are executed and stopped in `execution`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NamedTuple
from uuid import UUID

from portside.agent.assistants.records import Assistants
from portside.agent.engine import Engine
from portside.agent.queue import lifecycle
from portside.agent.queue.admissions import Admissions
from portside.agent.queue.crowding import Crowding
from portside.agent.queue.lifecycle import Admission, Admitted, Asked, AssistantChanged
from portside.agent.queue.worker import Worker
from portside.agent.rows import from_row
from portside.agent.runs.admission import admission_of, begun_run, complete, refuse_outcome, restrict, shown_run
from portside.agent.runs.cancelling import Cancelling
from portside.agent.runs.errors import RunNotFound
from portside.agent.runs.execution import Executions
from portside.agent.runs.following import Following, Made
from portside.agent.runs.requests import Ids, refuse_unsupported, request_key
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, FREE, Caller, Filter, Grant
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import CancelAction, CancelMany, ListedRun, Run, RunCreate, RunListQuery
from portside.agent.webhooks.policy import Webhooks
from portside.kernel.db import Database, Session
from portside.kernel.ids import uuid7

FROM_THE_START = "-1"

Awaited = Literal["end", "events", "nothing"]


class Scheduled(NamedTuple):
    """What a run that no client asked for brings along; without a thread it gets one of its own."""

    run_id: UUID
    thread_id: UUID | None
    thread_metadata: dict[str, Any]
    configurable: dict[str, Any]
    access: Filter | None = None


class Runs:
    """The runs of this server."""

    def __init__(
        self, db: Database, assistants: Assistants, engine: Engine, settings: AgentSettings, draining: asyncio.Event
    ) -> None:
        self._db = db
        self._assistants = assistants
        self.hub = Hub(keep_s=settings.resumable_stream_ttl_seconds)
        self.webhooks = Webhooks()
        self._crowding = Crowding(db, settings.max_pending_runs_per_caller)
        executions = Executions(db, engine, self.hub, self.webhooks, timeout_s=settings.bg_job_timeout_secs)
        self.worker = Worker(db, executions, slots=settings.slots, draining=draining)
        self._admissions = Admissions(db, self.worker)
        self._following = Following(db, self.hub, self.worker)
        self._cancelling = Cancelling(db, self.worker, self._following, self.hub, draining)

    async def create(
        self,
        thread_id: UUID | None,
        body: RunCreate,
        request_id: str,
        *,
        awaited: Awaited = "end",
        grant: Grant = FREE,
    ) -> Made:
        """Admit a run, on a thread of its own where none is named; with a key that was used before, find that run.

        Where nothing of it is awaited here, what a stateless run leaves can be joined for another minute.

        The feed is followed before the admission: a run that is claimed at once may be over when that returns.
        Raises Invalid, AssistantNotFound, ThreadNotFound, ThreadBusy and TooManyPendingRuns, and RunNotFound when that
        run is gone.
        """
        refuse_unsupported(body)
        await self.webhooks.policy.check(body.webhook)
        ids = Ids(grant.run_id or uuid7(), thread_id or uuid7(), request_id, grant.caller)
        feed = self.hub.open(ids.run_id, ids.thread_id, is_resumable=bool(body.stream_resumable))
        followed = feed.follow() if awaited == "events" else None
        named = request_key(grant.key, thread_id, [body], grant.caller)
        asked_by = self._crowding.name(grant.caller.counted_as)

        def admission_to(assistant: Assistant) -> Admission:
            made = admission_of(assistant, body, ids, is_stateless=thread_id is None, key=named)
            made.asked_by = asked_by
            return restrict(made, grant, is_stateless=thread_id is None)

        async with self._crowding.room_for(1, asked_by):
            with self.worker.slot() as starts:
                admission, admitted = await self._admit(
                    body.assistant_id, admission_to, starts=starts, is_awaited=awaited != "nothing"
                )
                if admitted.outcome in ("pending", "running"):
                    complete(admission, admitted)
                    feed.is_local, feed.is_admitted_here = admitted.outcome == "running", True
                    self._start(admission, admitted)
        refuse_outcome(admitted, ids.thread_id)
        if admitted.outcome == "repeated":
            return self._again(await self.get(admitted.thread_id, admitted.run_id), is_streamed=awaited == "events")
        return Made(shown_run(admission, admitted), feed, followed)

    async def _admit(
        self, assistant: str, admission_to: Callable[[Assistant], Admission], *, starts: bool, is_awaited: bool
    ) -> tuple[Admission, Admitted]:
        """Admit a run of an assistant as it is remembered here; where it has changed since, as it is now."""
        while True:
            remembered = await self._assistants.recall(assistant)
            admission = admission_to(remembered)
            admission.seen = remembered.updated_at
            try:
                return admission, await self._admissions.admit(admission, starts=starts, is_awaited=is_awaited)
            except AssistantChanged:
                self._assistants.forget(assistant)

    async def create_batch(
        self, bodies: list[RunCreate], request_id: str, *, key: str | None = None, caller: Caller = ANYONE
    ) -> list[Run]:
        """Admit stateless runs, all or none. Raises Invalid, AssistantNotFound and TooManyPendingRuns."""
        named = request_key(key, None, bodies, caller)
        assistants: dict[str, Assistant] = {}
        for body in bodies:
            refuse_unsupported(body)
            await self.webhooks.policy.check(body.webhook)
            if body.assistant_id not in assistants:
                assistants[body.assistant_id] = await self._assistants.resolve(body.assistant_id)
        admissions = [
            admission_of(
                assistants[body.assistant_id],
                body,
                Ids(uuid7(), uuid7(), request_id, caller),
                is_stateless=True,
                key=named and named._replace(place=place),
            )
            for place, body in enumerate(bodies)
        ]
        asked_by = self._crowding.name(caller.counted_as)
        for each in admissions:
            each.asked_by = asked_by
        async with self._crowding.room_for(len(bodies), asked_by):
            admitted = await self._admit_batch(admissions)
        self.worker.wake()
        self.hub.relay.say_work(claims=True)
        for pair in zip(admissions, admitted, strict=True):
            complete(*pair)
        made = [shown_run(*pair) for pair in zip(admissions, admitted, strict=True)]
        earlier = await self._earlier([each.run_id for each in admitted if each.outcome == "repeated"])
        return [earlier.get(each.run_id, run) for each, run in zip(admitted, made, strict=True)]

    async def _admit_batch(self, admissions: list[Admission]) -> list[Admitted]:
        if admissions[0].key is None:
            return await self._admit_all(self._db, admissions)
        # A key that was used for another batch is found at some place of it: nothing of this one may stay.
        async with self._db.transaction() as transaction:
            admitted = await self._admit_all(transaction, admissions)
            for each in admitted:
                refuse_outcome(each, each.thread_id)
            return admitted

    async def _admit_all(self, session: Session, admissions: list[Admission]) -> list[Admitted]:
        asked = [Asked(admission) for admission in admissions]
        admitted = await lifecycle.admit_runs(session, asked, self.worker.worker_id)
        return [each for each in admitted if each is not None]

    async def _earlier(self, run_ids: list[UUID]) -> dict[UUID, Run]:
        if not run_ids:
            return {}
        rows = await self._db.fetch(sql.get_runs, run_ids=run_ids)
        return {row["run_id"]: from_row(Run, row) for row in rows}

    def _again(self, run: Run, *, is_streamed: bool) -> Made:
        """Join a run that was asked for before: from its first event on, where they are kept."""
        is_resumable = bool(run.kwargs.get("resumable"))
        feed = self.hub.find(run.run_id) or self.hub.open(run.run_id, run.thread_id, is_resumable=is_resumable)
        return Made(run, feed, feed.follow(after=FROM_THE_START) if is_streamed else None)

    async def admit_scheduled(
        self, session: Session, assistant: Assistant, body: RunCreate, scheduled: Scheduled
    ) -> str:
        """Admit a run inside the caller's transaction; the caller wakes the worker after it. Returns the outcome."""
        ids = Ids(scheduled.run_id, scheduled.thread_id or uuid7(), "")
        admission = admission_of(assistant, body, ids, is_stateless=scheduled.thread_id is None)
        admission.access = scheduled.access if scheduled.thread_id is not None else None
        admission.thread_metadata = {**scheduled.thread_metadata, **admission.thread_metadata}
        admission.kwargs["config"]["configurable"].update(scheduled.configurable)
        admitted = await lifecycle.admit_run(session, admission, self.worker.worker_id, has_free_slot=False)
        return admitted.outcome

    def _start(self, admission: Admission, admitted: Admitted) -> None:
        if admitted.outcome == "running":
            self.worker.begin(begun_run(admission, admitted))
            return
        if admission.supersedes:
            self.worker.look_for_cancels()
        self.worker.wake()
        self.hub.relay.say_work(claims=True, cancels=admission.supersedes)

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
        """Follow a run, wherever it is executed. Raises RunNotFound."""
        return await self._following.follow(await self.get(thread_id, run_id), after=after, modes=modes)

    def ending_with(self, source: AsyncIterator[bytes], thread_id: UUID, run_id: UUID) -> AsyncIterator[bytes]:
        """Pass on what a client is sent; one that leaves before the end takes the run with it."""
        return self._cancelling.ending_with(source, thread_id, run_id)

    def tell_workers(self) -> None:
        """Have the workers look, here and elsewhere: runs were scheduled or deleted, and others may have to stop."""
        self._cancelling.tell_workers()

    def client_left(self, thread_id: UUID, run_id: UUID) -> None:
        """Cancel the run of a client that disconnected."""
        self._cancelling.client_left(thread_id, run_id)

    async def cancel(self, thread_id: UUID, run_id: UUID, action: CancelAction) -> None:
        """Ask a run to stop; `result` returns when it has. Raises NothingToCancel."""
        await self._cancelling.cancel(thread_id, run_id, action)

    async def cancel_many(self, body: CancelMany, action: CancelAction, seen: Filter | None = None) -> None:
        """Ask several runs to stop, on threads that are seen. Raises Invalid and NothingToCancel."""
        await self._cancelling.cancel_many(body, action, seen)

    async def delete_assistant(
        self, assistant_id: UUID, *, delete_threads: bool, threads: Filter | None = None
    ) -> None:
        """Delete an assistant, with its threads that fit where asked for, and stop its runs.

        Raises AssistantNotFound.
        """
        await self._assistants.delete(assistant_id, delete_threads=delete_threads, threads=threads)
        await self._cancelling.assistant_deleted(assistant_id)

    async def delete(self, thread_id: UUID, run_id: UUID) -> None:
        """Stop a run if need be and delete it with its checkpoints. Raises RunNotFound and ThreadBusy."""
        await self._cancelling.delete(thread_id, run_id)
