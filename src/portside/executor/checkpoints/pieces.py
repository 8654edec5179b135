"""Long lists and dicts of checkpoints, in pieces that the versions of a channel share (docs/why/long-threads.md).

The serializer encodes a list as a header followed by its items, and a dict as a header followed by its entries. So a
value can be cut between its items: the header and the pieces, joined, are the bytes that the serializer would write.
`ValuePieces` cuts the values of one process. A new version reuses the pieces of the version before whose items are
unchanged, and stores only the others. Which pieces a version has is stored as ranges of numbers, so the pieces of a
conversation that only grows are one range.

An item is unchanged if it is an immutable object that is the same one, a message whose fields are all the same objects,
or if it encodes to the stored bytes. Only exact lists and dicts are cut; anything else is an item or is stored whole.
"""

import secrets
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from portside.executor.checkpoints.plain_messages import is_message, is_plain
from portside.executor.checkpoints.stored_pieces import PIECE_SIZE, parse_ranges

# A shorter value is stored whole: several rows would cost more than what they share.
MIN_BYTES = 4096
# Items are collected in a piece up to this size: each piece is a row. Of a broken piece all items are stored again.
PIECE_BYTES = 1024
# A value of shorter items is stored whole: comparing each of them takes longer than writing them.
MIN_ITEM_BYTES = 32
# With more ranges the short ones are written again as one.
MAX_RANGES = 48
MAX_DEPTH = 4
# How many bytes of values are remembered for threads without a run, and how many series this process may continue.
KNOWN_BYTES = 32_000_000
KNOWN_SERIES = 100_000
# Two versions have much in common if most of these parts of one are in the other.
SAMPLES = 5
SAMPLE_BYTES = 64
# A run may read other checkpoints between its own.
RECENT = 3
_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes})
CONTAINERS = frozenset({list, dict})
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SizedLruCache(Generic[K, V]):
    """The most recently used values, up to a total size. It has no lock of its own: callers hold one.

    `cachetools` is not among the libraries of an executor.
    """

    def __init__(self, max_size: int, measure: Callable[[V], int] = lambda _: 1) -> None:
        self._max_size = max_size
        self._measure = measure
        self._size = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of a key, which is then the one that was used last."""
        entry = self._values.get(key)
        if entry is None:
            return None

        self._values.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value; those that were not used for longest go if there is no space."""
        self.pop(key)
        size = self._measure(value)
        self._values[key] = value, size

        self._size += size
        while self._size > self._max_size:
            self.pop(next(iter(self._values)))

    def pop(self, key: K) -> None:
        """Drop the value of a key, if there is one."""
        entry = self._values.pop(key, None)
        if entry is not None:
            self._size -= entry[1]

    def pop_all(self, is_dropped: Callable[[K], bool]) -> None:
        """Drop the values of some keys."""
        for key in [key for key in self._values if is_dropped(key)]:
            self.pop(key)


class _Key(NamedTuple):
    """An entry of a dict."""

    key: Any
    value: Any


class _Opener:
    """The key and the header of a list or dict whose items are separate leaves."""

    __slots__ = ("data", "path")

    def __init__(self, path: tuple[Any, ...], data: bytes) -> None:
        self.path = path
        self.data = data


