"""A thread's events as one numbered sequence of the event streaming protocol.

The first reader starts the sequence. It begins with the events that the thread's event log has kept until then, and
follows the log from there. Every event gets a number, even if all readers filter it out, and the numbering continues
from run to run. A reader may return with a number from another server, or from before this process dropped the events.
It gets all kept events, under numbers above its own.

A `Converter` turns each event of the log into events of the protocol; an `AgentTree` notes which subgraphs run.
"""

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID
from weakref import WeakKeyDictionary, WeakSet

from portside.agent.protocol.wire import ChannelFilter
from portside.agent.streams.buffers import ReplayBuffer
from portside.agent.streams.event_log import EventLog, Segment
from portside.agent.streams.events import PROTOCOL_ONLY, STATE_UPDATE, StreamEvent
from portside.agent.streams.history import Block, BlockGroup, Cursor, History, ItemRules
from portside.agent.streams.hub import Hub
from portside.executor.requests import INTERRUPT, INTERRUPT_IDS
from portside.kernel.codec import dump_api, load
from portside.kernel.http.sse import sse_event

if TYPE_CHECKING:
    from portside.executor.channels import Channels

# The limit includes the memory that events take in addition to their frames.
LIMIT_BYTES = 48 * 1024 * 1024
# How many numbers a process that died may have given after it last stored its position.
UNSTORED_NUMBERS_LIMIT = 10_000
# Numbering continues after a client's number up to this one, which leaves as many to `MAX_SEQ`.
ADOPTED_SEQ_LIMIT = 2**52
SLOW_READER = b'{"type":"error","id":null,"error":"unknown_error","message":"The reader fell too far behind."}'
_CONVERTED = frozenset({"updates", "messages", "custom", "tasks", "checkpoints"})
_INTERRUPT_KEY = b'"__interrupt__"'
_TERMINAL = frozenset({"completed", "failed", "interrupted"})
# Comes after the id of an event, which is JSON text: a quote inside of it would follow a backslash.
_SEQ_KEY = b'","seq":'
Namespace = tuple[str, ...]
# How many events of a block are on each channel and namespace.
Tally = Counter[tuple[str, Namespace]]


class AgentTree:
    """The graph of a thread's newest run and its subgraphs, with the status that the lifecycle events give them."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        self._nodes: dict[Namespace, dict[str, str]] = {}

    @property
    def is_running(self) -> bool:
        """Whether the run continues."""
        root = self._nodes.get(())
        return root is not None and root["status"] not in _TERMINAL

    def apply(self, run_id: str, namespace: Namespace, data: dict[str, Any]) -> None:
        """Apply a lifecycle event; a run that starts replaces the one before it."""
        if not namespace and data["event"] == "running":
            self.run_id = run_id
            self._nodes = {}

        name = data.get("graph_name") or (namespace[-1].partition(":")[0] if namespace else "")
        self._nodes[namespace] = {"status": data["event"], "graph_name": name}

    def unfinished(self) -> list[Namespace]:
        """Return the subgraphs that have not ended, the innermost first."""
        running = [
            namespace for namespace, node in self._nodes.items() if namespace and node["status"] not in _TERMINAL
        ]
        return sorted(running, key=len, reverse=True)

    def as_json(self, namespace: Namespace = ()) -> dict[str, Any]:
        """Return a node with everything below it, as the protocol's `AgentTreeNode`."""
        children = [self.as_json(ns) for ns in self._nodes if ns[:-1] == namespace and ns != namespace]
        node = {"namespace": list(namespace), **self._nodes[namespace]}
        return {**node, "children": children} if children else node


class ConvertedEvent(NamedTuple):
    """An event of the protocol, before it has a number."""

    event_id: str
    method: str
    namespace: Namespace
    data: bytes


