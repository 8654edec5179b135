"""One event of a run: its name, its place in time, its JSON, and the rules by which a reader comes back to it.

A name is a stream mode with the namespace of a subgraph behind it, as on the wire (`values|child:1`). A name that
begins with `@` is for the event streaming protocol alone: it is kept with the others and shown on no other stream.
"""

import time
from typing import Literal, NamedTuple, get_args

from portside.kernel.errors import Invalid
from portside.kernel.http.sse import sse_event

PROTOCOL_ONLY = "@"
# Said between processes only: what follows is for the thread's followers; the run is over (and its events are kept, or
# are not); its events were lost on the way.
LAST_WORDS, END, LOST = "~last_words", "~end", "~lost"
REPLAY_ALL = frozenset({"-1", "0", "-"})
SLOW_READER = sse_event(
    "error", b'{"error":"SlowReader","message":"The reader fell too far behind; it may come back."}'
)
LOST_EVENTS = sse_event(
    "error",
    b'{"error":"StreamLost","message":"Events were lost between two servers; the run goes on, join it again."}',
)
_MODES = frozenset(
    {"values", "messages", "messages-tuple", "updates", "events", "tasks", "checkpoints", "debug", "custom"}
)

# How far the clocks of two processes may be apart that both go by the database's.
APART_MS = 5

Place = tuple[int, int]
ThreadMode = Literal["run_modes", "lifecycle", "state_update"]
_THREAD_MODES: dict[str, ThreadMode] = {name: name for name in get_args(ThreadMode)}
_BEGINNING: Place = (0, 0)
_FROM_THE_BEGINNING = frozenset({"-", "0"})


class Event(NamedTuple):
    """One event; `data` is its JSON."""

    name: str
    event_id: str
    data: bytes

    @property
    def mode(self) -> str:
        """The stream mode behind the name: `values|child:1` is `values`, `messages/partial` is `messages`."""
        return self.name.split("|", 1)[0].split("/", 1)[0]

    @property
    def place(self) -> "Place":
        """When it was, to be compared."""
        return place_of(self.event_id) or _BEGINNING

    @property
    def is_for_protocol_only(self) -> bool:
        """Whether only readers of the event streaming protocol get it."""
        return self.name.startswith(PROTOCOL_ONLY)

    def wire(self, *, with_id: bool) -> bytes:
        """Encode the event for a stream of server-sent events."""
        return sse_event(self.name, self.data, self.event_id if with_id else None)


class EventClock:
    """Makes event ids `<ms>-<seq>`, strictly increasing over all streams of this process (spec: Events).

    Where several processes serve one database, each goes by the database's time: `ahead_s` is what it differs by.
    """

    def __init__(self) -> None:
        self._millis, self._sequence = 0, 0
        self.ahead_s = 0.0

    def next(self) -> str:
        """Return the next id."""
        millis = max(self._now(), self._millis)
        self._sequence = self._sequence + 1 if millis == self._millis else 0
        self._millis = millis
        return f"{millis}-{self._sequence}"

    def now(self) -> Place:
        """Return the place that all later ids are after, those of other processes' clocks as well."""
        return (self._now() - APART_MS, 0)

    def go_beyond(self, event_id: str) -> None:
        """Let all later ids be after one that another process made."""
        if (place := place_of(event_id)) and place > (self._millis, self._sequence):
            self._millis, self._sequence = place

    def _now(self) -> int:
        return (time.time_ns() + int(self.ahead_s * 1e9)) // 1_000_000


def place_of(event_id: str) -> Place | None:
    """Return an id's place in time, or None for what is no id. An id may lack its sequence number."""
    millis, _, sequence = event_id.partition("-")
    if millis.isdecimal() and (sequence or "0").isdecimal() and len(event_id) <= 40:
        return int(millis), int(sequence or 0)
    return None


def resume_place(event_id: str | None) -> Place | None:
    """Read where a follower of a thread left off; None is now. Raises Invalid for what is no id of ours."""
    if event_id is None:
        return None
    place = _BEGINNING if event_id in _FROM_THE_BEGINNING else place_of(event_id)
    if place is None:
        raise Invalid.field(
            ["header", "last-event-id"], "Invalid last-event-id: must be a valid event id", "id_parsing"
        )
    return place


def thread_modes(given: list[str]) -> frozenset[ThreadMode]:
    """Read how a client wants to follow a thread: repeated, or as a JSON list. Raises Invalid."""
    found: set[ThreadMode] = set()
    for name in _names(given):
        mode = _THREAD_MODES.get(name)
        if mode is None:
            raise Invalid.field(["query", "stream_modes"], f"Invalid stream mode: {name}", "enum")
        found.add(mode)
    return frozenset(found or {"run_modes"})


def _names(given: list[str]) -> list[str]:
    return [name for part in given if (name := part.strip(' []"'))]


def asked_modes(given: list[str] | None) -> frozenset[str] | None:
    """Read which modes a client wants to follow: repeated, or as a JSON list. None is all. Raises Invalid."""
    names = _names(given or [])
    for name in names:
        if name not in _MODES:
            raise Invalid.field(["query", "stream_mode"], f"Invalid stream mode: {name}", "enum")
    return frozenset("messages" if name == "messages-tuple" else name for name in names) or None
