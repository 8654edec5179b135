"""Counts the messages of a protobuf body before they are made.

An empty message takes two bytes in a body and thirty times as much in memory, so that a body within all limits could
unfold into gigabytes. The walk makes nothing; where a body does not read, it leaves the verdict to the parser.
"""

from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_SHIFT = 63


def has_more_messages(body: bytes, descriptor: Any, limit: int) -> bool:
    """Whether a body of the described message holds more than `limit` messages."""
    waiting = [(0, len(body), descriptor)]
    count = 0
    while waiting:
        at, end, kind = waiting.pop()
        while at < end:
            tag, at = _varint(body, at, end)
            payload, at = _payload(body, at, end, tag & 7)
            if at > end:
                break
            field = kind.fields_by_number.get(tag >> 3) if payload is not None else None
            if payload is not None and field is not None and field.message_type is not None:
                count += 1
                if count > limit:
                    return True
                if payload < at:
                    waiting.append((payload, at, field.message_type))
    return False


def _payload(body: bytes, at: int, end: int, wire_type: int) -> tuple[int | None, int]:
    """Return where the bytes of a field begin, None for one that holds no message, and where the next field does."""
    if wire_type == _BYTES:
        length, at = _varint(body, at, end)
        return at, at + length
    if wire_type == _VARINT:
        return None, _varint(body, at, end)[1]
    return None, at + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and what follows it; behind the end where it does not end."""
    value = shift = 0
    while at < end and shift <= _MAX_SHIFT:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, end + 1
