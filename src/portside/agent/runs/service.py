"""Runs: created, listed, followed, cancelled and deleted.

The service connects the queue, which decides when a run starts, the executor, which executes it for the worker, and
the hub, which carries its events.

A cancellation is stored on the run's row. The worker of this process looks at once, and those of other processes after
a notification; without one they notice within a second, with the next renewal of their leases. The database itself ends
a run that never started. Only the worker that holds a run writes its end (`queue.worker`), so a client that waits for
the end of a cancelled run waits until its nodes have stopped.

A client in the process that executes its run is notified by the run itself. A client of another process receives the
events from a remote subscription, and the result from the database, which is read after notifications and now and then.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.assistants.records import Assistants
from portside.agent.engine import RunExecutor, RunLimits
from portside.agent.graphs import GraphService
from portside.agent.queue import statements
from portside.agent.queue.admissions import Admissions, AssistantChanged
from portside.agent.queue.pending_limit import PendingRunLimit
from portside.agent.queue.types import (
    RUN_NOT_FOUND_RESULT,
    SUPERSEDING,
    Admission,
    AdmissionOutcome,
    Admitted,
    Cancellation,
    CancelledRun,
    CancelOutcome,
    CancelScope,
    DeleteOutcome,
    RunResult,
)
from portside.agent.queue.worker import Intake, Worker
from portside.agent.rows import from_row
from portside.agent.runs.errors import NothingToCancel, RunNotFound, ThreadBusy
from portside.agent.runs.idempotency import build_request_key
from portside.agent.runs.requests import (
    RunIds,
    build_admission,
    raise_if_refused,
    refuse_unsupported,
    to_claimed_run,
    to_run,
)
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams.event_log import LogSubscription
from portside.agent.streams.hub import Hub
from portside.agent.streams.replay_budget import ReplayLimits
from portside.agent.streams.run_stream import RunStream
from portside.agent.threads.long_values import with_long_values
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, UNRESTRICTED, Caller, Filter, Grant
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import (
    ACTIVE,
    TERMINAL,
    CancelAction,
    CancelMany,
    FoundRun,
    ListedRun,
    Run,
    RunCreate,
    RunListQuery,
    RunSearch,
    RunStatus,
)
from portside.agent.webhooks.policy import Webhooks
from portside.executor.versions import RESPONSE_SCHEMAS
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Query, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.sse import StreamCut
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.tasks import TaskSet
from portside.kernel.timeouts import wait_at_most
from portside.kernel.transient_errors import log_failure

log = get_logger(__name__)
# Followers after this id get every kept event.
FROM_THE_START = "-1"
DISCONNECTED = "the client disconnected (on_disconnect=cancel)"
ALL_STATUSES = [*ACTIVE, *TERMINAL]
STATUSES = {"all": ACTIVE, "pending": [RunStatus.PENDING], "running": [RunStatus.RUNNING]}
FAILED = {RunStatus.ERROR, RunStatus.TIMEOUT}
# How often a client waits for a run of another process before the database is asked again.
ELSEWHERE_POLL_S = 0.5


class Awaited(StrEnum):
    """What the client that creates a run waits for in this process."""

    END = "end"
    EVENTS = "events"
    NOTHING = "nothing"


class CreatedRun(NamedTuple):
    """A run that was just admitted, its stream in this process, and a subscription to all its events if requested."""

    run: Run
    stream: RunStream
    subscription: LogSubscription | None


class ScheduledRun(NamedTuple):
    """The fields of a run that a cron creates; without a thread the run gets one of its own."""

    run_id: UUID
    thread_id: UUID | None
    thread_metadata: dict[str, Any]
    configurable: dict[str, Any]
    access: Filter | None = None
    caller: str | None = None


class FoundRuns(NamedTuple):
    """A page of runs, and whether there are more after it."""

    items: list[FoundRun]
    has_more: bool


class Runs:
    """The runs of this server."""

    def __init__(  # noqa: PLR0913 - the parts of a server that runs connect
        self,
        db: Database,
        assistants: Assistants,
        graphs: GraphService,
        settings: AgentSettings,
        *,
        intake: Intake,
        webhooks: Webhooks,
    ) -> None:
        self._db = db
        self._assistants = assistants
        self._draining = intake.draining

        # As langgraph writes interrupts; older versions of it have no schemas.
        schema = ["response_schema"] if RESPONSE_SCHEMAS.is_in(graphs.libraries) else []
        self._interrupt_fields = ["value", "id", *schema]
        self.hub = Hub(
            keep_s=settings.resumable_stream_ttl_seconds,
            replays=ReplayLimits(settings.max_replay_bytes_per_caller, settings.max_replay_bytes),
        )

        self.webhooks = webhooks
        self._pending_limit = PendingRunLimit(db, settings.max_pending_runs_per_caller)
        executor = RunExecutor(
            db,
            graphs.runs,
            self.hub,
            limits=RunLimits(settings.bg_job_timeout_secs, settings.event_max_bytes),
            webhook_due=webhooks.due,
        )

        self.worker = Worker(db, executor, intake, slots=settings.slots, max_retries=settings.bg_job_max_retries)
        self._admissions = Admissions(db, self.worker)
        self._cancelling = TaskSet()

    # Creating

    async def create(
        self,
        thread_id: UUID | None,
        body: RunCreate,
        request_id: str,
        *,
        awaited: Awaited = Awaited.END,
        grant: Grant = UNRESTRICTED,
    ) -> CreatedRun:
        """Create a run, on a new thread if no thread id is given. A repeated idempotency key returns the first run.

        `awaited` is what the client waits for in this process. If it waits for nothing, the result of a stateless run
        can be joined for a minute after its end. Raises Invalid, AssistantNotFound, ThreadNotFound, ThreadBusy,
        OtherLanguage, TooManyPendingRuns, and RunNotFound when the first run of the key is gone.
        """
        refuse_unsupported(body)
        if body.webhook is not None:
            await self.webhooks.policy.check(body.webhook)

        is_stateless = thread_id is None
        ids = RunIds(
            run_id=grant.run_id or uuid7(),
            thread_id=thread_id or uuid7(),
            request_id=request_id,
            caller=grant.caller,
        )
        stream = self.hub.open(ids.run_id, ids.thread_id, is_resumable=bool(body.stream_resumable))

        # Followed before the admission: a run that is claimed at once may have ended when that returns.
        subscription = stream.follow() if awaited is Awaited.EVENTS else None
        key = None if grant.key is None else build_request_key(grant.key, thread_id, [body], caller=grant.caller)
        limit_key = grant.caller.limit_key if self._pending_limit.is_enabled else None

        async with self._pending_limit.reserve(1, limit_key):
            with self.worker.reserve_slot() as starts:
                while True:
                    assistant = await self._assistants.find_cached(body.assistant_id)
                    await self._assistants.refuse_other_language(assistant.graph_id, thread_id)

                    admission = build_admission(assistant, body, ids, is_stateless=is_stateless, grant=grant)
                    admission.key = key
                    admission.caller = limit_key
                    admission.starts = starts
                    admission.assistant_updated_at = assistant.updated_at
                    admission.is_awaited = awaited is not Awaited.NOTHING
                    admission.is_streamed = awaited is Awaited.EVENTS

                    try:
                        admitted = await self._admissions.admit(admission)
                        break
                    except AssistantChanged:
                        # Read the assistant again: this process had cached an older version.
                        self._assistants.forget(body.assistant_id)

                if admitted.outcome in (AdmissionOutcome.PENDING, AdmissionOutcome.RUNNING):
                    run = to_run(admission, admitted)
                    is_private = is_stateless and awaited is not Awaited.NOTHING and key is None
                    stream.mark_admitted(
                        starts_here=admitted.outcome is AdmissionOutcome.RUNNING, is_private=is_private
                    )

                    if stream.is_local:
                        self.worker.begin(to_claimed_run(admission, admitted))
                    else:
                        self._wake_workers(cancels=admission.strategy in SUPERSEDING)

                    return CreatedRun(run, stream, subscription)

        raise_if_refused(admitted, ids.thread_id)
        # The idempotency key was used before: join the run that it was first used for.
        run = await self.get(admitted.thread_id, admitted.run_id)
        is_resumable = bool(run.kwargs.get("resumable"))
        stream = self.hub.find(run.run_id) or self.hub.open(run.run_id, run.thread_id, is_resumable=is_resumable)

        subscription = stream.follow(after=FROM_THE_START) if awaited is Awaited.EVENTS else None
        return CreatedRun(run, stream, subscription)

    async def create_batch(
        self, bodies: list[RunCreate], request_id: str, *, key: str | None = None, caller: Caller = ANYONE
    ) -> list[Run]:
        """Create stateless runs, all or none. Raises Invalid, AssistantNotFound and TooManyPendingRuns."""
        batch_key = None if key is None else build_request_key(key, None, bodies, caller=caller)
        limit_key = caller.limit_key if self._pending_limit.is_enabled else None
        assistants: dict[str, Assistant] = {}
        admissions: list[Admission] = []
        for index, body in enumerate(bodies):
            refuse_unsupported(body)
            if body.webhook is not None:
                await self.webhooks.policy.check(body.webhook)

            if body.assistant_id not in assistants:
                assistants[body.assistant_id] = await self._assistants.resolve(body.assistant_id)

            ids = RunIds(run_id=uuid7(), thread_id=uuid7(), request_id=request_id, caller=caller)
            admission = build_admission(assistants[body.assistant_id], body, ids, is_stateless=True)
            admission.key = batch_key and batch_key._replace(batch_index=index)
            admission.caller = limit_key
            admissions.append(admission)

        async with self._pending_limit.reserve(len(bodies), limit_key):
            batch = await self._admit_batch(admissions)

        self._wake_workers()

        # Where the key was used before, the first runs are returned in place of these.
        repeated_ids = [admitted.run_id for admitted in batch if admitted.outcome is AdmissionOutcome.REPEATED]
        rows = await self._db.fetch(sql.get_runs, run_ids=repeated_ids) if repeated_ids else []
        first_runs = {row["run_id"]: from_row(Run, row) for row in rows}

        runs = [to_run(admission, admitted) for admission, admitted in zip(admissions, batch, strict=True)]
        return [first_runs.get(admitted.run_id, run) for admitted, run in zip(batch, runs, strict=True)]

    async def _admit_batch(self, admissions: list[Admission]) -> list[Admitted]:
        # With a key, a run may be refused after others were admitted: a transaction undoes these.
        session = contextlib.nullcontext(self._db) if admissions[0].key is None else self._db.transaction()
        async with session as db:
            results = await statements.admit_runs(db, admissions, self.worker.worker_id)
            # None of them depends on when its assistant changed.
            batch = [admitted for admitted in results if admitted is not None]
            for admitted in batch:
                raise_if_refused(admitted, admitted.thread_id)

        return batch

    async def admit_scheduled(
        self, session: Session, assistant: Assistant, body: RunCreate, scheduled: ScheduledRun
    ) -> AdmissionOutcome:
        """Admit a run inside the caller's transaction; the caller wakes the workers after it. Returns the outcome."""
        is_stateless = scheduled.thread_id is None
        ids = RunIds(run_id=scheduled.run_id, thread_id=scheduled.thread_id or uuid7(), request_id="")
        admission = build_admission(assistant, body, ids, is_stateless=is_stateless)
        admission.access = None if is_stateless else scheduled.access
        admission.caller = scheduled.caller if self._pending_limit.is_enabled else None
        admission.thread_metadata = {**scheduled.thread_metadata, **admission.thread_metadata}
        admission.kwargs["config"]["configurable"].update(scheduled.configurable)

        (admitted,) = await statements.admit_runs(session, [admission], self.worker.worker_id)
        assert admitted is not None  # noqa: S101 - it does not depend on when the assistant changed

        return admitted.outcome

    def _wake_workers(self, *, cancels: bool = False) -> None:
        """Have the workers of all processes claim runs and, where some were cancelled, look for those."""
        if cancels:
            self.worker.check_cancellations()

        self.worker.wake()
        self.hub.transport.notify_work(claims=True, cancels=cancels)

    def wake_workers(self) -> None:
        """Have the workers of all processes look into the queue: runs were scheduled, cancelled or deleted."""
        self._wake_workers(cancels=True)

    # Reading

    async def get(self, thread_id: UUID, run_id: UUID) -> Run:
        """Return a run. Raises RunNotFound."""
        row = await self._db.fetchrow(sql.get_run, run_id=run_id, thread_id=thread_id)
        if row is None:
            raise RunNotFound("Not Found")

        return from_row(Run, row)

    async def list(self, thread_id: UUID, query: RunListQuery) -> list[ListedRun]:
        """List a thread's runs, newest first, with the selected fields. Raises ThreadNotFound."""
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
        return [_to_listed_run(from_row(Run, row), fields) for row in rows]

    async def search(self, query: RunSearch, visible: Filter | None = None) -> FoundRuns:
        """Return runs across threads that the caller may see, and whether there are more after them. Raises Invalid."""
        limit = query.limit or 10
        statement, values = _choose_search(query)
        rows = await self._db.fetch(
            statement,
            **values,
            assistant_id=query.assistant_id,
            access=visible,
            limit=limit + 1,
            offset=query.offset or 0,
        )

        runs = [from_row(FoundRun, row) for row in rows[:limit]]
        return FoundRuns(runs, has_more=len(rows) > limit)

    async def find_thread(self, run_id: UUID) -> UUID:
        """Return the thread of a run. Raises RunNotFound."""
        thread_id: UUID | None = await self._db.fetchval(sql.thread_of_run, run_id=run_id)
        if thread_id is None:
            raise RunNotFound("Run not found")

        return thread_id

    # Following

    async def result(self, thread_id: UUID, run_id: UUID) -> bytes:
        """Wait until a run has ended and return its final values as JSON; for a deleted run, the error that says so.

        Raises StreamCut when this process stops before: the client has to join the run elsewhere.
        """
        stream = self.hub.find(run_id)
        is_result_kept = False

        if stream is not None and stream.is_admitted_here and not (stream.is_local or stream.ended.is_set()):
            await _wait(stream.change)

        while True:
            result = await _wait_for_local_result(stream)
            if result is not None:
                return result

            if stream is None or stream.ended.is_set():
                stream = self.hub.open(run_id, thread_id, is_resumable=False)

            change = stream.change
            row = await self._db.fetchrow(sql.run_result, run_id=run_id, thread_id=thread_id)
            if row is None:
                # A stateless run leaves no row; it may have started and ended here while the database answered.
                return await _wait_for_local_result(stream) or RUN_NOT_FOUND_RESULT

            if row["status"] in TERMINAL:
                [whole_row] = await with_long_values(self._db, [row])
                return _to_result(whole_row, self._interrupt_fields)

            if self.hub.is_stopped:
                raise StreamCut

            if row["is_temporary"] and not is_result_kept:
                # Otherwise its process would delete the result with the run. Then look again: the run may have ended
                # meanwhile.
                await statements.keep_result(self._db, self.worker.worker_id, run_id)
                is_result_kept = True
                continue

            await _wait(change)

    async def follow(
        self, thread_id: UUID, run_id: UUID, *, after: str | None, modes: frozenset[str] | None
    ) -> AsyncIterator[bytes]:
        """Follow a run, wherever it is executed. A run that ended without kept events has none.

        Raises RunNotFound.
        """
        run = await self.get(thread_id, run_id)
        stream = self.hub.find(run.run_id)
        is_resumable = bool(run.kwargs.get("resumable"))
        if stream is None and run.status in TERMINAL and not (is_resumable and after is not None):
            return _no_events()

        stream = stream or self.hub.open(run.run_id, run.thread_id, is_resumable=is_resumable)
        if is_resumable:
            stream.segment.make_resumable()

        subscription = await self.hub.follow(stream, after=after, modes=modes)
        return self.events(CreatedRun(run, stream, subscription))

    async def events(self, created: CreatedRun) -> AsyncIterator[bytes]:
        """Yield the events of a run that was just created, or is followed. Raises StreamCut."""
        stream = created.stream
        subscription = created.subscription
        if subscription is None:
            return

        if subscription.remote is None and not (stream.is_local or stream.ended.is_set()):
            subscription.remote = await self.hub.transport.subscribe(stream.log, stream)

        if self.hub.is_stopped:
            subscription.cut()

        while frames := await subscription.take():
            yield b"".join(frames)

    # Cancelling

    async def cancel(self, thread_id: UUID, run_id: UUID, action: CancelAction) -> None:
        """Cancel a run; `result` returns when it has stopped. Raises NothingToCancel for an ended or missing run."""
        reason = f"{action} requested via POST /threads/{thread_id}/runs/{run_id}/cancel"
        scope = CancelScope(thread_id=thread_id, run_ids=[run_id])
        if not await self._cancel(scope, Cancellation(action, reason)):
            await self._raise_nothing_to_cancel(scope)

    async def cancel_many(self, body: CancelMany, action: CancelAction, visible: Filter | None = None) -> None:
        """Cancel several runs, on threads that the caller may see.

        Raises NothingToCancel, and Invalid unless the body selects them either by status or by ids.
        """
        scope = _to_scope(body)
        scopes = [scope]
        if visible is not None:
            rows = await self._db.fetch(
                sql.threads_with_active_runs, statuses=scope.statuses, thread_id=scope.thread_id, access=visible
            )
            scopes = [msgspec.structs.replace(scope, thread_id=row["thread_id"]) for row in rows]

        cancellation = Cancellation(action, f"{action} requested via POST /runs/cancel")
        cancelled_runs = [await self._cancel(thread_scope, cancellation) for thread_scope in scopes]
        if any(cancelled_runs):
            return

        if visible is not None:
            # The caller must not learn whether such a run exists.
            raise NothingToCancel

        await self._raise_nothing_to_cancel(scope)

    async def cancel_on_disconnect(
        self, source: AsyncIterator[bytes], thread_id: UUID, run_id: UUID
    ) -> AsyncIterator[bytes]:
        """Pass on a response to a client; cancel the run if the client disconnects before its end."""
        is_complete = False
        try:
            async for chunk in source:
                yield chunk
            is_complete = True
        except StreamCut:
            # The server closes the stream, not the client.
            is_complete = True
            raise
        finally:
            if not is_complete:
                self.client_left(thread_id, run_id)

    def client_left(self, thread_id: UUID, run_id: UUID) -> None:
        """Cancel the run of a client that disconnected, unless this server is stopping and disconnects its clients."""
        if self._draining.is_set():
            return

        scope = CancelScope(thread_id=thread_id, run_ids=[run_id])

        async def cancel() -> None:
            try:
                await self._cancel(scope, Cancellation(CancelAction.INTERRUPT, DISCONNECTED))
            except Exception as exc:  # noqa: BLE001 - no client is left to be answered
                log_failure("the run of a disconnected client could not be cancelled", exc, run_ids=str(scope.run_ids))

        self._cancelling.spawn(cancel())

    async def delete_assistant(
        self, assistant_id: UUID, *, delete_threads: bool, threads: Filter | None = None
    ) -> None:
        """Delete an assistant, with its threads that match the filter if requested, and cancel its runs.

        Raises AssistantNotFound.
        """
        thread_ids = await self._assistants.delete(assistant_id, delete_threads=delete_threads, threads=threads)
        reason = f"interrupt requested via DELETE /assistants/{assistant_id}"
        await self._cancel(CancelScope(assistant_id=assistant_id), Cancellation(CancelAction.INTERRUPT, reason))

        # Also without cancelled runs: those of deleted threads are gone, and their workers must stop them.
        self.wake_workers()
        self.hub.threads_deleted(thread_ids)

    async def delete(self, thread_id: UUID, run_id: UUID) -> None:
        """Stop a run if need be and delete it with its checkpoints; returns when it is deleted.

        Raises RunNotFound, and ThreadBusy when the run has ended but another run uses its checkpoints just now.
        """
        outcome, to_claimed_run = await statements.delete_run(self._db, self.worker.worker_id, thread_id, run_id)
        if outcome is DeleteOutcome.MISSING:
            raise RunNotFound("Run not found")
        if outcome is DeleteOutcome.BUSY:
            raise ThreadBusy(f"Thread {thread_id} has in-flight runs: delete the run when they are over")

        if outcome is DeleteOutcome.DELETED:
            self._end_unstarted(CancelledRun(thread_id, run_id, CancelOutcome.DELETED))
            return

        if to_claimed_run is not None:
            self.worker.begin(to_claimed_run)

        self.wake_workers()

        while await self._db.fetchval(sql.has_run, thread_id=thread_id, run_ids=[run_id]):
            await self.worker.wait_for_end(run_id, ELSEWHERE_POLL_S)

    async def _cancel(self, scope: CancelScope, cancellation: Cancellation) -> Sequence[CancelledRun]:
        runs = await statements.cancel_runs(self._db, scope, cancellation)
        for run in runs:
            self._end_unstarted(run)

        if runs:
            self.wake_workers()

        return runs

    def _end_unstarted(self, run: CancelledRun) -> None:
        """End the streams of a run that the database ended before any worker started it."""
        stream = self.hub.find(run.run_id)
        if run.outcome is CancelOutcome.STOPPING or stream is None or stream.is_started:
            return

        is_rolled_back = run.outcome is not CancelOutcome.INTERRUPTED
        status = RunStatus.ROLLED_BACK if is_rolled_back else RunStatus.INTERRUPTED
        result = RunResult(status=status, thread_status=None)
        self.hub.finish_unstarted(stream, "the run was cancelled before it began", result)

    async def _raise_nothing_to_cancel(self, scope: CancelScope) -> None:
        run_ids = scope.run_ids or []
        if run_ids and await self._db.fetchval(sql.has_run, thread_id=scope.thread_id, run_ids=run_ids):
            raise NothingToCancel("No matching runs to cancel. Please verify that they are not over yet.")

        raise NothingToCancel


