"""Which events of a thread a reader of the event streaming protocol asked for: channels, namespaces, and since when."""

import re
from typing import Any, NamedTuple

import msgspec

from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.json_validation import read_json

_SEQ = re.compile(r"[0-9]{1,19}")
CHANNELS = ("values", "updates", "messages", "tools", "custom", "lifecycle", "input", "tasks", "checkpoints")
NAMED_CUSTOM = "custom:"
MAX_CHANNELS = 200
MAX_NAMESPACES = 200
# The highest integer that clients in JavaScript can represent.
MAX_SEQ = 2**53 - 1


class ChannelFilter(NamedTuple):
    """The events that a reader asked for. An empty list of namespaces means all of them."""

    channels: frozenset[str]
    namespaces: tuple[tuple[str, ...], ...] = ()
    depth: int | None = None
    since: int | None = None

    def after(self, seq: int) -> "ChannelFilter":
        """Return the filter for the events after a number that it has not skipped yet."""
        return self._replace(since=max(self.since or 0, seq))

    def wants(self, channel: str, namespace: tuple[str, ...]) -> bool:
        """Whether the reader asked for the events of a channel and namespace."""
        is_custom = channel.startswith(NAMED_CUSTOM) and "custom" in self.channels
        if channel not in self.channels and not is_custom:
            return False

        for prefix in self.namespaces or ((),):
            depth = len(namespace) - len(prefix)
            if _is_within(namespace, prefix) and (self.depth is None or depth <= self.depth):
                return True

        return False


class SubscriptionParams(msgspec.Struct):
    """Parameters of `subscription.subscribe`; `_parse_channels` checks the channels."""

    channels: Any = None
    namespaces: list[list[str]] | None = None
    depth: int | None = None
    since: int | None = None


def read_stream_request(raw: bytes, last_event_id: str | None) -> ChannelFilter:
    """Decode the body of a stream request. A `Last-Event-ID` stands in for `since`. Raises BadRequest."""
    try:
        channel_filter = read_filter(read_json(raw))
    except Invalid as exc:
        raise BadRequest("Invalid JSON body") from exc

    if channel_filter.since is None and last_event_id is not None and _SEQ.fullmatch(last_event_id):
        return channel_filter._replace(since=min(int(last_event_id), MAX_SEQ))

    return channel_filter


def read_filter(params: Any) -> ChannelFilter:
    """Decode the filter of a reader. Raises BadRequest that names what is wrong."""
    try:
        subscription = msgspec.convert(params, SubscriptionParams)
    except msgspec.ValidationError as exc:
        raise BadRequest(f"Invalid subscription: {exc}") from exc

    channels = _parse_channels(subscription.channels)
    if any(number is not None and number < 0 for number in (subscription.depth, subscription.since)):
        raise BadRequest("depth and since must not be negative")
    if subscription.since is not None and subscription.since > MAX_SEQ:
        raise BadRequest(f"since must be at most {MAX_SEQ}: it is the number of an event that the client received")
    if len(subscription.namespaces or ()) > MAX_NAMESPACES:
        raise BadRequest(f"at most {MAX_NAMESPACES} namespaces may be named")

    namespaces = tuple(tuple(namespace) for namespace in subscription.namespaces or ())
    return ChannelFilter(channels, namespaces=namespaces, depth=subscription.depth, since=subscription.since)


def _parse_channels(names: Any) -> frozenset[str]:
    if not isinstance(names, list) or not names:
        raise BadRequest("channels is required and must be a non-empty array")
    if len(names) > MAX_CHANNELS:
        raise BadRequest(f"at most {MAX_CHANNELS} channels may be named")

    unknown = [str(name)[:100] for name in names if not _is_channel(name)]
    if unknown:
        allowed = ", ".join((*CHANNELS, "custom:<name>"))
        raise BadRequest(f"channels contains unsupported entries: {', '.join(unknown)}. Allowed: {allowed}")

    return frozenset(names)


def _is_channel(name: Any) -> bool:
    return isinstance(name, str) and (name in CHANNELS or (name.startswith(NAMED_CUSTOM) and name != NAMED_CUSTOM))


def _is_within(namespace: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    """Whether a namespace begins with a prefix, in which parts may omit the id after the node's name."""
    if len(prefix) > len(namespace):
        return False

    for pattern, part in zip(prefix, namespace, strict=False):
        node_name = part.partition(":")[0]
        if pattern not in (part, node_name):
            return False

    return True
