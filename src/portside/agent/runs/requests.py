"""From what a client asks of a run to what is stored and what a graph is executed with (contract: section 5)."""

import time
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.graphs.commands import parse_command
from portside.agent.graphs.protocol import Outcome, RunRequest
from portside.agent.queue.lifecycle import ClaimedRun, Ending
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import RunCreate
from portside.kernel.errors import BadRequest
from portside.kernel.http.routes import refuse_field

DEFAULT_MODES = ["values"]


class Ids(NamedTuple):
    """The names of a run that is being made."""

    run_id: UUID
    thread_id: UUID
    request_id: str


def refuse_unsupported(body: RunCreate) -> None:
    """Refuse a command without sense, and fields that are not acted on yet. Raises Invalid that names the field."""
    if body.command is not None:
        parse_command(msgspec.to_builtins(body.command))
    if body.webhook is not None:
        raise refuse_field("webhook", "webhooks are not available yet")
    if body.feedback_keys:
        raise refuse_field("feedback_keys", "feedback keys are not available yet")
    if body.multitask_strategy in {"interrupt", "rollback"}:
        raise refuse_field(
            "multitask_strategy", f"'{body.multitask_strategy}' is not available yet; use enqueue, reject"
        )
    if body.on_disconnect == "cancel":
        raise refuse_field("on_disconnect", "'cancel' is not available yet; use continue")


def run_metadata(assistant: Assistant, body: RunCreate) -> dict[str, Any]:
    """Return a run's metadata; its assistant and graph are ours to say."""
    own = {"graph_id": assistant.graph_id, "assistant_id": str(assistant.assistant_id)}
    return {"created_by": "system", **(body.metadata or {}), **own}


def run_kwargs(assistant: Assistant, body: RunCreate, ids: Ids, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the `kwargs` that a run is stored with. Raises BadRequest when both context and configurable are given."""
    durability = body.durability or ("exit" if body.checkpoint_during is False else "async")
    modes = body.stream_mode or DEFAULT_MODES
    context = _context(assistant, body)
    return {
        "input": body.input,
        "command": None if body.command is None else msgspec.to_builtins(body.command),
        "config": _config(assistant, body, ids, metadata),
        "context": context,
        "stream_mode": modes if isinstance(modes, list) else [modes],
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": None,
        "feedback_keys": None,
        "temporary": False,
        "subgraphs": bool(body.stream_subgraphs),
        "resumable": bool(body.stream_resumable),
        "checkpoint_during": durability != "exit",
        "durability": durability,
    }


def _context(assistant: Assistant, body: RunCreate) -> dict[str, Any]:
    """Context and configurable mirror each other; a request may give one of them."""
    configurable = (body.config.configurable if body.config else None) or {}
    if body.context and configurable:
        raise BadRequest("Cannot specify both configurable and context; prefer context.")
    given = body.context or {key: value for key, value in configurable.items() if not key.startswith("__")}
    return {**assistant.config.get("configurable", {}), **assistant.context, **given}


def _config(assistant: Assistant, body: RunCreate, ids: Ids, metadata: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = msgspec.to_builtins(body.config) if body.config else {}
    configurable = {
        **assistant.config.get("configurable", {}),
        **assistant.context,
        **(given.get("configurable") or body.context or {}),
        **_checkpoint(body),
        "run_id": str(ids.run_id),
        "thread_id": str(ids.thread_id),
        "graph_id": assistant.graph_id,
        "assistant_id": str(assistant.assistant_id),
        "user_id": "",
        "langgraph_auth_user": None,
        "langgraph_auth_user_id": "",
        "langgraph_auth_permissions": [],
        "langgraph_request_id": ids.request_id,
        "__request_start_time_ms__": time.time_ns() // 1_000_000,
        "__after_seconds__": body.after_seconds or 0,
    }
    config = {**assistant.config, **given, "configurable": configurable}
    config["metadata"] = {**(given.get("metadata") or {}), **metadata}
    return config


def _checkpoint(body: RunCreate) -> dict[str, Any]:
    if body.checkpoint is not None:
        named = msgspec.structs.asdict(body.checkpoint)
        return {key: value for key, value in named.items() if value is not None and key != "thread_id"}
    return {"checkpoint_id": body.checkpoint_id} if body.checkpoint_id else {}


def execution_request(run: ClaimedRun, *, resume: bool) -> RunRequest:
    """Return what the graph is executed with."""
    kwargs, config = run.kwargs, dict(run.kwargs["config"])
    config["metadata"] = {**config["metadata"], "run_attempt": run.attempt}
    return RunRequest(
        graph_id=config["configurable"]["graph_id"],
        input=kwargs["input"],
        command=kwargs["command"],
        config=config,
        context=kwargs["context"] or None,
        stream_modes=kwargs["stream_mode"],
        stream_subgraphs=kwargs["subgraphs"],
        interrupt_before=kwargs["interrupt_before"],
        interrupt_after=kwargs["interrupt_after"],
        durability=kwargs["durability"],
        resume=resume,
    )


def ending_of(outcome: Outcome) -> Ending:
    """Return how a run ended that was executed to its outcome."""
    if outcome.error is not None:
        return Ending(status="error", thread_status="error", values=outcome.values, error=outcome.error)
    is_waiting = outcome.has_next or bool(outcome.interrupts)
    return Ending(
        status="success",
        thread_status="interrupted" if is_waiting else "idle",
        values=outcome.values,
        interrupts=outcome.interrupts,
    )
