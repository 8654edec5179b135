"""Assistants: created, found, changed, versioned and deleted.

At start the server creates one assistant for each graph, a system assistant, whose id is derived from the graph's.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4, uuid5
from weakref import WeakValueDictionary

import msgspec
from cachetools import LRUCache

from portside.agent.queue.priorities import parse_priority
from portside.agent.rows import SearchPage, from_row
from portside.agent.sql import sql
from portside.agent.types.access import Filter
from portside.agent.types.assistants import (
    Assistant,
    AssistantConfig,
    AssistantCreate,
    AssistantFilter,
    AssistantPatch,
    AssistantSearch,
    AssistantVersion,
    SelectedAssistant,
    VersionSearch,
)
from portside.executor.errors import OtherLanguage
from portside.executor.requests import GraphFacts
from portside.kernel.db import Database
from portside.kernel.errors import BadRequest, Conflict, Invalid, NotFound

SYSTEM_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
DEFAULT_LIMIT = 10
MAX_CACHED = 1000
_LIKE_SPECIAL = re.compile(r"([\\%_])")


class AssistantNotFound(NotFound):
    """Assistant not found"""  # noqa: D415 - clients look for these words

    code = "assistant_not_found"


class AssistantExists(Conflict):
    """An assistant with this id exists already; send if_exists=do_nothing to get it."""

    code = "assistant_exists"


class Assistants:
    """The assistants of this server."""

    def __init__(self, db: Database, graphs: Mapping[str, GraphFacts]) -> None:
        self._db = db
        self.graphs = graphs
        self._system_ids = frozenset(uuid5(SYSTEM_NAMESPACE, graph_id) for graph_id in graphs)
        self._cached: LRUCache[str, Assistant] = LRUCache(MAX_CACHED)
        self._lookups: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create_system_assistants(self) -> None:
        """Create the assistant of every graph. Clients' changes stay, and a deleted assistant is created again."""
        await self._db.executemany(
            sql.upsert_system_assistant,
            [
                {
                    "assistant_id": uuid5(SYSTEM_NAMESPACE, graph_id),
                    "graph_id": graph_id,
                    "description": facts.description,
                }
                for graph_id, facts in self.graphs.items()
            ],
        )

    async def create(self, request: AssistantCreate, visible: Filter | None = None) -> Assistant:
        """Create an assistant, or return the existing one if the request allows it and the filter matches.

        Raises NotFound for a graph that is not loaded, BadRequest if both context and configurable are given, Invalid
        for a bad run_priority, and AssistantExists.
        """
        self._require_graph(request.graph_id)
        parse_priority(request.metadata or {})
        context = _merge_context(request.config, request.context) or {}
        config = _drop_configurable(request.config) or {}
        assistant_id = request.assistant_id or uuid4()

        row = await self._db.fetchrow(
            sql.insert_assistant,
            assistant_id=assistant_id,
            graph_id=request.graph_id,
            name="Untitled" if request.name is None else request.name,
            description=request.description,
            config={**config, "configurable": context} if context else config,
            context=context,
            metadata=request.metadata or {},
        )

        assert row is not None  # noqa: S101 - the statement returns the new assistant or the old one
        if not row["is_new"] and (request.if_exists != "do_nothing" or not await self.matches(assistant_id, visible)):
            raise AssistantExists(f"Assistant {assistant_id} already exists")

        return from_row(Assistant, row)

    async def matches(self, assistant_id: UUID, access: Filter | None) -> bool:
        """Whether an assistant exists and matches a filter."""
        if access is None:
            return True
        return bool(await self._db.fetchval(sql.assistant_matches, assistant_id=assistant_id, access=access))

    async def get(self, assistant_id: UUID) -> Assistant:
        """Return an assistant. Raises AssistantNotFound."""
        row = await self._db.fetchrow(sql.get_assistant, assistant_id=assistant_id)
        if row is None:
            raise AssistantNotFound

        return from_row(Assistant, row)

    async def find(self, name: str) -> Assistant:
        """Return the assistant of an id or a graph's name. Raises Invalid for neither, and AssistantNotFound."""
        if name in self.graphs:
            return await self.get(uuid5(SYSTEM_NAMESPACE, name))

        try:
            assistant_id = UUID(name)
        except ValueError:
            choices = ", ".join(self.graphs)
            message = f"Invalid assistant: '{name}'. Must be either: an assistant's UUID, or a graph of {choices}"
            raise Invalid.field(["path", "assistant_id"], message) from None

        return await self.get(assistant_id)

    def can_be_named(self, name: str) -> bool:
        """Whether `find` accepts a name: a graph's name or an id."""
        if name in self.graphs:
            return True

        try:
            UUID(name)
        except ValueError:
            return False

        return True

    async def resolve(self, name: str) -> Assistant:
        """Return the assistant that a run names. Raises Invalid for an unknown graph, and AssistantNotFound."""
        try:
            return await self.find(name)
        except Invalid as exc:
            raise Invalid.field(["body", "assistant_id"], exc.problems[0].msg) from None
        except AssistantNotFound:
            raise AssistantNotFound("Thread or assistant not found.") from None

    async def find_cached(self, name: str) -> Assistant:
        """Return the assistant that a run names, from the cache, where it may be outdated: the caller has to check.

        The admission of a run checks it by `updated_at`. Raises Invalid for an unknown graph, and AssistantNotFound.
        """
        assistant = self._cached.get(name)
        if assistant is None or name in self._lookups:
            # Concurrent requests share one lookup, and continue in their order.
            async with self._lookups.setdefault(name, asyncio.Lock()):
                assistant = self._cached.get(name)
                if assistant is None:
                    assistant = self._cached[name] = await self.resolve(name)

        return assistant

    async def refuse_other_language(self, graph_id: str, thread_id: UUID | None) -> None:
        """Raise OtherLanguage if a graph of another language has begun the thread; asks only if there are several."""
        if thread_id is None or len({facts.language for facts in self.graphs.values()}) < 2:
            return

        row = await self._db.fetchrow(sql.graph_of_thread, thread_id=thread_id)
        first_graph_id = "" if row is None else str(row["graph_id"])
        before = self.graphs.get(first_graph_id)
        graph = self.graphs.get(graph_id)
        if before is not None and graph is not None and before.language != graph.language:
            raise OtherLanguage(
                f"The thread was begun by {first_graph_id!r}, a {before.language} graph, and {graph_id!r} is a "
                f"{graph.language} graph, which cannot continue with it; use a new thread."
            )

    def is_system(self, assistant_id: UUID) -> bool:
        """Whether this is a system assistant: one that the server created for a graph."""
        return assistant_id in self._system_ids

    def system_ids(self) -> list[UUID]:
        """Return the ids of the system assistants."""
        return list(self._system_ids)

    def forget(self, name: str) -> None:
        """Drop an assistant from the cache."""
        self._cached.pop(name, None)

    async def patch(self, assistant_id: UUID, patch: AssistantPatch) -> Assistant:
        """Change an assistant, which creates a new version of it.

        Raises AssistantNotFound, NotFound for a graph that is not loaded, BadRequest if both context and configurable
        are given, and Invalid for a bad run_priority.
        """
        if patch.graph_id is not None:
            self._require_graph(patch.graph_id)

        parse_priority(patch.metadata or {})
        row = await self._db.fetchrow(
            sql.patch_assistant,
            assistant_id=assistant_id,
            graph_id=patch.graph_id,
            name=patch.name,
            description=patch.description,
            config=_drop_configurable(patch.config),
            context=_merge_context(patch.config, patch.context),
            metadata=patch.metadata,
        )
        if row is None:
            raise AssistantNotFound(f"Assistant {assistant_id} not found")

        return from_row(Assistant, row)

    async def delete(self, assistant_id: UUID, *, delete_threads: bool, threads: Filter | None = None) -> list[UUID]:
        """Delete an assistant with its versions, and on request its threads that match the filter; return these.

        Raises AssistantNotFound.
        """
        deleted: list[UUID] | None = await self._db.fetchval(
            sql.delete_assistant, assistant_id=assistant_id, delete_threads=delete_threads, access=threads
        )
        if deleted is None:
            raise AssistantNotFound(f"Assistant with ID {assistant_id} not found")

        return deleted

    async def versions(self, assistant_id: UUID, query: VersionSearch) -> list[AssistantVersion]:
        """List an assistant's versions, newest first. Raises AssistantNotFound."""
        rows = await self._db.fetch(
            sql.list_assistant_versions,
            assistant_id=assistant_id,
            metadata=query.metadata,
            limit=query.limit or DEFAULT_LIMIT,
            offset=query.offset or 0,
        )
        if not rows:
            await self.get(assistant_id)

        return [from_row(AssistantVersion, row) for row in rows]

    async def set_latest(self, assistant_id: UUID, version: int) -> Assistant:
        """Restore a version of an assistant; the next version is numbered from the highest. Raises NotFound."""
        row = await self._db.fetchrow(sql.set_latest_assistant_version, assistant_id=assistant_id, version=version)
        if row is None:
            raise AssistantNotFound(f"Version {version} not found for assistant {assistant_id}")

        return from_row(Assistant, row)

    async def search(self, query: AssistantSearch, visible: Filter | None = None) -> SearchPage[SelectedAssistant]:
        """Find the assistants that match both the query and the filter, newest first by default.

        Raises NotFound for an unknown graph.
        """
        self._check_graph(query)
        order = f"{query.sort_by or 'created_at'} {query.sort_order or 'desc'}"
        limit = query.limit or DEFAULT_LIMIT
        offset = query.offset or 0
        rows = await self._db.fetch(
            sql.search_assistants,
            **_to_parameters(query),
            access=visible,
            order=order,
            limit=limit,
            offset=offset,
        )
        is_last = len(rows) < limit and (rows or not offset)
        total = offset + len(rows) if is_last else await self.count(query, visible)

        return SearchPage([_select(from_row(Assistant, row), query.select) for row in rows], total)

    async def count(self, query: AssistantFilter, visible: Filter | None = None) -> int:
        """Count the assistants that match both the query and the filter. Raises NotFound for an unknown graph."""
        self._check_graph(query)
        total: int = await self._db.fetchval(sql.count_assistants, **_to_parameters(query), access=visible)
        return total

    def _require_graph(self, graph_id: str) -> None:
        if graph_id not in self.graphs:
            raise NotFound(f"Graph '{graph_id}' not found. Expected one of: {list(self.graphs)}")

    def _check_graph(self, query: AssistantFilter) -> None:
        if query.graph_id is not None:
            self._require_graph(query.graph_id)


def _to_parameters(query: AssistantFilter) -> dict[str, Any]:
    """Return the parameters of a search; wildcards of `like` in a name are escaped."""
    pattern = None if query.name is None else "%" + _LIKE_SPECIAL.sub(r"\\\1", query.name) + "%"
    return {"metadata": query.metadata, "graph_id": query.graph_id, "name": pattern}


def _select(assistant: Assistant, fields: list[Any] | None) -> SelectedAssistant:
    return SelectedAssistant(**{name: getattr(assistant, name) for name in fields or Assistant.__struct_fields__})


def _merge_context(config: AssistantConfig | None, context: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the context, which a client may also send as configurable; None if it sent neither."""
    configurable = None if config is None else config.configurable
    if context and configurable:
        raise BadRequest("Cannot specify both configurable and context; prefer context.")

    return context or configurable or (context if configurable is None else configurable)


def _drop_configurable(config: AssistantConfig | None) -> dict[str, Any] | None:
    if config is None:
        return None

    plain: dict[str, Any] = msgspec.to_builtins(config)
    plain.pop("configurable", None)
    return plain
