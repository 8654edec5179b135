"""The channels of the event streaming protocol, made from langgraph's stream.

docs/compatibility.md lists the protocol's channels; `client.threads.stream` of langgraph_sdk reads them.

`values` needs no conversion and is not made here. Langgraph does not report the start and the end of a subgraph: its
first task shows that it has started, and the result of the task that called it shows that it has ended. The messages
of a namespace are converted by `message_events`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_messages

from portside.executor.message_events import Messages
from portside.executor.model_events import ModelEvent
from portside.executor.requests import INTERRUPT, INTERRUPT_IDS, LifecycleEvent

MODES = frozenset({"updates", "messages", "custom", "tasks", "checkpoints", "tools"})
Namespace = tuple[str, ...]


class ChannelEvent(NamedTuple):
    """An event of a channel: its method, the namespace in the graph, and its data."""

    method: str
    namespace: Namespace
    data: Any


class Channels:
    """Converts the stream of one run."""

    def __init__(self) -> None:
        self._messages_by_namespace: dict[Namespace, Messages] = {}
        self._subgraphs: dict[Namespace, str] = {}
        self._calls: dict[str, str] = {}

    def convert(self, namespace: Namespace, mode: str, payload: Any) -> Iterator[ChannelEvent]:
        """Yield the events for one item of the stream."""
        if mode == "updates":
            yield from _convert_updates(namespace, payload)
        elif mode == "messages":
            yield from self._convert_message(namespace, *payload)
        elif mode == "custom" and isinstance(payload, ModelEvent):
            for event in self._get_messages(namespace).convert_native(payload):
                yield ChannelEvent("messages", namespace, event)
        elif mode == "custom":
            yield ChannelEvent("custom", namespace, payload)
        elif mode == "tasks":
            yield from self._convert_task(namespace, payload)
        elif mode == "checkpoints":
            yield ChannelEvent("checkpoints", namespace, _convert_checkpoint(payload))
        elif mode == "tools":
            yield ChannelEvent("tools", namespace, payload)

    def _convert_message(self, namespace: Namespace, message: Any, metadata: dict[str, Any]) -> Iterator[ChannelEvent]:
        if not isinstance(message, BaseMessage):
            message = _read_message(message)

        for event in self._get_messages(namespace).convert(message, metadata):
            yield ChannelEvent("messages", namespace, event)

    def _get_messages(self, namespace: Namespace) -> Messages:
        return self._messages_by_namespace.setdefault(namespace, Messages())

    def _convert_task(self, namespace: Namespace, task: dict[str, Any]) -> Iterator[ChannelEvent]:
        if "result" not in task:
            yield from self._start(namespace, task)
            yield ChannelEvent("tasks", namespace, task)
            return

        if namespace in self._messages_by_namespace:
            for event in self._messages_by_namespace[namespace].end_task(task["id"], _get_error(task)):
                yield ChannelEvent("messages", namespace, event)

        yield ChannelEvent("tasks", namespace, task)
        if namespace and task.get("interrupts"):
            yield ChannelEvent(INTERRUPT_IDS, namespace, [question["id"] for question in task["interrupts"]])

        for child in [ns for ns, parent in self._subgraphs.items() if parent == task["id"] and ns[:-1] == namespace]:
            del self._subgraphs[child]
            yield ChannelEvent("lifecycle", child, _build_end_event(child, task))

    def _start(self, namespace: Namespace, task: dict[str, Any]) -> Iterator[ChannelEvent]:
        call_id = _find_tool_call(task.get("input"))
        if call_id is not None:
            self._calls[task["id"]] = call_id

        if not namespace or namespace in self._subgraphs:
            return

        name, _, parent = namespace[-1].partition(":")
        self._subgraphs[namespace] = parent
        agent = (task.get("metadata") or {}).get("lc_agent_name")

        event: dict[str, Any] = {"event": LifecycleEvent.STARTED, "graph_name": agent or name}
        event |= {"namespace": list(namespace), "trigger_call_id": parent}
        if parent in self._calls:
            event["cause"] = {"type": "toolCall", "tool_call_id": self._calls[parent]}

        yield ChannelEvent("lifecycle", namespace, event)


def _convert_updates(namespace: Namespace, payload: Any) -> Iterator[ChannelEvent]:
    if not isinstance(payload, Mapping):
        return

    for node, update in payload.items():
        if node != INTERRUPT:
            yield ChannelEvent("updates", namespace, {"node": node, "values": update})


def _convert_checkpoint(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's id and position; its values are on another channel."""
    metadata = payload.get("metadata") or {}
    checkpoint = {
        "id": _get_checkpoint_id(payload.get("config")),
        "step": metadata.get("step"),
        "source": metadata.get("source"),
    }

    parent = _get_checkpoint_id(payload.get("parent_config"))
    return checkpoint if parent is None else {**checkpoint, "parent_id": parent}


def _get_checkpoint_id(config: Any) -> Any:
    return ((config or {}).get("configurable") or {}).get("checkpoint_id")


def _build_end_event(namespace: Namespace, task: dict[str, Any]) -> dict[str, Any]:
    name = namespace[-1].partition(":")[0]
    if task.get("interrupts"):
        return {"event": LifecycleEvent.INTERRUPTED, "graph_name": name}
    if (error := _get_error(task)) is not None:
        return {"event": LifecycleEvent.FAILED, "graph_name": name, "error": error}

    return {"event": LifecycleEvent.COMPLETED, "graph_name": name}


def _get_error(task: dict[str, Any]) -> str | None:
    error = task.get("error")
    if isinstance(error, dict):
        error = error.get("message")

    return str(error) if error else None


def _find_tool_call(task_input: Any) -> str | None:
    """Return the id of the tool call that a task executes, if any."""
    call = task_input.get("tool_call") if isinstance(task_input, dict) else None
    call_id = call.get("id") if isinstance(call, dict) else None
    return call_id if isinstance(call_id, str) else None


def _read_message(raw: Any) -> BaseMessage:
    """Parse a message from its JSON."""
    if raw.get("type") == "AIMessageChunk":
        return AIMessageChunk.model_validate(raw)
    return convert_to_messages([raw])[0]
