"""Assistants: one per graph, made at start under an id that follows from the graph's."""

from uuid import UUID, uuid5

from portside.agent.graphs.load import Graphs
from portside.agent.rows import from_row
from portside.agent.sql import sql
from portside.agent.types.assistants import Assistant, AssistantSearch
from portside.agent.types.pages import Page
from portside.kernel.db import Database
from portside.kernel.errors import Invalid, NotFound

SYSTEM_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


class AssistantNotFound(NotFound):
    """No assistant with this id exists."""

    code = "assistant_not_found"


class Assistants:
    """Finds assistants, by their id or their graph's."""

    def __init__(self, db: Database, graphs: Graphs) -> None:
        self._db = db
        self._graphs = graphs

    async def make_system_assistants(self) -> None:
        """Make the assistant of every graph; what people changed on one stays."""
        await self._db.executemany(
            sql.upsert_system_assistant,
            [
                {
                    "assistant_id": uuid5(SYSTEM_NAMESPACE, graph_id),
                    "graph_id": graph_id,
                    "description": self._graphs.description(graph_id),
                }
                for graph_id in self._graphs.ids()
            ],
        )

    async def get(self, assistant_id: UUID) -> Assistant:
        """Return an assistant. Raises AssistantNotFound."""
        row = await self._db.fetchrow(sql.get_assistant, assistant_id=assistant_id)
        if row is None:
            raise AssistantNotFound("Not Found")
        return from_row(Assistant, row)

    async def resolve(self, name: str) -> Assistant:
        """Return the assistant a run names, by id or graph. Raises Invalid for no such graph, AssistantNotFound."""
        if name in self._graphs.ids():
            return await self.get(uuid5(SYSTEM_NAMESPACE, name))
        try:
            assistant_id = UUID(name)
        except ValueError:
            choices = ", ".join(self._graphs.ids())
            message = f"Invalid assistant: '{name}'. Must be either: an assistant's UUID, or a graph of {choices}"
            raise Invalid.field(["body", "assistant_id"], message) from None
        try:
            return await self.get(assistant_id)
        except AssistantNotFound:
            raise AssistantNotFound("Thread or assistant not found.") from None

    async def search(self, query: AssistantSearch) -> Page[Assistant]:
        """Find assistants that match, newest first."""
        matching = {"metadata": query.metadata, "graph_id": query.graph_id, "name": query.name}
        rows = await self._db.fetch(sql.search_assistants, **matching, limit=query.limit, offset=query.offset)
        total = await self._db.fetchval(sql.count_assistants, **matching)
        return Page([from_row(Assistant, row) for row in rows], total)
