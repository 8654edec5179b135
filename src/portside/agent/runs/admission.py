"""Making runs: what a client asked for becomes an admission, and what came of that a Run to show.

No I/O: the service takes an admission to the queue.
"""

from typing import Any
from uuid import UUID

from portside.agent.queue.lifecycle import Admission, Admitted, ClaimedRun, RequestKey
from portside.agent.queue.priorities import priority_of
from portside.agent.runs.errors import ThreadBusy
from portside.agent.runs.requests import KEY_LOC, Ids, own_metadata, run_kwargs
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Grant
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import Run, RunCreate
from portside.kernel.clock import iso
from portside.kernel.codec import dump_user, load
from portside.kernel.errors import Invalid


def admission_of(
    assistant: Assistant, body: RunCreate, ids: Ids, *, is_stateless: bool, key: RequestKey | None = None
) -> Admission:
    """Return what is to be admitted. Raises BadRequest when both context and configurable are given."""
    own = own_metadata(assistant, body)
    is_temporary = is_stateless and body.on_completion != "keep"
    kwargs = run_kwargs(assistant, body, ids, {**assistant.metadata, **own}) | {"temporary": is_temporary}
    labels = {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
    return Admission(
        run_id=ids.run_id,
        thread_id=ids.thread_id,
        assistant_id=assistant.assistant_id,
        inherited=assistant.metadata,
        metadata=own,
        kwargs=kwargs,
        strategy=body.multitask_strategy or "enqueue",
        priority=_priority(assistant),
        thread_metadata={**(body.metadata or {}), **labels} if is_stateless else labels,
        thread_config=_thread_config(assistant, kwargs["config"]),
        create_thread=is_stateless or body.on_not_exist == "create",
        temporary=is_temporary,
        delay_s=max(0.0, body.after_seconds or 0.0),
        key=key,
    )


def restrict(admission: Admission, grant: Grant, *, is_stateless: bool) -> Admission:
    """Have a run admitted only where its caller may run one. A stateless run makes a thread of its own."""
    if not is_stateless:
        admission.access, admission.new_thread = grant.thread, grant.new_thread
        admission.create_thread = admission.create_thread and grant.creates
    return admission


def _priority(assistant: Assistant) -> int:
    """Read an assistant's priority. One that was stored before it meant anything counts as none."""
    try:
        return priority_of(assistant.metadata)
    except Invalid:
        return 0


def _thread_config(assistant: Assistant, config: dict[str, Any]) -> dict[str, Any]:
    """Return what a thread tells of its last run's config: of what is configurable only the assistant's."""
    told = {name: value for name, value in config.items() if name != "metadata"}
    return {**told, "configurable": assistant.config.get("configurable", {})}


def refuse_outcome(admitted: Admitted, thread_id: UUID) -> None:
    """Refuse what was not admitted. Raises ThreadNotFound, ThreadBusy, and Invalid for a key that was used before."""
    if admitted.outcome == "missing":
        raise ThreadNotFound.of(thread_id)
    if admitted.outcome == "busy":
        raise ThreadBusy(
            "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
        )
    if admitted.outcome == "reused":
        raise Invalid.field(KEY_LOC, "This key was sent before with another request; a new request needs a new key")


def complete(admission: Admission, admitted: Admitted) -> None:
    """Add to what a run is executed with what it inherited from its thread."""
    admission.kwargs["config"]["metadata"].update(admitted.metadata)


def begun_run(admission: Admission, admitted: Admitted) -> ClaimedRun:
    """Return a run that was admitted under this worker's lease, as the worker would have claimed it."""
    return ClaimedRun(
        run_id=admission.run_id,
        thread_id=admission.thread_id,
        assistant_id=admission.assistant_id,
        kwargs=load(dump_user(admission.kwargs)),
        attempt=admitted.attempt,
        is_temporary=admission.temporary,
    )


def shown_run(admission: Admission, admitted: Admitted) -> Run:
    """Return a run that was just admitted as the API shows it."""
    moment = iso(admitted.created_at)
    tracer: dict[str, Any] = admission.kwargs.get("langsmith_tracer") or {}
    return Run(
        run_id=admission.run_id,
        thread_id=admission.thread_id,
        assistant_id=admission.assistant_id,
        metadata=admitted.metadata,
        status="pending",
        kwargs=admission.kwargs,
        multitask_strategy=admission.strategy,
        created_at=moment,
        updated_at=moment,
        error=None,
        cancel_reason=None,
        langsmith_session_name=tracer.get("project_name"),
    )
