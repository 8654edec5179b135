"""Cursors of pages that are ordered by time: a position as text, which clients give back unread."""

import base64
import binascii
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from portside.kernel.clock import in_utc
from portside.kernel.errors import BadRequest


class Position(Protocol):
    """Where a page begins; what is beside the moment tells equal moments apart."""

    moment: datetime


T = TypeVar("T", bound=Position)


class CursorInvalid(BadRequest):
    """The cursor was not issued by this server; start again with the first page."""

    code = "cursor_invalid"


def write_cursor(position: Position) -> str:
    """Return a position as text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode()


def read_cursor(text: str, kind: type[T]) -> T:
    """Return the position of a cursor, with its moment in UTC. Raises CursorInvalid."""
    try:
        position = msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=kind)
        position.moment = in_utc(position.moment)
    except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError) as exc:
        raise CursorInvalid from exc

    return position
