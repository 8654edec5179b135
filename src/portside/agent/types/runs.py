"""Runs and what they are created with (contract: section 5)."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.agent.types.threads import Checkpoint

RunStatus = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
StreamMode = Literal[
    "values", "messages", "messages-tuple", "updates", "events", "tasks", "checkpoints", "debug", "custom"
]
MultitaskStrategy = Literal["reject", "rollback", "interrupt", "enqueue"]
Durability = Literal["sync", "async", "exit"]
TERMINAL: frozenset[str] = frozenset({"success", "error", "timeout", "interrupted"})


class RunConfig(msgspec.Struct, omit_defaults=True):
    """The configuration of a run."""

    tags: list[str] | None = None
    recursion_limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    configurable: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class Command(msgspec.Struct, omit_defaults=True):
    """Steers a graph instead of giving it input: resume an interrupt, go to nodes, update the state."""

    update: Any = None
    resume: Any = None
    goto: Any = None


class RunCreate(msgspec.Struct, kw_only=True):
    """What to make a run with; `assistant_id` is an assistant's id or a graph's."""

    assistant_id: str
    input: Any = None
    command: Command | None = None
    metadata: dict[str, Any] | None = None
    config: RunConfig | None = None
    context: dict[str, Any] | None = None
    interrupt_before: Literal["*"] | list[str] | None = None
    interrupt_after: Literal["*"] | list[str] | None = None
    stream_mode: StreamMode | list[StreamMode] | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    multitask_strategy: MultitaskStrategy | None = None
    on_not_exist: Literal["create", "reject"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    after_seconds: Annotated[float, msgspec.Meta(le=31_536_000)] | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None
    durability: Durability | None = None
    checkpoint_during: bool | None = None
    webhook: str | None = None
    feedback_keys: list[str] | None = None


class Run(msgspec.Struct):
    """A run as the API shows it."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    metadata: dict[str, Any]
    status: RunStatus
    kwargs: dict[str, Any]
    multitask_strategy: str
    created_at: str
    updated_at: str
    error: dict[str, Any] | None
    langsmith_session_name: str | None = None


class RunListQuery(msgspec.Struct):
    """Which runs of a thread to list, newest first."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    offset: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)] = 0
    status: str | None = None


class StreamQuery(msgspec.Struct):
    """Which events of a run to follow."""

    stream_mode: list[str] | None = None
    cancel_on_disconnect: bool = False
