"""Threads; `states.py` has their states.

JSON that the server only passes on, such as a thread's values, is sent as the database returned it, unparsed.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from portside.kernel.clock import Moment

ThreadStatusName = Literal["idle", "busy", "interrupted", "error"]
TtlStrategy = Literal["delete", "keep_latest"]
ThreadField = Literal[
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "context",
    "status",
    "values",
    "interrupts",
    "error",
]
SortBy = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]
SortOrder = Literal["asc", "desc"]
Json = msgspec.Raw
# `threads/records.py` parses these paths and refuses others; the pattern is only for the OpenAPI document.
ExtractedPath = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={
            "pattern": r"^(values|metadata|config|interrupts)(\.[^.\[\]\u0000]+|\[-?[0-9]{1,9}\])*$(?!\n)",
            "maxLength": 1000,
        }
    ),
]
JsonObject = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
# At most a thousand years: Postgres can represent the expiry.
Minutes = Annotated[float, msgspec.Meta(gt=0, le=525_600_000)]
# `agent/streams/events.py` refuses other names; this list is only for the OpenAPI document.
FollowMode = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["run_modes", "lifecycle", "state_update"]})]


class ThreadStatus(StrEnum):
    """The status of a thread, as it is stored."""

    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    ERROR = "error"


class ShownTtl(msgspec.Struct):
    """The lifetime of a thread; `expires_at` counts from its last change, and a busy thread does not expire."""

    strategy: TtlStrategy
    ttl_minutes: float
    expires_at: str


class Thread(msgspec.Struct, kw_only=True):
    """A thread in the API, or its selected fields.

    `interrupts` and `error` are present from the first run on; `ttl` if it was requested and the thread has one.
    """

    thread_id: UUID | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    state_updated_at: str | UnsetType = UNSET
    metadata: JsonObject | UnsetType = UNSET
    config: JsonObject | UnsetType = UNSET
    context: dict[str, Any] | UnsetType = UNSET
    status: ThreadStatusName | UnsetType = UNSET
    values: Json | UnsetType | None = UNSET
    interrupts: JsonObject | UnsetType = UNSET
    error: JsonObject | UnsetType | None = UNSET
    extracted: JsonObject | UnsetType = UNSET
    ttl: ShownTtl | UnsetType = UNSET


class Ttl(msgspec.Struct):
    """How long to keep a thread after its last change, in minutes, and what to do then."""

    ttl: Minutes
    strategy: TtlStrategy | None = None


class NodeUpdate(msgspec.Struct):
    """The values that a node wrote, or the command that it returned."""

    as_node: str
    values: dict[str, Any] | list[Any] | None = None
    command: dict[str, Any] | None = None


class Superstep(msgspec.Struct):
    """The updates of the nodes of one step."""

    updates: Annotated[list[NodeUpdate], msgspec.Meta(min_length=1, max_length=1000)]


class ImportedTask(msgspec.Struct):
    """A task of a state: what it returned, the interrupts at which it waits, and its error."""

    name: Annotated[str, msgspec.Meta(max_length=1000)]
    result: Any = None
    interrupts: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=1000)] = []
    error: Any = None


class ImportedState(msgspec.Struct):
    """A state of a thread at another server, as its history shows it.

    `values` are those that differ from the parent's, `appended` the items that its lists have at the end in addition,
    and `removed` the keys that are no longer there.
    """

    checkpoint_id: UUID
    created_at: Moment
    parent_checkpoint_id: UUID | None = None
    metadata: dict[str, Any] = {}
    next: Annotated[list[str], msgspec.Meta(max_length=1000)] = []
    tasks: Annotated[list[ImportedTask], msgspec.Meta(max_length=1000)] = []
    values: dict[str, Any] = {}
    appended: dict[str, list[Any]] = {}
    removed: Annotated[list[str], msgspec.Meta(max_length=1000)] = []


class ThreadCreate(msgspec.Struct):
    """A request to create a thread; `supersteps` give it a state, applied by the graph that its metadata names.

    An extension for threads of another server: `history` has all their states, oldest first, which keep their ids and
    times, and `created_at` and `updated_at` are the thread's.
    """

    thread_id: UUID | None = None
    metadata: dict[str, Any] | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    ttl: Ttl | Minutes | None = None
    supersteps: Annotated[list[Superstep], msgspec.Meta(max_length=1000)] | None = None
    history: Annotated[list[ImportedState], msgspec.Meta(max_length=1000)] | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None


class ThreadQuery(msgspec.Struct):
    """Additional fields of a thread to return: `ttl`. Other names are ignored."""

    include: list[str] | None = None


class ThreadPatch(msgspec.Struct):
    """Changes of a thread; metadata is merged."""

    metadata: dict[str, Any] | None = None
    ttl: Ttl | Minutes | None = None


class ThreadCount(msgspec.Struct):
    """The threads to count."""

    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatusName | None = None


class ThreadSearch(msgspec.Struct):
    """A search for threads, last updated first by default.

    Metadata and values match what contains them. `extract` maps names to paths such as `values.messages[-1].content`.
    """

    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatusName | None = None
    ids: Annotated[list[UUID], msgspec.Meta(max_length=10_000)] | None = None
    limit: Limit | None = 10
    offset: Offset | None = 0
    sort_by: SortBy | None = None
    sort_order: SortOrder | None = None
    select: list[ThreadField] | None = None
    extract: Annotated[dict[str, ExtractedPath], msgspec.Meta(max_length=10)] | None = None


class ThreadPrune(msgspec.Struct, forbid_unknown_fields=True):
    """The threads to delete, or to reduce to their latest checkpoint."""

    thread_ids: Annotated[list[UUID], msgspec.Meta(max_length=1000)]
    strategy: TtlStrategy | None = None


class Pruned(msgspec.Struct):
    """How many threads were pruned."""

    pruned_count: int


class Space(msgspec.Struct):
    """The number of rows and the bytes they take."""

    count: int
    bytes: int


class ChannelSpace(msgspec.Struct):
    """The number of stored versions of a channel and the bytes they take."""

    versions: int
    bytes: int


class ChannelValuesSpace(msgspec.Struct):
    """The storage of the values of channels, in total and for each channel."""

    count: int
    bytes: int
    by_channel: dict[str, ChannelSpace]


class ThreadStorage(msgspec.Struct):
    """The storage of a thread's checkpoints in the database."""

    thread_id: UUID
    total_bytes: int
    checkpoints: Space
    channel_values: ChannelValuesSpace
    pending_writes: Space


class ThreadStreamQuery(msgspec.Struct):
    """The events of a thread to follow; clients use two names for the parameter."""

    stream_modes: list[FollowMode] | None = None
    stream_mode: list[FollowMode] | None = None
