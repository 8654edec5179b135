"""Kept items: limits of groups and histories, sizes, and the cache of encoded blocks."""

from typing import NamedTuple

from portside.agent.streams.history import BLOCK_BYTES, ITEM_BYTES, BlockGroup, EncodedBlockCache, History, ItemRules


class Item(NamedTuple):
    key: int
    size: int


RULES: ItemRules[Item] = ItemRules(lambda item: item.size, lambda item: item.key)


class CountingView:
    """Wants every item, and counts how many it encodes."""

    key = "all"
    encoded = 0

    def wants(self, _item: Item, /) -> bool:
        return True

    def frame(self, item: Item, /) -> bytes:
        self.encoded += 1
        return b"x" * item.size


def keys(kept: History[Item] | BlockGroup[Item]) -> list[int]:
    return [item.key for item in kept]


def test_history_evicts_the_oldest_items_of_all_groups_above_its_limit():
    history = History(RULES, 2 * (100 + ITEM_BYTES))
    first = BlockGroup(RULES, None)
    second = BlockGroup(RULES, None)
    history.append(first, Item(1, 100))
    history.append(second, Item(2, 100))
    assert keys(history) == [1, 2]
    history.append(second, Item(3, 100))

    assert keys(history) == [2, 3]
    assert (keys(first), first.size, history.size) == ([], 0, 2 * (100 + ITEM_BYTES))


def test_history_without_a_limit_evicts_nothing():
    history = History(RULES)
    group = BlockGroup(RULES, None)
    for number in range(3):
        history.append(group, Item(number, BLOCK_BYTES))

    assert keys(history) == [0, 1, 2]


def test_emptied_block_leaves_the_history():
    history = History(RULES)
    group = BlockGroup(RULES, BLOCK_BYTES + ITEM_BYTES)
    for number in range(3):
        history.append(group, Item(number, BLOCK_BYTES))

    assert [[item and item.key for item in block.items] for block in history.blocks()] == [[2]]
    assert (history.last_removed, group.last_removed) == (1, 1)
    assert history.size == group.size == BLOCK_BYTES + ITEM_BYTES


def test_a_group_that_a_history_dropped_goes_on_and_evicts_what_it_had_before():
    """A run that loses its worker leaves the history of its thread, and may come back to the same process."""
    history = History(RULES)
    group = BlockGroup(RULES, 2 * (BLOCK_BYTES + ITEM_BYTES))
    for number in range(2):
        history.append(group, Item(number, BLOCK_BYTES))

    history.drop(group)
    history.link(group)
    assert (keys(history), history.size) == ([], 0)

    for number in range(2, 4):
        history.append(group, Item(number, BLOCK_BYTES))
        assert keys(group) == [number - 1, number]

    assert keys(history) == [2, 3]
    assert history.size == group.size


def test_group_may_be_kept_without_a_history_and_linked_later():
    history = History(RULES)
    group = BlockGroup(RULES, 1000)
    group.append(Item(1, 300))
    group.append(Item(2, 300), is_private=True)
    assert keys(history) == []
    history.link(group)
    history.link(group)

    assert keys(history) == [1]
    group.append(Item(3, 600))
    assert (keys(history), keys(group)) == ([], [3])
    assert history.size == 0


def test_dropped_group_takes_its_size_out_of_the_history():
    history = History(RULES)
    group = BlockGroup(RULES, None)
    other = BlockGroup(RULES, None)
    history.append(group, Item(1, 10))
    history.append(other, Item(2, 20))
    history.drop(group)
    assert (keys(history), history.size, history.last_removed) == ([2], 20 + ITEM_BYTES, 0)


def test_nothing_is_after_the_newest_key():
    group = BlockGroup(RULES, None)
    assert not group.has_after(None)
    group.append(Item(5, 1))
    assert [group.has_after(key) for key in (None, 4, 5)] == [True, True, False]


def test_encoded_blocks_are_shared_up_to_the_limit_of_the_cache():
    history = History(RULES)
    view = CountingView()

    groups = [BlockGroup(RULES, None) for _ in range(3)]
    for group in groups:
        history.append(group, Item(1, 100))

    cache = EncodedBlockCache(2 * (100 + ITEM_BYTES))
    first, second, third = history.blocks()
    for block in (first, second, first, third, first):
        cache.get(block, view)

    assert view.encoded == 3
    # The second was used least recently.
    assert cache.get(second, view) == [b"x" * 100]
    assert view.encoded == 4
