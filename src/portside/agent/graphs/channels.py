"""From what langgraph streams to the channels of the event streaming protocol (contract: section 13).

`values` needs no conversion and is not made here. Subgraphs are seen by the tasks inside them: the first one starts the
subgraph, the result of the task around them ends it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_messages

from portside.agent.graphs.listening import Spoken
from portside.agent.graphs.messages import Narrator

MODES = frozenset({"updates", "messages", "custom", "tasks", "checkpoints", "tools"})
INTERRUPT = "__interrupt__"
ASKED = "asked"
"""Not a method of the protocol: it says which questions a subgraph asked, for the end of the run tells only what."""
Namespace = tuple[str, ...]


class ChannelEvent(NamedTuple):
    """An event on a channel: the name of its method, where in the graph, and what."""

    method: str
    namespace: Namespace
    data: Any


class Channels:
    """Converts the stream of one run."""

    def __init__(self) -> None:
        self._narrators: dict[Namespace, Narrator] = {}
        self._subgraphs: dict[Namespace, str] = {}
        self._calls: dict[str, str] = {}

    def convert(self, namespace: Namespace, mode: str, payload: Any) -> Iterator[ChannelEvent]:
        """Yield the events that one item of the stream becomes, if any."""
        if mode == "updates":
            yield from _updates(namespace, payload)
        elif mode == "messages":
            yield from self._messages(namespace, *payload)
        elif mode == "custom" and isinstance(payload, Spoken):
            for told in self._narrator(namespace).quote(payload):
                yield ChannelEvent("messages", namespace, told)
        elif mode == "custom":
            yield ChannelEvent("custom", namespace, payload)
        elif mode == "tasks":
            yield from self._tasks(namespace, payload)
        elif mode == "checkpoints":
            yield ChannelEvent("checkpoints", namespace, _checkpoint(payload))
        elif mode == "tools":
            yield ChannelEvent("tools", namespace, payload)

    def _messages(self, namespace: Namespace, message: Any, metadata: dict[str, Any]) -> Iterator[ChannelEvent]:
        if not isinstance(message, BaseMessage):
            message = _read_message(message)
        for told in self._narrator(namespace).tell(message, metadata):
            yield ChannelEvent("messages", namespace, told)

    def _narrator(self, namespace: Namespace) -> Narrator:
        return self._narrators.setdefault(namespace, Narrator())

    def _tasks(self, namespace: Namespace, task: dict[str, Any]) -> Iterator[ChannelEvent]:
        if "result" not in task:
            yield from self._note_start(namespace, task)
            yield ChannelEvent("tasks", namespace, task)
            return
        if namespace in self._narrators:
            for told in self._narrators[namespace].end_task(task["id"], _error_of(task)):
                yield ChannelEvent("messages", namespace, told)
        yield ChannelEvent("tasks", namespace, task)
        if namespace and task.get("interrupts"):
            yield ChannelEvent(ASKED, namespace, [question["id"] for question in task["interrupts"]])
        for child in [ns for ns, parent in self._subgraphs.items() if parent == task["id"] and ns[:-1] == namespace]:
            del self._subgraphs[child]
            yield ChannelEvent("lifecycle", child, _ending(child, task))

    def _note_start(self, namespace: Namespace, task: dict[str, Any]) -> Iterator[ChannelEvent]:
        call_id = _tool_call_of(task.get("input"))
        if call_id is not None:
            self._calls[task["id"]] = call_id
        if not namespace or namespace in self._subgraphs:
            return
        name, _, parent = namespace[-1].partition(":")
        self._subgraphs[namespace] = parent
        agent = (task.get("metadata") or {}).get("lc_agent_name")
        place = {"namespace": list(namespace), "trigger_call_id": parent}
        started: dict[str, Any] = {"event": "started", "graph_name": agent or name, **place}
        if parent in self._calls:
            started["cause"] = {"type": "toolCall", "tool_call_id": self._calls[parent]}
        yield ChannelEvent("lifecycle", namespace, started)


def _updates(namespace: Namespace, payload: Any) -> Iterator[ChannelEvent]:
    if not isinstance(payload, Mapping):
        return
    for node, update in payload.items():
        if node != INTERRUPT:
            yield ChannelEvent("updates", namespace, {"node": node, "values": update})


def _checkpoint(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Name a checkpoint and its place; its values are on another channel."""
    metadata = payload.get("metadata") or {}
    shown = {
        "id": _checkpoint_id(payload.get("config")),
        "step": metadata.get("step"),
        "source": metadata.get("source"),
    }
    parent = _checkpoint_id(payload.get("parent_config"))
    return shown if parent is None else {**shown, "parent_id": parent}


def _checkpoint_id(config: Any) -> Any:
    return ((config or {}).get("configurable") or {}).get("checkpoint_id")


def _ending(namespace: Namespace, task: dict[str, Any]) -> dict[str, Any]:
    name = namespace[-1].partition(":")[0]
    if task.get("interrupts"):
        return {"event": "interrupted", "graph_name": name}
    if (error := _error_of(task)) is not None:
        return {"event": "failed", "graph_name": name, "error": error}
    return {"event": "completed", "graph_name": name}


def _error_of(task: dict[str, Any]) -> str | None:
    error = task.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return str(error) if error else None


def _tool_call_of(given: Any) -> str | None:
    """Return the id of the tool call that a task was made for, if it was."""
    call = given.get("tool_call") if isinstance(given, dict) else None
    found = call.get("id") if isinstance(call, dict) else None
    return found if isinstance(found, str) else None


def _read_message(raw: Any) -> BaseMessage:
    """Read a message back from its JSON."""
    if raw.get("type") == "AIMessageChunk":
        return AIMessageChunk.model_validate(raw)
    return convert_to_messages([raw])[0]
