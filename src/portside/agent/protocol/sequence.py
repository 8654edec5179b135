"""A thread's events as one numbered sequence of the event streaming protocol.

The first reader starts the sequence. It begins with the events that the thread's event log has kept until then, and
follows the log from there. Every event gets a number, even if all readers filter it out, and the numbering continues
from run to run. A reader may return with a number from another server, or from before this process dropped the events.
It gets all kept events, under numbers above its own.
"""

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple, cast
from uuid import UUID
from weakref import WeakKeyDictionary, WeakSet

from portside.agent.protocol.channel_filters import ChannelFilter
from portside.agent.protocol.conversion import AgentTree, ConvertedEvent, Converter, Namespace
from portside.agent.streams.buffers import ReplayBuffer
from portside.agent.streams.event_log import EventLog, Segment
from portside.agent.streams.events import StreamEvent
from portside.agent.streams.history import Block, BlockGroup, Cursor, History, ItemRules
from portside.agent.streams.hub import Hub
from portside.kernel.codec import dump_api, load
from portside.kernel.http.sse import sse_event

# The limit includes the memory that events take in addition to their frames.
LIMIT_BYTES = 48 * 1024 * 1024
# How many numbers a process that died may have given after it last stored its position.
UNSTORED_NUMBERS_LIMIT = 10_000
# Numbering continues after a client's number up to this one, which leaves as many to `MAX_SEQ`.
ADOPTED_SEQ_LIMIT = 2**52
SLOW_READER = b'{"type":"error","id":null,"error":"unknown_error","message":"The reader fell too far behind."}'
# Comes after the id of an event, which is JSON text: a quote inside of it would follow a backslash.
_SEQ_KEY = b'","seq":'
PROTOCOL_EVENT_RULES: "ItemRules[ProtocolEvent]" = ItemRules(lambda event: len(event.frame), lambda event: event.seq)

# Only one task at a time starts the sequence of a thread.
_starting: WeakKeyDictionary[EventLog, asyncio.Lock] = WeakKeyDictionary()
# How many events of a block are on each channel and namespace.
Tally = Counter[tuple[str, Namespace]]


class ProtocolEvent(NamedTuple):
    """One event of the sequence."""

    seq: int
    method: str
    channel: str
    namespace: Namespace
    frame: bytes
    """Its JSON."""
    source: str
    """The id of the log's event that it comes from."""


class SequenceView(NamedTuple):
    """The events that a reader asked for by one or more filters, as server-sent events or as plain frames."""

    filters: tuple[ChannelFilter, ...]
    is_sse: bool

    @property
    def key(self) -> Hashable:
        """Equal for equal frames; None for plain ones, which are encoded already."""
        return self if self.is_sse else None

    def wants(self, event: ProtocolEvent) -> bool:
        """Whether the reader asked for an event."""
        return any(
            event.seq > (channel_filter.since or 0) and channel_filter.wants(event.channel, event.namespace)
            for channel_filter in self.filters
        )

    def frame(self, event: ProtocolEvent) -> bytes:
        """Encode an event."""
        return sse_event(event.method, event.frame, str(event.seq)) if self.is_sse else event.frame


class SequenceReader(ReplayBuffer[ProtocolEvent]):
    """A reader of a thread's sequence. The sequence continues for as long as somebody reads it."""

    def __init__(self, sequence: "EventSequence", view: SequenceView) -> None:
        super().__init__(view, sequence.log.replays, sse_event("error", SLOW_READER) if view.is_sse else SLOW_READER)
        self.sequence = sequence

        # Keeps the subscription to other processes alive.
        self.remote: object = None
        self.is_sse = view.is_sse
        self.is_replaced = False

    def replace(self) -> None:
        """End the reader at once, because another one of its client continues where its last frames were taken."""
        self.is_replaced = True
        self.stop()


