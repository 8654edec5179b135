"""The two versions of the protocol: which one a method belongs to, and how each writes tasks, messages and events.

Inside everything is written as in 0.3. Version 1.0 names states, roles and parts otherwise, tells kinds by the key that
holds a thing instead of a `kind`, has moments in milliseconds, and no `final`: the end of a stream says it.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

Plain = dict[str, Any]


class Dialect(NamedTuple):
    """A version of the protocol: how a task, the answer to a message and an event of a stream are written."""

    is_modern: bool
    task: Callable[[Plain], Plain]
    sent: Callable[[Plain], Plain]
    event: Callable[[Plain], Plain]


def _as_it_is(thing: Plain) -> Plain:
    return thing


def _modern_task(task: Plain) -> Plain:
    shown = {key: task[key] for key in ("id", "contextId") if key in task} | {"status": _status(task["status"])}
    if "artifacts" in task:
        shown["artifacts"] = [_artifact(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        shown["history"] = [_message(message) for message in task["history"]]
    return shown


def _modern_event(event: Plain) -> Plain:
    if event["kind"] == "task":
        return {"task": _modern_task(event)}
    named = {key: event[key] for key in ("taskId", "contextId")}
    if event["kind"] == "status-update":
        return {"statusUpdate": named | {"status": _status(event["status"])}}
    bounds = {key: event[key] for key in ("append", "lastChunk")}
    return {"artifactUpdate": named | {"artifact": _artifact(event["artifact"])} | bounds}


def modern_state(state: str) -> str:
    """Return what version 1.0 calls a state."""
    return f"TASK_STATE_{state.upper().replace('-', '_')}"


def old_state(state: str) -> str:
    """Return what version 0.3 calls a state."""
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


def _status(status: Plain) -> Plain:
    moment = datetime.fromisoformat(status["timestamp"]).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = {"state": modern_state(status["state"]), "timestamp": moment}
    return shown | {"message": _message(status["message"])} if "message" in status else shown


def _message(message: Plain) -> Plain:
    shown = {key: value for key, value in message.items() if key != "kind"}
    return shown | {"role": f"ROLE_{message['role'].upper()}", "parts": [_part(part) for part in message["parts"]]}


def _artifact(artifact: Plain) -> Plain:
    return artifact | {"parts": [_part(part) for part in artifact["parts"]]}


def _part(part: Plain) -> Plain:
    shared = {key: part[key] for key in ("metadata",) if key in part}
    if part["kind"] == "file":
        file: Mapping[str, Any] = part["file"]
        names = {"uri": "url", "bytes": "raw", "mimeType": "mediaType", "name": "filename"}
        return {names[key]: value for key, value in file.items()} | shared
    return {part["kind"]: part[part["kind"]]} | shared


OLD = Dialect(False, _as_it_is, _as_it_is, _as_it_is)
MODERN = Dialect(True, _modern_task, lambda task: {"task": _modern_task(task)}, _modern_event)
