"""What one client may do with one thread."""

from typing import NamedTuple
from uuid import UUID

from portside.agent.access.service import Access
from portside.agent.access.watching import Watch
from portside.agent.types.access import Caller, Grant
from portside.agent.types.runs import RunCreate


class Door(NamedTuple):
    """A thread, who asks for it, and the rules. Every question raises what the project's handlers refuse with."""

    access: Access
    caller: Caller
    thread_id: UUID

    async def see(self) -> None:
        """Ask whether the thread may be read. Raises ThreadNotFound for one that may not be seen."""
        await self.access.see_thread(self.caller, "read", self.thread_id)

    async def see_if_there(self) -> None:
        """Ask the same of a thread that need not be there yet."""
        await self.watch()

    async def watch(self) -> Watch:
        """Ask the same for as long as it is followed: it may only be made meanwhile."""
        return await self.access.watch_thread(self.caller, self.thread_id)

    async def start_run(self, body: RunCreate) -> Grant:
        """Ask for a run on the thread."""
        return await self.access.start_run(self.caller, self.thread_id, body)
