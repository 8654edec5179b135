"""From a client's request for a run to its admission.

The fields are those of `RunsClient.create` in langgraph_sdk. No I/O: the service takes an admission to the queue.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.problems import sends_traces
from portside.agent.queue.priorities import parse_priority
from portside.agent.queue.types import Admission, AdmissionOutcome, Admitted, ClaimedRun
from portside.agent.runs.errors import ThreadBusy
from portside.agent.runs.idempotency import KEY_LOC
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, UNRESTRICTED, Caller, Grant
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import STREAM_MODES, MultitaskStrategy, Run, RunCreate
from portside.executor.run_commands import check_command
from portside.kernel.clock import iso
from portside.kernel.codec import load
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.forwarded_headers import get_forwarded_headers
from portside.kernel.http.routes import refuse_field
from portside.kernel.user_json import dump_user

FEEDBACK_FIELD = "feedback_keys"
FEEDBACK_KEYS_AT_MOST = 50
FEEDBACK_KEY_LENGTH = 180


class RunIds(NamedTuple):
    """The ids of a run that is being made, and its caller."""

    run_id: UUID
    thread_id: UUID
    request_id: str
    caller: Caller = ANYONE


def refuse_unsupported(body: RunCreate) -> None:
    """Refuse invalid commands and stream modes, and fields that this server does not act on. Raises Invalid."""
    if body.command is not None:
        check_command(msgspec.to_builtins(body.command))

    if body.checkpoint is not None and body.checkpoint_id is not None:
        raise Invalid.field(["body", "checkpoint_id"], "Give either checkpoint or checkpoint_id")

    for mode in body.modes:
        if mode not in STREAM_MODES:
            allowed = ", ".join(STREAM_MODES)
            raise Invalid.field(["body", "stream_mode"], f"Invalid stream mode '{mode}'; allowed are {allowed}", "enum")

    if body.feedback_keys:
        refuse_feedback(body.feedback_keys)


def refuse_feedback(keys: Sequence[str]) -> None:
    """Refuse feedback keys for which no links can be made. Raises Invalid."""
    if not sends_traces():
        why = "this server sends no traces, so there is nothing to give feedback on; set LANGSMITH_TRACING"
        raise refuse_field(FEEDBACK_FIELD, why)

    if len(keys) > FEEDBACK_KEYS_AT_MOST or any(not 0 < len(key) <= FEEDBACK_KEY_LENGTH for key in keys):
        raise Invalid.field(
            ["body", FEEDBACK_FIELD],
            f"Expected at most {FEEDBACK_KEYS_AT_MOST} keys of 1 to {FEEDBACK_KEY_LENGTH} characters",
        )


def build_admission(
    assistant: Assistant,
    body: RunCreate,
    ids: RunIds,
    *,
    is_stateless: bool,
    grant: Grant = UNRESTRICTED,
) -> Admission:
    """Return the admission of a run, restricted to what its caller may do. A stateless run makes a thread of its own.

    Raises BadRequest when both context and configurable are given.
    """
    try:
        priority = parse_priority(assistant.metadata)
    except Invalid:
        # The assistant may have been stored before priorities were validated.
        priority = 0

    labels = {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
    client_metadata = body.metadata or {}
    # A client cannot claim that its run is of another assistant.
    metadata = {"graph_id": assistant.graph_id, **client_metadata, "assistant_id": labels["assistant_id"]}
    is_temporary = is_stateless and body.on_completion != "keep"
    kwargs = build_kwargs(assistant, body, ids, {**assistant.metadata, **metadata}) | {"temporary": is_temporary}

    # A thread's config shows only the assistant's part of `configurable`.
    thread_config = {name: value for name, value in kwargs["config"].items() if name != "metadata"}
    thread_config["configurable"] = assistant.config.get("configurable", {})

    return Admission(
        run_id=ids.run_id,
        thread_id=ids.thread_id,
        assistant_id=assistant.assistant_id,
        inherited=assistant.metadata,
        metadata=metadata,
        kwargs=kwargs,
        strategy=MultitaskStrategy(body.multitask_strategy or MultitaskStrategy.ENQUEUE),
        priority=priority,
        thread_metadata={**client_metadata, **labels} if is_stateless else labels,
        thread_config=thread_config,
        create_thread=is_stateless or (body.on_not_exist == "create" and grant.creates),
        is_temporary=is_temporary,
        delay_s=max(0.0, body.after_seconds or 0.0),
        access=None if is_stateless else grant.thread,
        new_thread=None if is_stateless else grant.new_thread,
    )


def build_kwargs(assistant: Assistant, body: RunCreate, ids: RunIds, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the `kwargs` that a run is stored with. Raises BadRequest when both context and configurable are given."""
    configurable = (body.config.configurable if body.config else None) or {}
    if body.context and configurable:
        raise BadRequest("Cannot specify both configurable and context; prefer context.")

    # Context and configurable mirror each other.
    context = body.context or {key: value for key, value in configurable.items() if not key.startswith("__")}
    durability = body.durability or ("exit" if body.checkpoint_during is False else "async")

    # Responses of LangGraph's agent server lack these fields, so they are stored only where they were sent.
    optional = {
        "strict_resume": body.strict_resume or None,
        "langsmith_tracer": None if body.langsmith_tracer is None else msgspec.to_builtins(body.langsmith_tracer),
    }

    return {
        "input": body.input,
        "command": None if body.command is None else msgspec.to_builtins(body.command),
        "config": _build_config(assistant, body, ids, metadata),
        "context": {**assistant.config.get("configurable", {}), **assistant.context, **context},
        "stream_mode": body.modes,
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": body.webhook,
        "feedback_keys": body.feedback_keys,
        "temporary": False,
        "subgraphs": bool(body.stream_subgraphs),
        "resumable": bool(body.stream_resumable),
        "checkpoint_during": durability != "exit",
        "durability": durability,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _build_config(assistant: Assistant, body: RunCreate, ids: RunIds, metadata: dict[str, Any]) -> dict[str, Any]:
    body_config: dict[str, Any] = msgspec.to_builtins(body.config) if body.config else {}
    checkpoint: dict[str, Any] = {"checkpoint_id": body.checkpoint_id} if body.checkpoint_id else {}

    if body.checkpoint is not None:
        fields = msgspec.structs.asdict(body.checkpoint)
        checkpoint = {key: value for key, value in fields.items() if value is not None and key != "thread_id"}

    caller = ids.caller
    # An unauthenticated client may name its user itself, as graphs with a memory for each user expect.
    user_id = {"user_id": caller.identity} if caller.identity else {}
    configurable = {
        "user_id": "",
        **assistant.config.get("configurable", {}),
        **assistant.context,
        **(body_config.get("configurable") or body.context or {}),
        # After the body: a gateway sets these headers, and a body must not override them.
        **get_forwarded_headers(),
        **checkpoint,
        "run_id": str(ids.run_id),
        "thread_id": str(ids.thread_id),
        "graph_id": assistant.graph_id,
        "assistant_id": str(assistant.assistant_id),
        **user_id,
        # Plain data, whatever class authentication returned.
        "langgraph_auth_user": None if caller.user is None else load(dump_user(dict(caller.user))),
        "langgraph_auth_user_id": caller.identity,
        "langgraph_auth_permissions": list(caller.permissions),
        "langgraph_request_id": ids.request_id,
        "__request_start_time_ms__": time.time_ns() // 1_000_000,
        "__after_seconds__": body.after_seconds or 0,
    }

    config = {**assistant.config, **body_config, "configurable": configurable}
    config["metadata"] = {**(body_config.get("metadata") or {}), **metadata}
    return config


def raise_if_refused(admitted: Admitted, thread_id: UUID) -> None:
    """Raise ThreadNotFound, ThreadBusy, or Invalid for a reused idempotency key, if the run was not admitted."""
    if admitted.outcome is AdmissionOutcome.MISSING:
        raise ThreadNotFound.of(thread_id)

    if admitted.outcome is AdmissionOutcome.BUSY:
        raise ThreadBusy(
            "Thread is already running a task. Wait for it to finish or choose a different multitask strategy."
        )

    if admitted.outcome is AdmissionOutcome.REUSED:
        raise Invalid.field(KEY_LOC, "This key was sent before with another request; a new request needs a new key")


def to_run(admission: Admission, admitted: Admitted) -> Run:
    """Return a run that was just admitted as the API shows it; its config gets the metadata of its thread."""
    admission.kwargs["config"]["metadata"].update(admitted.metadata)
    created_at = iso(admitted.created_at)
    tracer: dict[str, Any] = admission.kwargs.get("langsmith_tracer") or {}

    return Run(
        run_id=admission.run_id,
        thread_id=admission.thread_id,
        assistant_id=admission.assistant_id,
        metadata=admitted.metadata,
        status="pending",
        kwargs=admission.kwargs,
        multitask_strategy=admission.strategy,
        created_at=created_at,
        updated_at=created_at,
        error=None,
        cancel_reason=None,
        langsmith_session_name=tracer.get("project_name"),
    )


def to_claimed_run(admission: Admission, admitted: Admitted) -> ClaimedRun:
    """Return a run that was admitted under this worker's lease, as the worker would have claimed it."""
    return ClaimedRun(
        run_id=admission.run_id,
        thread_id=admission.thread_id,
        assistant_id=admission.assistant_id,
        # A copy in the form that the database would have returned.
        kwargs=load(dump_user(admission.kwargs)),
        attempt=admitted.attempt,
        is_temporary=admission.is_temporary,
    )
