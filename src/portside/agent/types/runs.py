"""Runs and the requests that create them."""

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from portside.agent.types.states import Checkpoint

RunStatusName = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
DEFAULT_MODES = ["values"]
STREAM_MODES = ("values", "messages", "messages-tuple", "updates", "events", "tasks", "checkpoints", "debug", "custom")
# `runs.requests` refuses unknown names, and lists the valid ones in the error; a Literal type could not do that.
StreamMode = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(STREAM_MODES)})]
RunField = Literal[
    "run_id",
    "thread_id",
    "assistant_id",
    "metadata",
    "status",
    "kwargs",
    "multitask_strategy",
    "created_at",
    "updated_at",
    "error",
    "cancel_reason",
    "langsmith_session_name",
]
StrategyName = Literal["reject", "rollback", "interrupt", "enqueue"]
CancelActionName = Literal["interrupt", "rollback"]
Durability = Literal["sync", "async", "exit"]


class RunStatus(StrEnum):
    """The status of a run, as it is stored."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    # How a run may end, but no status of a row: that of the run is deleted.
    ROLLED_BACK = "rolled_back"


class MultitaskStrategy(StrEnum):
    """What happens to a new run if its thread has runs."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    # These cancel the runs before it.
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


class CancelAction(StrEnum):
    """What a cancellation does with the checkpoints of its run."""

    # They stay.
    INTERRUPT = "interrupt"
    # They are deleted, and so is the run.
    ROLLBACK = "rollback"


ACTIVE = (RunStatus.PENDING, RunStatus.RUNNING)
TERMINAL = (RunStatus.SUCCESS, RunStatus.ERROR, RunStatus.TIMEOUT, RunStatus.INTERRUPTED)


class RunConfig(msgspec.Struct, omit_defaults=True):
    """The configuration of a run."""

    tags: list[str] | None = None
    recursion_limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    configurable: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class Command(msgspec.Struct, omit_defaults=True):
    """Controls a graph instead of giving it input: resumes an interrupt, goes to nodes, updates the state."""

    update: Any = None
    resume: Any = None
    goto: Any = None


class LangSmithTracer(msgspec.Struct, omit_defaults=True):
    """The destination of a run's traces: a project, and an example of a dataset."""

    project_name: str | None = None
    example_id: UUID | None = None


class RunCreate(msgspec.Struct, kw_only=True):
    """A request to create a run; `assistant_id` is the id of an assistant or a graph."""

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
    multitask_strategy: StrategyName | None = None
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
    strict_resume: bool | None = None
    langsmith_tracer: LangSmithTracer | None = None

    @property
    def modes(self) -> list[str]:
        """The stream modes as a list; by default `values`."""
        modes = self.stream_mode or DEFAULT_MODES
        return modes if isinstance(modes, list) else [modes]


RunBatch = Annotated[list[RunCreate], msgspec.Meta(min_length=1, max_length=1000)]


class Run(msgspec.Struct):
    """A run in the API."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    metadata: dict[str, Any]
    status: RunStatusName
    kwargs: dict[str, Any]
    multitask_strategy: str
    created_at: str
    updated_at: str
    error: dict[str, Any] | None
    cancel_reason: str | None
    langsmith_session_name: str | None = None


class ListedRun(msgspec.Struct):
    """A run in a list, with its selected fields."""

    run_id: UUID | UnsetType = UNSET
    thread_id: UUID | UnsetType = UNSET
    assistant_id: UUID | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    status: RunStatusName | UnsetType = UNSET
    kwargs: dict[str, Any] | UnsetType = UNSET
    multitask_strategy: str | UnsetType = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    error: dict[str, Any] | UnsetType | None = UNSET
    cancel_reason: str | UnsetType | None = UNSET
    langsmith_session_name: str | UnsetType | None = UNSET


class RunListQuery(msgspec.Struct):
    """The runs of a thread to list, newest first, and the fields to return."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    offset: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)] = 0
    status: str | None = None
    select: list[RunField] | None = None


class RunSearch(msgspec.Struct):
    """The runs to list across threads.

    Without `thread_id` and `cron_id` the statuses may be `pending` and `running` (the default), or `error` and
    `timeout`. Any other search would read the whole history of the server. `run_id` finds one run of a thread.
    """

    status: Annotated[list[RunStatusName], msgspec.Meta(min_length=1, max_length=6)] | None = None
    assistant_id: UUID | None = None
    thread_id: UUID | None = None
    cron_id: UUID | None = None
    run_id: UUID | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)] | None = None


# A search names a thread or a cron, or only statuses that have an index of their own.
RunsToFind = Annotated[
    RunSearch,
    msgspec.Meta(
        extra_json_schema={
            "anyOf": [
                {"required": ["thread_id"], "properties": {"thread_id": {"type": "string"}}},
                {"required": ["cron_id"], "properties": {"cron_id": {"type": "string"}}},
                {"properties": {"status": {"type": ["array", "null"], "items": {"enum": ["pending", "running"]}}}},
                {"properties": {"status": {"type": ["array", "null"], "items": {"enum": ["error", "timeout"]}}}},
            ]
        }
    ),
]


class FoundRun(msgspec.Struct):
    """A run that a search found.

    `attempt` counts its starts, and `lost_attempts` those whose worker was lost. A pending run waits for an earlier run
    of its `thread` (which `blocked_by` names), for its `time` (`run_after`), or for a free `slot` of a worker.
    """

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    cron_id: str | None
    status: RunStatusName
    multitask_strategy: str
    is_temporary: bool
    created_at: str
    started_at: str | None
    updated_at: str
    attempt: int
    lost_attempts: int
    worker_id: UUID | None
    waits_for: Literal["thread", "time", "slot"] | None
    blocked_by: UUID | None
    run_after: str
    error: dict[str, Any] | None
    cancel_reason: str | None


class CancelQuery(msgspec.Struct):
    """How to stop a run, and whether to wait until it has stopped."""

    action: CancelActionName = "interrupt"
    wait: bool = False


class CancelManyQuery(msgspec.Struct):
    """How to stop runs."""

    action: CancelActionName = "interrupt"


class CancelMany(msgspec.Struct, forbid_unknown_fields=True):
    """The runs to stop: all with a status, or some of a thread."""

    status: Literal["pending", "running", "all"] | None = None
    thread_id: UUID | None = None
    run_ids: Annotated[list[UUID], msgspec.Meta(max_length=1000)] | None = None


# Either a status alone, or runs of a thread.
RunsToCancel = Annotated[
    CancelMany,
    msgspec.Meta(
        extra_json_schema={
            "oneOf": [
                {
                    "required": ["status"],
                    "properties": {
                        "status": {"type": "string"},
                        "thread_id": {"type": "null"},
                        "run_ids": {"type": "null"},
                    },
                },
                {
                    "required": ["thread_id", "run_ids"],
                    "properties": {
                        "status": {"type": "null"},
                        "thread_id": {"type": "string"},
                        "run_ids": {"type": "array", "minItems": 1},
                    },
                },
            ]
        }
    ),
]


class JoinQuery(msgspec.Struct):
    """Whether to cancel the run when the waiting client disconnects."""

    cancel_on_disconnect: bool = False


class StreamQuery(msgspec.Struct):
    """The events of a run to follow, and whether to cancel it when the client disconnects."""

    stream_mode: list[StreamMode] | None = None
    cancel_on_disconnect: bool = False
