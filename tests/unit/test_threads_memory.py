"""Answers about states that are remembered: as many as there is room for, each for who asked."""

from uuid import UUID

from portside.agent.threads.memory import ENTRY_BYTES, LARGEST_PART, Answer, Asked, Memory

ROOM = 20 * ENTRY_BYTES


def asked(number: int) -> Asked:
    return Asked(UUID(int=number), None, "")


def test_what_was_used_longest_ago_goes_when_there_is_no_room():
    memory = Memory(ROOM)
    for number in range(19):
        memory.keep(asked(number), Answer("stamp", None, b"state"))
    assert memory.recall(asked(0), None) == Answer("stamp", None, b"state")
    memory.keep(asked(19), Answer("stamp", None, b"state"))
    assert [memory.recall(asked(number), None) is None for number in (0, 1, 2, 19)] == [False, True, False, False]
    assert 0 < memory.size <= ROOM


def test_an_answer_that_takes_too_much_room_is_not_kept_and_the_one_before_goes():
    memory = Memory(ROOM)
    memory.keep(asked(1), Answer("first", None, b"state"))
    memory.keep(asked(1), Answer("second", None, b"s" * (ROOM // LARGEST_PART)))
    assert (memory.recall(asked(1), None), memory.size) == (None, 0)


def test_nothing_is_kept_without_room():
    memory = Memory(0)
    memory.keep(asked(1), Answer("stamp", None, b""))
    assert (memory.recall(asked(1), None), memory.size) == (None, 0)


def test_an_answer_is_for_the_user_it_was_made_for():
    memory = Memory(ROOM)
    memory.keep(asked(1), Answer("stamp", {"plan": "free"}, b"state"))
    assert memory.recall(asked(1), {"plan": "paid"}) is None
    assert memory.recall(asked(1), {"plan": "free"}) is not None
    memory.forget(asked(1))
    assert memory.recall(asked(1), {"plan": "free"}) is None
