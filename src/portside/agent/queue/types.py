"""What the queue takes and what it returns: admissions, claimed runs, cancellations and results."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.types.access import Filter
from portside.agent.types.runs import ACTIVE, CancelAction, MultitaskStrategy, RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.kernel.codec import dump_api

# With these strategies a new run cancels the runs before it.
SUPERSEDING = frozenset({MultitaskStrategy.INTERRUPT, MultitaskStrategy.ROLLBACK})
# The result of a run that is rolled back while a client waits for it.
RUN_NOT_FOUND_RESULT = dump_api({"__error__": {"error": "HTTPException", "message": "404: Run not found"}})


class RequestKey(NamedTuple):
    """An idempotency key: unique in its scope, with a digest of the request, and the run's index in a batch."""

    scope: UUID
    key: str
    digest: str
    batch_index: int = 0


class Admission(msgspec.Struct, kw_only=True):
    """A run to be admitted to its thread. The database function `admit_run` reads the fields by their encoded names."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID

    assistant_updated_at: str | None = None
    """When the assistant last changed, as this process read it. If it has changed since, the run is not admitted."""

    # What is stored with the run.

    inherited: dict[str, Any] = {}
    """The assistant's metadata. The run's metadata is this, overridden by its thread's, overridden by `metadata`."""
    metadata: dict[str, Any]
    """The metadata that the client sent, with the ids of the assistant and its graph."""
    kwargs: dict[str, Any]
    """What the run is executed with: input, config, context, stream modes."""
    key: RequestKey | None = None
    """The idempotency key of the request. If it was used before, no run is made and the first one is returned."""

    # The thread.

    create_thread: bool
    """Whether the thread is made if there is none."""
    is_temporary: bool = msgspec.field(name="temporary")
    """Whether the thread is deleted when the run is over: it was made for this run, and its client keeps nothing."""
    thread_metadata: dict[str, Any]
    """What is merged into the thread's metadata, or all of it if the thread is made."""
    thread_config: dict[str, Any] = {}
    """The config that the thread shows from now on."""
    new_thread: dict[str, Any] | None = None
    """The metadata of a thread that an authorization rule lets the caller make, and run on, in this statement."""
    access: Filter | None = None
    """What the thread must match, where authorization rules apply. It is passed beside the other fields."""

    # When the run starts.

    strategy: MultitaskStrategy
    delay_s: float
    """How long the run waits at least."""
    priority: int = 0
    """By how many minutes the run stands behind its time of creation in the queue; before it, if negative."""
    caller: str | None = None
    """Whose limit of pending runs this run counts towards while it waits."""
    starts: bool = False
    """Whether the run may start at once under this worker's lease, which has a free slot for it."""

    # Who follows it.

    is_awaited: bool = False
    """Whether a client of this process waits for the result. Otherwise a temporary thread is kept for a minute."""
    is_streamed: bool = False
    """Whether a client of this process follows the run's events."""

    def as_json(self) -> dict[str, Any]:
        """Return the form that the database function `admit_run` reads; the access filter is passed beside it."""
        names = zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
        values = {key: getattr(self, name) for name, key in names if name != "access"}
        if self.key is not None:
            values["key_scope"] = self.key.scope
            values["key"] = self.key.key
            values["digest"] = self.key.digest
            values["key_index"] = self.key.batch_index

        # A driver may return UUIDs of a class of its own, which the encoder of JSON values does not know.
        return {key: str(value) if isinstance(value, UUID) else value for key, value in values.items()}


class AdmissionOutcome(StrEnum):
    """What became of an admission."""

    PENDING = "pending"
    # It has started under the lease of the worker that asked.
    RUNNING = "running"
    # The strategy is `reject`, and the thread has a run.
    BUSY = "busy"
    # There is no such thread, or the caller may not see it.
    MISSING = "missing"
    # Another transaction has locked the thread, and the statement was not to wait for it.
    LOCKED = "locked"
    # The idempotency key was used before for the same request.
    REPEATED = "repeated"
    # The idempotency key was used before for another request.
    REUSED = "reused"


class Admitted(msgspec.Struct):
    """The result of an admission.

    The ids are those of the run that the idempotency key was first used for. The metadata is the run's complete
    metadata.
    """

    outcome: AdmissionOutcome
    attempt: int
    created_at: Any
    run_id: UUID
    thread_id: UUID
    metadata: dict[str, Any]


