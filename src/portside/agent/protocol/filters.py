"""Which events of a thread a reader asked for: channels, namespaces, depth, and after which number."""

from typing import Any, NamedTuple

import msgspec

from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.vetting import read_json

CHANNELS = ("values", "updates", "messages", "tools", "custom", "lifecycle", "input", "tasks", "checkpoints")
NAMED_CUSTOM = "custom:"
MAX_CHANNELS = 200
MAX_NAMESPACES = 200


class Filter(NamedTuple):
    """What a reader wants to see. An empty list of namespaces is all of them."""

    channels: frozenset[str]
    namespaces: tuple[tuple[str, ...], ...] = ()
    depth: int | None = None
    since: int | None = None

    def wants(self, channel: str, namespace: tuple[str, ...]) -> bool:
        """Whether an event on a channel, somewhere in the graph, is asked for."""
        if channel not in self.channels and not (channel.startswith(NAMED_CUSTOM) and "custom" in self.channels):
            return False
        return any(
            _is_within(namespace, prefix) and (self.depth is None or len(namespace) - len(prefix) <= self.depth)
            for prefix in self.namespaces or ((),)
        )


class _Asked(msgspec.Struct):
    channels: Any = None
    namespaces: list[list[str]] | None = None
    depth: int | None = None
    since: int | None = None


def read_filter(params: Any) -> Filter:
    """Read what a reader asks for. Raises BadRequest that says what is wrong with it."""
    try:
        asked = msgspec.convert(params, _Asked)
    except msgspec.ValidationError as exc:
        raise BadRequest(f"Invalid subscription: {exc}") from exc
    channels = _channels(asked.channels)
    if any(number is not None and number < 0 for number in (asked.depth, asked.since)):
        raise BadRequest("depth and since must not be negative")
    if len(asked.namespaces or ()) > MAX_NAMESPACES:
        raise BadRequest(f"at most {MAX_NAMESPACES} namespaces may be named")
    namespaces = tuple(tuple(namespace) for namespace in asked.namespaces or ())
    return Filter(channels, namespaces, asked.depth, asked.since)


def read_stream_request(raw: bytes, last_event_id: str | None) -> Filter:
    """Read what a request for a stream asks for; a number in its header stands in for `since`. Raises BadRequest."""
    try:
        wanted = read_filter(read_json(raw))
    except Invalid as exc:
        raise BadRequest("Invalid JSON body") from exc
    if wanted.since is None and last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 20:
        return wanted._replace(since=int(last_event_id))
    return wanted


def _channels(given: Any) -> frozenset[str]:
    if not isinstance(given, list) or not given:
        raise BadRequest("channels is required and must be a non-empty array")
    if len(given) > MAX_CHANNELS:
        raise BadRequest(f"at most {MAX_CHANNELS} channels may be named")
    unknown = [str(name)[:100] for name in given if not _is_channel(name)]
    if unknown:
        allowed = ", ".join((*CHANNELS, "custom:<name>"))
        raise BadRequest(f"channels contains unsupported entries: {', '.join(unknown)}. Allowed: {allowed}")
    return frozenset(given)


def _is_channel(name: Any) -> bool:
    return isinstance(name, str) and (name in CHANNELS or (name.startswith(NAMED_CUSTOM) and name != NAMED_CUSTOM))


def _is_within(namespace: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    """Whether a namespace begins with a prefix, whose parts may leave out the id behind the node's name."""
    return len(prefix) <= len(namespace) and all(
        part == asked or (":" not in asked and part.partition(":")[0] == asked)
        for asked, part in zip(prefix, namespace, strict=False)
    )
