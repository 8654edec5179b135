"""Calls of the A2A protocol as they go over the wire, for tests that look at every field."""

import json
from typing import Any
from uuid import uuid4, uuid5

import httpx2

from portside.agent.assistants.records import SYSTEM_NAMESPACE
from tests.api.streaming import open_stream


def agent_id(graph_id: str) -> str:
    return str(uuid5(SYSTEM_NAMESPACE, graph_id))


def message(*parts: Any, **fields: Any) -> dict[str, Any]:
    """A message of a user; a text is a part as well."""
    shown = [{"kind": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": "user", "parts": shown, "messageId": str(uuid4()), **fields}


def data(value: Any) -> dict[str, Any]:
    return {"kind": "data", "data": value}


class Remote:
    """One agent, called by hand."""

    def __init__(self, http: httpx2.AsyncClient, graph_id: str, **headers: str) -> None:
        self.http = http
        self.path = f"/a2a/{agent_id(graph_id)}"
        self.headers = headers

    async def raw(self, body: Any, **headers: str) -> dict[str, Any]:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        response = await self.http.post(self.path, content=content, headers={**self.headers, **headers})
        assert response.status_code == 200, response.text
        return response.json()

    async def call(self, method: str, params: Any) -> dict[str, Any]:
        reply = await self.raw({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        assert (reply["jsonrpc"], reply["id"]) == ("2.0", 7)
        return reply

    async def ask(self, method: str, **params: Any) -> Any:
        reply = await self.call(method, params)
        assert "error" not in reply, reply
        return reply["result"]

    async def fails(self, method: str, **params: Any) -> tuple[int, str]:
        reply = await self.call(method, params)
        assert "result" not in reply, reply
        return reply["error"]["code"], reply["error"]["message"]

    async def send(self, *parts: Any, **fields: Any) -> dict[str, Any]:
        return await self.ask("message/send", message=message(*parts, **fields))

    async def stream(self, method: str, **params: Any) -> list[dict[str, Any]]:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        headers = {"accept": "text/event-stream", **self.headers}
        async with open_stream(self.http, "POST", self.path, json=body, headers=headers) as stream:
            events = await stream.all()

        assert {event.name for event in events} == {"message"}
        assert all(event.data["id"] == 7 for event in events)
        return [event.data.get("result") or event.data["error"] for event in events]


def said(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Who said what, of a history."""
    return [(each["role"], each["parts"][0].get("text", "")) for each in messages]
