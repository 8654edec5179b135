"""Threads and their state (contract: section 4).

JSON that the server only passes on, such as a thread's values, stays as the database wrote it: it is never parsed.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

ThreadStatus = Literal["idle", "busy", "interrupted", "error"]
TtlStrategy = Literal["delete", "keep_latest"]
ThreadField = Literal[
    "thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "config", "context", "status", "values",
    "interrupts", "error",
]  # fmt: skip
SortBy = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]
SortOrder = Literal["asc", "desc"]
Json = msgspec.Raw
JsonObject = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
# A thousand years are for ever, and still a moment that Postgres can write.
Minutes = Annotated[float, msgspec.Meta(gt=0, le=525_600_000)]


class ShownTtl(msgspec.Struct):
    """How long a thread is kept; `expires_at` counts from its last change, and a busy thread outlives it."""

    strategy: TtlStrategy
    ttl_minutes: float
    expires_at: str


class Thread(msgspec.Struct, kw_only=True):
    """A thread as the API shows it, or the part of it that was selected.

    `interrupts` and `error` are there from the first run on; `ttl` when it was asked for and the thread has one.
    """

    thread_id: UUID | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    state_updated_at: str | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET
    config: JsonObject | UnsetType = UNSET
    context: dict[str, Any] | UnsetType = UNSET
    status: ThreadStatus | UnsetType = UNSET
    values: Json | UnsetType | None = UNSET
    interrupts: JsonObject | UnsetType = UNSET
    error: JsonObject | UnsetType | None = UNSET
    extracted: JsonObject | UnsetType = UNSET
    ttl: ShownTtl | UnsetType = UNSET


class Ttl(msgspec.Struct):
    """How long to keep a thread after its last change, in minutes, and what is done then."""

    ttl: Minutes
    strategy: TtlStrategy | None = None


class NodeUpdate(msgspec.Struct):
    """What a node wrote, or the command it returned."""

    as_node: str
    values: dict[str, Any] | list[Any] | None = None
    command: dict[str, Any] | None = None


class Superstep(msgspec.Struct):
    """What the nodes of one step wrote."""

    updates: Annotated[list[NodeUpdate], msgspec.Meta(min_length=1, max_length=1000)]


class ThreadCreate(msgspec.Struct):
    """What to make a thread with; `supersteps` give it a state, through the graph its metadata names."""

    thread_id: UUID | None = None
    metadata: dict[str, Any] | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    ttl: Ttl | Minutes | None = None
    supersteps: Annotated[list[Superstep], msgspec.Meta(max_length=1000)] | None = None


class ThreadQuery(msgspec.Struct):
    """What to show of a thread besides itself: `ttl`. Other names are ignored."""

    include: list[str] | None = None


class ThreadPatch(msgspec.Struct):
    """What to change of a thread; metadata is merged."""

    metadata: dict[str, Any] | None = None
    ttl: Ttl | Minutes | None = None


class ThreadCount(msgspec.Struct):
    """Which threads to count."""

    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatus | None = None


class ThreadSearch(msgspec.Struct):
    """What to look for among threads, last updated first unless told otherwise.

    Metadata and values match what contains them. `extract` maps names to paths such as `values.messages[-1].content`.
    """

    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatus | None = None
    ids: Annotated[list[UUID], msgspec.Meta(max_length=10_000)] | None = None
    limit: Limit | None = 10
    offset: Offset | None = 0
    sort_by: SortBy | None = None
    sort_order: SortOrder | None = None
    select: list[ThreadField] | None = None
    extract: Annotated[dict[str, str], msgspec.Meta(max_length=10)] | None = None


class ThreadPrune(msgspec.Struct):
    """Which threads to delete, or to leave with their latest checkpoint alone."""

    thread_ids: Annotated[list[UUID], msgspec.Meta(max_length=1000)]
    strategy: TtlStrategy | None = None


class Pruned(msgspec.Struct):
    """How many threads were pruned."""

    pruned_count: int


class Space(msgspec.Struct):
    """How many rows there are and the bytes they take."""

    count: int
    bytes: int


class ChannelSpace(msgspec.Struct):
    """How many versions of a channel are kept and the bytes they take."""

    versions: int
    bytes: int


class ChannelValuesSpace(msgspec.Struct):
    """What the values of channels take, in all and each."""

    count: int
    bytes: int
    by_channel: dict[str, ChannelSpace]


class ThreadStorage(msgspec.Struct):
    """What the memory of a thread takes in the database."""

    thread_id: UUID
    total_bytes: int
    checkpoints: Space
    channel_values: ChannelValuesSpace
    pending_writes: Space


class Checkpoint(msgspec.Struct):
    """Names a checkpoint."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    thread_id: str | None = None
    checkpoint_map: dict[str, Any] | None = None


# A field of a state, or a part of its values.
StateField = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(values|next|tasks|metadata|created_at|checkpoint|parent_checkpoint|interrupts|checkpoint_id"
        r"|parent_checkpoint_id|values\..+)$"
    ),
]


class StateQuery(msgspec.Struct):
    """Whether to look into subgraphs, and which fields to show: their names, or `values.<key>`."""

    subgraphs: bool = False
    select: list[StateField] | None = None


class StateAtCheckpoint(msgspec.Struct):
    """Which state to read, and what of it."""

    checkpoint: Checkpoint
    subgraphs: bool | None = None
    select: list[StateField] | None = None


class StateUpdate(msgspec.Struct):
    """A change of a thread's state by a person, as if the node `as_node` had made it."""

    values: dict[str, Any] | list[Any] | None = None
    as_node: str | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None


class StatePatch(msgspec.Struct):
    """What to merge into a checkpoint's metadata, the latest one's unless another is named."""

    metadata: dict[str, Any]
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None


class HistoryQuery(msgspec.Struct):
    """How much history to read: one checkpoint unless told otherwise (spec: Agent server constants)."""

    limit: Limit = 1
    before: str | None = None
    select: list[StateField] | None = None


class HistorySearch(msgspec.Struct):
    """Which history to read; `before` may be a checkpoint id, a checkpoint or a config."""

    limit: Limit | None = 1
    before: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: Checkpoint | None = None
    select: list[StateField] | None = None
