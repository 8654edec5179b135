"""The events of messages in the event streaming protocol.

A message begins, its blocks grow, and it finishes. A model that streams arrives in pieces; other messages arrive at
once. Only messages of models are sent: messages that a node made are in the values, and results of tools belong to
`tools`. Each event names its message, so that clients can tell apart two models that stream at the same time.
"""

import json
from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import add_usage

from portside.executor.model_events import MODEL_RUN, ModelEvent

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
                yield self._build_event("content-block-start", index=index, content=dict(self._blocks[index]))

            delta = _append_piece(self._blocks[index], block)
            if delta is not None:
                yield self._build_event("content-block-delta", index=index, delta=delta)

    def finish(self) -> Iterator[MessageEvent]:
        """Yield each block as a whole, and the end of the message."""
        for index, block in enumerate(self._blocks):
            yield self._build_event("content-block-finish", index=index, content=_build_finished_block(block))

        usage = {} if self._usage is None else {"usage": self._usage}
        yield self._build_event("message-finish", **usage)

    def _build_event(self, name: str, **rest: Any) -> MessageEvent:
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
