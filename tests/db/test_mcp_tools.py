"""Which assistants are the tools of a caller, in the database."""

from typing import Any
from uuid import uuid4

from portside.agent.assistants.records import Assistants
from portside.agent.mcp.tools import Tools
from portside.agent.types.access import ANYONE
from portside.agent.types.assistants import AssistantCreate
from portside.executor.load import Graphs
from portside.kernel.db import Database
from tests.db.graph_runs import Words, graph, sub1


class Handlers:
    """Authorization handlers that answer a search with a filter, and change its metadata."""

    def __init__(self, allowed: Any = None, **metadata: Any) -> None:
        self.allowed = allowed
        self.metadata = metadata

    async def authorize(self, _caller: Any, resource: str, action: str, search: dict[str, Any]) -> Any:
        assert (resource, action) == ("assistants", "search")
        search["metadata"].update(self.metadata)
        return self.allowed


async def list_names(db: Database, assistants: Assistants, handlers: Handlers) -> list[str]:
    nobody: Any = None
    tools = Tools(db, assistants, nobody, handlers)  # type: ignore[arg-type]
    return [tool.name for tool in await tools._find(ANYONE, limit=100)]


async def test_handlers_decide_by_filter_and_by_metadata_which_assistants_are_tools(db: Database) -> None:
    assistants = Assistants(db, Graphs({"echo": graph(Words, sub1)}, {}).facts())
    await assistants.create_system_assistants()
    for name, metadata in (("hers", {"owner": "ada", "team": "red"}), ("his", {"owner": "bob", "team": "red"})):
        request = AssistantCreate(graph_id="echo", assistant_id=uuid4(), name=name, metadata=metadata)
        await assistants.create(request)

    assert await list_names(db, assistants, Handlers({"equal": {}, "rest": []})) == ["echo", "hers", "his"]
    assert await list_names(db, assistants, Handlers({"equal": {"owner": "ada"}, "rest": []})) == ["echo", "hers"]
    assert await list_names(db, assistants, Handlers({"equal": {}, "rest": []}, team="red")) == ["echo", "hers", "his"]
    assert await list_names(db, assistants, Handlers({"equal": {}, "rest": []}, owner="bob")) == ["echo", "his"]
    assert await list_names(db, assistants, Handlers({"equal": {}, "rest": []}, team="blue")) == ["echo"]
