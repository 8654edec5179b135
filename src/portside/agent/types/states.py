"""States of threads: their checkpoints, how they are read and changed, and their history."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from portside.agent.types.threads import Limit

_STATE_FIELDS = (
    "values|next|tasks|metadata|created_at|checkpoint|parent_checkpoint|interrupts|checkpoint_id|parent_checkpoint_id"
)
# A field of a state, or a part of its values. In a query string commas separate fields.
StateField = Annotated[str, msgspec.Meta(pattern=rf"^({_STATE_FIELDS}|values\..+)$")]
QueriedStateField = Annotated[str, msgspec.Meta(pattern=rf"^({_STATE_FIELDS}|values\.[^,]+)$")]


class Checkpoint(msgspec.Struct):
    """Names a checkpoint."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    thread_id: str | None = None
    checkpoint_map: dict[str, Any] | None = None


class StateQuery(msgspec.Struct):
    """Whether to include subgraphs, and the fields to return: their names, or `values.<key>`."""

    subgraphs: bool = False
    select: list[QueriedStateField] | None = None


class StateAtCheckpoint(msgspec.Struct):
    """The state to read, and the fields to return."""

    checkpoint: Checkpoint
    subgraphs: bool | None = None
    select: list[StateField] | None = None


class StateUpdate(msgspec.Struct):
    """A change of a thread's state, as if the node `as_node` had made it."""

    values: dict[str, Any] | list[Any] | None = None
    as_node: str | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None


class StatePatch(msgspec.Struct):
    """Metadata to merge into that of a checkpoint, the latest unless another is named."""

    metadata: dict[str, Any]
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None


class HistoryQuery(msgspec.Struct):
    """The history to read: one checkpoint by default."""

    limit: Limit = 1
    before: str | None = None
    select: list[QueriedStateField] | None = None


class HistorySearch(msgspec.Struct):
    """The history to read; `before` may be a checkpoint id, a checkpoint or a config."""

    limit: Limit | None = 1
    before: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: Checkpoint | None = None
    select: list[StateField] | None = None


class StateInterrupt(msgspec.Struct):
    """An interrupt that waits for an answer."""

    id: str
    value: Any


class StateTask(msgspec.Struct):
    """A node that will run next, or that failed or was interrupted."""

    id: str
    name: str
    path: list[Any]
    error: str | None
    interrupts: list[StateInterrupt]
    checkpoint: Checkpoint | None
    state: "ThreadState | None"
    result: Any


class ThreadState(msgspec.Struct):
    """The state of a thread at a checkpoint, or its selected fields."""

    values: Any = UNSET
    next: list[str] | UnsetType = UNSET
    tasks: list[StateTask] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET
    created_at: str | UnsetType | None = UNSET
    checkpoint: Checkpoint | UnsetType | None = UNSET
    parent_checkpoint: Checkpoint | UnsetType | None = UNSET
    interrupts: list[StateInterrupt] | UnsetType = UNSET
    checkpoint_id: str | UnsetType | None = UNSET
    parent_checkpoint_id: str | UnsetType | None = UNSET


class NamedCheckpoint(msgspec.Struct):
    """A checkpoint that was just created or changed, in each form that clients expect."""

    checkpoint: Checkpoint
    configurable: Checkpoint
    checkpoint_id: str | None
