"""The channels of the event streaming protocol, made from langgraph's stream.

docs/compatibility.md lists the protocol's channels; `client.threads.stream` of langgraph_sdk reads them.

`values` needs no conversion and is not made here. Langgraph does not report the start and the end of a subgraph: its
first task shows that it has started, and the result of the task that called it shows that it has ended.

On `messages` a message begins, its blocks grow, and it finishes. A model that streams arrives in pieces; other messages
arrive at once. Only messages of models are sent: messages that a node made are in the values, and results of tools
belong to `tools`. Each event names its message, so that clients can tell apart two models that stream at the same time.

A node may call a model with `model.astream_events(version="v3")`, which emits the protocol's own events. Langgraph's
stream of messages does not contain those; the message would only arrive as a whole at its end. `ModelListener` puts
them into the graph's own stream, by its writer, so that they keep their place among the other events.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_messages
from langchain_core.messages.ai import add_usage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.types import StreamWriter

from portside.executor.requests import INTERRUPT, INTERRUPT_IDS

MODES = frozenset({"updates", "messages", "custom", "tasks", "checkpoints", "tools"})
Namespace = tuple[str, ...]


# Models that emit the protocol's own events.
MODEL_RUN = "portside_model_run"
"""The key of a message's metadata that holds the id of the model call that made the message."""
_NAMESPACE_KEY = "langgraph_checkpoint_ns"


class ModelEvent(NamedTuple):
    """An event that a model emitted in the protocol's own form, and the metadata of the call."""

    event: dict[str, Any]
    metadata: dict[str, Any]