class Piece:
    """A stored piece: its number in its series, and the leaves that it was made from."""

    __slots__ = ("end", "leaves", "marks", "number", "series", "source", "start")

    def __init__(self, place: tuple[int, int], leaves: Sequence[Any], source: bytes, start: int, end: int) -> None:
        self.series, self.number = place
        self.source = source
        self.start = start
        self.end = end

        self.remember(leaves)

    def remember(self, leaves: Sequence[Any]) -> None:
        """Remember the objects that the piece encodes."""
        self.leaves = leaves
        self.marks = [_build_mark(leaf) for leaf in leaves]

    @property
    def data(self) -> bytes:
        """The bytes of the piece."""
        return self.source[self.start : self.end]

    @property
    def stored_leaves(self) -> int:
        """The number of leaves that the row of the piece records."""
        return 0 if isinstance(self.leaves[0], _Opener) else len(self.leaves)

    def holds(self, leaves: Sequence[Any], at: int) -> bool | None:
        """Whether these leaves are the unchanged objects of the piece; None if only their bytes can tell."""
        own_leaves = self.leaves
        if at + len(own_leaves) > len(leaves):
            return False

        answer: bool | None = True
        for index, (leaf, mark) in enumerate(zip(own_leaves, self.marks, strict=True)):
            is_same = _is_unchanged(leaf, mark, leaves[at + index])
            if is_same is False:
                return False

            if is_same is None:
                answer = None

        return answer


class CutValue:
    """A version of a channel that is stored in pieces."""

    def __init__(self, header: bytes, pieces: list[Piece]) -> None:
        self.header = header
        self.pieces = pieces
        self.opened = {piece.leaves[0].path for piece in pieces if isinstance(piece.leaves[0], _Opener)}
        self.size = sum(piece.end - piece.start for piece in pieces)

    def may_share_with(self, value: Any) -> bool:
        """Whether another value may have most of the items of this one: not if it is a short list of new items."""
        count = int.from_bytes(self.header[1:]) or self.header[0] & 15
        return type(value) in CONTAINERS and 2 * len(value) >= count


PreviousValue = CutValue | bytes


"""The last version of a channel's value: its pieces, or the bytes of a value that was stored whole."""


class NewPiece(NamedTuple):
    """A piece to store: its number in its series, its leaves and its bytes."""

    series: int
    number: int
    leaves: int
    data: bytes


class StoredValue(NamedTuple):
    """How a value is stored: whole, or as a header with ranges of pieces of which some are new."""

    kind: str
    data: bytes
    ranges: list[int] | None = None
    new: Sequence[NewPiece] = ()


class CheckpointValues(NamedTuple):
    """The values of a checkpoint by their channels, which the next checkpoint may share pieces with."""

    checkpoint_id: str
    channels: dict[str, PreviousValue]
    versions: dict[str, str]
    task_values: dict[str, CutValue]
    """The values that tasks wrote after the checkpoint: the next version is most likely one of these."""

    @property
    def size(self) -> int:
        """About how many bytes of memory the values take."""
        return sum(len(value) if isinstance(value, bytes) else 4 * value.size for value in self.channels.values()) + 500


