"""The tools: the assistants that a caller may see, each with its input schema.

A tool's arguments are an object. If the input of a graph is something else, it is the argument `input`. The argument
`messages` is a string: a model that calls a tool has one thing to say, and the schema of all types of messages would
take pages.
"""

import base64
import binascii
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from cachetools import LRUCache

from portside.agent.access.service import Access
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.mcp.rpc import INVALID_PARAMS, McpError
from portside.agent.sql import sql
from portside.agent.types.access import Caller
from portside.executor.encryption_handlers import CannotDecrypt
from portside.executor.errors import GraphFailed
from portside.kernel.db import Database
from portside.kernel.logs import get_logger

log = get_logger(__name__)
PAGE_SIZE = 100
MAX_CACHED_INPUTS = 1000
ANNOTATIONS = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": True}
INPUT = "input"
MESSAGES = "messages"

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string", "description": "What to say to the agent, as a person would write it."}


class ToolInput(NamedTuple):
    """The input schema of a tool, and how its arguments become the input of its graph."""

    schema: Schema
    is_wrapped: bool = False
    has_messages: bool = False

    def to_graph_input(self, arguments: dict[str, Any]) -> Any:
        """Return the graph's input for the arguments of a call."""
        if self.is_wrapped:
            return arguments.get(INPUT)

        text = arguments.get(MESSAGES)
        if self.has_messages and isinstance(text, str):
            return {**arguments, MESSAGES: [{"type": "human", "content": text}]}

        return arguments


ANY_INPUT = ToolInput({"type": "object"})


def to_tool_input(graph_schema: Schema | None) -> ToolInput:
    """Return the input of a tool, from the schema of its graph's input."""
    schema = _inline_definition(graph_schema or {})
    if not schema:
        return ANY_INPUT

    if schema.get("type") != "object":
        definitions = schema.pop("$defs", {})
        inner = {"type": "object", "properties": {INPUT: schema}, "required": [INPUT], "$defs": definitions}
        return ToolInput(_drop_unused_definitions(inner), is_wrapped=True)

    properties = schema.get("properties", {})
    if properties.get(MESSAGES, _TEXT).get("type") == "string":
        return ToolInput(_drop_unused_definitions(schema))

    schema["properties"] = {**properties, MESSAGES: _TEXT}
    return ToolInput(_drop_unused_definitions(schema), has_messages=True)


def _inline_definition(schema: Schema) -> Schema:
    """Return a copy of a schema whose top level is the definition that it refers to."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = schema.get("$defs", {}).get(name)
    top = dict(schema)
    if isinstance(definition, dict):
        top |= definition
        top.pop("$ref")

    if "properties" in top:
        top.setdefault("type", "object")

    return top


def _drop_unused_definitions(schema: Schema) -> Schema:
    definitions = schema.pop("$defs", None) or {}
    pending = _list_references(schema)
    used: Schema = {}
    while pending:
        name = pending.pop()
        if name in definitions and name not in used:
            used[name] = definitions[name]
            pending |= _list_references(used[name])

    return {**schema, "$defs": dict(sorted(used.items()))} if used else schema


def _list_references(part: Any) -> set[str]:
    names: set[str] = set()
    parts = [part]
    while parts:
        item = parts.pop()
        if isinstance(item, dict):
            parts += item.values()
            names.add(str(item.get("$ref", "")).removeprefix("#/$defs/"))
        elif isinstance(item, list):
            parts += item

    return names


class Tool(NamedTuple):
    """An assistant under the name of a tool."""

    name: str
    assistant_id: UUID
    title: str
    description: str | None
    updated_at: datetime


class Tools:
    """The tools of this server."""

    def __init__(self, db: Database, assistants: Assistants, descriptions: Descriptions, access: Access) -> None:
        self._db = db
        self._assistants = assistants
        self._descriptions = descriptions
        self.access = access

        # Reading a schema opens the graph, so it is cached for each version of the assistant.
        self._inputs: LRUCache[tuple[UUID, datetime], ToolInput] = LRUCache(MAX_CACHED_INPUTS)

    async def page(self, caller: Caller, cursor: Any) -> dict[str, Any]:
        """Return a page of tools in the order of their names, with the cursor of the next page.

        Raises McpError for a malformed cursor, and the errors of the project's auth handlers.
        """
        tools = await self._find(caller, after=_parse_cursor(cursor), limit=PAGE_SIZE + 1)
        page = tools[:PAGE_SIZE]
        result: dict[str, Any] = {"tools": [await self._describe(tool) for tool in page]}
        if len(tools) > PAGE_SIZE:
            result["nextCursor"] = _format_cursor(page[-1].name)

        return result

    async def _describe(self, tool: Tool) -> dict[str, Any]:
        tool_input = await self.read_input(tool)
        return {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description or f"Tool based on the {tool.title} assistant",
            "inputSchema": tool_input.schema,
            "annotations": ANNOTATIONS,
        }

    async def get(self, caller: Caller, name: str) -> Tool:
        """Return a tool by its name. Raises McpError if the caller sees none of that name."""
        for tool in await self._find(caller, name=name):
            return tool
        raise McpError(INVALID_PARAMS, f"Unknown tool: {name[:200]}")

    async def read_input(self, tool: Tool) -> ToolInput:
        """Return the input of a tool. If its graph or its row cannot be opened, any input; the call reports why."""
        key = (tool.assistant_id, tool.updated_at)
        tool_input = self._inputs.get(key)
        if tool_input is not None:
            return tool_input

        try:
            schemas = await self._descriptions.schemas(tool.assistant_id)
        except (AssistantNotFound, CannotDecrypt, GraphFailed) as exc:
            log.warning("a tool could not be described", assistant_id=str(tool.assistant_id), error=str(exc)[:300])
            return ANY_INPUT

        tool_input = to_tool_input(schemas.input_schema)
        self._inputs[key] = tool_input
        return tool_input

    async def _find(self, caller: Caller, *, after: str = "", name: str | None = None, limit: int = 1) -> list[Tool]:
        search: dict[str, Any] = {"graph_id": None, "metadata": {}, "limit": limit, "offset": 0}
        allowed = await self.access.authorize(caller, "assistants", "search", search)
        rows = await self._db.fetch(
            sql.list_tools,
            access=allowed,
            metadata=search.get("metadata") or {},
            own=self._assistants.system_ids(),
            graphs=list(self._assistants.graphs),
            after=after,
            tool=name,
            limit=limit,
        )

        return [Tool(*row) for row in rows]


def _format_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _parse_cursor(cursor: Any) -> str:
    if cursor is None:
        return ""

    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii")
    except (TypeError, ValueError, binascii.Error):
        raise McpError(INVALID_PARAMS, "cursor is not one that this server returned") from None
