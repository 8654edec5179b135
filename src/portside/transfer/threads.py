"""Threads with their state and its history.

A thread is created with its whole history by one request, so it is at the target completely or not at all. It keeps its
id, its times, its metadata, its lifetime, and the ids and times of its checkpoints. Afterwards its history is read at
the target and compared. Records of runs, their streams and the inside of a subgraph are not carried.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from portside.transfer.report import Report
from portside.transfer.server import RemoteServer, RequestRefused, UnexpectedAnswer, pick, to_id, to_objects

KIND = "threads"
PAGE = 50
# As many states as a request may have, and as many bytes as servers usually accept.
MAX_STATES = 1000
MAX_BYTES = 16 * 1024 * 1024
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")
_COMPARED = ("values", "next", "interrupts", "created_at")
State = dict[str, Any]


def carry_threads(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry all threads that the caller may see."""
    for thread in source.search("/threads/search", _build_search(source)):
        with report.item(KIND, thread.get("thread_id")):
            _carry(source, target, report, thread)


def _build_search(source: RemoteServer) -> dict[str, Any]:
    """Return the search for all threads, without their values where the source can leave them out."""
    search: dict[str, Any] = {"sort_by": "created_at", "sort_order": "asc"}
    selected = {**search, "select": ["thread_id", "created_at", "updated_at", "metadata", "status"]}
    try:
        source.call("POST", "/threads/search", body={**selected, "limit": 1})
    except RequestRefused as refusal:
        if refusal.status not in (400, 422):
            raise
        return search

    return selected


def _carry(source: RemoteServer, target: RemoteServer, report: Report, thread: dict[str, Any]) -> None:
    thread_id = to_id(thread["thread_id"])
    if target.find(f"/threads/{thread_id}") is not None:
        report.find(KIND)
        return

    states = _read_history(source, thread_id, MAX_STATES)
    if len(states) == MAX_STATES:
        report.note(KIND, thread_id, f"only the latest {MAX_STATES} states of its history are carried")

    body = {
        "thread_id": thread_id,
        "if_exists": "do_nothing",
        "metadata": _build_metadata(thread, states),
        **pick(thread, "created_at", "updated_at"),
        **_read_lifetime(source, thread_id),
    }

    _create(target, report, body, states, len(states))
    report.carry(KIND)
    _note_losses(report, thread, states)


def _read_history(server: RemoteServer, thread_id: str, count: int) -> list[State]:
    """Return the states of a thread, newest first."""
    states: list[State] = []
    before: dict[str, Any] = {}
    while len(states) < count:
        body = {"limit": min(PAGE, count - len(states)), **before}
        page = to_objects(server.call("POST", f"/threads/{thread_id}/history", body=body))
        states += [state for state in page if state.get("checkpoint")]
        if len(page) < body["limit"]:
            break

        before = {"before": {"configurable": {"checkpoint_id": _get_id(states[-1])}}}

    return states


def _build_metadata(thread: Mapping[str, Any], states: Sequence[State]) -> dict[str, Any]:
    metadata = dict(thread.get("metadata") or {})
    if states and "graph_id" not in metadata:
        metadata |= pick(states[0].get("metadata") or {}, "graph_id")

    return metadata


def _read_lifetime(source: RemoteServer, thread_id: str) -> dict[str, Any]:
    """Return the lifetime of a thread as a request has it; it counts from the import."""
    ttl = (source.find(f"/threads/{thread_id}", query={"include": "ttl"}) or {}).get("ttl")
    if not isinstance(ttl, dict) or not ttl.get("ttl_minutes"):
        return {}

    return {"ttl": {"ttl": ttl["ttl_minutes"], "strategy": ttl.get("strategy") or "delete"}}


