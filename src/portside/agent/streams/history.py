"""Kept events in blocks of bounded size, and the cursors that read them a block at a time.

A `History` orders blocks; a `BlockGroup` owns the blocks of one run and limits their bytes. Readers copy nothing: a
`Cursor` holds its position and the blocks ahead of it, and gives one block each time its reader asks. A cursor falls
behind when a limit evicts items that it has not read yet.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
# A cursor gives about this much at a time; it never cuts an item.
BLOCK_BYTES = 64 * 1024
# The memory an item takes beside its data.
ITEM_BYTES = 200


class FellBehind(Exception):
    """A limit evicted items that the cursor had not read yet."""


class ItemRules(NamedTuple, Generic[T]):
    """How a history handles its items: `weigh` returns the bytes of data, `order` a key that grows in each group."""

    weigh: Callable[[T], int]
    order: Callable[[T], Any]


class ReaderView(Protocol[T_contra]):
    """Which items one kind of reader gets, and how they are encoded."""

    @property
    def key(self) -> Hashable:
        """Equal for views with equal frames; None where encoding costs nothing."""
        ...

    def wants(self, item: T_contra, /) -> bool:
        """Whether the reader asked for an item."""
        ...

    def frame(self, item: T_contra, /) -> bytes:
        """Encode an item."""
        ...


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Block(Generic[T]):
    """Consecutive items of one group. Evicted items leave an empty slot, so that indexes never move."""

    group: "BlockGroup[T]"
    # A block joins the history when its events may be read there; a private one never does.
    history: "History[T] | None" = None
    is_private: bool = False
    number: int = -1
    items: list[T | None] = field(default_factory=list)
    size: int = 0
    evicted: int = 0
    # Cursors may have passed a closed block: nothing is added to it any more.
    is_closed: bool = False

    def since(self, index: int) -> list[T]:
        """Return the kept items from an index on."""
        return [item for item in self.items[index:] if item is not None]


class BlockGroup(Generic[T]):
    """Items that share a limit in bytes; the oldest are evicted first. None means no limit.

    Cursors read a group, or a whole history, through `blocks`, `last_number` and `last_removed`.
    """

    __slots__ = ("_blocks", "_first", "limit", "rules", "size")

    def __init__(self, rules: ItemRules[T], limit: int | None) -> None:
        self.rules = rules
        self.limit = limit
        self.size = 0
        self._blocks: deque[Block[T]] = deque()

        # The number of the oldest block in this group.
        self._first = 0

    def __iter__(self) -> Iterator[T]:
        for block in self._blocks:
            yield from block.since(0)

    def append(self, item: T, history: "History[T] | None" = None, *, is_private: bool = False) -> None:
        """Keep an item, in a history or, until `History.link`, in the group alone. Evict the oldest above the limit."""
        block = self._blocks[-1] if self._blocks else None
        if (
            block is None
            or block.is_closed
            or block.size >= BLOCK_BYTES
            or block.history is not history
            or block.is_private is not is_private
        ):
            if block is not None:
                block.is_closed = True

            block = Block(self, is_private=is_private)
            self._blocks.append(block)
            if history is not None:
                history.add(block)

        block.items.append(item)
        size = self.rules.weigh(item) + ITEM_BYTES
        block.size += size
        self.size += size

        if history is not None:
            history.size += size

        if self.limit is not None:
            while self.size > self.limit:
                self.evict_oldest()

    def evict_oldest(self) -> None:
        """Evict the oldest item."""
        block = self._blocks[0]
        item = block.items[block.evicted]
        assert item is not None  # noqa: S101 - the first that is left
        size = self.rules.weigh(item) + ITEM_BYTES
        block.size -= size
        self.size -= size

        if block.history is not None:
            block.history.size -= size

        block.items[block.evicted] = None
        block.evicted += 1
        if block.evicted == len(block.items):
            # Remove the block: a cursor would take the index of a next item in it for an evicted one.
            block.is_closed = True
            self._blocks.popleft()
            self._first += 1

            if block.history is not None:
                block.history.remove(block)

    def has_after(self, after: Any) -> bool:
        """Whether the group keeps anything after a key; None is before everything."""
        return _has_after(self._blocks, self.rules, after)

    def blocks(self, after: int = -1) -> list[Block[T]]:
        """Return the kept blocks after a number."""
        return list(islice(self._blocks, max(0, after + 1 - self._first), None))

    @property
    def last_number(self) -> int:
        """The number of the newest block; -1 before the first."""
        return self._first + len(self._blocks) - 1

    @property
    def last_removed(self) -> int:
        """The number of the newest block that was removed."""
        return self._first - 1


class History(Generic[T]):
    """Blocks of several groups in the order in which their items were added."""

    def __init__(self, rules: ItemRules[T], limit: int | None = None) -> None:
        self.rules = rules
        self.size = 0
        self.last_number = self.last_removed = -1
        self._limit = limit
        self._blocks: list[Block[T]] = []

    def __iter__(self) -> Iterator[T]:
        for block in self._blocks:
            yield from block.since(0)

    def append(self, group: BlockGroup[T], item: T) -> None:
        """Keep an item. Above the limit of its group, or of the history, the oldest items are evicted."""
        group.append(item, self)
        if self._limit is not None:
            while self.size > self._limit:
                self._blocks[0].group.evict_oldest()

    def link(self, group: BlockGroup[T]) -> None:
        """Add the blocks of a group that were kept in the group alone so far."""
        for block in group.blocks():
            if block.history is None and not block.is_private:
                self.add(block)

    def add(self, block: Block[T]) -> None:
        """Add a block at the end."""
        if self._blocks:
            self._blocks[-1].is_closed = True

        self.last_number += 1
        block.history = self
        block.number = self.last_number
        self.size += block.size
        self._blocks.append(block)

    def remove(self, block: Block[T]) -> None:
        """Remove a block that was emptied."""
        self._blocks.remove(block)
        self.last_removed = max(self.last_removed, block.number)

    def drop(self, group: BlockGroup[T]) -> None:
        """Remove the blocks of a group. Cursors continue reading the blocks that were there when they began."""
        dropped = [block for block in self._blocks if block.group is group]
        if dropped:
            self._blocks = [block for block in self._blocks if block.group is not group]
            self.last_removed = max(self.last_removed, dropped[-1].number)

        for block in dropped:
            block.is_closed = True
            self.size -= block.size

            # The group may go on, as that of a run does which returns: it evicts these blocks without this history.
            block.history = None
            block.is_private = True

    def has_after(self, after: Any) -> bool:
        """Whether the history keeps anything after a key; None is before everything."""
        return _has_after(self._blocks, self.rules, after)

    def blocks(self, after: int = -1) -> list[Block[T]]:
        """Return the kept blocks after a number."""
        return self._blocks[bisect_right(self._blocks, after, key=lambda block: block.number) :]


def _has_after(blocks: "deque[Block[T]] | list[Block[T]]", rules: ItemRules[T], after: Any) -> bool:
    newest = (block.items[-1] for block in blocks)
    return any(after is None or (item is not None and rules.order(item) > after) for item in newest)


class BlockSlice(NamedTuple, Generic[T]):
    """The items of one block from an index on."""

    block: Block[T]
    begin: int

    @property
    def items(self) -> list[T]:
        """The kept items."""
        return self.block.since(self.begin)


class Cursor(Generic[T]):
    """The position of one reader, who takes what comes next a block at a time.

    It gives what comes after a key. With `may_skip` it continues with what is left where it fell behind; every cursor
    does that until it has given something, as if its reader had come a moment later.
    """

    def __init__(self, source: History[T] | BlockGroup[T], *, after: Any = None, may_skip: bool = False) -> None:
        self._source = source
        self._after = after
        self._may_skip = may_skip
        self._has_given = False
        self._ahead = deque(source.blocks())

        # The newest block that was seen.
        self._number = source.last_number
        self._block: Block[T] | None = None
        self._index = 0

    @classmethod
    def at_newest(cls, source: History[T] | BlockGroup[T], *, after: Any = None) -> "Cursor[T]":
        """Return a cursor that begins with the newest item."""
        cursor = cls(source, after=after)
        block = cursor._ahead.pop()
        cursor._ahead.clear()
        cursor._block = block
        cursor._index = len(block.items) - 1
        cursor._has_given = True

        return cursor

    def take(self) -> BlockSlice[T] | None:
        """Return what comes next, at least one item; None when all is read. Raises FellBehind."""
        while (block := self._advance()) is not None:
            begin = max(self._index, self._find_begin(block))
            if begin < block.evicted:
                self._check_may_skip()
                begin = block.evicted

            self._index = len(block.items)
            if begin < self._index:
                return BlockSlice(block, begin)

        return None

    def pull(self, view: ReaderView[T], encoded: "EncodedBlockCache") -> list[bytes] | None:
        """Return the frames of what comes next, which may be none; None when all is read. Raises FellBehind."""
        piece = self.take()
        if piece is None:
            return None

        block, begin = piece
        is_whole = not begin and not block.evicted and block.is_closed
        if is_whole and view.key is not None:
            frames = encoded.get(block, view)
        else:
            frames = [view.frame(item) for item in piece.items if view.wants(item)]

        self._has_given = self._has_given or bool(frames)
        return frames

    def _advance(self) -> Block[T] | None:
        """Move on to the block that has something left to read, and return it; None when all is read."""
        while self._block is None or self._index >= len(self._block.items):
            if not self._ahead:
                self._ahead.extend(self._source.blocks(self._number))
                if self._source.last_removed > self._number:
                    self._check_may_skip()

                self._number = self._source.last_number

            if not self._ahead:
                return None

            self._block = self._ahead.popleft()
            self._index = 0

        return self._block

    def _check_may_skip(self) -> None:
        """Raise FellBehind if the reader must not miss what was evicted."""
        if self._has_given and not self._may_skip:
            raise FellBehind

    def _find_begin(self, block: Block[T]) -> int:
        """Return the index of the first item after the key."""
        if self._after is None or block.evicted == len(block.items):
            return 0

        order: Any = self._source.rules.order
        index = bisect_right(block.items, self._after, lo=block.evicted, key=order)

        # If all that is left comes after the key, what was evicted may have come after it too.
        return 0 if index == block.evicted else index


class EncodedBlockCache:
    """Recently encoded blocks, so that all readers of a block at about the same time share one encoding."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._encoded: OrderedDict[tuple[Block[Any], Hashable], bytes] = OrderedDict()

    def get(self, block: Block[T], view: ReaderView[T]) -> list[bytes]:
        """Return the items of a block that a view wants, in one piece, or nothing if it wants none."""
        key = (block, view.key)
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = b"".join(view.frame(item) for item in block.since(0) if view.wants(item))
            self._encoded[key] = encoded

            self._size += len(encoded) + ITEM_BYTES
            while self._size > self._limit and self._encoded:
                self._size -= len(self._encoded.popitem(last=False)[1]) + ITEM_BYTES
        else:
            self._encoded.move_to_end(key)

        return [encoded] if encoded else []
