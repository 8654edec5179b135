"""Converts the frames of links (`executor/messages.py`) to messages of the core API (`core/v1/core.proto`), and back.

A message is made from a dataclass or a map with its fields, and is read as a map. A tuple on links is a message with
one field for each part. Values without a fixed shape are msgpack in `Value`. The conversion of each message is derived
from its protobuf descriptor when it is first used.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from portside.agent.executors.core_api.methods import METHODS, OTHER, Method
from portside.core.v1 import core_pb2 as core
from portside.executor import link as links
from portside.executor.link import ProtocolBroken, decode, encode

TUPLES = frozenset(
    {
        "CheckpointRow",
        "ValueRow",
        "PieceRow",
        "WriteRow",
        "RunAttempt",
        "Event",
        "StoreOp",
        "Header",
        "ResponseHead",
        "Lease",
    }
)
"""Messages that links send as tuples of their fields."""
REQUEST = "request"
"""The field of `GraphCall` whose message depends on the method."""
GO_AWAY = links.PONG + 1
"""The kind of a frame that ends a session; links on one machine close their socket."""
_CONTENT = {
    links.HELLO: "server_hello",
    links.ERROR: "error",
    links.CANCEL: "cancel",
    links.PING: "ping",
    links.PONG: "pong",
    GO_AWAY: "go_away",
}
_KINDS = {name: kind for kind, name in _CONTENT.items()} | {
    "executor_hello": links.HELLO,
    "begin": links.CALL,
    "item": links.ITEM,
    "result": links.RESULT,
}


class Shape(NamedTuple):
    """How one message is filled from plain data, and read back as plain data."""

    fill: Callable[[Message, Any], None]
    read: Callable[[Any], Any]


@cache
def get_shape(name: str) -> Shape:
    """Return how a message of the core API is converted."""
    descriptor = core.DESCRIPTOR.message_types_by_name[name]
    if name == "Value":
        return Shape(_fill_value, _read_value)

    if name in ("Names", "Events", "SubgraphSchemas"):
        # Messages around one list or map, which links send bare.
        [[_, fill, read]] = _list_fields(descriptor)
        return Shape(fill, read)

    fields = _list_fields(descriptor)
    if name in TUPLES:
        return _tuple_shape(fields)

    return _map_shape(fields)


def _map_shape(fields: "list[_Field]") -> Shape:
    def fill(message: Message, source: Any) -> None:
        find = source.get if isinstance(source, Mapping) else _getter(source)
        for name, fill_field, _ in fields:
            value = find(name)
            if value is not None:
                fill_field(message, value)

    def read(message: Any) -> dict[str, Any]:
        return {name: read_field(message) for name, _, read_field in fields}

    return Shape(fill, read)


def _tuple_shape(fields: "list[_Field]") -> Shape:
    def fill(message: Message, parts: Any) -> None:
        if len(parts) != len(fields):
            raise TypeError(f"a tuple has {len(parts)} parts instead of {len(fields)}")

        for (_, fill_field, _), value in zip(fields, parts, strict=True):
            if value is not None:
                fill_field(message, value)

    def read(message: Any) -> list[Any]:
        return [read_field(message) for _, _, read_field in fields]

    return Shape(fill, read)


def _getter(source: Any) -> Callable[[str], Any]:
    if not is_dataclass(source):
        raise TypeError(f"expected a map or a dataclass, but got {type(source).__name__}")
    return lambda name: getattr(source, name, None)


def _fill_value(message: Any, value: Any) -> None:
    message.msgpack = encode(value)


def _read_value(message: Any) -> Any:
    return decode(message.msgpack)


class _Field(NamedTuple):
    name: str
    fill: Callable[[Any, Any], None]
    read: Callable[[Any], Any]


def _list_fields(descriptor: Descriptor) -> list[_Field]:
    # Fields of a `oneof` are left out: which of them is set depends on the method (`METHODS`).
    return [_field(field) for field in descriptor.fields if field.containing_oneof is None or _is_optional(field)]


def _is_optional(field: FieldDescriptor) -> bool:
    """Whether a field is marked `optional`, which protobuf describes as a choice of its own."""
    choice = field.containing_oneof
    return choice is not None and len(choice.fields) == 1 and choice.name == f"_{field.name}"


def _field(field: FieldDescriptor) -> _Field:
    name = field.name
    of_message = field.message_type
    if of_message is not None and of_message.GetOptions().map_entry:
        return _map_field(name, of_message)

    if of_message is not None:
        shape = get_shape(of_message.name)
        return _messages_field(name, shape) if field.is_repeated else _message_field(name, shape)

    def fill(message: Any, value: Any) -> None:
        setattr(message, name, value)

    if field.is_repeated:
        return _Field(
            name,
            lambda message, given: getattr(message, name).extend(given),
            lambda message: list(getattr(message, name)),
        )

    if _is_optional(field):
        return _Field(name, fill, lambda message: getattr(message, name) if message.HasField(name) else None)

    return _Field(name, fill, lambda message: getattr(message, name))


def _message_field(name: str, shape: Shape) -> _Field:
    def fill(message: Any, value: Any) -> None:
        part = getattr(message, name)
        part.SetInParent()
        shape.fill(part, value)

    return _Field(name, fill, lambda message: shape.read(getattr(message, name)) if message.HasField(name) else None)


def _messages_field(name: str, shape: Shape) -> _Field:
    def fill(message: Any, values: Any) -> None:
        add = getattr(message, name).add
        for value in values:
            shape.fill(add(), value)

    return _Field(name, fill, lambda message: [shape.read(part) for part in getattr(message, name)])


def _map_field(name: str, entry: Descriptor) -> _Field:
    of_value = entry.fields_by_name["value"].message_type
    if of_value is None:
        return _Field(
            name,
            lambda message, given: getattr(message, name).update(given),
            lambda message: dict(getattr(message, name)),
        )

    shape = get_shape(of_value.name)

    def fill(message: Any, entries: Any) -> None:
        for key, value in entries.items():
            shape.fill(getattr(message, name)[key], value)

    def read(message: Any) -> dict[str, Any]:
        return {key: shape.read(value) for key, value in getattr(message, name).items()}

    return _Field(name, fill, read)


# Frames


def encode_frame(kind: int, number: int, body: Any, method: str | None, *, is_executor: bool) -> bytes:
    """Encode a frame; `method` is that of the call that the frame answers.

    Raises TypeError, ValueError, KeyError and AttributeError for a body of another shape.
    """
    frame = core.Frame(call=number)
    of_method = METHODS.get(method, OTHER) if method is not None else OTHER
    if kind == links.CALL:
        _fill_call(frame.begin, body, METHODS.get(body[0], OTHER))
    elif kind == links.ITEM:
        frame.item.SetInParent()
        name = "body" if of_method.item == "head" and isinstance(body, bytes) else of_method.item
        _fill_choice(frame.item, name, body)
    elif kind == links.RESULT:
        frame.result.SetInParent()
        if of_method.result is not None and body is not None:
            _fill_choice(frame.result, of_method.result, body)
    else:
        name = "executor_hello" if is_executor and kind == links.HELLO else _CONTENT[kind]
        _fill_choice(frame, name, {} if body is None else body)

    data: bytes = frame.SerializeToString()
    return data


def decode_frame(frame: core.Frame) -> tuple[int, int, Any]:
    """Return the kind of a frame, the number of its call, and its body. Raises ProtocolBroken."""
    name = frame.WhichOneof("content")
    if name is None:
        raise ProtocolBroken("a frame without content")

    kind = _KINDS[name]
    content = getattr(frame, name)
    if kind == links.CALL:
        return kind, frame.call, _read_call(content)
    if kind in (links.ITEM, links.RESULT):
        return kind, frame.call, _read_choice(content, "content")

    return kind, frame.call, get_shape(content.DESCRIPTOR.name).read(content)


def _fill_call(call: core.Call, body: Any, of_method: Method) -> None:
    call.method, argument = body
    if argument is None:
        return

    _fill_choice(call, of_method.body, argument)
    if of_method.request is not None:
        request = argument[REQUEST] if isinstance(argument, Mapping) else getattr(argument, REQUEST)
        _fill_choice(call.graph, of_method.request, request)


def _read_call(call: core.Call) -> list[Any]:
    body = _read_choice(call, "body")
    if call.HasField("graph"):
        body[REQUEST] = _read_choice(call.graph, REQUEST)

    return [call.method, body]


def _fill_choice(message: Any, name: str, body: Any) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is None:
        setattr(message, name, body)
    else:
        part = getattr(message, name)
        part.SetInParent()
        get_shape(field.message_type.name).fill(part, body)


def _read_choice(message: Any, choice: str) -> Any:
    name = message.WhichOneof(choice)
    if name is None:
        return None

    content = getattr(message, name)
    return get_shape(content.DESCRIPTOR.name).read(content) if isinstance(content, Message) else content


def parse_frames(data: bytes) -> core.Frames:
    """Parse the frames of one message of a session. Raises ProtocolBroken."""
    try:
        frames: core.Frames = core.Frames.FromString(data)
    except DecodeError as exc:
        raise ProtocolBroken("a message that is not protobuf") from exc

    return frames