def _create(target: RemoteServer, report: Report, body: dict[str, Any], states: list[State], state_count: int) -> None:
    """Create a thread with as much of its history of `state_count` states as one request holds, and compare it."""
    sent_states = states
    while sent_states:
        request = {**body, "history": build_changes(sent_states)}
        if len(msgspec.json.encode(request)) <= MAX_BYTES or len(sent_states) == 1:
            break

        sent_states = sent_states[: len(sent_states) // 2]

    if not sent_states:
        target.call("POST", "/threads", body=body)
        return

    try:
        target.call("POST", "/threads", body=request)
    except RequestRefused as refusal:
        if refusal.status == 413 and len(sent_states) > 1:
            _create(target, report, body, sent_states[: len(sent_states) // 2], state_count)
            return

        # Graphs in JavaScript take the values of a node alone.
        if refusal.status != 422 or "JavaScript" not in refusal.detail:
            raise
        _create_without_history(target, report, body, sent_states)
        return

    if len(sent_states) < state_count:
        reason = f"its history is too large: the latest {len(sent_states)} of {state_count} states are carried"
        report.note(KIND, body["thread_id"], reason)

    difference = compare_histories(sent_states, _read_history(target, body["thread_id"], len(sent_states)))
    if difference is not None:
        report.note(KIND, body["thread_id"], difference)


def _create_without_history(target: RemoteServer, report: Report, body: dict[str, Any], states: list[State]) -> None:
    """Create a thread with its last values, as if the node that ran last had returned them."""
    nodes = [task["name"] for state in states[1:2] for task in state.get("tasks") or ()]
    if not nodes:
        raise UnexpectedAnswer("its history does not tell which node wrote its values")

    update = {"values": states[0].get("values"), "as_node": nodes[0]}
    target.call("POST", "/threads", body={**body, "supersteps": [{"updates": [update]}]})
    report.note(KIND, body["thread_id"], "its graph is in JavaScript: its last values are carried, without its history")


def build_changes(states: Sequence[State]) -> list[dict[str, Any]]:
    """Return states, newest first, as a request has them: oldest first, and what each changed."""
    ordered = sorted(states, key=_get_id)
    by_id: dict[str, State] = {}
    changes = []
    for state in ordered:
        parent_id = (state.get("parent_checkpoint") or {}).get("checkpoint_id")
        parent = by_id.get(parent_id or "")
        by_id[_get_id(state)] = state
        changes.append(
            {
                "checkpoint_id": _get_id(state),
                "parent_checkpoint_id": parent_id if parent is not None else None,
                "created_at": state["created_at"],
                "metadata": state.get("metadata") or {},
                "next": state.get("next") or [],
                "tasks": [_to_task(task) for task in state.get("tasks") or ()],
                **_diff(_get_values(parent), _get_values(state)),
            }
        )

    return changes


def _diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    appended: dict[str, Any] = {}
    for key, value in after.items():
        earlier = before.get(key)
        if key in before and earlier == value:
            continue

        if isinstance(value, list) and isinstance(earlier, list) and value[: len(earlier)] == earlier:
            appended[key] = value[len(earlier) :]
        else:
            values[key] = value

    return {"values": values, "appended": appended, "removed": [key for key in before if key not in after]}


def _to_task(task: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": task["name"],
        "result": task.get("result"),
        "error": task.get("error"),
        "interrupts": [pick(interrupt, "id", "value") for interrupt in task.get("interrupts") or ()],
    }


def _get_id(state: Mapping[str, Any]) -> str:
    return to_id(state["checkpoint"]["checkpoint_id"])


def _get_values(state: Mapping[str, Any] | None) -> dict[str, Any]:
    values = {} if state is None else state.get("values")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UnexpectedAnswer("its values are no object")

    return values


def compare_histories(sent: Sequence[State], stored: Sequence[State]) -> str | None:
    """Return what is different between two histories, newest first; None if nothing is."""
    if [_get_id(state) for state in sent] != [_get_id(state) for state in stored]:
        return f"{len(stored)} of {len(sent)} states are at the target"

    for before, after in zip(sent, stored, strict=True):
        for name in _COMPARED:
            if not _is_same(before.get(name), after.get(name)):
                return f"{name} of the state {_get_id(before)} differs: {_shorten(before.get(name))} was sent"

    return None


def _is_same(before: Any, after: Any) -> bool:
    """Whether two values are equal, apart from what versions of libraries write differently: empty fields, times."""
    return bool(_normalize(before) == _normalize(after))


def _normalize(value: Any) -> Any:
    if isinstance(value, dict):
        items = {key: _normalize(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in (None, [], {}, False)}
    if isinstance(value, list):
        return [_normalize(item) for item in value]
    if isinstance(value, str) and _TIME.fullmatch(value):
        return datetime.fromisoformat(value)

    return value


def _shorten(value: Any) -> str:
    return msgspec.json.encode(value)[:100].decode("utf-8", "replace")


def _note_losses(report: Report, thread: Mapping[str, Any], states: Sequence[State]) -> None:
    """Note what the API does not tell about the last state of a thread."""
    thread_id = str(thread["thread_id"])
    if thread.get("status") == "busy":
        report.note(KIND, thread_id, "a run was in flight; it is carried as its last step left it")

    tasks = states[0].get("tasks") or [] if states else []
    waiting = [task for task in tasks if task.get("interrupts")]
    if any(task.get("checkpoint") for task in waiting):
        report.note(KIND, thread_id, "it waits inside of a subgraph, which begins again when it is resumed")
    if waiting and any(task.get("result") is not None for task in tasks):
        report.note(KIND, thread_id, "nodes that had finished beside the one that waits run again when it is resumed")
