"""From what a client asks of a run to what is stored and what a graph is executed with (contract: section 5)."""

import hashlib
import time
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from langgraph.version import __version__ as langgraph_version

from portside.agent.encryption.context import kept_context
from portside.agent.graphs.commands import parse_command
from portside.agent.graphs.protocol import Outcome, RunRequest
from portside.agent.queue.lifecycle import ClaimedRun, Ending, RequestKey
from portside.agent.runs.feedback import refuse_feedback
from portside.agent.types.access import ANYONE, Caller
from portside.agent.types.assistants import Assistant
from portside.agent.types.runs import STREAM_MODES, RunCreate
from portside.kernel.codec import dump_user, load
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.header_rules import forwarded_headers

DEFAULT_MODES = ["values"]
KEY_LOC = ["header", "Idempotency-Key"]
KEY_LIMIT = 255
FLAGS = ("stream_subgraphs", "stream_resumable", "strict_resume")
STATELESS = UUID(int=0)


class Ids(NamedTuple):
    """The names of a run that is being made, and who asks for it."""

    run_id: UUID
    thread_id: UUID
    request_id: str
    caller: Caller = ANYONE


def refuse_unsupported(body: RunCreate) -> None:
    """Refuse a command or a stream mode without sense, and fields that are not acted on. Raises Invalid, named."""
    if body.command is not None:
        parse_command(msgspec.to_builtins(body.command))
    if body.checkpoint is not None and body.checkpoint_id is not None:
        raise Invalid.field(["body", "checkpoint_id"], "Give either checkpoint or checkpoint_id")
    for mode in modes_of(body):
        if mode not in STREAM_MODES:
            allowed = ", ".join(STREAM_MODES)
            raise Invalid.field(["body", "stream_mode"], f"Invalid stream mode '{mode}'; allowed are {allowed}", "enum")
    refuse_feedback(body.feedback_keys)


def modes_of(body: RunCreate) -> list[str]:
    """Return the stream modes that a run is asked for."""
    modes = body.stream_mode or DEFAULT_MODES
    return modes if isinstance(modes, list) else [modes]


def request_key(
    given: str | None, thread_id: UUID | None, bodies: list[RunCreate], caller: Caller = ANYONE
) -> RequestKey | None:
    """Return the key that a client sent, in its scope: the thread, or the runs that have none, of this caller.

    Raises Invalid.
    """
    if given is None:
        return None
    if not 0 < len(given) <= KEY_LIMIT:
        raise Invalid.field(KEY_LOC, f"Expected 1 to {KEY_LIMIT} characters")
    if caller.identity:
        # The same word of somebody else is another key.
        given = f"{hashlib.sha256(caller.identity.encode('utf-8', 'replace')).hexdigest()}:{given}"
    digest = hashlib.sha256(msgspec.json.encode([_as_meant(body) for body in bodies], order="sorted"))
    return RequestKey(thread_id or STATELESS, given, digest.hexdigest())


def _as_meant(body: RunCreate) -> RunCreate:
    """Give what clients say in one call and leave out in another the same form in both."""
    flags = {name: bool(getattr(body, name)) for name in FLAGS}
    return msgspec.structs.replace(body, stream_mode=list(modes_of(body)), **flags)


def own_metadata(assistant: Assistant, body: RunCreate) -> dict[str, Any]:
    """Return the metadata that is a run's own; which assistant it is of is ours to say."""
    known = {"graph_id": assistant.graph_id}
    return {**known, **(body.metadata or {}), "assistant_id": str(assistant.assistant_id)}


def run_kwargs(assistant: Assistant, body: RunCreate, ids: Ids, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the `kwargs` that a run is stored with. Raises BadRequest when both context and configurable are given."""
    durability = body.durability or ("exit" if body.checkpoint_during is False else "async")
    context = _context(assistant, body)
    return {
        "input": body.input,
        "command": None if body.command is None else msgspec.to_builtins(body.command),
        "config": _config(assistant, body, ids, metadata),
        "context": context,
        "stream_mode": modes_of(body),
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": body.webhook,
        "feedback_keys": body.feedback_keys,
        "temporary": False,
        "subgraphs": bool(body.stream_subgraphs),
        "resumable": bool(body.stream_resumable),
        "checkpoint_during": durability != "exit",
        "durability": durability,
        **_optional(body),
        **kept_context(),
    }


def _optional(body: RunCreate) -> dict[str, Any]:
    """Return what the contract's `kwargs` do not list, where it was asked for."""
    given = {
        "strict_resume": body.strict_resume or None,
        "langsmith_tracer": None if body.langsmith_tracer is None else msgspec.to_builtins(body.langsmith_tracer),
    }
    return {name: value for name, value in given.items() if value is not None}


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
        # What a gateway says in a header is not for a body to say otherwise.
        **forwarded_headers(),
        **_checkpoint(body),
        "run_id": str(ids.run_id),
        "thread_id": str(ids.thread_id),
        "graph_id": assistant.graph_id,
        "assistant_id": str(assistant.assistant_id),
        **_asker(ids.caller),
        "langgraph_request_id": ids.request_id,
        "__request_start_time_ms__": time.time_ns() // 1_000_000,
        "__after_seconds__": body.after_seconds or 0,
    }
    config = {**assistant.config, **given, "configurable": configurable}
    config["metadata"] = {**(given.get("metadata") or {}), **metadata}
    return config


def _asker(caller: Caller) -> dict[str, Any]:
    """Return what a graph is told of who asks; a user is told as plain data, whatever authentication made of it."""
    return {
        "user_id": caller.identity,
        "langgraph_auth_user": None if caller.user is None else load(dump_user(dict(caller.user))),
        "langgraph_auth_user_id": caller.identity,
        "langgraph_auth_permissions": list(caller.permissions),
    }


def _checkpoint(body: RunCreate) -> dict[str, Any]:
    if body.checkpoint is not None:
        named = msgspec.structs.asdict(body.checkpoint)
        return {key: value for key, value in named.items() if value is not None and key != "thread_id"}
    return {"checkpoint_id": body.checkpoint_id} if body.checkpoint_id else {}


def execution_request(run: ClaimedRun, *, resume: bool) -> RunRequest:
    """Return what the graph is executed with."""
    kwargs, config = run.kwargs, dict(run.kwargs["config"])
    # Its checkpoints are found by this id when the run is rolled back, so it is not a client's to say.
    known = {"run_attempt": run.attempt, "run_id": str(run.run_id), "langgraph_version": langgraph_version}
    config["metadata"] = {**config["metadata"], **known}
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
        strict_resume=kwargs.get("strict_resume", False),
        tracer=kwargs.get("langsmith_tracer"),
        resume=resume,
        attempt=run.attempt,
        is_passing=run.is_passing,
    )


def ending_of(outcome: Outcome) -> Ending:
    """Return how a run ended that was executed to its outcome."""
    if outcome.is_refused:
        return Ending(status="error", thread_status=None, error=outcome.error)
    if outcome.error is not None:
        values, nothing = outcome.values, outcome.interrupts
        return Ending(status="error", thread_status="error", values=values, interrupts=nothing, error=outcome.error)
    is_waiting = outcome.has_next or bool(outcome.interrupts)
    return Ending(
        status="success",
        thread_status="interrupted" if is_waiting else "idle",
        values=outcome.values,
        interrupts=outcome.interrupts,
    )
