"""The methods of the protocol, and calls of tools.

Each call is a stateless run of the tool's assistant, which is cancelled when the client that waits for it leaves.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakSet

import msgspec

from portside import __version__
from portside.agent.mcp import rpc
from portside.agent.mcp.elicitation import CALL_METADATA, Question, Questions, first_question, session_headers
from portside.agent.mcp.results import CANCELLED, STREAM_MODES, UNANSWERED, CallProgress, build_failure, to_call_result
from portside.agent.mcp.rpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    ClientResponse,
    Id,
    McpError,
    McpRequest,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    read_id,
    read_message,
)
from portside.agent.mcp.tools import Tools
from portside.agent.runs.errors import NothingToCancel
from portside.agent.runs.service import FROM_THE_START, Awaited, CreatedRun, Runs
from portside.agent.types.access import Caller, Grant
from portside.agent.types.runs import CancelAction, RunCreate
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.errors import Forbidden
from portside.kernel.http.sse import sse_event
from portside.kernel.ids import uuid7
from portside.kernel.tasks import TaskSet, cancel_and_wait
from portside.kernel.transient_errors import log_failure

SERVER_INFO = {"name": "Portside", "title": "Portside agent server", "version": __version__}
SERVER_CAPABILITIES = {"tools": {"listChanged": False}}
COMPLETE = {"resultType": "complete", "_meta": {rpc.SERVER: SERVER_INFO}}
# Assistants come and go, and each caller sees different ones.
NOT_CACHEABLE = {"ttlMs": 0, "cacheScope": "private"}
NEGOTIATED_STATUSES = {HEADER_MISMATCH: 400, UNSUPPORTED_VERSION: 400}
DECLARED_STATUSES = {**NEGOTIATED_STATUSES, INVALID_PARAMS: 400, METHOD_NOT_FOUND: 404}
EVENTS = frozenset(STREAM_MODES)


class McpClient(NamedTuple):
    """The client of a request, as far as it can be known without sessions."""

    caller: Caller
    address: str
    user_agent: str
    request_id: str
    accepts_streams: bool
    knows_links: bool = False
    accepts_questions: bool = False

    @property
    def identity(self) -> tuple[str, str, str]:
        """What tells this client from others: its user, its address and its program."""
        return self.caller.identity, self.address, self.user_agent


class ToolCall:
    """A call in progress; `extras` are the members that the client's revision adds to a result."""

    def __init__(self, request: McpRequest, client: McpClient, first_run: CreatedRun) -> None:
        self.request = request
        self.client = client
        self.first_run = first_run
        self.run = first_run.run
        """The run in progress: the first one, or one that answers a question."""
        self.thread_to_delete: UUID | None = None
        self.is_over = False
        self.is_cancelled = False
        self.extras: dict[str, Any] = {}

    @property
    def progress_token(self) -> Any:
        """The client's token for progress; None if it wants none or accepts no stream."""
        token = self.request.meta.get("progressToken") if self.client.accepts_streams else None
        return token if isinstance(token, (str, int)) and not isinstance(token, bool) else None

    @property
    def is_streamed(self) -> bool:
        """Whether the client may get more than the result: progress, or questions."""
        return self.progress_token is not None or self.thread_to_delete is not None

    def matches(self, client: McpClient, request_id: Any) -> bool:
        """Whether a client that cancels the request with this id may mean this call."""
        is_same_id = type(self.request.id) is type(request_id) and self.request.id == request_id
        return is_same_id and not self.is_over and client.identity == self.client.identity


class McpReply(NamedTuple):
    """The response to a message: a body, or a call to wait for."""

    status: int
    body: bytes = b""
    call: ToolCall | None = None
    headers: Mapping[str, str] = {}


