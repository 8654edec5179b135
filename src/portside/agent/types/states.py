"""The state of a thread as the API shows it (contract: section 4.1); the graph makes it, these structs describe it."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from portside.agent.types.threads import Checkpoint


class StateInterrupt(msgspec.Struct):
    """What waits for an answer."""

    id: str
    value: Any


class StateTask(msgspec.Struct):
    """A node that is to run, or that ran into an error or an interrupt."""

    id: str
    name: str
    path: list[Any]
    error: str | None
    interrupts: list[StateInterrupt]
    checkpoint: Checkpoint | None
    state: "ThreadState | None"
    result: Any


class ThreadState(msgspec.Struct):
    """The state of a thread at a checkpoint, or the fields of it that were selected."""

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
    """A checkpoint that was just made or changed, in each of the ways clients look for it."""

    checkpoint: Checkpoint
    configurable: Checkpoint
    checkpoint_id: str | None