class ValuePieces:
    """Cuts the values of the threads that one process writes to. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The number that each series continues with.
        self._next: SizedLruCache[tuple[str, int], int] = SizedLruCache(KNOWN_SERIES)

        self.run_values: dict[str, dict[str, dict[str, CheckpointValues]]] = {}
        """The values that are remembered for runs, by thread, namespace and checkpoint."""

        self._others: SizedLruCache[tuple[str, str], CheckpointValues] = SizedLruCache(
            KNOWN_BYTES, lambda known: known.size
        )

    def forget(self, thread_id: str) -> None:
        """Forget the values of a thread whose checkpoints were deleted."""
        if thread_id in self.run_values:
            self.run_values[thread_id] = {}

        with self._lock:
            self._others.pop_all(lambda key: key[0] == thread_id)

    def remember(self, thread_id: str, checkpoint_ns: str, values: CheckpointValues) -> None:
        """Remember the values of a checkpoint that was read or written."""
        namespaces = self.run_values.get(thread_id)
        if namespaces is not None:
            recent = namespaces.setdefault(checkpoint_ns, {})
            recent.pop(values.checkpoint_id, None)
            recent[values.checkpoint_id] = values

            if len(recent) > RECENT:
                del recent[next(iter(recent))]

            return

        with self._lock:
            self._others.pop((thread_id, checkpoint_ns))
            if values.channels and values.size <= KNOWN_BYTES:
                self._others.put((thread_id, checkpoint_ns), values)

    def get_long_lists(self, thread_id: str, values: dict[str, Any]) -> dict[str, str]:
        """Return the versions of those values that are lists in pieces of the last checkpoint that was written or read.

        Only lists of messages and of plain JSON data: what is read later has the same JSON.
        """
        namespaces = self.run_values.get(thread_id)
        with self._lock:
            outside_runs = self._others.get((thread_id, ""))

        last = outside_runs if namespaces is None else next(reversed(namespaces.get("", {}).values()), None)
        if last is None:
            return {}

        return {
            key: last.versions[key]
            for key, value in values.items()
            if type(value) is list and key in last.versions and _is_same_list(last.channels.get(key), value)
        }

    def find_values(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> CheckpointValues | None:
        """Return the values of a checkpoint, if any of them are known."""
        namespaces = self.run_values.get(thread_id)
        if namespaces is not None:
            values = namespaces.get(checkpoint_ns, {}).get(checkpoint_id or "")
        else:
            with self._lock:
                values = self._others.get((thread_id, checkpoint_ns))

        return values if values is not None and values.checkpoint_id == checkpoint_id else None

    def cut(
        self, serde: SerializerProtocol, thread_id: str, value: Any, before: CutValue | None
    ) -> tuple[StoredValue, PreviousValue] | None:
        """Return how a list or dict is stored in pieces, and its pieces; None if it should be stored whole."""
        return _Cut(self, serde, thread_id, value, before).result()

    def find_place_after(self, thread_id: str, before: Piece | None) -> tuple[int, int]:
        """Return the place of a new piece: after this one if its series ends there, else in a new series."""
        with self._lock:
            if before is not None:
                key = (thread_id, before.series)
                if self._next.get(key) == before.number + 1:
                    self._next.put(key, before.number + 2)
                    return before.series, before.number + 1

            series = secrets.randbits(62)
            self._next.put((thread_id, series), 1)
            return series, 0


class _NotCuttable(Exception):
    """An item has no encoding of its own; the value is stored whole."""


class _Cut:
    """Cuts one value, reusing pieces of the version before."""

    def __init__(
        self, owner: ValuePieces, serde: SerializerProtocol, thread_id: str, value: Any, before: CutValue | None
    ) -> None:
        self._owner = owner
        self._serde = serde
        self._thread_id = thread_id

        # A snapshot: the value is the graph's, and may grow while another thread encodes it.
        self._value = value.copy()
        self._before = before
        self._encoded: dict[int, bytes] = {}
        self._leaves: Sequence[Any] = ()
        self._pieces: list[Piece] = []
        self._new: set[int] = set()
        self._waiting: list[int] = []
        self._waiting_bytes = 0

    def result(self) -> tuple[StoredValue, PreviousValue] | None:
        """Return the value in pieces; None where it should be stored whole."""
        try:
            self._flatten()
            self._match()
        except _NotCuttable:
            return None

        size = sum(piece.end - piece.start for piece in self._pieces)
        new_size = sum(piece.end - piece.start for piece in self._pieces if id(piece) in self._new)

        if size < MIN_BYTES or size < MIN_ITEM_BYTES * len(self._leaves):
            return None
        if self._before is not None and 2 * new_size > size:
            return None

        self._join_short_ranges(size)
        header = encode_header(self._value)
        new = [
            NewPiece(series=piece.series, number=piece.number, leaves=piece.stored_leaves, data=piece.data)
            for piece in self._pieces
            if id(piece) in self._new
        ]

        stored_value = StoredValue("msgpack", data=header, ranges=_list_ranges(self._pieces), new=new)
        return stored_value, CutValue(header, self._pieces)

    def _flatten(self) -> None:
        if type(self._value) is list:
            self._leaves = self._value
            return

        leaves: list[Any] = []
        self._open(self._value, (), leaves)
        self._leaves = leaves

    def _open(self, value: Any, path: tuple[Any, ...], leaves: list[Any]) -> None:
        if type(value) is list:
            leaves.extend(value)
            return

        for key, inner in value.items():
            inside = (*path, key)
            if type(inner) in CONTAINERS and inner and len(inside) < MAX_DEPTH and self._is_opened(key, inner, inside):
                name = self._encode_leaf(_Key(key, None))[:-1]
                snapshot = inner.copy()
                leaves.append(_Opener(inside, name + encode_header(snapshot)))
                self._open(snapshot, inside, leaves)
            else:
                leaves.append(_Key(key, inner))

    def _is_opened(self, key: Any, value: Any, path: tuple[Any, ...]) -> bool:
        if self._before is not None and path in self._before.opened:
            return True

        data = self._encode_leaf(_Key(key, value))
        return len(data) >= PIECE_BYTES and len(data) >= MIN_ITEM_BYTES * len(value)

    def _match(self) -> None:
        leaves = self._leaves
        before = self._before.pieces if self._before is not None else []
        by_first: dict[Any, int] | None = None
        at = expected = 0
        while at < len(leaves):
            index_of_piece = self._find_match(before, (expected, expected + 1), at)
            if index_of_piece is None and before:
                if by_first is None:
                    by_first = {_get_name(piece.leaves[0]): index for index, piece in enumerate(before)}

                same_first = by_first.get(_get_name(leaves[at]))
                if same_first is not None:
                    index_of_piece = self._find_match(before, (same_first,), at)

            if index_of_piece is None:
                self._wait(at)
                at += 1
                continue

            self._flush()
            piece = before[index_of_piece]
            self._pieces.append(piece)
            at += len(piece.leaves)
            expected = index_of_piece + 1

        self._flush()

    def _find_match(self, before: list[Piece], candidates: tuple[int, ...], at: int) -> int | None:
        """Return the first of these pieces that holds the leaves from a position on."""
        for index in candidates:
            if index >= len(before):
                return None

            piece = before[index]
            holds = piece.holds(self._leaves, at)
            if holds is None:
                leaves = self._leaves[at : at + len(piece.leaves)]
                holds = b"".join([self._encode(at + offset) for offset in range(len(leaves))]) == piece.data
                if holds:
                    piece.remember(leaves)

            if holds:
                return index

        return None

    def _encode(self, at: int) -> bytes:
        data = self._encoded.get(at)
        if data is None:
            leaf = self._leaves[at]
            data = leaf.data if type(leaf) is _Opener else self._encode_leaf(leaf)
            self._encoded[at] = data

        return data

    def _encode_leaf(self, leaf: Any) -> bytes:
        """Encode an item or an entry as the serializer does inside of its list or dict. Raises _NotCuttable."""
        alone = {leaf.key: leaf.value} if type(leaf) is _Key else [leaf]
        kind, data = self._serde.dumps_typed(alone)

        # A list or dict of one has a header of one byte.
        if kind != "msgpack" or data[:1] != encode_header(alone):
            raise _NotCuttable

        return data[1:]

    def _wait(self, at: int) -> None:
        """Collect a leaf for a new piece."""
        is_opener = type(self._leaves[at]) is _Opener
        if is_opener:
            self._flush()

        self._waiting.append(at)
        self._waiting_bytes += len(self._encode(at))
        if is_opener or self._waiting_bytes >= PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return

        data = b"".join([self._encode(at) for at in self._waiting])
        leaves = [self._leaves[at] for at in self._waiting]

        # A header changes whenever its list grows: in a series of its own it leaves those of the items in one range.
        last = self._pieces[-1] if self._pieces and type(leaves[0]) is not _Opener else None
        place = self._owner.find_place_after(self._thread_id, last)
        self._add(Piece(place, leaves, source=data, start=0, end=len(data)))
        self._waiting = []
        self._waiting_bytes = 0

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._new.add(id(piece))

    def _join_short_ranges(self, size: int) -> None:
        """Write neighbouring short ranges again as one, if there are too many ranges to read them quickly."""
        groups = list(_group_ranges(self._pieces))
        openers = sum(type(piece.leaves[0]) is _Opener for piece in self._pieces)
        if len(groups) <= MAX_RANGES + 2 * openers:
            return

        self._pieces = []
        is_joining = False
        for group in groups:
            is_short = sum(piece.end - piece.start for piece in group) * 16 < size
            if not is_short or type(group[0].leaves[0]) is _Opener:
                self._pieces.extend(group)
                is_joining = False
                continue

            last = self._pieces[-1] if is_joining else None
            for piece in group:
                place = self._owner.find_place_after(self._thread_id, last)
                last = Piece(place, piece.leaves, source=piece.data, start=0, end=piece.end - piece.start)
                self._add(last)

            is_joining = True


def read_previous(
    value: Any, encoded: tuple[str, bytes], ranges: str | None, sizes: bytes | None
) -> PreviousValue | None:
    """Return a value that was read, in the form that the next version can share pieces with; None if it cannot."""
    kind, data = encoded
    if len(data) < MIN_BYTES or not is_worth_cutting(value, kind, data):
        return None
    if ranges is None or sizes is None:
        return data

    return _read_pieces(value, data, places=parse_ranges(ranges), counts=list(PIECE_SIZE.iter_unpack(sizes)))


def _read_pieces(
    value: Any, data: bytes, places: list[tuple[int, int]], counts: list[tuple[int, int]]
) -> CutValue | None:
    """Return the pieces of a value that was read; None if they do not fit it, and it will be stored whole.

    `data` is the whole value, and `counts` has the bytes and the leaves of each piece.
    """
    start = len(data) - sum(size for size, _ in counts)
    if len(places) != len(counts) or type(value) not in CONTAINERS or data[:start] != encode_header(value):
        return None

    header = data[:start]
    leaves = _Walk(value)
    pieces: list[Piece] = []
    for place, (size, count) in zip(places, counts, strict=True):
        end = start + size
        piece_leaves = leaves.open(data[start:end]) if count == 0 else leaves.take(count)
        if not piece_leaves:
            return None

        pieces.append(Piece(place, piece_leaves, source=data, start=start, end=end))
        start = end

    return CutValue(header, pieces) if leaves.is_over() else None


class _Walk:
    """The leaves of a value in order, opening the lists and dicts inside as its pieces say."""

    def __init__(self, value: Any) -> None:
        self._stack: list[tuple[Iterator[Any], tuple[Any, ...]]] = [(_iterate_leaves(value), ())]
        # A list has no entries to open: its leaves are slices of it.
        self._list = list(value) if type(value) is list else None
        self._taken = 0

    def take(self, count: int) -> list[Any]:
        """Return the next leaves; none if there are fewer."""
        leaves: list[Any] = []
        if self._list is not None:
            self._taken += count
            return self._list[self._taken - count : self._taken] if self._taken <= len(self._list) else []

        while len(leaves) < count and self._stack:
            leaf = next(self._stack[-1][0], _Walk)
            if leaf is _Walk:
                self._stack.pop()
            else:
                leaves.append(leaf)

        return leaves if len(leaves) == count else []

    def open(self, data: bytes) -> list[Any]:
        """Return the opener of the next entry, whose items come next; none if it has no items."""
        entries = self.take(1)
        if not entries or type(entries[0]) is not _Key or type(entries[0].value) not in CONTAINERS:
            return []

        path = (*self._stack[-1][1], entries[0].key)
        self._stack.append((_iterate_leaves(entries[0].value), path))
        return [_Opener(path, data)]

    def is_over(self) -> bool:
        """Whether no leaf is left."""
        return not self.take(1)


def _iterate_leaves(value: Any) -> Iterator[Any]:
    return iter(value) if type(value) is list else (_Key(*entry) for entry in value.items())


def encode_header(value: Any) -> bytes:
    """Return the header of a list or dict in MessagePack."""
    count = len(value)
    short, medium, long = (0x90, 0xDC, 0xDD) if type(value) is list else (0x80, 0xDE, 0xDF)
    if count < 16:
        return bytes([short | count])

    return struct.pack(">BH", medium, count) if count < 65536 else struct.pack(">BI", long, count)


def is_worth_cutting(value: Any, kind: str, data: bytes) -> bool:
    """Whether a value of at least `MIN_BYTES` has items that are long enough to compare them."""
    has_long_items = type(value) is dict or (type(value) is list and len(data) >= MIN_ITEM_BYTES * len(value))
    return kind == "msgpack" and has_long_items


def shares_much(before: bytes, data: bytes) -> bool:
    """Whether most of a value is in another: half of it at the beginning or end, or most samples of it anywhere."""
    half = min(len(before), len(data)) // 2
    if before[5:half] == data[5:half] or before[-half:] == data[-half:]:
        return True

    step = len(before) // SAMPLES
    starts = range(step // 2, step * SAMPLES, step)
    return 2 * sum(before[start : start + SAMPLE_BYTES] in data for start in starts) > SAMPLES


def _is_same_list(previous: PreviousValue | None, value: list[Any]) -> bool:
    if not isinstance(previous, CutValue):
        return False

    leaves = [leaf for piece in previous.pieces for leaf in piece.leaves]
    return len(leaves) == len(value) and all(map(is_, leaves, value)) and all(map(is_plain, value))


def _get_name(leaf: Any) -> Any:
    """Return the key by which the same leaf is found in another version."""
    if type(leaf) is _Key:
        return ("key", type(leaf.key), leaf.key)
    return ("opener", leaf.path) if type(leaf) is _Opener else id(leaf)


def _build_mark(leaf: Any) -> tuple[Any, ...] | None:
    """Return the fields of a message, by which a later change of it is noticed; None for anything else."""
    kind: Any = type(leaf)
    if not is_message(kind) or leaf.__pydantic_extra__:
        return None

    fields = tuple(leaf.__dict__.values())
    # A list or dict can change inside: a message that has any with content is compared by its bytes.
    empty = [field for field in fields if type(field) not in _IMMUTABLE]
    return None if any(empty) else (fields, empty)


def _is_unchanged(previous: Any, mark: tuple[Any, ...] | None, leaf: Any) -> bool | None:
    """Whether a leaf is what it was; None if only its bytes can tell."""
    if type(previous) is not type(leaf):
        return False
    if type(leaf) is _Key:
        return _is_unchanged_entry(previous, leaf)
    if type(leaf) is _Opener:
        return bool(previous.data == leaf.data)

    if previous is leaf and (type(leaf) in _IMMUTABLE or (mark is not None and _has_fields(leaf, mark))):
        return True

    return None


def _is_unchanged_entry(previous: _Key, leaf: _Key) -> bool | None:
    if type(previous.key) is not type(leaf.key) or previous.key != leaf.key:
        return False

    # Equal keys of other types may be encoded differently, such as (1,) and (True,).
    is_same = previous.value is leaf.value and type(leaf.value) in _IMMUTABLE and type(leaf.key) is str
    return True if is_same else None


def _has_fields(message: BaseMessage, mark: tuple[Any, ...]) -> bool:
    fields, empty = mark
    now = message.__dict__.values()
    is_same = len(fields) == len(now) and all(map(is_, now, fields))
    return is_same and not any(empty) and not message.__pydantic_extra__


def _group_ranges(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    for piece in pieces:
        if group and (piece.series, piece.number) != (group[-1].series, group[-1].number + 1):
            yield group
            group = []

        group.append(piece)

    if group:
        yield group


def _list_ranges(pieces: Sequence[Piece]) -> list[int]:
    """Return three numbers for each range of pieces: its series, its first number, and the number after its last."""
    return [
        number for group in _group_ranges(pieces) for number in (group[0].series, group[0].number, group[-1].number + 1)
    ]
