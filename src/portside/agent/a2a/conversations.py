"""What was said on a thread, as messages of the protocol: the history of a context, or of one task of it.

A message that came in by the protocol carries the id of the first run of its task (`TASK_START`), so what follows it,
up to the next such message, belongs to that task. What people said through other doors belongs to none.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from portside.agent.a2a.parts import data_part, dict_of, parts_of

TASK_START = "a2a.task_start_id"
AS_SENT = "a2a.message"
MESSAGE_ID = "a2a.message_id"
EVERY_TOOL, NO_TOOL = "all", "none"
_ROLES = {"human": "user", "ai": "agent", "AIMessageChunk": "agent"}

Plain = dict[str, Any]


class Said(NamedTuple):
    """A message and the first run of its task, where it has one."""

    message: Plain
    start: str | None


class Tools:
    """Whose results are told: those of every tool, of none, or of those that the setting names."""

    def __init__(self, named: str) -> None:
        names = frozenset(name for part in named.split(",") if (name := part.strip()))
        self._names = None if names == {EVERY_TOOL} else names - {NO_TOOL}

    def tells(self, name: Any) -> bool:
        """Whether the results of a tool are told."""
        return self._names is None or name in self._names


def task_id_of(thread_id: UUID, start: str | UUID) -> str:
    """Return the id of a task: its context and its first run (contract: section 10)."""
    return f"{thread_id}:{start}"


def conversation(values: Any, thread_id: UUID, tools: Tools) -> list[Said]:
    """Return what was said, oldest first, out of the values of a thread; nothing where its graph has no messages."""
    messages = values.get("messages") if isinstance(values, dict) else None
    start: str | None = None
    said: list[Said] = []
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        kept = dict_of(message.get("additional_kwargs"))
        if message.get("type") == "human" or TASK_START in kept:
            start = kept.get(TASK_START)
        shown = _result(message, tools) if message.get("type") == "tool" else _message(message, kept)
        if shown is None:
            continue
        if _is_more_results(said, shown, start):
            said[-1].message["parts"][0]["data"]["tool_results"] += shown["parts"][0]["data"]["tool_results"]
            continue
        about = {
            "messageId": str(message.get("id") or uuid5(thread_id, f"message {place}")),
            "contextId": str(thread_id),
        }
        said.append(Said(shown | about | ({"taskId": task_id_of(thread_id, start)} if start else {}), start))
    return said


def answer_of(said: Iterable[Said], start: str) -> Plain | None:
    """Return the last message of the agent that says something in a task; results of tools are none."""
    own = [each.message for each in said if each.start == start and not _is_results(each.message)]
    return own[-1] if own and own[-1]["role"] == "agent" else None


def of_task(said: Iterable[Said], start: str) -> Iterator[Said]:
    """Yield what was said in one task."""
    return (each for each in said if each.start == start)


def _message(message: Plain, kept: Plain) -> Plain | None:
    role, parts = _ROLES.get(str(message.get("type"))), parts_of(message.get("content"))
    if role is None or not parts:
        return None
    return {**dict_of(kept.get(AS_SENT)), "kind": "message", "role": role, "parts": parts}


def _result(message: Plain, tools: Tools) -> Plain | None:
    """Tell the result of a tool as the contract does."""
    if not tools.tells(message.get("name")):
        return None
    names = {"toolCallId": "tool_call_id", "content": "content", "name": "name", "status": "status"}
    result = {name: message.get(key) for name, key in names.items()}
    return {"kind": "message", "role": "agent", "parts": [data_part({"tool_results": [result]})]}


def _is_more_results(said: list[Said], shown: Plain, start: str | None) -> bool:
    return bool(said) and said[-1].start == start and _is_results(shown) and _is_results(said[-1].message)


def _is_results(message: Plain) -> bool:
    part = message["parts"][0]
    return part["kind"] == "data" and isinstance(part["data"], dict) and "tool_results" in part["data"]
