"""Work in threads that ends soon when a command is interrupted, and before anything is cleaned up after it."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from portside.backup.contents import Progress
from portside.backup.databases import BackupFailed

T = TypeVar("T")
# Begins a phase of the work, and returns what counts its bytes.
Phases = Callable[[str], Progress]


class InterruptibleWork:
    """Work of one command in threads."""

    def __init__(self) -> None:
        self._is_interrupted = threading.Event()

    def counting(self, count: Progress) -> Progress:
        """Return a count of bytes that ends interrupted work with its next bytes."""

        def progress(size: int) -> None:
            if self._is_interrupted.is_set():
                raise BackupFailed("it was interrupted; run it again")
            count(size)

        return progress

    async def run(
        self, work: Callable[..., T], *arguments: object, on_interrupt: Callable[[], object] | None = None
    ) -> T:
        """Run in a thread. A cancellation waits for the thread, which would write on otherwise.

        `on_interrupt` ends what the thread waits for, such as another program.
        """
        task = asyncio.create_task(asyncio.to_thread(work, *arguments))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._is_interrupted.set()
            if on_interrupt is not None:
                on_interrupt()

            await asyncio.wait([task])
            raise
