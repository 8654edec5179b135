"""Trips to the database that several share: what is asked while one is under way goes with the next.

Nobody waits for others to come: whoever asks alone goes at once. The busier the server, the more go together. What is
told is never older than the question: no trip began before it.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import asyncpg

from portside.kernel.outages import is_outage

Asked = TypeVar("Asked")
Told = TypeVar("Told")


class SharedTrips(Generic[Asked, Told]):
    """Trips for all that is asked meanwhile, of one kind: `at_once` at a time, each with `most` questions at most.

    Nothing that is sent may wait for somebody who is not on the trip: all others would wait with it. What Postgres
    refuses of several is tried again one by one, so that nobody fails for another's sake; not where all ask `alike`.
    """

    def __init__(
        self,
        send: Callable[[list[Asked]], Awaitable[list[Told]]],
        *,
        at_once: int = 1,
        most: int = 32,
        alike: bool = False,
        on_orphan: Callable[[Told], None] | None = None,
    ) -> None:
        """An answer to somebody who is gone when it comes is told to `on_orphan`."""
        self._send = send
        self._at_once = at_once
        self._most = most
        self._alike = alike
        self._on_orphan = on_orphan
        self._waiting: list[tuple[Asked, asyncio.Future[Told]]] = []
        self._trips: set[asyncio.Task[None]] = set()

    async def ask(self, what: Asked) -> Told:
        """Send this with the next trip; return its part of the answer, or raise what went wrong with it."""
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting.append((what, future))
        if len(self._trips) < self._at_once:
            # What is known of the one who asks first is not to be known of what comes of all.
            self._trips.add(asyncio.create_task(self._go(), context=contextvars.Context()))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._told_to_nobody(future.result())
            raise

    async def _go(self) -> None:
        try:
            while self._waiting:
                sent, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._send_together(sent)
        finally:
            # At once, and not when the task is seen to be over: who asks in between must not wait for it.
            self._trips.discard(asyncio.current_task())

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
        if len(sent) > 1 and not self._alike and _concerns_one(failure):
            for one in sent:
                await self._send_together([one])
            return
        for _, future in sent:
            if not future.cancelled():
                future.set_exception(failure)

    def _told_to_nobody(self, told: Told) -> None:
        if self._on_orphan is not None:
            self._on_orphan(told)


def _concerns_one(failure: Exception) -> bool:
    """Whether Postgres refused something, and not only took too long or was away."""
    is_refusal = isinstance(failure, asyncpg.PostgresError) and not isinstance(failure, asyncpg.QueryCanceledError)
    return is_refusal and not is_outage(failure)
