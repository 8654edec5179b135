"""How the versions of one value are cut into pieces, without a database.

What the pieces of a version make is what the serializer would have written, and unchanged items are not written again.
"""

from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from portside.executor.checkpoints import pieces
from portside.executor.checkpoints.pieces import (
    PIECE_BYTES,
    CheckpointValues,
    CutValue,
    PreviousValue,
    StoredValue,
    ValuePieces,
)
from portside.executor.checkpoints.rows import Encoding
from portside.executor.checkpoints.saver import Checkpointer
from portside.executor.checkpoints.serde import make_serde
from portside.executor.checkpoints.stored_pieces import PIECE_SIZE, encode_array

SERDE = make_serde()
THREAD = "thread"


class GrowingWhileEncoded:
    """Encodes values while another thread keeps adding to one of them."""

    def __init__(self, value: list[Any] | dict[str, Any]) -> None:
        self.value = value

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        encoded = SERDE.dumps_typed(value)

        if isinstance(self.value, list):
            self.value.append("late")
        else:
            self.value[f"late {len(self.value)}"] = "late"

        return encoded

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return SERDE.loads_typed(data)


def messages(count: int) -> list[HumanMessage]:
    return [HumanMessage("x" * 200, id=str(index)) for index in range(count)]


def cut(owner: ValuePieces, value: Any) -> CutValue:
    """Return a value in pieces, as its second version has it."""
    known: PreviousValue | None = None
    for _ in range(2):
        _, known = Encoding(SERDE, owner).encode(THREAD, value, known)

    assert isinstance(known, CutValue)
    return known


def encode(owner: ValuePieces, value: Any, before: CutValue) -> tuple[StoredValue, CutValue]:
    """Encode the next version of a value that is in pieces; return what is stored and its pieces."""
    stored, known = Encoding(SERDE, owner).encode(THREAD, value, before)
    assert isinstance(known, CutValue)
    assert join(known) == SERDE.dumps_typed(value)[1]
    return stored, known


def join(value: CutValue) -> bytes:
    return value.header + b"".join(piece.data for piece in value.pieces)


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_a_value_that_grows_while_it_is_cut_can_be_read(kind: str):
    value: Any = messages(50) if kind == "list" else {str(index): "x" * 200 for index in range(50)}
    owner = ValuePieces()
    expected = value.copy()
    _, whole = Encoding(SERDE, owner).encode(THREAD, value, None)
    _, known = Encoding(GrowingWhileEncoded(value), owner).encode(THREAD, value, whole)
    assert isinstance(known, CutValue)
    read = SERDE.loads_typed(("msgpack", join(known)))

    # The first item may be added while the whole value is encoded, before it is cut.
    assert list(read)[:50] == list(expected)
    assert len(read) < len(value)


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_headers_are_those_of_the_serializer(count: int):
    for value, item_bytes in (([0] * count, 1), (dict.fromkeys(map("{:05}".format, range(count)), 0), 7)):
        encoded = SERDE.dumps_typed(value)[1]
        assert pieces.encode_header(value) == encoded[: len(encoded) - item_bytes * count]


def test_an_unchanged_value_stores_no_piece():
    owner = ValuePieces()
    value = messages(50)
    stored, _ = encode(owner, value, cut(owner, value))
    assert stored.new == []


def test_lists_that_grow_in_a_dict_stay_in_few_ranges():
    owner = ValuePieces()
    value = {"first": messages(50), "second": messages(50)}
    known = cut(owner, value)
    for number in range(20):
        value = {name: [*items, HumanMessage("x" * 1200, id=f"new {number}")] for name, items in value.items()}
        stored, known = encode(owner, value, known)

    assert stored.ranges is not None
    # For each list its header, which changes each time, and its items; a range is three numbers.
    assert len(stored.ranges) == 4 * 3


