"""The methods of the protocol, in both versions.

A call is answered at once (`Reply`), when a run has ended (`DelayedReply`), or by a stream (`StreamReply`). All three
report a failure as a JSON-RPC error.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import msgspec

from portside.agent.a2a.agents import Agents, to_combined_card
from portside.agent.a2a.messages import (
    CONTEXT_ID,
    MESSAGE_ID,
    TASK_START,
    ToolResults,
    build_input,
    find_command,
    format_task_id,
    mark_task,
    read_parts,
    resume_command,
)
from portside.agent.a2a.params import (
    ListTasksParams,
    NoParams,
    Scope,
    SendConfiguration,
    SendParams,
    TaskParams,
    read_params,
)
from portside.agent.a2a.rpc import (
    BAD_ID,
    ContentTypeNotSupported,
    ExtendedCardNotConfigured,
    InvalidParams,
    InvalidRequest,
    MalformedRequest,
    MethodNotFound,
    PushNotificationsNotSupported,
    RpcError,
    RpcRequest,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
    VersionNotSupported,
    encode_error,
    encode_event,
    encode_result,
    to_rpc_error,
)
from portside.agent.a2a.tasks import (
    ACTIVE,
    ANSWERED,
    TERMINAL,
    HistoryOptions,
    StateName,
    Tasks,
    TaskState,
    add_completion,
    iterate_final_updates,
    iterate_message_updates,
)
from portside.agent.a2a.versions import MODERN, OLD, ProtocolVersion
from portside.agent.access.service import Access
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.runs.errors import NothingToCancel
from portside.agent.runs.service import FROM_THE_START, Awaited, CreatedRun, Runs
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.streams.event_log import LogSubscription
from portside.agent.threads import records
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import States
from portside.agent.types.access import Caller
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import CancelAction, RunCreate
from portside.kernel.clock import now
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError, UserMistake
from portside.kernel.http.sse import StreamCut
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
# The namespace of the ids of threads that are made from the names of contexts.
_CONTEXTS = UUID("5f0c2c0e-6f0b-4a53-9d5f-1f6a2f1c7a10")
VERSIONS = frozenset({"", "0.3", "1.0"})
STREAMING = frozenset({"message/stream", "tasks/resubscribe", "SendStreamingMessage", "SubscribeToTask"})
PUSH_NOTIFICATIONS = "pushnotificationconfig"
RESERVED_METADATA = "a2a."
NO_EXTENDED_CARD = "The agent has no extended card, because this server authenticates nobody"
NO_CONTEXT = "Failed to create run: Thread or assistant not found."
QUESTION_POLL_S = 1.0
STREAM_MODES = ["messages-tuple", "values"]
_OUTPUT_MODES = frozenset({"text/plain", "application/json", "text/*", "application/*", "*/*", "text", "data"})

Plain = dict[str, Any]


class HttpCall(msgspec.Struct, frozen=True):
    """A call as it arrived over HTTP: the body, the agent that the path names, and what the headers say."""

    body: bytes
    agent: str
    request_id: str
    base_url: str
    version: str = ""
    scope: Scope | None = None


class AgentCall(NamedTuple):
    """A call of a method, parsed: the caller, the agent, the version of the protocol and the parameters."""

    caller: Caller
    agent: Assistant
    http: HttpCall
    version: ProtocolVersion
    request: RpcRequest
    params: Any


class Reply(NamedTuple):
    """The response to a call."""

    body: bytes


class DelayedReply(NamedTuple):
    """The response to a call that waits for a run."""

    body: Awaitable[bytes]


class StreamReply(NamedTuple):
    """The response to a call as a stream."""

    events: AsyncIterator[bytes]


class AgentCard(NamedTuple):
    """The card of an agent, and when it last may have changed."""

    fields: Plain
    changed_at: datetime


class StartedTask(NamedTuple):
    """A task whose run a message started: the first one, or one that answers a question."""

    created: CreatedRun
    context_id: str
    thread_id: UUID
    start: str
    """The id of the task's first run."""