def _choose_search(query: RunSearch) -> tuple[Query, dict[str, Any]]:
    """Return the statement of a search, each of which has an index, and its own parameters. Raises Invalid."""
    if query.run_id is not None and (query.thread_id is None or query.cron_id is not None):
        raise Invalid.field(["body", "run_id"], "Give the thread_id of the run, and no cron_id")

    if query.cron_id is not None:
        return sql.search_runs_of_cron, {
            "cron_id": query.cron_id,
            "thread_id": query.thread_id,
            "statuses": query.status or ALL_STATUSES,
        }
    if query.thread_id is not None:
        return sql.search_runs_of_thread, {
            "thread_id": query.thread_id,
            "run_id": query.run_id,
            "statuses": query.status or ALL_STATUSES,
        }

    statuses = query.status or ACTIVE
    if set(statuses) <= set(ACTIVE):
        return sql.search_active_runs, {"statuses": statuses}
    if set(statuses) <= FAILED:
        return sql.search_failed_runs, {"statuses": statuses}

    reason = "Give pending and running, or error and timeout; a thread_id or a cron_id allows every status"
    raise Invalid.field(["body", "status"], reason)


def _to_scope(body: CancelMany) -> CancelScope:
    by_ids = body.thread_id is not None or body.run_ids is not None
    if by_ids == (body.status is not None):
        raise Invalid.field(["body", "status"], "Give either a status, or thread_id and run_ids")
    if body.status is not None:
        return CancelScope(statuses=STATUSES[body.status])

    for name in ("thread_id", "run_ids"):
        if not getattr(body, name):
            raise Invalid.field(["body", name], "Field required", "missing")

    return CancelScope(thread_id=body.thread_id, run_ids=body.run_ids)


