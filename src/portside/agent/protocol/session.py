"""A thread's events as one numbered sequence, which readers join where they were.

The sequence is made from the thread's feed, from the first reader on; what the feed had kept until then comes first.
Numbers count every event, also those that a reader filtered out, and go on over runs. A reader that comes back with a
number from another server, or from before everything was forgotten, gets all that is kept, and numbers above its own.
"""

from collections import deque
from typing import NamedTuple
from uuid import UUID
from weakref import WeakSet

from portside.agent.protocol.conversion import Converter
from portside.agent.protocol.filters import Filter
from portside.agent.protocol.tree import Tree
from portside.agent.streams.buffer import Buffer
from portside.agent.streams.events import Event
from portside.agent.streams.hub import Hub
from portside.agent.streams.threads import Segment, ThreadFeed
from portside.kernel.codec import dump_api, load
from portside.kernel.http.sse import sse_event

LIMIT_BYTES = 32 * 1024 * 1024
# How many numbers a process that died may have given since it last said how far it was.
UNTOLD_AT_MOST = 10_000
SLOW_READER = b'{"type":"error","id":null,"error":"unknown_error","message":"The reader fell too far behind."}'


class ProtocolEvent(NamedTuple):
    """One event of the sequence; `frame` is its JSON."""

    seq: int
    method: str
    channel: str
    namespace: tuple[str, ...]
    frame: bytes
    source: str


class Reader(Buffer):
    """Somebody who reads a thread's sequence, as server-sent events or as plain frames."""

    def __init__(self, session: "Session", wanted: Filter, *, is_sse: bool) -> None:
        super().__init__(sse_event("error", SLOW_READER) if is_sse else SLOW_READER)
        # The sequence goes on for as long as somebody reads it.
        self.session = session
        self.mirror: object = None
        self._wanted = wanted
        self._is_sse = is_sse
        self.is_left = False

    def leave(self) -> None:
        """End the reading because its client wants no more of it."""
        self.is_left = True
        self.end()

    def offer(self, event: ProtocolEvent) -> bool:
        """Take an event if it is asked for; say whether it was."""
        if not self._wanted.wants(event.channel, event.namespace):
            return False
        self.push(sse_event(event.method, event.frame, str(event.seq)) if self._is_sse else event.frame)
        return True


class Session:
    """The sequence of one thread."""

    def __init__(self, thread: ThreadFeed, *, after_seq: int = 0) -> None:
        self.thread = thread
        self.tree = Tree()
        self.last_seq = after_seq
        self.last_event_id = ""
        self._size = 0
        self._kept: deque[tuple[Segment, ProtocolEvent]] = deque()
        self._converters: dict[Segment, Converter] = {}
        self._readers: WeakSet[Reader] = WeakSet()
        for segment, event in thread.kept():
            self.take(segment, event)
        thread.tap = self

    @classmethod
    async def join(cls, hub: Hub, thread_id: UUID) -> "Joined":
        """Return the sequence of a thread, wherever its runs are executed; begun if nobody here reads it yet.

        It goes on from the number at which it was left, here or elsewhere. Raises what the database failed with.
        """
        thread, mirror = await hub.join(thread_id)
        if not isinstance(thread.tap, Session):
            told = await hub.relay.sequence(thread_id)
            if not isinstance(thread.tap, Session):
                return Joined(cls._begun(thread, told), mirror)
        return Joined(thread.tap, mirror)

    @classmethod
    def _begun(cls, thread: ThreadFeed, told: tuple[str, int] | None) -> "Session":
        session = cls(thread)
        if told is None:
            return session
        event_id, seq = told
        numbers = [event.seq for _, event in session._kept if event.source == event_id]
        # Where the event is known its number is; else what was told after it is not, and may be any small number more.
        ahead = seq - numbers[-1] if numbers else seq + UNTOLD_AT_MOST
        return cls(thread, after_seq=ahead) if ahead > 0 else session

    @property
    def position(self) -> tuple[str, int]:
        """The id of the last event, and its number."""
        return self.last_event_id, self.last_seq

    def read(self, wanted: Filter, *, is_sse: bool) -> tuple[Reader, int]:
        """Let a reader join; return it with the number of events that it gets again."""
        reader = Reader(self, wanted, is_sse=is_sse)
        since = wanted.since or 0
        if since > self.last_seq:
            # A number of another life of this sequence: what is kept here is news to the reader.
            self.last_seq, since = since, 0
        replayed = sum(reader.offer(event) for _, event in self._kept if event.seq > since)
        self._readers.add(reader)
        return reader, replayed

    def take(self, segment: Segment, event: Event) -> None:
        """Number an event of the thread's feed and give it to the readers."""
        converter = self._converters.get(segment)
        if converter is None:
            converter = self._converters[segment] = Converter(segment.run_id, self.tree)
        for number, (event_id, method, namespace, data) in enumerate(converter.convert(event)):
            self.last_seq += 1
            suffix = f".{number}" if number and not event_id.startswith("synth:") else ""
            frame = _frame(self.last_seq, f"{event_id}{suffix}", event, (method, namespace, data))
            made = ProtocolEvent(self.last_seq, method, _channel(method, data), namespace, frame, event.event_id)
            self.last_event_id = event.event_id
            self._keep(segment, made)
            for reader in self._readers:
                reader.offer(made)

    def drop(self, segment: Segment) -> None:
        """Forget the events of a run."""
        self._converters.pop(segment, None)
        self._kept = deque(item for item in self._kept if item[0] is not segment)
        self._size = sum(len(event.frame) for _, event in self._kept)

    def end(self) -> None:
        """Let every reader go: the thread is no more."""
        for reader in self._readers:
            reader.end()
        self._kept.clear()

    def _keep(self, segment: Segment, event: ProtocolEvent) -> None:
        self._kept.append((segment, event))
        self._size += len(event.frame)
        while self._size > LIMIT_BYTES:
            self._size -= len(self._kept.popleft()[1].frame)


class Joined(NamedTuple):
    """A sequence, and what keeps the events of other processes coming."""

    session: Session
    mirror: object

    def read(self, wanted: Filter, *, is_sse: bool) -> tuple[Reader, int]:
        """Let a reader join; return it with the number of events that it gets again."""
        reader, replayed = self.session.read(wanted, is_sse=is_sse)
        reader.mirror = self.mirror
        return reader, replayed


def _frame(seq: int, event_id: str, event: Event, what: tuple[str, tuple[str, ...], bytes]) -> bytes:
    method, namespace, data = what
    millis = event.event_id.partition("-")[0]
    return b"".join(
        (
            b'{"type":"event","event_id":', dump_api(event_id), b',"seq":', str(seq).encode(),
            b',"method":', dump_api(method), b',"params":{"namespace":', dump_api(list(namespace)),
            b',"timestamp":', millis.encode(), b',"data":', data, b"}}",
        )
    )  # fmt: skip


def _channel(method: str, data: bytes) -> str:
    """Return the channel that carries a method; what a node wrote under a name has one of its own."""
    if method == "input.requested":
        return "input"
    if method != "custom" or not data.startswith(b"{") or b'"name"' not in data:
        return method
    name = load(data).get("name")
    return f"custom:{name}" if isinstance(name, str) and name else method