class A2AServices(NamedTuple):
    """The services that calls use."""

    db: Database
    runs: Runs
    access: Access
    assistants: Assistants
    descriptions: Descriptions
    states: States


AnyReply = Reply | DelayedReply | StreamReply
Method = Callable[[AgentCall], Awaitable[AnyReply]]


class A2A:
    """Answers calls of the protocol."""

    def __init__(self, services: A2AServices, settings: AgentSettings) -> None:
        self._db = services.db
        self._runs = services.runs
        self._access = services.access
        self._agents = Agents(services.assistants, services.descriptions, services.access)
        tool_results = ToolResults(settings.a2a_allowed_tool_call_results)
        self._tasks = Tasks(services.db, services.runs, services.states, tool_results)
        self._started_at = now()

        self.default_agent = _find_default_agent(services.assistants, settings)
        """The agent whose card is served where the request names none; None if there are several candidates."""

        methods: list[tuple[str, str, type[msgspec.Struct], Method]] = [
            ("message/send", "SendMessage", SendParams, self._send),
            ("message/stream", "SendStreamingMessage", SendParams, self._stream),
            ("tasks/get", "GetTask", TaskParams, self._get),
            ("tasks/list", "ListTasks", ListTasksParams, self._list),
            ("tasks/cancel", "CancelTask", TaskParams, self._cancel),
            ("tasks/resubscribe", "SubscribeToTask", TaskParams, self._resubscribe),
            ("agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard", NoParams, self._card),
        ]

        self._methods = {old: (OLD, params, method) for old, _, params, method in methods}
        self._methods |= {modern: (MODERN, params, method) for _, modern, params, method in methods}

    async def card(self, caller: Caller, name: str, base_url: str, version: str) -> AgentCard:
        """Return the card of an assistant in the form of a version of the protocol.

        Raises Invalid, AssistantNotFound, GraphFailed, and the errors of access.
        """
        agent = await self._agents.find(name)
        await self._access.authorize_assistant_use(caller, str(agent.assistant_id))
        card = await self._agents.card(agent, base_url)

        # A client that names no version may be of either.
        card = _parse_version(version).to_card(card) if version else to_combined_card(card)
        # A restart can change the graph, the routes and the authentication that a card describes.
        return AgentCard(card, max(datetime.fromisoformat(agent.updated_at), self._started_at))

    async def call(self, caller: Caller, http: HttpCall, request: RpcRequest) -> AnyReply:
        """Answer a call. Raises the errors that clients expect as an HTTP status: 401, 403 and 5xx."""
        header_version = _parse_version(http.version)
        version, params_type, method = self._methods.get(request.method, (header_version, NoParams, None))
        try:
            if ".".join(http.version.split(".")[:2]) not in VERSIONS:
                raise VersionNotSupported

            if method is None:
                if PUSH_NOTIFICATIONS in request.method.lower():
                    raise PushNotificationsNotSupported
                raise MethodNotFound(f"Method not found: {request.method[:100]}")

            agent = await self._agents.find(http.agent)
            params = read_params(request.params, params_type)

            if request.id is None:
                # A notification has no response, so the client would never learn the task's id. This comes after the
                # other checks, whose errors tell the client more.
                raise InvalidRequest(BAD_ID)

            return await method(AgentCall(caller, agent, http, version, request, params))
        except PortsideError as exc:
            return _reply_error(request, version, to_rpc_error(exc))
        except RpcError as exc:
            return _reply_error(request, version, exc)

    async def _send(self, call: AgentCall) -> AnyReply:
        params: SendParams = call.params
        configuration = params.configuration or SendConfiguration()
        blocks = configuration.blocking is not False and not configuration.return_immediately
        started = await self._start(call, params, is_resumable=not blocks)

        async def respond() -> bytes:
            state = await self._tasks.find_after(
                assistant_id=call.agent.assistant_id,
                thread_id=started.thread_id,
                run_id=started.created.run.run_id,
                start=started.start,
            )
            task = await self._describe_task(call, state, _read_send_options(call))
            return encode_result(call.request.id, call.version.to_send_result(task))

        async def respond_after_run() -> bytes:
            await self._runs.result(started.thread_id, started.created.run.run_id)
            return await respond()

        if blocks:
            return DelayedReply(_report_errors(call, respond_after_run()))

        return Reply(await respond())

    async def _stream(self, call: AgentCall) -> AnyReply:
        started = await self._start(call, call.params, is_resumable=True)
        run = started.created.run
        state = TaskState(
            thread_id=started.thread_id,
            context_id=started.context_id,
            start=started.start,
            run_id=run.run_id,
            state=StateName.SUBMITTED,
            updated_at=run.created_at,
            is_last=False,
        )

        source = self._runs.events(started.created)
        return StreamReply(self._follow(call, state, source, _read_send_options(call)))

    async def _get(self, call: AgentCall) -> AnyReply:
        params: TaskParams = call.params
        state = await self._find(call, "read")
        options = _build_options(call, params.history_length, params.history_scope)
        task = await self._describe_task(call, state, options)
        return Reply(encode_result(call.request.id, call.version.to_task(add_completion(state, task))))

    async def _cancel(self, call: AgentCall) -> AnyReply:
        state = await self._find(call, "update")
        if state.state in TERMINAL:
            raise TaskNotCancelable

        if state.state in ACTIVE:
            try:
                await self._runs.cancel(state.thread_id, state.run_id, CancelAction.INTERRUPT)
            except NothingToCancel:
                raise TaskNotCancelable from None
        elif not await self._close(state, is_superseded=False):
            raise TaskNotCancelable

        async def respond_when_canceled() -> bytes:
            await self._runs.result(state.thread_id, state.run_id)
            canceled = await self._tasks.find(call.agent.assistant_id, state.thread_id, state.start)
            if canceled.state is not StateName.CANCELED:
                raise TaskNotCancelable

            task = await self._describe_task(call, canceled, _build_options(call))
            return encode_result(call.request.id, call.version.to_task(task))

        return DelayedReply(_report_errors(call, respond_when_canceled()))

    async def _resubscribe(self, call: AgentCall) -> AnyReply:
        state = await self._find(call, "read")
        if state.state in TERMINAL:
            raise UnsupportedOperation("The task has ended: it has no further events")

        answers = None
        if call.version.is_modern:
            # Version 0.3 ends the stream of a task that asks; in 1.0 only the end of the task ends it.
            answers = await self._runs.hub.follow_thread(state.thread_id, frozenset({"lifecycle"}), None)

        source = await self._open_events(state)
        return StreamReply(self._follow(call, state, source, _build_options(call), answers))

    async def _list(self, call: AgentCall) -> AnyReply:
        params: ListTasksParams = call.params
        search: Plain = {"metadata": {}, "limit": params.page_size, "offset": 0}
        allowed = await self._access.authorize(call.caller, "threads", "search", search)
        thread_id = to_thread_id(params.context_id, call.caller) if params.context_id else None
        page = await self._tasks.list_page(call.agent.assistant_id, params, thread_id, allowed)
        options = _build_options(call, params.history_length or 0, params.history_scope)
        with_artifacts = bool(params.include_artifacts)

        tasks = [
            await self._tasks.describe(call.agent.assistant_id, state, options, with_artifacts=with_artifacts)
            for state in page.tasks
        ]

        result = {
            "tasks": [call.version.to_task(task) for task in tasks],
            "totalSize": page.total,
            "pageSize": page.size,
            "nextPageToken": page.next_token,
        }
        return Reply(encode_result(call.request.id, result))

    async def _card(self, call: AgentCall) -> AnyReply:
        if not self._agents.has_extended_card:
            # In version 1.0 the other error says that a card is missing that the public one announces.
            raise UnsupportedOperation(NO_EXTENDED_CARD) if call.version.is_modern else ExtendedCardNotConfigured

        await self._access.authorize_assistant_use(call.caller, str(call.agent.assistant_id))
        card = await self._agents.card(call.agent, call.http.base_url)
        return Reply(encode_result(call.request.id, call.version.to_card(card)))

    async def _find(self, call: AgentCall, action: str) -> TaskState:
        params: TaskParams = call.params
        thread_id, start = read_task_id(params.id)
        await self._access.authorize_thread(call.caller, action, thread_id)
        return await self._tasks.find(call.agent.assistant_id, thread_id, start)

    async def _describe_task(self, call: AgentCall, state: TaskState, options: HistoryOptions) -> Plain:
        return await self._tasks.describe(call.agent.assistant_id, state, options)

    async def _close(self, state: TaskState, *, is_superseded: bool) -> bool:
        closed_id = await self._db.fetchval(
            sql.a2a_close_task, thread_id=state.thread_id, run_id=state.run_id, is_superseded=is_superseded
        )
        return closed_id is not None

    async def _follow(
        self,
        call: AgentCall,
        state: TaskState,
        source: AsyncIterator[bytes],
        options: HistoryOptions,
        answers: LogSubscription | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the events of a task until it stops; a failure becomes the last event.

        With `answers`, which follows the thread, a task that asks a question is followed further, until it has ended.
        """

        def encode(update: Plain) -> bytes:
            return encode_event(encode_result(call.request.id, call.version.to_event(update)))

        try:
            yield encode(await self._describe_task(call, state, options))

            while True:
                if state.state in ACTIVE:
                    async for update in iterate_message_updates(source, state):
                        yield encode(update)
                    await self._runs.result(state.thread_id, state.run_id)

                stopped = await self._tasks.find_after(
                    assistant_id=call.agent.assistant_id,
                    thread_id=state.thread_id,
                    run_id=state.run_id,
                    start=state.start,
                )
                task = await self._describe_task(call, stopped, HistoryOptions(length=0))
                for update in iterate_final_updates(stopped, task):
                    yield encode(update)

                if answers is None or stopped.state in TERMINAL:
                    return

                state = await self._wait_for_answer(call, stopped, answers)
                source = await self._open_events(state)
        except StreamCut:
            raise
        except Exception as exc:  # noqa: BLE001 - the response has begun: only its last event can report the failure
            error = encode_error(call.request.id, _to_rpc_error(exc), with_details=call.version.is_modern)
            yield encode_event(error)

    async def _wait_for_answer(self, call: AgentCall, asking: TaskState, answers: LogSubscription) -> TaskState:
        """Wait until a task that asks a question got an answer, or was canceled. Raises TaskNotFound and StreamCut."""
        while True:
            state = await self._tasks.find(call.agent.assistant_id, asking.thread_id, asking.start)
            if (state.run_id, state.state) != (asking.run_id, asking.state):
                return state

            # A cancellation has no event, and an event of another server may be late.
            with contextlib.suppress(TimeoutError):
                async with timeout(QUESTION_POLL_S):
                    if not await answers.take():
                        await asyncio.sleep(QUESTION_POLL_S)

    async def _open_events(self, state: TaskState) -> AsyncIterator[bytes]:
        return await self._runs.follow(
            state.thread_id, state.run_id, after=FROM_THE_START, modes=frozenset({"messages"})
        )

    # Messages become runs: of a new task, or of one that waits for an answer.
    async def _start(self, call: AgentCall, send: SendParams, *, is_resumable: bool) -> StartedTask:
        """Start a run for a message. Raises RpcError, and PortsideError of the run or of access."""
        _check_configuration(send.configuration)
        parts = read_parts(send.message.parts)
        if not parts and send.command is None:
            raise InvalidParams("Invalid params: params.message.parts: a message has at least one part")

        metadata = send.metadata or {}
        body = RunCreate(
            assistant_id=str(call.agent.assistant_id),
            context=send.context,
            metadata={key: value for key, value in metadata.items() if not key.startswith(RESERVED_METADATA)},
            stream_mode=STREAM_MODES,
            stream_resumable=is_resumable,
        )

        target = await self._find_target(call, send, parts)
        earlier = target.earlier
        if earlier is not None and earlier.state is StateName.INPUT_REQUIRED:
            await _answer_interrupts(self._db, body, send, parts, earlier.thread_id)
            return await self._run(call, send, body, Target(earlier.context_id, earlier.thread_id, earlier))

        body.on_not_exist = "create"
        body.command = find_command(send, parts)
        if body.command is None:
            skill = await self._agents.skill(call.agent)
            body.input = build_input(send.message, parts, skill.fields)

        started = await self._run(call, send, body, target._replace(earlier=None))
        if earlier is not None:
            await self._close(earlier, is_superseded=True)

        return started

    async def _find_target(self, call: AgentCall, send: SendParams, parts: list[Plain]) -> "Target":
        """Return the context of a message, and the task in it that the message answers or supersedes."""
        message = send.message
        assistant_id = call.agent.assistant_id
        if message.task_id:
            thread_id, start = read_task_id(message.task_id)
            if message.context_id and to_thread_id(message.context_id, call.caller) != thread_id:
                raise InvalidParams(
                    "Invalid params: params.message.contextId: the task belongs to another context; leave it out"
                )

            await self._access.authorize_thread(call.caller, "read", thread_id)
            state = await self._tasks.find(assistant_id, thread_id, start)
            if state.state in TERMINAL:
                raise UnsupportedOperation("A terminal task cannot accept another message")
            if state.state is not StateName.INPUT_REQUIRED:
                raise UnsupportedOperation("The task is running; send the message when it has ended or asks for input")

            return Target(state.context_id, thread_id, state)

        if not message.context_id:
            thread_id = uuid7()
            return Target(str(thread_id), thread_id)

        thread_id = to_thread_id(message.context_id, call.caller)
        target = Target(message.context_id, thread_id)
        row = await self._db.fetchrow(sql.a2a_waiting, thread_id=thread_id, assistant_id=assistant_id)
        if row is None:
            return target

        try:
            await self._access.authorize_thread(call.caller, "read", thread_id)
        except ThreadNotFound as exc:
            # The same error as for a context that does not exist: this caller must not learn that it does.
            raise InvalidParams(NO_CONTEXT) from exc

        state = await self._tasks.find(assistant_id, thread_id, row["start"])
        # The message names no task. A command resumes the one that waits; any other message begins a new task, and the
        # one that waits is canceled once the run of the new task was created.
        is_command = send.command is not None or find_command(send, parts) is not None
        return target._replace(earlier=state if is_command else state._replace(state=StateName.CANCELED))

    async def _run(self, call: AgentCall, send: SendParams, body: RunCreate, target: "Target") -> StartedTask:
        """Start the run; without an earlier task it is the first of a new one."""
        thread_id = target.thread_id
        grant = await self._access.authorize_run(call.caller, thread_id, body)
        run_id = grant.run_id or uuid7()
        task_start = target.earlier.start if target.earlier else str(run_id)

        mark_task(body.input, send.message, task_start)
        body.metadata = {**(body.metadata or {}), TASK_START: task_start, MESSAGE_ID: send.message.message_id}
        if target.context_id != str(thread_id):
            body.metadata[CONTEXT_ID] = target.context_id

        grant = grant._replace(run_id=run_id)
        awaited = Awaited.EVENTS if call.request.method in STREAMING else Awaited.END
        try:
            created = await self._runs.create(thread_id, body, call.http.request_id, grant=grant, awaited=awaited)
        except ThreadNotFound as exc:
            if target.earlier is None:
                # The thread exists, but not for this caller.
                raise InvalidParams(NO_CONTEXT) from exc

            raise

        return StartedTask(created, target.context_id, thread_id, task_start)


class Target(NamedTuple):
    """The context that a message belongs to, its thread, and the task that the message answers or supersedes."""

    context_id: str
    thread_id: UUID
    earlier: TaskState | None = None


def to_thread_id(context_id: str, caller: Caller) -> UUID:
    """Return the thread of a context: the context's id, or one that is made from another text.

    A client may name its contexts as it likes, so two users may choose the same name: each has a thread of their own.
    """
    try:
        return UUID(context_id)
    except ValueError:
        return uuid5(_CONTEXTS, f"{caller.identity}\0{context_id}")


async def _answer_interrupts(
    db: Database, body: RunCreate, send: SendParams, parts: list[Plain], thread_id: UUID
) -> None:
    """Make a run answer the interrupts of its thread.

    Raises InvalidParams unless it is clear which interrupt the message answers, and UnsupportedOperation if none is
    open any more.
    """
    interrupt_ids = await records.list_pending_interrupts(db, thread_id)
    if interrupt_ids is None:
        # The run of another answer began or ended after the task was read.
        raise UnsupportedOperation(ANSWERED)

    body.command = resume_command(send, parts, interrupt_ids)
    body.multitask_strategy = "reject"
    body.strict_resume = bool(interrupt_ids)


def read_task_id(task_id: str) -> tuple[UUID, str]:
    """Split the id of a task into its context and its first run. Raises TaskNotFound if it cannot be one."""
    context, _, start = task_id.partition(":")
    try:
        thread_id = UUID(context)
        run_id = UUID(start)
    except ValueError:
        raise TaskNotFound from None

    if task_id != format_task_id(thread_id, run_id):
        raise TaskNotFound

    return thread_id, start


def encode_malformed(http: HttpCall, bad: MalformedRequest) -> bytes:
    """Encode the response to a body that is not a request."""
    return encode_error(bad.id, bad.error, with_details=_parse_version(http.version).is_modern)


def _check_configuration(configuration: SendConfiguration | None) -> None:
    if configuration is None:
        return
    if configuration.push_notification_config or configuration.task_push_notification_config:
        raise PushNotificationsNotSupported

    modes = [mode.lower() for mode in configuration.accepted_output_modes or ()]
    if modes and not _OUTPUT_MODES.intersection(modes):
        raise ContentTypeNotSupported("The agent answers in text/plain and application/json; accept one of them")


def _find_default_agent(assistants: Assistants, settings: AgentSettings) -> str | None:
    """Return the agent that the settings name, else that of the only graph.

    Raises UserMistake if the setting names neither an assistant's id nor a graph.
    """
    name = settings.a2a_default_assistant
    if name and not assistants.can_be_named(name):
        raise UserMistake(
            f"A2A_DEFAULT_ASSISTANT is {name}, which is neither the id of an assistant nor a graph of this server; "
            "set it to one of them, or leave it out"
        )

    if name:
        return name

    system_ids = assistants.system_ids()
    return str(system_ids[0]) if len(system_ids) == 1 else None


async def _report_errors(call: AgentCall, work: Awaitable[bytes]) -> bytes:
    """Return the result of work, or its failure as a JSON-RPC error: the response has begun with status 200."""
    try:
        return await work
    except StreamCut:
        raise
    except Exception as exc:  # noqa: BLE001 - the response has begun: its body reports the failure
        return encode_error(call.request.id, _to_rpc_error(exc), with_details=call.version.is_modern)


def _to_rpc_error(exc: Exception) -> RpcError:
    if isinstance(exc, RpcError):
        return exc

    if isinstance(exc, PortsideError) and exc.status < 500:
        try:
            return to_rpc_error(exc)
        except PortsideError:
            return RpcError(exc.message)

    log.exception("an A2A call failed", exc_info=exc)
    return RpcError("Internal error")


def _reply_error(request: RpcRequest, version: ProtocolVersion, error: RpcError) -> AnyReply:
    body = encode_error(request.id, error, with_details=version.is_modern)
    # Clients of version 0.3 expect a stream where they asked for one.
    is_event = request.method in STREAMING and not version.is_modern
    return StreamReply(_single_event(body)) if is_event else Reply(body)


async def _single_event(body: bytes) -> AsyncIterator[bytes]:
    yield encode_event(body)


def _parse_version(header: str) -> ProtocolVersion:
    """Return the version of the protocol for responses where no method's name tells it."""
    return MODERN if header.startswith("1.") else OLD


def _build_options(call: AgentCall, length: int | None = None, scope: Scope | None = None) -> HistoryOptions:
    return HistoryOptions(length, (scope or call.http.scope) == "task")


def _read_send_options(call: AgentCall) -> HistoryOptions:
    params: SendParams = call.params
    configuration = params.configuration or SendConfiguration()
    return _build_options(call, configuration.history_length, configuration.history_scope or params.history_scope)