class Mcp:
    """Answers messages of the protocol."""

    def __init__(self, db: Database, tools: Tools, runs: Runs) -> None:
        self._tools = tools
        self._questions = Questions(db, runs, tools.access)
        self.calls = ToolCalls(tools, runs, self._questions)

    async def handle(self, message: Any, headers: Mapping[str, str], client: McpClient) -> McpReply:
        """Handle a message. Raises InvalidMessage, MissingJsonRpcVersion, and the errors of runs and assistants."""
        statuses = NEGOTIATED_STATUSES
        try:
            request = read_message(message)
            if isinstance(request, ClientResponse):
                if (question := Question.read(request.id)) is not None:
                    await self._questions.answer(client.caller, question, request.result, client.request_id)
                return McpReply(202)

            if rpc.declares_version(request, headers):
                statuses = DECLARED_STATUSES
                rpc.check_declared(request, headers)
                return await self._handle_declared(request, client)

            return await self._handle_negotiated(request, client)
        except McpError as failure:
            return McpReply(statuses.get(failure.code, 200), encode_error(read_id(message), failure))

    async def _handle_negotiated(self, request: McpRequest, client: McpClient) -> McpReply:
        if request.id is None:
            if request.method == "notifications/cancelled":
                await self.calls.cancel(client, request.params.get("requestId"))
            return McpReply(202)

        if request.method == "tools/call":
            return McpReply(200, call=await self.calls.begin(request, client))

        if request.method == "initialize":
            version = rpc.negotiate_version(request.params.get("protocolVersion"))
            result = {"protocolVersion": version, "capabilities": SERVER_CAPABILITIES, "serverInfo": SERVER_INFO}
            headers = session_headers(request.params.get("capabilities"))
            return McpReply(200, encode_result(request.id, result), headers=headers)

        result = {} if request.method == "ping" else await self._list_tools(request, client.caller)
        return McpReply(200, encode_result(request.id, result))

    async def _handle_declared(self, request: McpRequest, client: McpClient) -> McpReply:
        if request.id is None:
            return McpReply(202)

        if request.method == "tools/call":
            call = await self.calls.begin(request, client)
            call.extras = COMPLETE
            return McpReply(200, call=call)

        if request.method == "server/discover":
            result = {"supportedVersions": rpc.SUPPORTED, "capabilities": SERVER_CAPABILITIES}
        else:
            result = await self._list_tools(request, client.caller)

        return McpReply(200, encode_result(request.id, {**result, **COMPLETE, **NOT_CACHEABLE}))

    async def _list_tools(self, request: McpRequest, caller: Caller) -> dict[str, Any]:
        if request.method != "tools/list":
            raise McpError(METHOD_NOT_FOUND, f"Method not found: {request.method[:200]}")
        return await self._tools.page(caller, request.params.get("cursor"))


