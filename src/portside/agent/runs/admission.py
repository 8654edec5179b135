"""Making runs: what a client asked for becomes an admission, and what came of that a Run to show.

No I/O: the service takes an admission to the queue.
"""

from typing import Any
from uuid import UUID

from portside.agent.queue.lifecycle import Admission, Admitted, ClaimedRun
from portside.agent.runs.errors import ThreadBusy
from portside.agent.runs.requests import Ids, run_kwargs, run_metadata
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import Run, RunCreate
from portside.kernel.clock import iso
from portside.kernel.codec import dump_user, load


def admission_of(assistant: Assistant, body: RunCreate, ids: Ids, *, is_stateless: bool) -> Admission:
    """Return what is to be admitted. Raises BadRequest when both context and configurable are given."""
    metadata = run_metadata(assistant, body)
    is_temporary = is_stateless and body.on_completion != "keep"
    kwargs = run_kwargs(assistant, body, ids, metadata) | {"temporary": is_temporary}
    return Admission(
        run_id=ids.run_id,
        thread_id=ids.thread_id,
        assistant_id=assistant.assistant_id,
        metadata=metadata,
        kwargs=kwargs,
        strategy=body.multitask_strategy or "enqueue",
        thread_metadata={"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)},
        create_thread=is_stateless or body.on_not_exist == "create",
        temporary=is_temporary,
        delay_s=max(0.0, body.after_seconds or 0.0),
    )


def refuse_outcome(admitted: Admitted, thread_id: UUID) -> None:
    """Refuse what was not admitted. Raises ThreadNotFound and ThreadBusy."""
    if admitted.outcome == "missing":
        raise ThreadNotFound.of(thread_id)
    if admitted.outcome == "busy":
        raise ThreadBusy(
            "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
        )


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
        metadata=admission.metadata,
        status="pending",
        kwargs=admission.kwargs,
        multitask_strategy=admission.strategy,
        created_at=moment,
        updated_at=moment,
        error=None,
        cancel_reason=None,
        langsmith_session_name=tracer.get("project_name"),
    )
