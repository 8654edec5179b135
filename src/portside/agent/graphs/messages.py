"""Messages as the event streaming protocol tells them: start, blocks that grow, finish (contract: section 13.2).

What a model streams comes piece by piece and is told piece by piece; an answer that was never streamed is told at once.
Only models speak here: what a node made itself is in the values, results of tools belong to the `tools` channel. Every
event names its message, so that two models that speak at the same time can be told apart.
"""

import json
from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import add_usage

from portside.agent.graphs.listening import MODEL_RUN, Spoken

# Langgraph's metadata of a message that a node returned has none of these.
_OF_MODELS = frozenset({"ls_model_type", "ls_provider", "ls_model_name"})
_GROWING = {"text": "text", "reasoning": "reasoning", "tool_call_chunk": "args", "server_tool_call_chunk": "args"}
_DELTAS = {
    "text": "text-delta",
    "reasoning": "reasoning-delta",
    "tool_call_chunk": "tool-call-delta",
    "server_tool_call_chunk": "tool-call-delta",
}
_FINAL = {"tool_call_chunk": "tool_call", "server_tool_call_chunk": "server_tool_call"}
# What clients read of a message's metadata, by langgraph's name for it.
_METADATA = {
    "ls_provider": "provider",
    "ls_model_name": "model",
    "ls_model_type": "model_type",
    "run_id": "run_id",
    "thread_id": "thread_id",
    "langgraph_node": "langgraph_node",
}

Told = dict[str, Any]


class Telling:
    """One message while it is told."""

    def __init__(self, message_id: str, task: str) -> None:
        self.task = task
        self.message_id = message_id
        self._blocks: list[dict[str, Any]] = []
        self._places: dict[Any, int] = {}
        self._usage: Any = None

    def start(self, metadata: dict[str, Any]) -> Told:
        """Say that the message begins."""
        return {"event": "message-start", "role": "ai", "id": self.message_id, "metadata": _shown(metadata)}

    def grow(self, message: BaseMessage) -> Iterator[Told]:
        """Tell what a piece adds."""
        if (usage := getattr(message, "usage_metadata", None)) is not None:
            self._usage = add_usage(self._usage, usage)
        for position, block in enumerate(_blocks_of(message)):
            key = block["index"] if block.get("index") is not None else (block["type"], position)
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = len(self._blocks)
                self._blocks.append(_empty(block))
                yield self._event("content-block-start", index=place, content=dict(self._blocks[place]))
            delta = _merge(self._blocks[place], block)
            if delta is not None:
                yield self._event("content-block-delta", index=place, delta=delta)

    def finish(self) -> Iterator[Told]:
        """Tell each block as a whole, and that the message is over."""
        for place, block in enumerate(self._blocks):
            yield self._event("content-block-finish", index=place, content=_finished(block))
        usage = {} if self._usage is None else {"usage": self._usage}
        yield self._event("message-finish", **usage)

    def _event(self, name: str, **rest: Any) -> Told:
        return {"event": name, "message_id": self.message_id, **rest}


class Quoting:
    """One message of a model that speaks the protocol itself, while it is told."""

    def __init__(self, message_id: str, task: str) -> None:
        self.task = task
        self.message_id = message_id

    def quote(self, spoken: Spoken) -> Told:
        """Tell what the model said; it only names the message where it begins."""
        event = spoken.event
        if event["event"] == "message-start":
            return {
                **event,
                "id": self.message_id,
                "metadata": {**_shown(spoken.metadata), **(event.get("metadata") or {})},
            }
        return {**event, "message_id": self.message_id}

    def finish(self) -> Iterator[Told]:
        """Tell that the message is over, which its model could not say any more."""
        yield {"event": "message-finish", "message_id": self.message_id}


