"""From what langgraph streams to the events of the wire: names, order and payloads (contract: section 12).

Only what a client asked for is encoded. `messages` and `messages-tuple` are two shapes of one langgraph mode; the first
sends a message as a whole again for each piece that arrives, the second sends the pieces. A run that was started over
the event streaming protocol makes its channel events as well, under names that begin with `@`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message

from portside.agent.graphs.channels import MODES as CHANNEL_MODES
from portside.agent.graphs.channels import Channels
from portside.agent.graphs.protocol import Emitted, RunRequest
from portside.kernel.codec import dump_user

STREAM_PROTOCOL = "__stream_protocol__"
"""The key of a run's configurable that says it was started over the event streaming protocol."""
_LANGGRAPH_MODES = {"messages-tuple": "messages"}
_CHECKPOINT_KEYS = ("checkpoint_id", "thread_id", "checkpoint_ns", "checkpoint_map")


def langgraph_modes(request: RunRequest) -> set[str]:
    """Return what langgraph has to stream for a run: what was asked for, and always the values, for the outcome."""
    asked = {_LANGGRAPH_MODES.get(mode, mode) for mode in request.stream_modes} - {"events"}
    return asked | {"values"} | (CHANNEL_MODES if has_channels(request) else set())


def encoder_for(request: RunRequest) -> "EventEncoder":
    """Return the encoder of a run's events."""
    return EventEncoder(request.stream_modes or ["values"], Channels() if has_channels(request) else None)


class EventEncoder:
    """Encodes the events of one run; it remembers the messages that are still arriving."""

    def __init__(self, modes: Iterable[str], channels: Channels | None = None) -> None:
        self._modes = frozenset(modes)
        self._channels = channels
        self._arriving: dict[str, BaseMessage] = {}

    def encode(self, namespace: tuple[str, ...], mode: str, payload: Any) -> Iterator[Emitted]:
        """Yield the events that one item of langgraph's stream becomes, if any."""
        suffix = _suffix(namespace)
        if mode == "messages":
            yield from self._message(suffix, *payload)
        elif mode in self._modes:
            shown = _with_checkpoints(payload) if mode == "debug" and payload["type"] == "checkpoint" else payload
            yield Emitted(mode + suffix, dump_user(shown))
        if self._channels is not None:
            for method, where, data in self._channels.convert(namespace, mode, payload):
                yield Emitted(f"@{method}{_suffix(where)}", dump_user(data))

    def _message(self, suffix: str, message: BaseMessage, metadata: dict[str, Any]) -> Iterator[Emitted]:
        if "messages-tuple" in self._modes:
            yield Emitted("messages" + suffix, dump_user([message, metadata]))
        elif "messages" in self._modes:
            yield from self._whole_message(message, metadata)

    def _whole_message(self, message: BaseMessage, metadata: dict[str, Any]) -> Iterator[Emitted]:
        message_id = str(message.id)
        before = self._arriving.get(message_id)
        if before is None:
            yield Emitted("messages/metadata", dump_user({message_id: {"metadata": metadata}}))
        if not isinstance(message, BaseMessageChunk):
            self._arriving[message_id] = message
            yield Emitted("messages/complete", dump_user([message]))
            return
        merged = before + message if isinstance(before, BaseMessageChunk) else message
        assert isinstance(merged, BaseMessageChunk)  # noqa: S101 - the sum of two chunks is one
        self._arriving[message_id] = merged
        yield Emitted("messages/partial", dump_user([message_chunk_to_message(merged)]))


def _suffix(namespace: tuple[str, ...]) -> str:
    return f"|{'|'.join(namespace)}" if namespace else ""


def has_channels(request: RunRequest) -> bool:
    """Whether a run makes the events of the protocol's channels."""
    return bool((request.config.get("configurable") or {}).get(STREAM_PROTOCOL))


def checkpoint_of(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the checkpoint a config names, as clients see it, or None."""
    configurable = (config or {}).get("configurable", {})
    return {key: configurable[key] for key in _CHECKPOINT_KEYS if key in configurable} or None


def _with_checkpoints(payload: dict[str, Any]) -> dict[str, Any]:
    """Name the checkpoints of a debug event the way the rest of the API does."""
    step = payload["payload"]
    named = {
        "checkpoint": checkpoint_of(step["config"]),
        "parent_checkpoint": checkpoint_of(step["parent_config"]),
        "tasks": [_with_checkpoint(task) for task in step["tasks"]],
    }
    return {**payload, "payload": {**step, **named}}


def _with_checkpoint(task: dict[str, Any]) -> dict[str, Any]:
    """Name the checkpoint of a task that is a subgraph, in place of the config that langgraph gives as its state."""
    checkpoint = checkpoint_of(task["state"])
    if checkpoint is None:
        return task
    return {**{key: value for key, value in task.items() if key != "state"}, "checkpoint": checkpoint}