class EventSequence:
    """The sequence of one thread: the observer of its event log."""

    def __init__(self, log: EventLog, *, after_seq: int = 0) -> None:
        self.log = log
        self.tree = AgentTree()
        self.last_seq = after_seq
        self.last_event_id = ""
        self._history: History[ProtocolEvent] = History(PROTOCOL_EVENT_RULES, LIMIT_BYTES)
        self._groups: dict[Segment, BlockGroup[ProtocolEvent]] = {}
        self._tallies: WeakKeyDictionary[Block[ProtocolEvent], Tally] = WeakKeyDictionary()

        self._converters: dict[Segment, Converter] = {}
        self._readers: WeakSet[SequenceReader] = WeakSet()
        self._is_ended = False
        self._is_cut = False

    @classmethod
    async def join(cls, hub: Hub, thread_id: UUID) -> "JoinedSequence":
        """Return the sequence of a thread, whichever processes execute its runs; start it if nobody reads it here.

        Numbering continues after the last number that any process gave. Raises the error of the database.
        """
        log, remote = await hub.join(thread_id)
        async with _starting.setdefault(log, asyncio.Lock()):
            if not isinstance(log.observer, EventSequence):
                last_position = await hub.transport.last_numbered(thread_id)
                await cls._start(log, last_position)

        assert isinstance(log.observer, EventSequence)  # noqa: S101 - started above
        return JoinedSequence(log.observer, remote)

    @classmethod
    async def _start(cls, log: EventLog, last_position: tuple[str, int] | None) -> None:
        sequence = await cls._number_kept_events(log)
        if last_position is not None:
            offset = sequence.get_offset_to(*last_position)
            if offset > 0:
                sequence = await cls._number_kept_events(log, after_seq=offset)

        log.observer = sequence

    @classmethod
    async def _number_kept_events(cls, log: EventLog, *, after_seq: int = 0) -> "EventSequence":
        """Number the events that a log keeps, one block at a time, until no more have come meanwhile."""
        sequence = cls(log, after_seq=after_seq)
        cursor = Cursor(log.history, may_skip=True)
        while (batch := cursor.take()) is not None:
            for event in batch.items:
                sequence.take(cast("Segment", batch.block.group), event)

            await asyncio.sleep(0)

        segments_gone = [segment for segment in sequence._groups if not log.keeps(segment)]
        for segment in segments_gone:
            sequence.drop(segment)

        return sequence

    def get_offset_to(self, event_id: str, seq: int) -> int:
        """Return by how much all numbers must grow so that an event keeps a number that it was given before."""
        numbers = [event.seq for event in self._history if event.source == event_id]
        if not numbers:
            # The events after it are not here either, and may have been given numbers as well.
            return seq + UNSTORED_NUMBERS_LIMIT

        return seq - numbers[-1]

    @property
    def position(self) -> tuple[str, int]:
        """The id of the last event, and its number."""
        return self.last_event_id, self.last_seq

    def place(self, channel_filter: ChannelFilter) -> tuple[ChannelFilter, int]:
        """Return a filter that names where its events begin, and how many of them are kept already."""
        since = channel_filter.since or 0
        if since > self.last_seq:
            # Another server gave this number, or this one before it dropped the sequence: every kept event is new.
            # A forged number must not use up the numbers of the thread, which Postgres and clients can only represent
            # up to a limit.
            self.last_seq = max(self.last_seq, min(since, ADOPTED_SEQ_LIMIT))
            since = 0

        return channel_filter._replace(since=since), self._count(channel_filter, since)

    def read_sse(self, channel_filter: ChannelFilter) -> SequenceReader:
        """Add a reader of server-sent events."""
        positioned_filter, _ = self.place(channel_filter)
        # Readers that differ only in where they begin share what is encoded: the cursor knows where that is.
        view = SequenceView((positioned_filter._replace(since=None),), is_sse=True)
        return self._add(view, since=positioned_filter.since or 0)

    def read_frames(self, filters: Sequence[ChannelFilter]) -> SequenceReader:
        """Add a reader of the events that any of some filters wants, each of them once and in order."""
        view = SequenceView(tuple(filters), is_sse=False)
        return self._add(view, since=min(channel_filter.since or 0 for channel_filter in filters))

    def _add(self, view: SequenceView, since: int) -> SequenceReader:
        reader = SequenceReader(self, view)
        if self._history.has_after(since):
            reader.cursor = Cursor(self._history, after=since)

        self._readers.add(reader)
        if self._is_ended:
            reader.end()
        elif self._is_cut:
            reader.cut()

        return reader

    def take(self, segment: Segment, event: StreamEvent) -> None:
        """Number an event of the log and send it to the readers."""
        converter = self._converters.get(segment)
        if converter is None:
            converter = self._converters[segment] = Converter(segment.run_id, self.tree)

        for index, converted_event in enumerate(converter.convert(event)):
            self.last_seq += 1
            self.last_event_id = event.event_id
            protocol_event = _number(converted_event, event, seq=self.last_seq, index=index)

            group = self._groups.get(segment)
            if group is None:
                group = self._groups[segment] = BlockGroup(PROTOCOL_EVENT_RULES, None)

            self._history.append(group, protocol_event)
            self._send(protocol_event)

    def drop(self, segment: Segment) -> None:
        """Forget the events of a run."""
        self._converters.pop(segment, None)
        if (group := self._groups.pop(segment, None)) is not None:
            self._history.drop(group)

    def end(self) -> None:
        """End every reader: the thread was deleted."""
        self._is_ended = True
        for reader in self._readers:
            reader.end()

        # Cursors continue reading the former history.
        self._history = History(PROTOCOL_EVENT_RULES, LIMIT_BYTES)
        self._groups.clear()

    def cut(self) -> None:
        """Cut every reader: this process stops, and the thread continues."""
        self._is_cut = True
        for reader in self._readers:
            reader.cut()

    def _send(self, event: ProtocolEvent) -> None:
        # Encoded once for all readers that take it in the same form.
        frames: dict[bool, bytes] = {}
        for reader in self._readers:
            if reader.cursor is not None or not reader.view.wants(event):
                continue

            frame = frames.get(reader.is_sse) or frames.setdefault(reader.is_sse, reader.view.frame(event))
            reader.offer(frame, self._history)

    def _count(self, channel_filter: ChannelFilter, since: int) -> int:
        """Count the events after a number, by the tallies of their blocks, because there may be very many."""
        total = 0
        for block in self._history.blocks():
            events = block.since(0)
            if not events or events[-1].seq <= since:
                continue

            if events[0].seq > since:
                tally = self._tally(block, events)
            else:
                tally = Counter((event.channel, event.namespace) for event in events if event.seq > since)

            total += sum(count for place, count in tally.items() if channel_filter.wants(*place))

        return total

    def _tally(self, block: Block[ProtocolEvent], items: list[ProtocolEvent]) -> Tally:
        tally = self._tallies.get(block)
        if tally is None or tally.total() != len(items):
            tally = self._tallies[block] = Counter((event.channel, event.namespace) for event in items)

        return tally


