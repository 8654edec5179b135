"""Calls of tools: each is a stateless run of the tool's assistant, which goes with the client that waits for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

from portside.agent.mcp.messages import INVALID_PARAMS, Id, Request, RequestFailed, notification, result_of
from portside.agent.mcp.progress import MODES, Progress
from portside.agent.mcp.results import CANCELLED, call_result, failed
from portside.agent.mcp.tools import Tools
from portside.agent.runs.errors import NothingToCancel
from portside.agent.runs.following import Made
from portside.agent.runs.service import Runs
from portside.agent.types.access import Caller
from portside.agent.types.runs import RunCreate
from portside.kernel.http.sse import sse_event


class Client(NamedTuple):
    """Who sends requests, as far as that shows without sessions."""

    caller: Caller
    address: str
    program: str
    request_id: str
    takes_streams: bool


class Call:
    """A call under way; `extras` is what its revision of the protocol wants in a result beside what came of it."""

    def __init__(self, request: Request, client: Client, made: Made) -> None:
        self.request, self.client, self.made = request, client, made
        self.is_over = self.is_cancelled = False
        self.extras: dict[str, Any] = {}

    @property
    def token(self) -> Any:
        """By what the client knows the call's progress, where it wants to be told and takes a stream."""
        token = self.request.meta.get("progressToken") if self.client.takes_streams else None
        return token if isinstance(token, (str, int)) and not isinstance(token, bool) else None

    def is_meant(self, client: Client, request_id: Any) -> bool:
        """Whether a client that takes back one of its requests may mean this call."""
        mine = (self.client.caller.identity, self.client.address, self.client.program)
        is_named = type(self.request.id) is type(request_id) and self.request.id == request_id
        return is_named and not self.is_over and mine == (client.caller.identity, client.address, client.program)


class Calls:
    """Makes calls, and cancels those that a client takes back."""

    def __init__(self, tools: Tools, runs: Runs) -> None:
        self._tools = tools
        self._runs = runs
        self._under_way: WeakSet[Call] = WeakSet()

    async def begin(self, request: Request, client: Client) -> Call:
        """Start what a call asks for. Raises RequestFailed, and what the run is refused with."""
        name, arguments = request.params.get("name"), request.params.get("arguments")
        context = request.params.get("context")
        if not isinstance(name, str):
            raise RequestFailed(INVALID_PARAMS, "name must be the name of a tool")
        if not isinstance(arguments, dict | None):
            raise RequestFailed(INVALID_PARAMS, "arguments must be an object")
        if not isinstance(context, dict | None):
            raise RequestFailed(INVALID_PARAMS, "context must be an object")
        tool = await self._tools.get(client.caller, name)
        given = (await self._tools.takes(tool)).input(arguments or {})
        body = RunCreate(assistant_id=str(tool.assistant_id), input=given, context=context, stream_mode=MODES)
        grant = await self._tools.access.start_run(client.caller, None, body)
        made = await self._runs.create(None, body, client.request_id, awaited="events", grant=grant)
        call = Call(request, client, made)
        self._under_way.add(call)
        return call

    async def answer(self, call: Call) -> bytes:
        """Wait until a call is over and return its answer."""
        run = call.made.run
        try:
            values = await self._runs.result(run.thread_id, run.run_id)
        finally:
            call.is_over = True
        result = failed(CANCELLED) if call.is_cancelled else call_result(values)
        return result_of(call.request.id, result | call.extras)

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        """Tell how far a call is, and its answer at the end. It is cancelled when its client leaves before."""
        run = call.made.run
        async for chunk in self._runs.ending_with(self._told(call), run.thread_id, run.run_id):
            yield chunk

    async def _told(self, call: Call) -> AsyncIterator[bytes]:
        progress = Progress()
        answer = asyncio.ensure_future(self.answer(call))
        try:
            async for chunk in self._runs.events(call.made):
                for told in progress.read(chunk):
                    params = {"progressToken": call.token, **told}
                    yield sse_event("message", notification("notifications/progress", params))
            yield sse_event("message", await answer)
        finally:
            answer.cancel()

    async def take_back(self, client: Client, request_id: Id | None) -> None:
        """Cancel the call that a client takes back. Where it is not clear which one that is, nothing happens."""
        meant = [call for call in self._under_way if call.is_meant(client, request_id)]
        if len(meant) != 1:
            return
        meant[0].is_cancelled = True
        run = meant[0].made.run
        with suppress(NothingToCancel):
            await self._runs.cancel(run.thread_id, run.run_id, "interrupt")