class Cancellation(NamedTuple):
    """A request to stop a run. `reason` is for people."""

    action: CancelAction
    reason: str


class ClaimedRun(msgspec.Struct, kw_only=True):
    """A run that this worker holds a lease on."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    kwargs: dict[str, Any]
    attempt: int
    is_temporary: bool
    was_started: bool = False
    """Whether there was an earlier attempt, which may have left checkpoints."""
    cancel_action: str | None = None
    cancel_reason: str | None = None
    waited_s: float = 0.0
    """How long the run could have been executed before it was claimed."""
    is_streamed_elsewhere: bool = False
    """Whether a client of another process follows the run from its creation."""
    is_suspect: bool = False
    """Whether an executor crashed with the run."""

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt may have left checkpoints."""
        return self.was_started or self.attempt > 1

    @property
    def is_ephemeral(self) -> bool:
        """Whether this is the only attempt on a temporary thread: it has no checkpoints, and may need none."""
        return self.is_temporary and not self.is_retry

    @property
    def cancellation(self) -> Cancellation | None:
        """The cancellation that was requested before the run was claimed."""
        if self.cancel_action is None:
            return None

        return Cancellation(CancelAction(self.cancel_action), self.cancel_reason or "")


class RunResult(msgspec.Struct, kw_only=True):
    """How a run ended, and the state of its thread from then on."""

    status: RunStatus
    thread_status: ThreadStatus | None
    """None leaves the thread as it was."""
    values: bytes | None = None
    """The thread's values as JSON."""
    row_values: bytes | None = None
    """The values without `long_values`, which are lists in a checkpoint: the versions of their channels."""
    long_values: dict[str, str] | None = None
    interrupts: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def as_json(self) -> bytes:
        """Return what a waiting client receives: the final values as JSON, or the error."""
        if self.status is RunStatus.ROLLED_BACK:
            return RUN_NOT_FOUND_RESULT
        if self.error is not None and self.status is RunStatus.ERROR:
            return dump_api({"__error__": self.error})

        return self.values or b"null"


class FinishedRun(NamedTuple):
    """A run whose execution is over, and its result."""

    run: ClaimedRun
    result: RunResult


class EndOutcome(StrEnum):
    """What became of the end of a run. Only `ENDED` wrote anything."""

    ENDED = "ended"
    # The lease is another worker's.
    LOST = "lost"
    # A client asked for a rollback meanwhile, which has to be done first.
    ROLLBACK = "rollback"
    # Another transaction has locked the thread, and the statement was not to wait for it.
    LOCKED = "locked"


class EndedRun(NamedTuple):
    """The result of ending a run. If it `has_next`, its thread has other runs, one of which may be ready now."""

    outcome: EndOutcome
    has_next: bool


class ReservedSlots(NamedTuple):
    """Slots that are reserved while runs end, so that runs can be claimed for them in the same statement."""

    limit: int = 0
    """How many runs may be claimed."""
    free: int = 0
    """How many of these slots were free before."""
    always_claim: bool = False
    """Otherwise runs are claimed only if a thread of the ended runs has another run: a claim costs an index scan."""


class CancelScope(msgspec.Struct, kw_only=True):
    """The runs to cancel: some of one thread, those of an assistant, or all with one of the statuses."""

    thread_id: UUID | None = None
    run_ids: list[UUID] | None = None
    assistant_id: UUID | None = None
    statuses: Sequence[RunStatus] = ACTIVE


class CancelOutcome(StrEnum):
    """What became of the cancellation of a run."""

    # A worker executes it, and will stop it.
    STOPPING = "stopping"
    # It had never started, and has ended.
    INTERRUPTED = "interrupted"
    # It had never started, and was rolled back.
    DELETED = "deleted"


class CancelledRun(msgspec.Struct):
    """The result of cancelling a run that had not ended yet."""

    thread_id: UUID
    run_id: UUID
    outcome: CancelOutcome


class DeleteOutcome(StrEnum):
    """What became of the deletion of a run."""

    MISSING = "missing"
    # It has ended, but another run of the thread uses its checkpoints.
    BUSY = "busy"
    # It had never started.
    DELETED = "deleted"
    # A worker executes it, and will roll it back.
    STOPPING = "stopping"
    # It had ended. This worker claimed it again, and rolls it back.
    REOPENED = "reopened"


class DeletedRun(NamedTuple):
    """The result of deleting a run, and the run that this worker has to roll back, if there is one."""

    outcome: DeleteOutcome
    run: ClaimedRun | None