class ModelListener(BaseCallbackHandler):
    """Passes on the events of the models of one run."""

    # A callback that ran later would deliver an event after the end of its task.
    run_inline = True

    def __init__(self) -> None:
        self._write: StreamWriter | None = None
        self._calls: dict[UUID, dict[str, Any]] = {}

    def on_chain_start(self, *_: Any, metadata: dict[str, Any] | None = None, **__: Any) -> None:
        """Find the graph's writer."""
        self._find_writer(metadata or {})

    def on_chat_model_start(
        self,
        *_: Any,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        """Remember a call, and put its id into the metadata that the pieces of its message carry."""
        if metadata is None or _NAMESPACE_KEY not in metadata or TAG_NOSTREAM in (tags or ()):
            return

        self._find_writer(metadata)
        metadata[MODEL_RUN] = str(run_id)
        self._calls[run_id] = metadata

    def on_llm_new_token(self, *_: Any, chunk: Any = None, run_id: UUID, **__: Any) -> None:
        """Give a piece the id of its message if the model did not: langgraph would give each piece a different one."""
        if isinstance(chunk, ChatGenerationChunk) and chunk.message.id is None and run_id in self._calls:
            chunk.message.id = f"lc_run--{run_id}"

    def on_stream_event(self, event: Any, *, run_id: UUID, **_: Any) -> None:
        """Write a model's event into the graph's stream."""
        metadata = self._calls.get(run_id)
        if metadata is not None and self._write is not None:
            self._write(ModelEvent(dict(event), metadata))

    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Forget a call."""
        self._calls.pop(run_id, None)

    def on_llm_error(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Forget a call."""
        self._calls.pop(run_id, None)

    def _find_writer(self, metadata: dict[str, Any]) -> None:
        """Remember the writer of the root graph. A graph that a node runs itself streams to that node."""
        if self._write is not None or _NAMESPACE_KEY not in metadata or "|" in metadata[_NAMESPACE_KEY]:
            return

        try:
            self._write = get_stream_writer()
        except (RuntimeError, KeyError):
            # The first callbacks of a task run before its context is set.
            return


# Messages.
# Langgraph's metadata has one of these only if a model made the message.
_MODEL_KEYS = frozenset({"ls_model_type", "ls_provider", "ls_model_name"})
_GROWING = {"text": "text", "reasoning": "reasoning", "tool_call_chunk": "args", "server_tool_call_chunk": "args"}
_DELTAS = {
    "text": "text-delta",
    "reasoning": "reasoning-delta",
    "tool_call_chunk": "tool-call-delta",
    "server_tool_call_chunk": "tool-call-delta",
}
_FINAL = {"tool_call_chunk": "tool_call", "server_tool_call_chunk": "server_tool_call"}
# The metadata that clients read, by langgraph's names for it.
_METADATA = {
    "ls_provider": "provider",
    "ls_model_name": "model",
    "ls_model_type": "model_type",
    "run_id": "run_id",
    "thread_id": "thread_id",
    "langgraph_node": "langgraph_node",
}

MessageEvent = dict[str, Any]


class MessageStream:
    """A message that arrives in pieces."""

    def __init__(self, message_id: str, task: str) -> None:
        self.task = task
        self.message_id = message_id
        self._blocks: list[dict[str, Any]] = []
        self._index_of_block: dict[Any, int] = {}
        self._usage: Any = None

    def start(self, metadata: dict[str, Any]) -> MessageEvent:
        """Return the event that begins the message."""
        return {"event": "message-start", "role": "ai", "id": self.message_id, "metadata": _select_metadata(metadata)}

    def grow(self, message: BaseMessage) -> Iterator[MessageEvent]:
        """Yield the events of a piece."""
        if (usage := getattr(message, "usage_metadata", None)) is not None:
            self._usage = add_usage(self._usage, usage)

        for position, block in enumerate(_read_blocks(message)):
            key = block["index"] if block.get("index") is not None else (block["type"], position)
            index = self._index_of_block.get(key)
            if index is None:
                index = self._index_of_block[key] = len(self._blocks)
                self._blocks.append(_build_empty_block(block))
                yield self._event("content-block-start", index=index, content=dict(self._blocks[index]))

            delta = _append_piece(self._blocks[index], block)
            if delta is not None:
                yield self._event("content-block-delta", index=index, delta=delta)

    def finish(self) -> Iterator[MessageEvent]:
        """Yield each block as a whole, and the end of the message."""
        for index, block in enumerate(self._blocks):
            yield self._event("content-block-finish", index=index, content=_build_finished_block(block))

        usage = {} if self._usage is None else {"usage": self._usage}
        yield self._event("message-finish", **usage)

    def _event(self, name: str, **rest: Any) -> MessageEvent:
        return {"event": name, "message_id": self.message_id, **rest}


class NativeMessageStream:
    """A message of a model that emits the protocol's events itself."""

    def __init__(self, message_id: str, task: str) -> None:
        self.task = task
        self.message_id = message_id

    def convert_native(self, model_event: ModelEvent) -> MessageEvent:
        """Return the model's event with the id of its message, which the model sends only at the beginning."""
        event = model_event.event
        if event["event"] == "message-start":
            return {
                **event,
                "id": self.message_id,
                "metadata": {**_select_metadata(model_event.metadata), **(event.get("metadata") or {})},
            }

        return {**event, "message_id": self.message_id}

    def finish(self) -> Iterator[MessageEvent]:
        """Yield the end of the message, for a model that stopped without sending it."""
        yield {"event": "message-finish", "message_id": self.message_id}


class Messages:
    """Converts the messages of one namespace.

    A model may arrive in langgraph's pieces and in its own events; the first form that arrives is used.
    """

    def __init__(self) -> None:
        self._open: dict[str, MessageStream | NativeMessageStream] = {}
        self._finished: set[str] = set()

    def convert(self, message: BaseMessage, metadata: dict[str, Any]) -> Iterator[MessageEvent]:
        """Yield the events of a message, or of a piece of one, if a model made it."""
        key = str(metadata.get(MODEL_RUN) or message.id)
        if not isinstance(message, AIMessage) or _MODEL_KEYS.isdisjoint(metadata) or key in self._finished:
            return

        stream = self._open.get(key)
        if isinstance(stream, NativeMessageStream):
            return

        if stream is None:
            stream = self._open[key] = MessageStream(str(message.id), _get_task_id(metadata))
            yield stream.start(metadata)
        elif not isinstance(message, AIMessageChunk):
            # The complete message, after its pieces were sent.
            yield from self._close(key)
            return

        yield from stream.grow(message)
        if not isinstance(message, AIMessageChunk) or getattr(message, "chunk_position", None) == "last":
            yield from self._close(key)

    def convert_native(self, model_event: ModelEvent) -> Iterator[MessageEvent]:
        """Yield the events of a model that emits the protocol's own."""
        key = model_event.metadata[MODEL_RUN]
        name = model_event.event["event"]
        stream = self._open.get(key)
        if stream is None:
            if name != "message-start" or key in self._finished:
                return

            message_id = model_event.event.get("id") or f"lc_run--{key}"
            stream = self._open[key] = NativeMessageStream(message_id, _get_task_id(model_event.metadata))

        if isinstance(stream, NativeMessageStream):
            yield stream.convert_native(model_event)
            if name in {"message-finish", "error"}:
                self._finished.add(key)
                del self._open[key]
        elif name == "message-finish":
            yield from self._close(key)

    def end_task(self, task: str, error: str | None) -> Iterator[MessageEvent]:
        """End the messages that a task left open: older models mark no piece as the last, and failed ones send none."""
        for key in [key for key, stream in self._open.items() if stream.task == task]:
            if error is None:
                yield from self._close(key)
            else:
                self._finished.add(key)
                yield {"event": "error", "message_id": self._open.pop(key).message_id, "message": error}

    def _close(self, key: str) -> Iterator[MessageEvent]:
        self._finished.add(key)
        yield from self._open.pop(key).finish()


def _get_task_id(metadata: dict[str, Any]) -> str:
    return str(metadata.get("langgraph_checkpoint_ns", "")).rpartition(":")[2]


def _select_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    return {name: metadata[key] for key, name in _METADATA.items() if metadata.get(key) is not None}


def _read_blocks(message: BaseMessage) -> list[dict[str, Any]]:
    """Return the content of a message as blocks."""
    try:
        blocks: list[Any] = [dict(block) for block in message.content_blocks]
    except (TypeError, ValueError, KeyError, AttributeError):
        blocks = _build_blocks(message)

    if isinstance(message, AIMessage) and not isinstance(message, AIMessageChunk):
        blocks += [{**call, "type": "invalid_tool_call"} for call in message.invalid_tool_calls]

    return blocks


def _build_blocks(message: BaseMessage) -> list[dict[str, Any]]:
    """Return the text and the tool calls of a message as blocks, for langchain-core before 1.0."""
    text: Any = message.text
    content = text if isinstance(text, str) else text()

    blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if content else []
    if isinstance(message, AIMessageChunk):
        return blocks + [{**chunk, "type": "tool_call_chunk"} for chunk in message.tool_call_chunks]
    if isinstance(message, AIMessage):
        return blocks + [{**call, "type": "tool_call"} for call in message.tool_calls]

    return blocks


def _build_empty_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block as it begins, with the growing field empty."""
    growing = _GROWING.get(block["type"])
    empty = {key: value for key, value in block.items() if key != "index" or growing == "args"}
    return empty if growing is None else {**empty, growing: ""}


def _append_piece(target: dict[str, Any], block: dict[str, Any]) -> MessageEvent | None:
    """Append a piece to its block, and return the delta for clients; None if there is nothing to append."""
    growing = _GROWING.get(block["type"])
    keys = block.keys() - {growing, "type", "index"}
    target.update({key: value for key, value in block.items() if key in keys and value is not None})

    if growing is None or not block.get(growing) or target["type"] != block["type"]:
        return None

    target[growing] = target.get(growing, "") + block[growing]
    return {"type": _DELTAS[block["type"]], growing: block[growing]}


def _build_finished_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a finished block, with the arguments of a tool call parsed, or an invalid tool call."""
    final = _FINAL.get(block["type"])
    if final is None:
        return block

    fields = {key: value for key, value in block.items() if key != "index"}
    try:
        return {**fields, "type": final, "args": json.loads(block["args"] or "{}")}
    except ValueError:
        return {**fields, "type": "invalid_tool_call", "error": "The arguments are not valid JSON"}


# Channels.


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
            yield from self._messages(namespace, *payload)
        elif mode == "custom" and isinstance(payload, ModelEvent):
            for event in self._get_messages(namespace).convert_native(payload):
                yield ChannelEvent("messages", namespace, event)
        elif mode == "custom":
            yield ChannelEvent("custom", namespace, payload)
        elif mode == "tasks":
            yield from self._tasks(namespace, payload)
        elif mode == "checkpoints":
            yield ChannelEvent("checkpoints", namespace, _convert_checkpoint(payload))
        elif mode == "tools":
            yield ChannelEvent("tools", namespace, payload)

    def _messages(self, namespace: Namespace, message: Any, metadata: dict[str, Any]) -> Iterator[ChannelEvent]:
        if not isinstance(message, BaseMessage):
            message = _read_message(message)

        for event in self._get_messages(namespace).convert(message, metadata):
            yield ChannelEvent("messages", namespace, event)

    def _get_messages(self, namespace: Namespace) -> Messages:
        return self._messages_by_namespace.setdefault(namespace, Messages())

    def _tasks(self, namespace: Namespace, task: dict[str, Any]) -> Iterator[ChannelEvent]:
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

        event: dict[str, Any] = {"event": "started", "graph_name": agent or name}
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
        return {"event": "interrupted", "graph_name": name}
    if (error := _get_error(task)) is not None:
        return {"event": "failed", "graph_name": name, "error": error}

    return {"event": "completed", "graph_name": name}


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
