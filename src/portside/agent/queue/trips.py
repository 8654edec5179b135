"""Trips to the database that several share: what is asked while one is under way goes with the next.

Nobody waits for others to come: whoever asks alone goes at once. The busier the server, the more go together.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import asyncpg

from portside.agent.queue.outages import is_outage

Asked = TypeVar("Asked")
Told = TypeVar("Told")
MOST = 32


class SharedTrips(Generic[Asked, Told]):
    """One trip at a time for all that is asked meanwhile, of one kind.

    Nothing that is sent may wait for somebody who is not on the trip: all others would wait with it. What goes wrong
    with several is tried again one by one, so that nobody fails for another's sake.
    """

    def __init__(
        self,
        send: Callable[[list[Asked]], Awaitable[list[Told]]],
        on_orphan: Callable[[Told], None] | None = None,
    ) -> None:
        """An answer to somebody who is gone when it comes is told to `on_orphan`."""
        self._send = send
        self._on_orphan = on_orphan
        self._waiting: list[tuple[Asked, asyncio.Future[Told]]] = []
        self._trip: asyncio.Task[None] | None = None

    async def ask(self, what: Asked) -> Told:
        """Send this with the next trip; return its part of the answer, or raise what went wrong with it."""
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting.append((what, future))
        if self._trip is None:
            # What is known of the one who asks first is not to be known of what comes of all.
            self._trip = asyncio.create_task(self._go(), context=contextvars.Context())
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._told_to_nobody(future.result())
            raise

    async def _go(self) -> None:
        try:
            while self._waiting:
                sent, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._send_together(sent)
        finally:
            self._trip = None

    async def _send_together(self, sent: list[tuple[Asked, asyncio.Future[Told]]]) -> None:
        try:
            told = await self._send([what for what, _ in sent])
        except Exception as failure:  # noqa: BLE001 - told to whom it concerns
            await self._failed(sent, failure)
            return
        for (_, future), part in zip(sent, told, strict=True):
            if future.cancelled():
                self._told_to_nobody(part)
            else:
                future.set_result(part)

    async def _failed(self, sent: list[tuple[Asked, asyncio.Future[Told]]], failure: Exception) -> None:
        if len(sent) > 1 and isinstance(failure, asyncpg.PostgresError) and not is_outage(failure):
            for one in sent:
                await self._send_together([one])
            return
        for _, future in sent:
            if not future.cancelled():
                future.set_exception(failure)

    def _told_to_nobody(self, told: Told) -> None:
        if self._on_orphan is not None:
            self._on_orphan(told)
