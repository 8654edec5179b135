"""What processes tell one another over a bus."""

from uuid import UUID

import msgspec

from portside.agent.streams.chunks import Chunk

# The sender of the notification that a bus makes itself each time it connects: others may have been missed before.
NOBODY = UUID(int=0)


class Notification(msgspec.Struct, omit_defaults=True, kw_only=True):
    """News for other processes: runs to claim or cancel, threads with followers, threads with new events, ended runs.

    Processes of several versions exchange these, so the fields keep their names.
    """

    sender: UUID
    hello: bool = False
    """The process has just connected."""
    claims: bool = False
    """There are runs to claim."""
    cancels: bool = False
    """Runs were cancelled."""
    gone: bool = False
    """A thread was deleted."""
    followed: list[UUID] = []
    """Threads that the sender follows from now on."""
    written: list[UUID] = []
    """Threads with new events in Postgres."""
    ended: list[UUID] = []
    """Runs that are over."""
    many: bool = False
    """There was too much to name: any of it may have happened."""

    def is_empty(self) -> bool:
        """Whether there is no news."""
        return not any(getattr(self, name) for name in self.__struct_fields__ if name != "sender")


class RedisMessage(msgspec.Struct, array_like=True):
    """A message on the channel of Redis."""

    notification: Notification
    chunks: list[Chunk]
