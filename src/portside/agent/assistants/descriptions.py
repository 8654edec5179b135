"""What the graph of an assistant looks like: its drawing, its schemas, its subgraphs.

The graph is opened as it would be for a run of the assistant, on the loop where graphs run, so a factory sees the
assistant's configuration. The descriptions themselves are made in `graphs/describe.py`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.runnables import RunnableConfig

from portside.agent.assistants.records import Assistants
from portside.agent.engine import Engine
from portside.agent.graphs import describe
from portside.agent.graphs.factories import Graph
from portside.agent.graphs.load import Graphs
from portside.agent.types.access import ANYONE, Caller, told_of
from portside.agent.types.assistants import Assistant, Drawing, GraphSchemas, Schemas
from portside.kernel.errors import PortsideError

T = TypeVar("T")


class GraphFailed(PortsideError):
    """The graph's own code failed when it was opened; the message says how."""

    code = "graph_failed"


class Descriptions:
    """Describes the graphs of assistants."""

    def __init__(self, assistants: Assistants, engine: Engine) -> None:
        self._assistants = assistants
        self._engine = engine

    async def draw(self, name: str, xray: str | None, caller: Caller = ANYONE) -> Drawing:
        """Draw the graph of an assistant, by its id or the graph's; `xray` says how deep to look into subgraphs.

        Raises Invalid, AssistantNotFound, and GraphFailed.
        """
        depth = describe.parse_xray(xray)
        assistant = await self._assistants.find(name)
        return await self._read(assistant, caller, lambda graph, config: describe.draw(graph, config, depth))

    async def schemas(self, assistant_id: UUID, caller: Caller = ANYONE) -> GraphSchemas:
        """Return the schemas of an assistant's graph. Raises AssistantNotFound and GraphFailed."""
        assistant = await self._assistants.get(assistant_id)

        async def reading(graph: Graph, _config: RunnableConfig) -> Schemas:
            return describe.schemas_of(graph)

        found = await self._read(assistant, caller, reading)
        return GraphSchemas(
            found.input_schema,
            found.output_schema,
            found.state_schema,
            found.config_schema,
            found.context_schema,
            graph_id=assistant.graph_id,
        )

    async def subgraphs(
        self, assistant_id: UUID, namespace: str | None, *, recurse: bool, caller: Caller = ANYONE
    ) -> dict[str, Schemas]:
        """Return the schemas of the subgraphs, or of one by its namespace. Raises AssistantNotFound and GraphFailed."""
        assistant = await self._assistants.get(assistant_id)
        return await self._read(
            assistant, caller, lambda graph, _config: describe.subgraph_schemas(graph, namespace, recurse=recurse)
        )

    async def _read(
        self, assistant: Assistant, caller: Caller, work: Callable[[Graph, RunnableConfig], Awaitable[T]]
    ) -> T:
        config = _config(assistant, caller)

        async def reading(graphs: Graphs) -> T:
            opened = graphs.open(assistant.graph_id, config, access="assistants.read", context=assistant.context)
            try:
                async with opened as graph:
                    return await work(graph, config)
            except (Exception, SystemExit) as exc:
                # What the user's code raises is theirs to see; our own server is well.
                raise GraphFailed(f"Graph '{assistant.graph_id}': {type(exc).__name__}: {exc}") from exc

        return await self._engine.read(reading)


def _config(assistant: Assistant, caller: Caller) -> Any:
    """Return the part of a run's config that an assistant brings."""
    own = {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
    config: Any = {**assistant.config, "configurable": {**assistant.context, **own, **told_of(caller)}}
    return config
