"""Which tools there are: the assistants that the caller may see, each with what it takes."""

import base64
import binascii
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from portside.agent.access.service import Access
from portside.agent.assistants.descriptions import Descriptions, GraphFailed
from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.mcp.messages import INVALID_PARAMS, RequestFailed
from portside.agent.mcp.schemas import ANYTHING, Takes, taken_by
from portside.agent.sql import sql
from portside.agent.types.access import Caller
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
PAGE = 100
REMEMBERED_AT_MOST = 1000
HINTS = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": True}


class Tool(NamedTuple):
    """An assistant under the name of a tool."""

    name: str
    assistant_id: UUID
    title: str
    description: str | None
    updated_at: datetime


class Tools:
    """The tools of this server."""

    def __init__(self, db: Database, known: Assistants, descriptions: Descriptions, access: Access) -> None:
        self._db = db
        self._known = known
        self._descriptions = descriptions
        self.access = access
        # What a graph takes costs a look into it; it stays as it is until the assistant is changed.
        self._taken: dict[tuple[UUID, datetime], Takes] = {}

    async def page(self, caller: Caller, cursor: Any) -> dict[str, Any]:
        """Return some tools as they are listed, in the order of their names, and where the next ones begin.

        Raises RequestFailed for a cursor that is none, and what the project's handlers refuse with.
        """
        found = await self._find(caller, after=_read_cursor(cursor), limit=PAGE + 1)
        shown = [await self._shown(tool) for tool in found[:PAGE]]
        more = {"nextCursor": _cursor(found[PAGE - 1].name)} if len(found) > PAGE else {}
        return {"tools": shown, **more}

    async def get(self, caller: Caller, name: str) -> Tool:
        """Return the tool of a name. Raises RequestFailed when there is none, for this caller."""
        for tool in await self._find(caller, name=name):
            return tool
        raise RequestFailed(INVALID_PARAMS, f"Unknown tool: {name[:200]}")

    async def takes(self, tool: Tool) -> Takes:
        """Return what a tool takes. Where its graph cannot be opened that is anything: the call tells why."""
        key = (tool.assistant_id, tool.updated_at)
        if (known := self._taken.get(key)) is not None:
            return known
        try:
            takes = taken_by((await self._descriptions.schemas(tool.assistant_id)).input_schema)
        except (GraphFailed, AssistantNotFound) as exc:
            log.warning("a tool could not be described", assistant_id=str(tool.assistant_id), error=str(exc)[:300])
            return ANYTHING
        if len(self._taken) >= REMEMBERED_AT_MOST:
            self._taken.clear()
        self._taken[key] = takes
        return takes

    async def _shown(self, tool: Tool) -> dict[str, Any]:
        return {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description or f"Tool based on the {tool.title} assistant",
            "inputSchema": (await self.takes(tool)).schema,
            "annotations": HINTS,
        }

    async def _find(self, caller: Caller, *, after: str = "", name: str | None = None, limit: int = 1) -> list[Tool]:
        asked: dict[str, Any] = {"graph_id": None, "metadata": {}, "limit": limit, "offset": 0}
        allowed = await self.access.may(caller, "assistants", "search", asked)
        rows = await self._db.fetch(
            sql.list_tools,
            access=allowed,
            metadata=asked.get("metadata") or {},
            own=self._known.of_graphs(),
            after=after,
            tool=name,
            limit=limit,
        )
        return [Tool(*row) for row in rows]


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _read_cursor(given: Any) -> str:
    if given is None:
        return ""
    try:
        return base64.b64decode(given, altchars=b"-_", validate=True).decode("ascii")
    except (TypeError, ValueError, binascii.Error):
        raise RequestFailed(INVALID_PARAMS, "cursor is none that this server gave") from None
