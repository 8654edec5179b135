"""Assistants: a graph with a configuration, its versions, and descriptions of graphs."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from portside.executor.requests import Schemas

AssistantField = Literal[
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "metadata",
    "version",
    "created_at",
    "updated_at",
]
Name = Annotated[str, msgspec.Meta(max_length=512)]
Description = Annotated[str, msgspec.Meta(max_length=10_000)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]


class Assistant(msgspec.Struct):
    """An assistant in the API."""

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


class SelectedAssistant(msgspec.Struct):
    """An assistant with its selected fields."""

    assistant_id: UUID | UnsetType = UNSET
    graph_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    config: dict[str, Any] | UnsetType = UNSET
    context: dict[str, Any] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    version: int | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET


class AssistantVersion(msgspec.Struct):
    """A version of an assistant; `created_at` is the time when the version was created."""

    assistant_id: UUID
    graph_id: str
    name: str
    description: str | None
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    version: int
    created_at: str


class AssistantConfig(msgspec.Struct, omit_defaults=True):
    """The default configuration of an assistant's runs."""

    tags: Annotated[list[str], msgspec.Meta(max_length=1000)] | None = None
    recursion_limit: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647)] | None = None
    configurable: dict[str, Any] | None = None


class AssistantPatch(msgspec.Struct, kw_only=True):
    """Changes of an assistant; metadata is merged, everything else is replaced."""

    graph_id: str | None = None
    config: AssistantConfig | None = None
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    name: Name | None = None
    description: Description | None = None


class AssistantCreate(msgspec.Struct, kw_only=True):
    """A request to create an assistant. `context` and `config.configurable` are two names of one field: send one."""

    graph_id: str
    assistant_id: UUID | None = None
    config: AssistantConfig | None = None
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    name: Name | None = None
    description: Description | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None


class AssistantDelete(msgspec.Struct):
    """Whether to delete the assistant's threads as well: those with its id as `metadata.assistant_id`."""

    delete_threads: bool = False


class AssistantFilter(msgspec.Struct):
    """A filter for assistants: metadata by containment, the name by a part of it, ignoring case."""

    metadata: dict[str, Any] | None = None
    graph_id: str | None = None
    name: Name | None = None


class AssistantSearch(AssistantFilter):
    """The assistants to list, and how."""

    limit: Limit | None = 10
    offset: Offset | None = 0
    sort_by: Literal["assistant_id", "created_at", "updated_at", "name", "graph_id"] | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: Annotated[list[AssistantField], msgspec.Meta(max_length=100)] | None = None


class VersionSearch(msgspec.Struct):
    """The versions of an assistant to list, newest first."""

    metadata: dict[str, Any] | None = None
    limit: Limit | None = 10
    offset: Offset | None = 0


class LatestVersion(msgspec.Struct):
    """The version that becomes the latest; in the body or the query."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647)] | None = None


class DrawingQuery(msgspec.Struct):
    """The subgraphs to include: `true`, `false`, or a depth of at least 1."""

    xray: str | None = None


class SubgraphQuery(msgspec.Struct):
    """Whether to list the subgraphs of subgraphs."""

    recurse: bool = False


@dataclass(slots=True, kw_only=True)
class GraphSchemas(Schemas):
    """The schemas of an assistant's graph."""

    graph_id: str
