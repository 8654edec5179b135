"""Threads and their state (contract: section 4)."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

ThreadStatus = Literal["idle", "busy", "interrupted", "error"]


class Thread(msgspec.Struct):
    """A thread as the API shows it; `values` is the JSON of its last state."""

    thread_id: UUID
    created_at: str
    updated_at: str
    state_updated_at: str
    metadata: dict[str, Any]
    config: dict[str, Any]
    status: ThreadStatus
    values: msgspec.Raw | None
    interrupts: dict[str, Any] | None
    error: dict[str, Any] | None


class ThreadCreate(msgspec.Struct):
    """What to make a thread with."""

    thread_id: UUID | None = None
    metadata: dict[str, Any] | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    ttl: Any = None
    supersteps: Any = None


class ThreadPatch(msgspec.Struct):
    """What to change of a thread; metadata is merged."""

    metadata: dict[str, Any] | None = None
    ttl: Any = None


class ThreadSearch(msgspec.Struct):
    """What to look for among threads, newest update first."""

    metadata: dict[str, Any] | None = None
    status: ThreadStatus | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    offset: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)] = 0
    ids: Any = None
    values: Any = None
    sort_by: Literal["updated_at"] | None = None
    sort_order: Literal["desc"] | None = None
    select: Any = None
    extract: Any = None


class Checkpoint(msgspec.Struct):
    """Names a checkpoint."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    thread_id: str | None = None
    checkpoint_map: dict[str, Any] | None = None


class StateQuery(msgspec.Struct):
    """Whether to look into subgraphs."""

    subgraphs: bool = False


class StateAtCheckpoint(msgspec.Struct):
    """Which state to read."""

    checkpoint: Checkpoint
    subgraphs: bool = False


class StateUpdate(msgspec.Struct):
    """A change of a thread's state by a person, as if the node `as_node` had made it."""

    values: dict[str, Any] | list[Any] | None = None
    as_node: str | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None


class HistoryQuery(msgspec.Struct):
    """How much history to read: one checkpoint unless told otherwise (spec: Agent server constants)."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    before: str | None = None


class HistorySearch(msgspec.Struct):
    """Which history to read; `before` may be a checkpoint id, a checkpoint or a config."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    before: Any = None
    metadata: dict[str, Any] | None = None
    checkpoint: Checkpoint | None = None
