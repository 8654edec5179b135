"""What the processes of one database say to each other, and the ways in which it is carried.

Everything said here is a hint: that it is time to look into Postgres, where the truth is. What a bus loses, doubles or
delays makes nothing wrong, because everybody looks once in a while unasked. A bus may carry chunks of events along with
the hints, which spares the look.
"""

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import msgspec

from portside.agent.streams.chunks import Chunk


class Hints(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is worth a look: runs to claim, runs to cancel, what others follow, what was written, what has ended."""

    sender: UUID
    hello: bool = False
    claims: bool = False
    cancels: bool = False
    gone: bool = False
    followed: list[UUID] = []
    written: list[UUID] = []
    ended: list[UUID] = []
    # There was too much to name: any of it may have happened.
    many: bool = False

    def is_empty(self) -> bool:
        """Whether nothing was said."""
        return not any(getattr(self, name) for name in self.__struct_fields__ if name != "sender")


# Who says what nobody said: that something may have been missed.
NOBODY = UUID(int=0)
Receive = Callable[[Hints, list[Chunk]], None]


class Bus(Protocol):
    """A way to all other processes of the database."""

    carries_chunks: bool

    async def open(self, receive: Receive) -> None:
        """Begin to hear the others, without waiting for it. A bus that cannot be reached keeps trying on its own.

        Each time that it is reached it says so, in the name of nobody.
        """
        ...

    async def say(self, hints: Hints, chunks: list[Chunk]) -> None:
        """Tell the others. Raises what the way to them failed with; nothing depends on it."""
        ...

    async def close(self) -> None:
        """Hear no more."""
        ...


class Silence:
    """The bus inside one process: nobody hears anything. Several processes work all the same, only later."""

    carries_chunks = False

    async def open(self, receive: Receive) -> None:
        """Hear nothing."""

    async def say(self, hints: Hints, chunks: list[Chunk]) -> None:
        """Say nothing."""

    async def close(self) -> None:
        """Do nothing."""
