"""Descriptions of an assistant's graph: its drawing, its schemas and its subgraphs.

The graph is opened as for a run of the assistant, so a factory gets the assistant's configuration.
"""

import re
from typing import Any
from uuid import UUID

from portside.agent.assistants.records import Assistants
from portside.agent.graphs import GraphDescriptions
from portside.agent.types.access import ANYONE, Caller, auth_configurable
from portside.agent.types.assistants import Assistant, GraphSchemas
from portside.executor.requests import DescriptionRequest, Drawing, Schemas
from portside.kernel.errors import Invalid

_DEPTH = re.compile(r"[1-9][0-9]{0,8}")


class Descriptions:
    """Describes the graphs of assistants."""

    def __init__(self, assistants: Assistants, graphs: GraphDescriptions) -> None:
        self._assistants = assistants
        self._graphs = graphs

    async def draw(self, name: str, xray: str | None, caller: Caller = ANYONE) -> Drawing:
        """Draw the graph of an assistant, named by its id or its graph; `xray` is the depth of subgraphs to include.

        Raises Invalid, AssistantNotFound, and GraphFailed.
        """
        depth = parse_xray(xray)
        assistant = await self._assistants.find(name)
        return await self._graphs.draw(_build_request(assistant, caller, xray=depth))

    async def schemas(self, assistant_id: UUID, caller: Caller = ANYONE) -> GraphSchemas:
        """Return the schemas of an assistant's graph. Raises AssistantNotFound and GraphFailed."""
        assistant = await self._assistants.get(assistant_id)
        schemas = await self._graphs.schemas(_build_request(assistant, caller))
        return GraphSchemas(
            input_schema=schemas.input_schema,
            output_schema=schemas.output_schema,
            state_schema=schemas.state_schema,
            config_schema=schemas.config_schema,
            context_schema=schemas.context_schema,
            graph_id=assistant.graph_id,
        )

    async def subgraphs(
        self, assistant_id: UUID, namespace: str | None, *, recurse: bool, caller: Caller = ANYONE
    ) -> dict[str, Schemas]:
        """Return the schemas of the subgraphs, or of one by its namespace. Raises AssistantNotFound and GraphFailed."""
        assistant = await self._assistants.get(assistant_id)
        return await self._graphs.subgraphs(_build_request(assistant, caller, namespace=namespace, recurse=recurse))


def _build_request(assistant: Assistant, caller: Caller, **options: Any) -> DescriptionRequest:
    """Return a request with the part of a run's config that comes from the assistant."""
    ids = {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
    config = {**assistant.config, "configurable": {**assistant.context, **ids, **auth_configurable(caller)}}
    return DescriptionRequest(graph_id=assistant.graph_id, config=config, context=assistant.context, **options)


def parse_xray(raw: str | None) -> int:
    """Parse how many levels of subgraphs a drawing shows; True is all of them. Raises Invalid."""
    flag = (raw or "false").lower()
    if flag in {"true", "false"}:
        return flag == "true"
    if _DEPTH.fullmatch(flag):
        return int(flag)

    raise Invalid.field(["query", "xray"], "Invalid xray value")
