"""Events as they are written to the log in Postgres and sent to other processes: in batches, and packed into chunks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from portside.agent.streams.events import StreamEvent

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[StreamEvent])


class EventBatch(NamedTuple):
    """Events to write to the log. `run_id` is None for changes by people; `attempt` fences a former owner's writes."""

    thread_id: UUID
    run_id: UUID | None
    attempt: int
    events: list[StreamEvent]
    context: Mapping[str, Any] = MappingProxyType({})


class BatchSink(Protocol):
    """Writes events to the log in Postgres, for other processes."""

    @property
    def has_others(self) -> bool:
        """Whether there are other processes."""
        ...

    @property
    def looked_at(self) -> float:
        """When this process last began to look who follows which thread, by the monotonic clock."""
        ...

    def write(self, batch: EventBatch) -> None:
        """Write events."""
        ...


class Chunk(msgspec.Struct, array_like=True):
    """The events of one run from one flush. `number` orders the chunks of a thread, without gaps."""

    thread_id: UUID
    number: int
    run_id: UUID | None
    writer: UUID
    body: bytes

    def events(self) -> list[StreamEvent]:
        """Return the events in the body."""
        return unpack_events(self.body)


def pack_events(events: list[StreamEvent]) -> bytes:
    """Encode events as the body of a chunk."""
    return _encoder.encode(events)


def unpack_events(body: bytes) -> list[StreamEvent]:
    """Decode the body of a chunk."""
    return _decoder.decode(body)
