"""How events are written down in the log and on the bus: a chunk is what one run told between two flushes.

A chunk says in its own body whose events it holds, so that a bus may carry it as it is.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.agent.streams.events import Event

CHUNK_LIMIT_BYTES = 1024 * 1024


class Telling(NamedTuple):
    """Events of a run, or of nobody's, as they go into a chunk; an attempt fences what a former owner still says."""

    thread_id: UUID
    run_id: UUID | None
    attempt: int
    events: list[Event]
    context: Mapping[str, Any] = MappingProxyType({})


class Chunk(msgspec.Struct, array_like=True):
    """A chunk as it was written: `number` orders those of a thread, without gaps."""

    thread_id: UUID
    number: int
    run_id: UUID | None
    writer: UUID
    body: bytes

    def events(self) -> list[Event]:
        """Return the events in it."""
        return unpack(self.body)


def pack(events: list[Event]) -> bytes:
    """Write events down."""
    return _encoder.encode(events)


def unpack(body: bytes) -> list[Event]:
    """Read events that were written down."""
    return _decoder.decode(body)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Event])