class JoinedSequence(NamedTuple):
    """A sequence, and the object that keeps the events of other processes coming."""

    sequence: EventSequence
    remote: object

    def read_sse(self, channel_filter: ChannelFilter) -> SequenceReader:
        """Add a reader of server-sent events."""
        reader = self.sequence.read_sse(channel_filter)
        reader.remote = self.remote
        return reader

    def read_frames(self, filters: Sequence[ChannelFilter]) -> SequenceReader:
        """Add a reader of the events that any of some filters wants."""
        reader = self.sequence.read_frames(filters)
        reader.remote = self.remote
        return reader


def read_seq(frame: bytes) -> int:
    """Return the number of an event from its frame; 0 for a frame that has none."""
    begin = frame.find(_SEQ_KEY)
    if begin < 0:
        return 0

    begin += len(_SEQ_KEY)
    return int(frame[begin : frame.index(b",", begin)])


def _number(converted: ConvertedEvent, event: StreamEvent, *, seq: int, index: int) -> ProtocolEvent:
    """Number an event of the protocol, the one at `index` of those that an event of the log became."""
    event_id, method, namespace, data = converted
    if index and not event_id.startswith("synth:"):
        event_id = f"{event_id}.{index}"

    # An id of an event begins with its time.
    millis = event.event_id.partition("-")[0]
    frame = b"".join(
        (
            b'{"type":"event","event_id":',
            dump_api(event_id),
            _SEQ_KEY[1:],
            str(seq).encode(),
            b',"method":',
            dump_api(method),
            b',"params":{"namespace":',
            dump_api(list(namespace)),
            b',"timestamp":',
            millis.encode(),
            b',"data":',
            data,
            b"}}",
        )
    )
    return ProtocolEvent(
        seq=seq,
        method=method,
        channel=_get_channel(method, data),
        namespace=namespace,
        frame=frame,
        source=event.event_id,
    )


def _get_channel(method: str, data: bytes) -> str:
    """Return the channel that carries a method; custom data with a name has a channel of its own."""
    if method == "input.requested":
        return "input"
    if method != "custom" or not data.startswith(b"{") or b'"name"' not in data:
        return method

    name = load(data).get("name")
    return f"custom:{name}" if isinstance(name, str) and name else method