class ToolCalls:
    """Runs calls, and cancels those that their clients cancel."""

    def __init__(self, tools: Tools, runs: Runs, questions: Questions) -> None:
        self._tools = tools
        self._runs = runs
        self._questions = questions
        self._deleting = TaskSet()
        self._in_progress: WeakSet[ToolCall] = WeakSet()

    async def begin(self, request: McpRequest, client: McpClient) -> ToolCall:
        """Start the run of a call. Raises McpError, and the errors of the run."""
        name = request.params.get("name")
        arguments = request.params.get("arguments")
        context = request.params.get("context")

        if not isinstance(name, str):
            raise McpError(INVALID_PARAMS, "name must be a string: the name of a tool")
        if not isinstance(arguments, dict | None):
            raise McpError(INVALID_PARAMS, "arguments must be an object")
        if not isinstance(context, dict | None):
            raise McpError(INVALID_PARAMS, "context must be an object")

        tool = await self._tools.get(client.caller, name)
        tool_input = await self._tools.read_input(tool)
        body = RunCreate(
            assistant_id=str(tool.assistant_id),
            input=tool_input.to_graph_input(arguments or {}),
            context=context,
            stream_mode=STREAM_MODES,
        )
        thread_id, body, grant = await self._thread(client, body)
        first_run = await self._runs.create(thread_id, body, client.request_id, awaited=Awaited.EVENTS, grant=grant)
        call = ToolCall(request, client, first_run)
        call.thread_to_delete = thread_id

        self._in_progress.add(call)
        return call

    async def _thread(self, client: McpClient, body: RunCreate) -> tuple[UUID | None, RunCreate, Grant]:
        """Return the thread of a call, the body of its run, and the grant to start it.

        The call of a client that accepts questions gets a thread, which is deleted when the call ends. If the project
        forbids the caller to create threads, the call is stateless, like those of other clients.
        """
        access = self._tools.access
        if client.accepts_questions:
            thread_id = uuid7()
            on_thread = msgspec.structs.replace(body, on_not_exist="create", metadata=dict(CALL_METADATA))
            with suppress(Forbidden):
                return thread_id, on_thread, await access.authorize_run(client.caller, thread_id, on_thread)

        return None, body, await access.authorize_run(client.caller, None, body)

    async def result(self, call: ToolCall) -> bytes:
        """Wait until a call ends, and return its response."""
        try:
            values = await self._runs.result(call.run.thread_id, call.run.run_id)
        finally:
            call.is_over = True

        return _response(call, to_call_result(values, knows_links=call.client.knows_links))

    async def stream(self, call: ToolCall) -> AsyncIterator[bytes]:
        """Yield the progress of a call, its questions, and its response. A client that leaves cancels the call."""
        run = call.first_run.run
        async for chunk in self._runs.cancel_on_disconnect(self._events(call), run.thread_id, run.run_id):
            yield chunk

    async def _events(self, call: ToolCall) -> AsyncIterator[bytes]:
        progress = CallProgress()
        source = self._runs.events(call.first_run)
        try:
            while True:
                result = asyncio.ensure_future(self._runs.result(call.run.thread_id, call.run.run_id))
                try:
                    if call.progress_token is not None:
                        async for chunk in source:
                            for step in progress.read(chunk):
                                params = {"progressToken": call.progress_token, **step}
                                yield sse_event("message", encode_notification("notifications/progress", params))

                    values = await result
                finally:
                    # Both the stream and the result may have been cut off: asyncio logs errors that nobody retrieves.
                    await cancel_and_wait(result)

                if call.thread_to_delete is None or call.is_cancelled:
                    break

                first = first_question(call.run, load(values))
                if first is None:
                    break

                question, params = first
                yield sse_event("message", encode_request(question.request_id, "elicitation/create", params))

                run = await self._questions.wait(question)
                if run is None:
                    yield sse_event("message", _response(call, build_failure(UNANSWERED)))
                    return

                call.run = run
                source = await self._runs.follow(run.thread_id, run.run_id, after=FROM_THE_START, modes=EVENTS)

            yield sse_event("message", _response(call, to_call_result(values, knows_links=call.client.knows_links)))
        finally:
            call.is_over = True
            self._delete_thread(call)

    def _delete_thread(self, call: ToolCall) -> None:
        """Delete the thread of a call, in a task of its own: if the client left, the current task is cancelled."""
        if call.thread_to_delete is None:
            return

        async def delete(thread_id: UUID) -> None:
            try:
                await self._questions.delete_thread(thread_id)
            except Exception as exc:  # noqa: BLE001 - the client has its response; the thread stays, and the log says so
                log_failure("the temporary thread of a tool call was not deleted", exc, thread_id=str(thread_id))

        self._deleting.spawn(delete(call.thread_to_delete))

    async def cancel(self, client: McpClient, request_id: Id | None) -> None:
        """Cancel the call of a request. If several calls match, none is cancelled."""
        matching = [call for call in self._in_progress if call.matches(client, request_id)]
        if len(matching) != 1:
            return

        call = matching[0]
        call.is_cancelled = True

        if call.thread_to_delete is not None:
            # A call that waits for an answer has no run to cancel; it ends because its thread is gone.
            self._delete_thread(call)
            return

        with suppress(NothingToCancel):
            await self._runs.cancel(call.run.thread_id, call.run.run_id, CancelAction.INTERRUPT)


def _response(call: ToolCall, result: dict[str, Any]) -> bytes:
    return encode_result(call.request.id, (build_failure(CANCELLED) if call.is_cancelled else result) | call.extras)