def test_an_equal_key_of_another_type_is_written_again():
    owner = ValuePieces()
    value = {(index,): "x" * 200 for index in range(50)}
    changed = {(True,) if key == (1,) else key: text for key, text in value.items()}
    stored, _ = encode(owner, changed, cut(owner, value))
    assert len(stored.new) == 1


def test_removing_the_first_items_stores_only_a_broken_piece():
    owner = ValuePieces()
    value = messages(100)
    stored, _ = encode(owner, value[7:], cut(owner, value))
    assert sum(len(piece.data) for piece in stored.new) < 2 * PIECE_BYTES


def test_a_value_that_has_little_of_the_version_before_is_stored_whole():
    owner = ValuePieces()
    value = messages(50)
    other = [HumanMessage("y" * 200, id=f"other {index}") for index in range(50)]
    _, whole = Encoding(SERDE, owner).encode(THREAD, value, None)
    for before in (whole, cut(owner, value)):
        stored, _ = Encoding(SERDE, owner).encode(THREAD, other, before)
        assert (stored.ranges, stored.data) == (None, SERDE.dumps_typed(other)[1])


def test_pieces_that_do_not_fit_the_value_that_was_read_are_not_shared():
    owner = ValuePieces()
    value = messages(50)
    known = cut(owner, value)

    ranges = encode_array(pieces._list_ranges(known.pieces))
    data = join(known)
    counts = [(len(piece.data), piece.stored_leaves) for piece in known.pieces]
    for missing in (0, 1):
        last_bytes, last_leaves = counts[-1]
        sizes = [*counts[:-1], (last_bytes, last_leaves - missing)]
        packed = b"".join(PIECE_SIZE.pack(*size) for size in sizes)
        read = pieces.read_previous(value, ("msgpack", data), ranges, packed)
        assert isinstance(read, CutValue) is (missing == 0)


def test_branches_of_a_thread_never_store_a_piece_under_one_number():
    owner = ValuePieces()
    value = messages(50)
    before = cut(owner, value)
    branches = [encode(owner, [*value, HumanMessage(f"{branch}" * 2000)], before)[0].new for branch in "abc"]
    numbers = [(piece.series, piece.number) for new in branches for piece in new]
    assert len(numbers) == len(set(numbers)) >= 3


def test_only_the_values_of_the_named_checkpoint_are_shared():
    """Another process may have deleted other checkpoints, with the pieces that only they had."""
    owner = ValuePieces()
    known = CheckpointValues("first", {"messages": b"x"}, {}, {})
    owner.remember(THREAD, "", known)
    assert owner.find_values(THREAD, "", "first") == known
    assert owner.find_values(THREAD, "", "second") is owner.find_values(THREAD, "", None) is None


@pytest.mark.parametrize("thread", ["idle", "running"])
def test_values_of_deleted_checkpoints_are_not_shared(thread: str):
    owner = ValuePieces()
    if thread == "running":
        owner.run_values[THREAD] = {}

    owner.remember(THREAD, "", CheckpointValues("first", {"messages": b"x"}, {}, {}))
    owner.forget(THREAD)
    assert owner.find_values(THREAD, "", "first") is None


async def test_the_end_of_a_run_forgets_its_values():
    no_backend: Any = None
    saver = Checkpointer(no_backend)
    with saver.remembering(THREAD):
        saver.pieces.remember(THREAD, "", CheckpointValues("first", {"messages": b"x"}, {}, {}))
        encoding = Encoding(SERDE, saver.pieces)
        assert encoding.find_values(THREAD, "", "first") == saver.pieces.find_values(THREAD, "", "first") is not None

    assert saver.pieces.find_values(THREAD, "", "first") is None


def test_values_that_are_too_large_to_remember_can_be_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pieces, "KNOWN_BYTES", 1000)
    owner = ValuePieces()
    owner.remember(THREAD, "", CheckpointValues("first", {"messages": b"x" * 2000}, {}, {}))
    assert owner.find_values(THREAD, "", "first") is None
