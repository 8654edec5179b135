"""Assistants: a graph with a configuration, its versions, and what a graph looks like (contract: section 3)."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

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
Number = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]


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


class SelectedAssistant(msgspec.Struct):
    """An assistant with the fields that were asked for."""

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
    """An assistant as it was; `created_at` is when this version was made."""

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
    """The configuration that an assistant's runs get where they bring none."""

    tags: Annotated[list[str], msgspec.Meta(max_length=1000)] | None = None
    recursion_limit: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647)] | None = None
    configurable: dict[str, Any] | None = None


class AssistantPatch(msgspec.Struct, kw_only=True):
    """What to change of an assistant; metadata is merged, the rest replaced."""

    graph_id: str | None = None
    config: AssistantConfig | None = None
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    name: Name | None = None
    description: Description | None = None


class AssistantCreate(msgspec.Struct, kw_only=True):
    """What to make an assistant with. Give `context` or `config.configurable`: each is the other."""

    graph_id: str
    assistant_id: UUID | None = None
    config: AssistantConfig | None = None
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    name: Name | None = None
    description: Description | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None


class AssistantDelete(msgspec.Struct):
    """Whether the threads whose `metadata.assistant_id` is the assistant go with it."""

    delete_threads: bool = False


class AssistantFilter(msgspec.Struct):
    """Which assistants are meant: metadata by containment, the name by a part of it in any case."""

    metadata: dict[str, Any] | None = None
    graph_id: str | None = None
    name: Name | None = None


class AssistantSearch(AssistantFilter):
    """Which assistants to list, and how."""

    limit: Limit | None = 10
    offset: Number | None = 0
    sort_by: Literal["assistant_id", "created_at", "updated_at", "name", "graph_id"] | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: Annotated[list[AssistantField], msgspec.Meta(max_length=100)] | None = None


class VersionSearch(msgspec.Struct):
    """Which versions of an assistant to list, newest first."""

    metadata: dict[str, Any] | None = None
    limit: Limit | None = 10
    offset: Number | None = 0


class LatestVersion(msgspec.Struct):
    """The version that becomes the latest; in the body or the query."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647)] | None = None


class DrawingQuery(msgspec.Struct):
    """How far to look into subgraphs: `true`, `false`, or a depth from 1 on."""

    xray: str | None = None


class Drawing(msgspec.Struct):
    """A graph's nodes and edges."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class SubgraphQuery(msgspec.Struct):
    """Whether to list the subgraphs of subgraphs."""

    recurse: bool = False


class Schemas(msgspec.Struct):
    """What a graph takes, gives, remembers and is configured by, as JSON schemas; null where there is none."""

    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    state_schema: dict[str, Any] | None
    config_schema: dict[str, Any] | None
    context_schema: dict[str, Any] | None


class GraphSchemas(Schemas, kw_only=True):
    """The schemas of an assistant's graph."""

    graph_id: str
