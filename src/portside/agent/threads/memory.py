"""Answers about states that may be given again, for as long as what they were made of still stands.

Nothing here is ever given without a look into the database: an answer is kept with the stamp of what it was made of,
and it counts only while that is what the database says. The answers used longest ago go when there are too many bytes.
"""

from collections import OrderedDict
from typing import Any, NamedTuple
from uuid import UUID

# What an entry takes beside its texts, and how much of all the room one answer may take.
ENTRY_BYTES = 1000
LARGEST_PART = 8


class Asked(NamedTuple):
    """What is asked, and by whom: code of the graph may look at who asks."""

    thread_id: UUID
    select: tuple[str, ...] | None
    identity: str


class Answer(NamedTuple):
    """An answer's JSON, the stamp of what it was made of, and the user whom it was made for."""

    stamp: str
    user: Any
    body: bytes

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return ENTRY_BYTES + len(self.stamp) + len(self.body)


class Memory:
    """Answers, up to so many bytes in all."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._answers: OrderedDict[Asked, Answer] = OrderedDict()
        self.size = 0

    def recall(self, asked: Asked, user: Any) -> Answer | None:
        """Return the answer that was kept for what is asked and this user."""
        known = self._answers.get(asked)
        if known is None or known.user != user:
            return None
        self._answers.move_to_end(asked)
        return known

    def keep(self, asked: Asked, answer: Answer) -> None:
        """Keep an answer, in the place of an older one."""
        self.forget(asked)
        if answer.size * LARGEST_PART > self._limit:
            return
        self._answers[asked] = answer
        self.size += answer.size
        while self.size > self._limit:
            _, oldest = self._answers.popitem(last=False)
            self.size -= oldest.size

    def forget(self, asked: Asked) -> None:
        """Keep nothing for what is asked."""
        before = self._answers.pop(asked, None)
        if before is not None:
            self.size -= before.size