def _to_listed_run(run: Run, fields: Sequence[str]) -> ListedRun:
    return ListedRun(**{name: getattr(run, name) for name in fields})


async def _wait(change: asyncio.Event) -> None:
    """Wait until a run starts or ends in this process; for a run of another process, a moment."""
    await wait_at_most(ELSEWHERE_POLL_S, change.wait())


async def _wait_for_local_result(stream: RunStream | None) -> bytes | None:
    """Wait for the result of a run of this process; None when another one executes it or it was handed back."""
    if stream is None or not (stream.is_local or stream.ended.is_set()):
        return None

    await stream.ended.wait()
    result: RunResult | None = stream.result
    return None if result is None else result.as_json()


def _to_result(row: Any, interrupt_fields: Sequence[str]) -> bytes:
    """Return the result that an ended run left on its thread, as a waiting client receives it."""
    if row["status"] == RunStatus.ERROR:
        return dump_api({"__error__": row["error"]})

    values: bytes = (row["values"] or "null").encode()
    interrupts = [
        {field: interrupt.get(field) for field in interrupt_fields}
        for task_interrupts in (row["interrupts"] or {}).values()
        for interrupt in task_interrupts
    ]
    if not interrupts:
        return values

    return dump_api({**(load(values) or {}), "__interrupt__": interrupts})


async def _no_events() -> AsyncIterator[bytes]:
    return
    yield