class Narrator:
    """Tells the messages of one run. A model that is heard in two ways is told the way it was heard first."""

    def __init__(self) -> None:
        self._open: dict[str, Telling | Quoting] = {}
        self._told: set[str] = set()

    def tell(self, message: BaseMessage, metadata: dict[str, Any]) -> Iterator[Told]:
        """Tell a message or a piece of one, if a model made it."""
        key = str(metadata.get(MODEL_RUN) or message.id)
        if not isinstance(message, AIMessage) or _OF_MODELS.isdisjoint(metadata) or key in self._told:
            return
        telling = self._open.get(key)
        if isinstance(telling, Quoting):
            return
        if telling is None:
            telling = self._open[key] = Telling(str(message.id), _task_of(metadata))
            yield telling.start(metadata)
        elif not isinstance(message, AIMessageChunk):
            # The whole of what was told piece by piece.
            yield from self._close(key)
            return
        yield from telling.grow(message)
        if not isinstance(message, AIMessageChunk) or message.chunk_position == "last":
            yield from self._close(key)

    def quote(self, spoken: Spoken) -> Iterator[Told]:
        """Tell what a model says in the protocol's own events."""
        key, name = spoken.metadata[MODEL_RUN], spoken.event["event"]
        telling = self._open.get(key)
        if telling is None:
            if name != "message-start" or key in self._told:
                return
            message_id = spoken.event.get("id") or f"lc_run--{key}"
            telling = self._open[key] = Quoting(message_id, _task_of(spoken.metadata))
        if isinstance(telling, Quoting):
            yield telling.quote(spoken)
            if name in {"message-finish", "error"}:
                self._told.add(key)
                del self._open[key]
        elif name == "message-finish":
            yield from self._close(key)

    def end_task(self, task: str, error: str | None) -> Iterator[Told]:
        """Finish what a task left open: older models do not say which piece is the last, failed ones say nothing."""
        for key in [key for key, telling in self._open.items() if telling.task == task]:
            if error is None:
                yield from self._close(key)
            else:
                self._told.add(key)
                yield {"event": "error", "message_id": self._open.pop(key).message_id, "message": error}

    def _close(self, key: str) -> Iterator[Told]:
        self._told.add(key)
        yield from self._open.pop(key).finish()


def _task_of(metadata: dict[str, Any]) -> str:
    return str(metadata.get("langgraph_checkpoint_ns", "")).rpartition(":")[2]


def _shown(metadata: dict[str, Any]) -> dict[str, Any]:
    return {name: metadata[key] for key, name in _METADATA.items() if metadata.get(key) is not None}


def _blocks_of(message: BaseMessage) -> list[dict[str, Any]]:
    """Return a message's content as blocks; one whose content has no such form is text."""
    try:
        blocks: list[Any] = [dict(block) for block in message.content_blocks]
    except (TypeError, ValueError, KeyError, AttributeError):
        blocks = [{"type": "text", "text": message.text}]
    if isinstance(message, AIMessage) and not isinstance(message, AIMessageChunk):
        blocks += [{**call, "type": "invalid_tool_call"} for call in message.invalid_tool_calls]
    return blocks


def _empty(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block as it begins: what grows is empty, the rest is there."""
    growing = _GROWING.get(block["type"])
    empty = {key: value for key, value in block.items() if key != "index" or growing == "args"}
    return empty if growing is None else {**empty, growing: ""}


def _merge(whole: dict[str, Any], block: dict[str, Any]) -> Told | None:
    """Add a piece to its block and return what it added, if that is anything a reader appends."""
    growing = _GROWING.get(block["type"])
    rest = {key: value for key, value in block.items() if value is not None and key not in {growing, "type", "index"}}
    whole.update(rest)
    if growing is None or not block.get(growing) or whole["type"] != block["type"]:
        return None
    whole[growing] = whole.get(growing, "") + block[growing]
    return {"type": _DELTAS[block["type"]], growing: block[growing]}


def _finished(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block as it ends: the arguments of a call are read, or the call is called invalid."""
    final = _FINAL.get(block["type"])
    if final is None:
        return block
    rest = {key: value for key, value in block.items() if key != "index"}
    try:
        return {**rest, "type": final, "args": json.loads(block["args"] or "{}")}
    except ValueError:
        return {**rest, "type": "invalid_tool_call", "error": "The arguments are not valid JSON"}
