"""One event of a run, its id, and the records in which processes exchange events.

A name is a stream mode, with the namespace of a subgraph behind it, as on the wire (`values|child:1`). A name that
begins with `@` is for the event streaming protocol alone: it is kept with the others and sent on no other stream.

An `EventBatch` is what a process writes to the log in Postgres in one flush; a `Chunk` is one row of it. A chunk's body
names its own events, so that a bus can carry it unchanged.
"""

import math
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args
from uuid import UUID

import msgspec

from portside.agent.streams.history import ItemRules
from portside.executor.requests import LifecycleEvent
from portside.kernel.codec import dump_api
from portside.kernel.errors import Invalid
from portside.kernel.http.sse import sse_event
from portside.kernel.user_json import dump_user

PROTOCOL_ONLY = "@"
STATE_UPDATE = "state_update"
# Markers in chunks, never sent to clients. CLOSING: the following events are only for followers of the thread. END: the
# run is over; its data is whether other processes keep the events. LOST: some events could not be written. Processes of
# several versions read one log, so these strings must not change.
CLOSING = "~last_words"
END = "~end"
LOST = "~lost"
MARKERS = frozenset({CLOSING, END, LOST})
REPLAY_ALL = frozenset({"-1", "0", "-"})
SLOW_READER = sse_event(
    "error", b'{"error":"SlowReader","message":"The reader fell too far behind; it may come back."}'
)
LOST_EVENTS = sse_event(
    "error",
    b'{"error":"StreamLost","message":"Events were lost between two servers; the run continues, join it again."}',
)
_MODES = frozenset(
    {"values", "messages", "messages-tuple", "updates", "events", "tasks", "checkpoints", "debug", "custom"}
)
# A process that reads a chunk takes all of its events at once, and nothing else runs meanwhile.
CHUNK_LIMIT_BYTES = 64 * 1024
# How far two clocks that follow the database's clock may differ, beyond the measured error.
CLOCK_SKEW_MS = 5
LARGEST_CLOCK_ERROR_S = 1.0

# The milliseconds and the sequence number of an event id.
Position = tuple[int, int]
ThreadMode = Literal["run_modes", "lifecycle", "state_update"]
_THREAD_MODES: dict[str, ThreadMode] = {name: name for name in get_args(ThreadMode)}
_BEGINNING: Position = (0, 0)
_FROM_THE_BEGINNING = frozenset({"-", "0"})

EVENT_RULES: "ItemRules[StreamEvent]" = ItemRules(lambda event: len(event.data), lambda event: event.position)


class StreamEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event; `data` is its JSON. Very many are kept, so the garbage collector must not visit them."""

    name: str
    event_id: str
    data: bytes

    @property
    def mode(self) -> str:
        """The stream mode in the name: `values|child:1` is `values`, `messages/partial` is `messages`."""
        return self.name.split("|", 1)[0].split("/", 1)[0]

    @property
    def position(self) -> Position:
        """The event's position in time, for comparisons."""
        return parse_event_id(self.event_id) or _BEGINNING

    @property
    def is_for_protocol_only(self) -> bool:
        """Whether only readers of the event streaming protocol get it."""
        return self.name.startswith(PROTOCOL_ONLY)


class ThreadView(NamedTuple):
    """The events of a thread that a follower asked for."""

    modes: frozenset[ThreadMode]

    @property
    def key(self) -> "ThreadView":
        """Equal for equal frames."""
        return self

    def wants(self, event: StreamEvent) -> bool:
        """Whether the follower gets an event."""
        return self.matches(event)

    def matches(self, event: StreamEvent) -> bool:
        """Whether the follower asked for an event."""
        if event.name == STATE_UPDATE:
            return STATE_UPDATE in self.modes
        if "run_modes" in self.modes:
            return not event.is_for_protocol_only

        return "lifecycle" in self.modes and event.name == "metadata"

    def frame(self, event: StreamEvent) -> bytes:
        """Encode an event."""
        return sse_event(event.name, event.data, event.event_id)


class OpenInterrupt(NamedTuple):
    """An interrupt of a run that stopped for an answer."""

    interrupt_id: str
    value: object


class RunEnd(NamedTuple):
    """How a run ended, as followers of its thread see it."""

    event: LifecycleEvent
    graph_name: str
    error: str | None = None
    interrupts: tuple[OpenInterrupt, ...] = ()


