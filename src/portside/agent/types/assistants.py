"""Assistants: a graph with a configuration (contract: section 3)."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec


class Assistant(msgspec.Struct):
    """An assistant as the API shows it."""

    assistant_id: UUID
    graph_id: str
    name: str
    description: str | None
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    version: int
    created_at: str
    updated_at: str


class AssistantSearch(msgspec.Struct):
    """What to look for among assistants."""

    metadata: dict[str, Any] | None = None
    graph_id: str | None = None
    name: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    offset: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)] = 0
    sort_by: Literal["created_at"] | None = None
    sort_order: Literal["desc"] | None = None
    select: Any = None