class Converter:
    """Converts the events of one run.

    A run that was started over the protocol emits channel events itself. The events of any other run are converted
    here, as `executor/channels.py` does it while a graph runs.
    """

    def __init__(self, run_id: UUID | None, tree: AgentTree) -> None:
        self._run_id = str(run_id)
        self._tree = tree
        self._channels: Channels | None = None
        self._interrupted_in: dict[str, Namespace] = {}
        self._last_values: dict[Namespace, int] = {}

    def convert(self, event: StreamEvent) -> Iterator[ConvertedEvent]:
        """Yield the protocol's events for an event, if there are any."""
        name, _, path = event.name.partition("|")
        namespace = tuple(path.split("|")) if path else ()
        if name.startswith(PROTOCOL_ONLY):
            yield from self._channel_event(event, name.removeprefix(PROTOCOL_ONLY), namespace)
        elif name == "values":
            yield from self._values(event, namespace)
        elif name == STATE_UPDATE:
            yield ConvertedEvent(event.event_id, "values", (), dump_api(load(event.data)["values"]))
        elif name in _CONVERTED:
            for method, where, data in self._made_channels().convert(namespace, name, load(event.data)):
                yield from self._channel_event(event, method, where, dump_api(data))

    def _made_channels(self) -> "Channels":
        """Return the converter of langgraph's own events, whose libraries are imported when the first one comes."""
        if self._channels is None:
            from portside.executor.channels import Channels

            self._channels = Channels()

        return self._channels

    def _channel_event(
        self, event: StreamEvent, method: str, namespace: Namespace, data: bytes | None = None
    ) -> Iterator[ConvertedEvent]:
        data = event.data if data is None else data
        if method == INTERRUPT_IDS:
            for interrupt_id in load(data):
                # The innermost graph emits it first.
                self._interrupted_in.setdefault(interrupt_id, namespace)
        elif method == "lifecycle":
            yield from self._lifecycle(namespace, data)
        elif method == "input.requested":
            interrupt_id = load(data)["interrupt_id"]
            where = self._interrupted_in.get(interrupt_id, ())
            yield ConvertedEvent(self._synthetic_id("input", where, interrupt_id), method, where, data)
        else:
            yield ConvertedEvent(event.event_id, method, namespace, data)

    def _lifecycle(self, namespace: Namespace, data: bytes) -> Iterator[ConvertedEvent]:
        change: dict[str, Any] = load(data)
        is_current = change["event"] == "running" or self._tree.run_id == self._run_id
        if not namespace and change["event"] != "running" and is_current:
            # A subgraph emits nothing any more when its run is stopped: end it here.
            for child in self._tree.unfinished():
                end = {"event": change["event"], "graph_name": child[-1].partition(":")[0]}
                yield from self._lifecycle(child, dump_api(end))

        if is_current:
            self._tree.apply(self._run_id, namespace, change)

        yield ConvertedEvent(self._synthetic_id("lc", namespace, change["event"]), "lifecycle", namespace, data)

    def _values(self, event: StreamEvent, namespace: Namespace) -> Iterator[ConvertedEvent]:
        """Yield the state if it has changed, without its interrupts, which have their own channel."""
        data = event.data
        if _INTERRUPT_KEY in data:
            values = load(data)
            if isinstance(values, dict) and values.pop(INTERRUPT, None) is not None:
                data = dump_api(values)
                if not values or hash(data) == self._last_values.get(namespace):
                    return

        self._last_values[namespace] = hash(data)
        yield ConvertedEvent(event.event_id, "values", namespace, data)

    def _synthetic_id(self, kind: str, namespace: Namespace, what: str) -> str:
        return f"synth:{self._run_id}:{kind}|{'|'.join(namespace)}|{what}"


class ProtocolEvent(NamedTuple):
    """One event of the sequence; `frame` is its JSON."""

    seq: int
    method: str
    channel: str
    namespace: Namespace
    frame: bytes
    source: str


