"""What the feeds of a process need of others, as a protocol, and the process that has no others."""

from typing import NamedTuple, Protocol
from uuid import UUID

from portside.agent.streams.chunks import Telling
from portside.agent.streams.feed import Feed
from portside.agent.streams.threads import ThreadFeed


class Start(NamedTuple):
    """An attempt at a run that begins; what a stateless run leaves is kept for nobody."""

    run_id: UUID
    thread_id: UUID
    graph_id: str
    attempt: int
    is_resumable: bool
    is_stateless: bool
    was_begun: bool = False
    is_foreign: bool = False


class Relay(Protocol):
    """The way to other processes, as feeds see it."""

    has_others: bool

    async def start(self) -> None:
        """Join the others."""
        ...

    async def close(self) -> None:
        """Leave them."""
        ...

    def tell(self, telling: Telling) -> None:
        """Write events down."""
        ...

    async def written(self) -> None:
        """Wait until all that was told is written."""
        ...

    def look(self) -> None:
        """Look soon who follows what here, and take it that there are others until they are counted."""
        ...

    def say_ended(self, run_id: UUID) -> None:
        """Let others know that a run is over."""
        ...

    def say_gone(self, thread_id: UUID) -> None:
        """Let others know that a thread is no more."""
        ...

    def say_work(self, *, claims: bool = False, cancels: bool = False) -> None:
        """Let others know that there are runs to claim or to stop."""
        ...

    def is_followed(self, thread_id: UUID, /) -> bool:
        """Whether another process follows a thread, as far as is known."""
        ...

    def mirrors(self, thread_id: UUID, /) -> bool:
        """Whether the events that others make of a thread are wanted here."""
        ...

    async def mirror(self, thread: ThreadFeed, feed: Feed | None = None, /) -> object:
        """Have what others tell of a thread here, for as long as the result is held."""
        ...

    async def sequence(self, thread_id: UUID, /) -> tuple[str, int] | None:
        """Tell the last event of a thread that was numbered, and its number, as far as it was written down."""
        ...

    async def made_at(self, thread_id: UUID, /) -> int | None:
        """Tell when a thread was made, in milliseconds as event ids have them; None where there is none."""
        ...

    def adopt(self, feed: Feed, /) -> bool:
        """Go on following a run that goes on elsewhere; False when this process is about to leave."""
        ...

    async def catch_up(self, start: Start, feed: Feed) -> None:
        """Learn what others told of a run, and of its thread, before this process goes on with it."""
        ...


class Alone:
    """The relay of a process that is alone."""

    has_others = False

    async def start(self) -> None:
        """Join nobody."""

    async def close(self) -> None:
        """Leave nobody."""

    def tell(self, telling: Telling) -> None:
        """Write nothing down."""

    async def written(self) -> None:
        """Wait for nothing."""

    def look(self) -> None:
        """Find nobody."""

    def say_ended(self, run_id: UUID) -> None:
        """Say nothing."""

    def say_gone(self, thread_id: UUID) -> None:
        """Say nothing."""

    def say_work(self, *, claims: bool = False, cancels: bool = False) -> None:
        """Say nothing."""

    def is_followed(self, _thread_id: UUID, /) -> bool:
        """Know of nobody."""
        return False

    def mirrors(self, _thread_id: UUID, /) -> bool:
        """Mirror nothing."""
        return False

    async def mirror(self, _thread: ThreadFeed, _feed: Feed | None = None, /) -> object:
        """Mirror nothing."""
        return None

    async def sequence(self, _thread_id: UUID, /) -> tuple[str, int] | None:
        """Know of no number."""
        return None

    async def made_at(self, _thread_id: UUID, /) -> int | None:
        """Know of no thread."""
        return None

    def adopt(self, _feed: Feed, /) -> bool:
        """Follow nothing."""
        return False

    async def catch_up(self, start: Start, feed: Feed) -> None:
        """Learn nothing."""
