"""What requests ask for, and what they are answered, by the revision of the protocol that they speak."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from portside import __version__
from portside.agent.mcp import versions
from portside.agent.mcp.calls import Call, Calls, Client
from portside.agent.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Request,
    RequestFailed,
    error_of,
    id_of,
    read_message,
    result_of,
)
from portside.agent.mcp.tools import Tools
from portside.agent.runs.service import Runs
from portside.agent.types.access import Caller

SERVER = {"name": "Portside", "title": "Portside agent server", "version": __version__}
CAPABILITIES = {"tools": {"listChanged": False}}
COMPLETE = {"resultType": "complete", "_meta": {versions.SERVER: SERVER}}
# Assistants come and go, and which of them a caller sees is its own.
NOT_KEPT = {"ttlMs": 0, "cacheScope": "private"}
ALWAYS_REFUSED = {HEADER_MISMATCH: 400, UNSUPPORTED_VERSION: 400}
REFUSED = {**ALWAYS_REFUSED, INVALID_PARAMS: 400, METHOD_NOT_FOUND: 404}


class Answer(NamedTuple):
    """What a message is answered: a body, or a call that has to be waited for."""

    status: int
    body: bytes = b""
    call: Call | None = None


class Methods:
    """The methods of the protocol."""

    def __init__(self, tools: Tools, runs: Runs) -> None:
        self._tools = tools
        self.calls = Calls(tools, runs)

    async def act(self, given: Any, headers: Mapping[str, str], client: Client) -> Answer:
        """Do what a message says. Raises NoMessage and NoVersion, and what runs and assistants are refused with."""
        statuses = ALWAYS_REFUSED
        try:
            request = read_message(given)
            if request is None:
                return Answer(202)
            if versions.is_declared(request, headers):
                statuses = REFUSED
                versions.check_declared(request, headers)
                return await self._declared(request, client)
            return await self._agreed(request, client)
        except RequestFailed as failure:
            return Answer(statuses.get(failure.code, 200), error_of(id_of(given), failure))

    async def _agreed(self, request: Request, client: Client) -> Answer:
        if request.id is None:
            if request.method == "notifications/cancelled":
                await self.calls.take_back(client, request.params.get("requestId"))
            return Answer(202)
        if request.method == "tools/call":
            return Answer(200, call=await self.calls.begin(request, client))
        if request.method == "initialize":
            result = _agreement(request)
        elif request.method == "ping":
            result = {}
        else:
            result = await self._listed(request, client.caller)
        return Answer(200, result_of(request.id, result))

    async def _declared(self, request: Request, client: Client) -> Answer:
        if request.id is None:
            return Answer(202)
        if request.method == "tools/call":
            call = await self.calls.begin(request, client)
            call.extras = COMPLETE
            return Answer(200, call=call)
        if request.method == "server/discover":
            result = {"supportedVersions": versions.SUPPORTED, "capabilities": CAPABILITIES}
        else:
            result = await self._listed(request, client.caller)
        return Answer(200, result_of(request.id, {**result, **COMPLETE, **NOT_KEPT}))

    async def _listed(self, request: Request, caller: Caller) -> dict[str, Any]:
        if request.method != "tools/list":
            raise RequestFailed(METHOD_NOT_FOUND, f"Method not found: {request.method[:200]}")
        return await self._tools.page(caller, request.params.get("cursor"))


def _agreement(request: Request) -> dict[str, Any]:
    version = versions.agreed_version(request.params.get("protocolVersion"))
    return {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": SERVER}