PROTOCOL_EVENT_RULES: ItemRules[ProtocolEvent] = ItemRules(lambda event: len(event.frame), lambda event: event.seq)


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
        self._is_ended = self._is_cut = False

    @classmethod
    async def join(cls, hub: Hub, thread_id: UUID) -> "JoinedSequence":
        """Return the sequence of a thread, whichever processes execute its runs; start it if nobody reads it here.

        Numbering continues after the last number that any process gave. Raises the error of the database.
        """
        log, remote = await hub.join(thread_id)
        async with _starting.setdefault(log, asyncio.Lock()):
            if not isinstance(log.observer, EventSequence):
                await cls._start(log, await hub.transport.last_numbered(thread_id))

        assert isinstance(log.observer, EventSequence)  # noqa: S101 - started above
        return JoinedSequence(log.observer, remote)

    @classmethod
    async def _start(cls, log: EventLog, last_numbered: tuple[str, int] | None) -> None:
        sequence = await cls._of_kept_events(log)
        if last_numbered is not None:
            offset = sequence.offset_to(*last_numbered)
            if offset > 0:
                sequence = await cls._of_kept_events(log, after_seq=offset)

        log.observer = sequence

    @classmethod
    async def _of_kept_events(cls, log: EventLog, *, after_seq: int = 0) -> "EventSequence":
        """Number the events that a log keeps, one block at a time, until no more have come meanwhile."""
        sequence = cls(log, after_seq=after_seq)
        cursor = Cursor(log.history, may_skip=True)
        while (batch := cursor.take()) is not None:
            for event in batch.items:
                sequence.take(cast("Segment", batch.block.group), event)
            await asyncio.sleep(0)

        for segment in [segment for segment in sequence._groups if not log.keeps(segment)]:
            sequence.drop(segment)

        return sequence

    def offset_to(self, event_id: str, seq: int) -> int:
        """Return by how much all numbers must grow so that an event keeps a number that it was given before."""
        numbers = [event.seq for event in self._history if event.source == event_id]
        # If the event is not here, neither are those after it, which may have been given numbers as well.
        return seq - numbers[-1] if numbers else seq + UNSTORED_NUMBERS_LIMIT

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
        return self._add(
            SequenceView((positioned_filter._replace(since=None),), is_sse=True), positioned_filter.since or 0
        )

    def read_frames(self, filters: Sequence[ChannelFilter]) -> SequenceReader:
        """Add a reader of the events that any of some filters wants, each of them once and in order."""
        return self._add(
            SequenceView(tuple(filters), is_sse=False), min(channel_filter.since or 0 for channel_filter in filters)
        )

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

        for index, (event_id, method, namespace, data) in enumerate(converter.convert(event)):
            self.last_seq += 1
            suffix = f".{index}" if index and not event_id.startswith("synth:") else ""
            frame = _frame(self.last_seq, f"{event_id}{suffix}", event, (method, namespace, data))
            protocol_event = ProtocolEvent(
                self.last_seq, method, _channel(method, data), namespace, frame, event.event_id
            )
            self.last_event_id = event.event_id

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
            items = block.since(0)
            if items and items[0].seq > since:
                total += sum(
                    count for where, count in self._tally(block, items).items() if channel_filter.wants(*where)
                )
            elif items and items[-1].seq > since:
                total += sum(
                    event.seq > since and channel_filter.wants(event.channel, event.namespace) for event in items
                )

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


# Only one task at a time starts the sequence of a thread.
_starting: WeakKeyDictionary[EventLog, asyncio.Lock] = WeakKeyDictionary()


def read_seq(frame: bytes) -> int:
    """Return the number of an event from its frame; 0 for a frame that has none."""
    begin = frame.find(_SEQ_KEY)
    if begin < 0:
        return 0

    begin += len(_SEQ_KEY)
    return int(frame[begin : frame.index(b",", begin)])


def _frame(seq: int, event_id: str, event: StreamEvent, what: tuple[str, Namespace, bytes]) -> bytes:
    method, namespace, data = what
    millis = event.event_id.partition("-")[0]
    return b"".join(
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


def _channel(method: str, data: bytes) -> str:
    """Return the channel that carries a method; custom data with a name has a channel of its own."""
    if method == "input.requested":
        return "input"
    if method != "custom" or not data.startswith(b"{") or b'"name"' not in data:
        return method

    name = load(data).get("name")
    return f"custom:{name}" if isinstance(name, str) and name else method
