"""Versions 0.3 and 1.0 of the protocol: how each writes cards, tasks, messages and events.

Internally everything has the form of 0.3. Version 1.0 spells states, roles and parts differently, marks the
kind of an object by the member that holds it instead of a field `kind`, writes times in milliseconds, and has no
`final`: the last event is the one before the stream ends. Cards of both versions are in `agents`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from portside.agent.a2a.agents import to_modern_card

Plain = dict[str, Any]


class ProtocolVersion(NamedTuple):
    """How a version of the protocol writes cards, tasks, responses to messages, and events of streams."""

    is_modern: bool
    to_card: Callable[[Plain], Plain]
    to_task: Callable[[Plain], Plain]
    to_send_result: Callable[[Plain], Plain]
    to_event: Callable[[Plain], Plain]


def _keep(value: Plain) -> Plain:
    return value


def _to_modern_task(task: Plain) -> Plain:
    modern: Plain = {key: task[key] for key in ("id", "contextId") if key in task}
    modern["status"] = _to_modern_status(task["status"])
    if "artifacts" in task:
        modern["artifacts"] = [_to_modern_artifact(artifact) for artifact in task["artifacts"]]

    if "history" in task:
        modern["history"] = [_to_modern_message(message) for message in task["history"]]

    return modern


def _to_modern_event(event: Plain) -> Plain:
    if event["kind"] == "task":
        return {"task": _to_modern_task(event)}

    ids = {key: event[key] for key in ("taskId", "contextId")}
    if event["kind"] == "status-update":
        return {"statusUpdate": ids | {"status": _to_modern_status(event["status"])}}

    chunking = {key: event[key] for key in ("append", "lastChunk")}
    return {"artifactUpdate": ids | {"artifact": _to_modern_artifact(event["artifact"])} | chunking}


def to_modern_state(state: str) -> str:
    """Return a state as version 1.0 spells it."""
    return f"TASK_STATE_{state.upper().replace('-', '_')}"


def to_old_state(state: str) -> str:
    """Return a state as version 0.3 spells it."""
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


def _to_modern_status(status: Plain) -> Plain:
    timestamp = datetime.fromisoformat(status["timestamp"]).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    modern: Plain = {"state": to_modern_state(status["state"]), "timestamp": timestamp}
    if "message" in status:
        modern["message"] = _to_modern_message(status["message"])

    return modern


def _to_modern_message(message: Plain) -> Plain:
    modern = {key: value for key, value in message.items() if key != "kind"}
    return modern | {
        "role": f"ROLE_{message['role'].upper()}",
        "parts": [_to_modern_part(part) for part in message["parts"]],
    }


def _to_modern_artifact(artifact: Plain) -> Plain:
    return artifact | {"parts": [_to_modern_part(part) for part in artifact["parts"]]}


def _to_modern_part(part: Plain) -> Plain:
    shared = {key: part[key] for key in ("metadata",) if key in part}
    if part["kind"] == "file":
        file: Mapping[str, Any] = part["file"]
        names = {"uri": "url", "bytes": "raw", "mimeType": "mediaType", "name": "filename"}
        return {names[key]: value for key, value in file.items()} | shared

    return {part["kind"]: part[part["kind"]]} | shared


def _to_modern_send_result(task: Plain) -> Plain:
    return {"task": _to_modern_task(task)}


OLD = ProtocolVersion(is_modern=False, to_card=_keep, to_task=_keep, to_send_result=_keep, to_event=_keep)
MODERN = ProtocolVersion(
    is_modern=True,
    to_card=to_modern_card,
    to_task=_to_modern_task,
    to_send_result=_to_modern_send_result,
    to_event=_to_modern_event,
)