def closing_events(run_id: UUID, end: RunEnd) -> Iterator[tuple[str, bytes]]:
    """Yield the events that followers of the thread get when a run's end is committed."""
    for interrupt in end.interrupts:
        # The value has two names: `payload` is the protocol's, `value` is where the Python SDK looks for it.
        request = {"interrupt_id": interrupt.interrupt_id, "payload": interrupt.value, "value": interrupt.value}
        yield "@input.requested", dump_user(request)

    last = {"event": end.event, "graph_name": end.graph_name}
    yield "@lifecycle", dump_user(last if end.error is None else {**last, "error": end.error})
    yield "metadata", dump_api({"status": "run_done", "run_id": str(run_id)})


class EventClock:
    """Makes event ids `<ms>-<seq>`, strictly increasing over all streams of this process.

    Processes that serve one database all follow its clock: `ahead_s` is how far it is ahead of this machine's, and
    `error_s` how far that may be wrong.
    """

    def __init__(self) -> None:
        self._millis = 0
        self._sequence = 0
        self.ahead_s = self.error_s = 0.0
        self._compared_within_s = math.inf

    def next(self) -> str:
        """Return the next id."""
        millis = max((time.time_ns() + int(self.ahead_s * 1e9)) // 1_000_000, self._millis)
        self._sequence = self._sequence + 1 if millis == self._millis else 0
        self._millis = millis
        return f"{millis}-{self._sequence}"

    def now(self) -> Position:
        """Return a position before all later ids, those of other processes included."""
        return ((time.time_ns() + int((self.ahead_s - self.error_s) * 1e9)) // 1_000_000 - CLOCK_SKEW_MS, 0)

    def compare(self, database_s: float, asked_s: float, answered_s: float) -> None:
        """Follow the database's clock, which showed `database_s` between two times of this machine's, in seconds."""
        # A quick response gives a precise time. The bound grows with each comparison, so that an old time is replaced.
        self._compared_within_s *= 1.2
        if answered_s - asked_s < self._compared_within_s:
            self._compared_within_s = answered_s - asked_s
            self.ahead_s = database_s - (asked_s + answered_s) / 2

        # Each process is off by at most half of the response time, so two of them differ by at most all of it.
        self.error_s = min(self._compared_within_s, LARGEST_CLOCK_ERROR_S)

    def advance_past(self, event_id: str) -> None:
        """Make all later ids greater than one from another process."""
        if (position := parse_event_id(event_id)) and position > (self._millis, self._sequence):
            self._millis, self._sequence = position


def parse_event_id(event_id: str) -> Position | None:
    """Return an id's position in time, or None if it is not an event id. The sequence number may be missing."""
    millis, _, sequence = event_id.partition("-")
    if millis.isdecimal() and (sequence or "0").isdecimal() and len(event_id) <= 40:
        return int(millis), int(sequence or 0)

    return None


def resume_position(event_id: str | None) -> Position | None:
    """Parse the `Last-Event-ID` of a thread's follower; None is now. Raises Invalid if it is not an event id."""
    if event_id is None:
        return None

    position = _BEGINNING if event_id in _FROM_THE_BEGINNING else parse_event_id(event_id)
    if position is None:
        raise Invalid.field(
            ["header", "last-event-id"], "Invalid last-event-id: must be a valid event id", "id_parsing"
        )

    return position


def parse_thread_modes(values: list[str]) -> frozenset[ThreadMode]:
    """Parse the modes in which a client follows a thread: repeated, or as a JSON list. Raises Invalid."""
    modes: set[ThreadMode] = set()
    for name in _parse_names(values):
        mode = _THREAD_MODES.get(name)
        if mode is None:
            raise Invalid.field(["query", "stream_modes"], f"Invalid stream mode: {name}", "enum")

        modes.add(mode)

    return frozenset(modes or {"run_modes"})


def parse_run_modes(values: list[str] | None) -> frozenset[str] | None:
    """Parse the modes in which a client follows a run: repeated, or as a JSON list. None is all. Raises Invalid."""
    names = _parse_names(values or [])
    for name in names:
        if name not in _MODES:
            raise Invalid.field(["query", "stream_mode"], f"Invalid stream mode: {name}", "enum")

    modes = frozenset("messages" if name == "messages-tuple" else name for name in names)
    return modes or None


def _parse_names(values: list[str]) -> list[str]:
    names = [part.strip(' []"') for part in values]
    return [name for name in names if name]
