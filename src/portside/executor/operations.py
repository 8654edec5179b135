"""What an agent server asks of the graphs of a project beside executing runs, on the current event loop.

Requests and results are plain data (`requests`), so that the agent server may be another process.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from portside.executor.descriptions import draw, schemas_of, subgraph_schemas
from portside.executor.errors import GraphFailed
from portside.executor.load import Graph, Graphs
from portside.executor.requests import DescriptionRequest, Drawing, Schemas


class GraphOperations:
    """Reads and describes the graphs of a project."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    async def draw(self, request: DescriptionRequest) -> Drawing:
        """Draw a graph. Raises NotFound and GraphFailed."""
        async with self._described(request) as graph:
            return await draw(graph, request.config, request.xray)

    async def schemas(self, request: DescriptionRequest) -> Schemas:
        """Return the schemas of a graph. Raises NotFound and GraphFailed."""
        async with self._described(request) as graph:
            return schemas_of(graph)

    async def subgraphs(self, request: DescriptionRequest) -> dict[str, Schemas]:
        """Return the schemas of the subgraphs of a graph by their names. Raises NotFound and GraphFailed."""
        async with self._described(request) as graph:
            return await subgraph_schemas(graph, request.namespace, recurse=request.recurse)

    @asynccontextmanager
    async def _described(self, request: DescriptionRequest) -> AsyncIterator[Graph]:
        opened = self._graphs.open(request.graph_id, request.config, access="assistants.read", context=request.context)
        try:
            async with opened as graph:
                yield graph
        except (Exception, SystemExit) as exc:
            # The error is in the project's code, so the client sees it; the server itself is fine.
            raise GraphFailed(f"Graph '{request.graph_id}': {type(exc).__name__}: {exc}") from exc
