"""The messages of the event streaming protocol: commands and their parameters, responses, filters."""

import re
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from portside.agent.types.runs import LangSmithTracer, RunConfig
from portside.kernel.codec import dump_api
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.json_validation import read_json
from portside.kernel.user_json import dump_user

NO_ENVELOPE = "Protocol commands must include an integer id and string method."
_SEQ = re.compile(r"[0-9]{1,19}")
T = TypeVar("T", bound=msgspec.Struct)
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
CHANNELS = ("values", "updates", "messages", "tools", "custom", "lifecycle", "input", "tasks", "checkpoints")
NAMED_CUSTOM = "custom:"
MAX_CHANNELS = 200
MAX_NAMESPACES = 200
# The highest integer that clients in JavaScript can represent.
MAX_SEQ = 2**53 - 1


class CommandError(Exception):
    """A command failed: the client gets a response with one of the protocol's codes, not an HTTP error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidCommand(CommandError):
    """The message is not a command. `id` is its own id if it has one: clients find their response by it."""

    def __init__(self, message: str, value: Any) -> None:
        super().__init__("invalid_argument", message)
        command_id = value.get("id") if isinstance(value, dict) else None
        is_id = _is_id(command_id) or isinstance(command_id, str)
        self.id = command_id if is_id else None


class ProtocolCommand(NamedTuple):
    """One command of a client."""

    id: int
    method: str
    params: dict[str, Any]


def read_command(raw: bytes | str) -> ProtocolCommand:
    """Decode a command. Raises BadRequest if it is not JSON, and InvalidCommand if it is not a command."""
    try:
        value = read_json(raw if isinstance(raw, bytes) else raw.encode())
    except Invalid as exc:
        raise BadRequest("Invalid JSON body") from exc

    is_command = isinstance(value, dict) and isinstance(value.get("method"), str) and _is_id(value.get("id"))
    if not is_command:
        raise InvalidCommand(NO_ENVELOPE, value)

    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        raise InvalidCommand("params must be an object", value)

    return ProtocolCommand(value["id"], value["method"], params or {})


def encode_success(command: ProtocolCommand, result: Any, applied_through_seq: int) -> bytes:
    """Encode the response to a command that succeeded."""
    meta = {"applied_through_seq": applied_through_seq}
    return dump_user({"type": "success", "id": command.id, "result": result, "meta": meta})


class CommandFailed(msgspec.Struct, kw_only=True):
    """The response to a command that failed."""

    type: Literal["error"] = "error"
    id: int | str | None
    error: str
    message: str


def encode_error(command_id: int | str | None, failure: CommandError) -> bytes:
    """Encode the response to a command that failed."""
    return dump_api(CommandFailed(id=command_id, error=failure.code, message=str(failure)))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class RunStart(msgspec.Struct):
    """Parameters of `run.start`."""

    assistant_id: str
    input: Any = None
    config: RunConfig | None = None
    metadata: dict[str, Any] | None = None
    langsmith_tracer: LangSmithTracer | None = None


class InterruptResponse(msgspec.Struct):
    """The answer to one interrupt."""

    interrupt_id: str
    response: Any = None
    namespace: list[str] | None = None


class InputRespond(msgspec.Struct):
    """Parameters of `input.respond`: one answer in fields of its own, or several, and where the run continues."""

    interrupt_id: str | None = None
    response: Any = None
    namespace: list[str] | None = None
    responses: list[InterruptResponse] | None = None
    update: dict[str, Any] | None = None
    goto: Any = None
    config: RunConfig | None = None
    metadata: dict[str, Any] | None = None

    def list_answers(self) -> list[InterruptResponse]:
        """Return all answers. Raises CommandError if there is none."""
        if self.responses:
            return self.responses
        if self.interrupt_id is None:
            raise CommandError("invalid_argument", "input.respond requires an interrupt_id, or responses.")

        return [InterruptResponse(self.interrupt_id, self.response, self.namespace)]


class Unsubscribe(msgspec.Struct):
    """Parameters of `subscription.unsubscribe`."""

    subscription_id: str


class GetTree(msgspec.Struct):
    """Parameters of `agent.getTree`."""

    run_id: str | None = None


class StateGet(msgspec.Struct):
    """Parameters of `state.get`."""

    namespace: list[str] | None = None
    keys: list[str] | None = None


class ListCheckpoints(msgspec.Struct):
    """Parameters of `state.listCheckpoints`, which returns the newest first."""

    namespace: list[str] | None = None
    limit: Limit | None = None
    before: str | None = None


class StateFork(msgspec.Struct):
    """Parameters of `state.fork`."""

    checkpoint_id: str
    input: Any = None
    config: RunConfig | None = None


def read_params(params: dict[str, Any], kind: type[T]) -> T:
    """Decode the parameters of a command. Raises CommandError that names what is wrong."""
    try:
        return msgspec.convert({key: value for key, value in params.items() if value is not None}, kind)
    except msgspec.ValidationError as exc:
        raise CommandError("invalid_argument", f"Invalid params: {exc}") from exc


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


def read_stream_request(raw: bytes, last_event_id: str | None) -> ChannelFilter:
    """Decode the body of a stream request. A `Last-Event-ID` stands in for `since`. Raises BadRequest."""
    try:
        channel_filter = read_filter(read_json(raw))
    except Invalid as exc:
        raise BadRequest("Invalid JSON body") from exc

    if channel_filter.since is None and last_event_id is not None and _SEQ.fullmatch(last_event_id):
        return channel_filter._replace(since=min(int(last_event_id), MAX_SEQ))

    return channel_filter


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
