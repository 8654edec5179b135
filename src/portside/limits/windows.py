"""Budgets: fixed windows that start with the first request counted, shared by all processes through Postgres.

A process reserves a small part of what is left and spends it without asking; the parts shrink with what is left, down
to single requests. What it reserved and nobody wanted for a moment it gives back. So together the processes let exactly
as many requests pass as the limit says, and one request in many waits for the database.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from portside.kernel.clock import now as now_utc
from portside.kernel.db import Database
from portside.kernel.logs import get_logger
from portside.limits.sql import sql
from portside.limits.types import Budget, Limit

log = get_logger(__name__)
GIVE_BACK_S = 0.25
_FORGET_EVERY = 240
_WINDOWS_AT_MOST = 50_000
# Of what is left, a process reserves this part at a time.
_PART = 64
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class _Window:
    """What this process knows of one budget."""

    __slots__ = ("ends_at", "lock", "refused_until", "reserved", "used", "was_spent")

    def __init__(self) -> None:
        self.ends_at, self.refused_until = _LONG_AGO, _LONG_AGO
        self.used = self.reserved = 0
        self.was_spent = False
        self.lock = asyncio.Lock()

    def budget(self, limit: Limit, now: datetime, *, is_over: bool = False) -> Budget:
        """Say what is left; at least for a second, which is what clients can wait for."""
        seconds = max(1, math.ceil((self.ends_at - now).total_seconds()))
        remaining = 0 if is_over else max(0, limit.count - self.used) + self.reserved
        return Budget(limit, remaining, seconds, is_over)


class Windows:
    """All budgets of a process. `clock` tells the time that windows are measured by."""

    def __init__(self, db: Database, clock: Callable[[], datetime] = now_utc) -> None:
        self._db, self._clock = db, clock
        self._windows: dict[bytes, _Window] = {}

    async def spend(self, name: bytes, limit: Limit) -> Budget:
        """Count one request against a budget, and say what is left of it."""
        window = self._windows.get(name)
        if window is None:
            self._make_room()
            window = self._windows.setdefault(name, _Window())
        budget = self._spend_reserved(window, limit)
        if budget is not None:
            return budget
        async with window.lock:
            return self._spend_reserved(window, limit) or await self._reserve(name, window, limit)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """While the context is open, give back what is not wanted, and forget windows that have ended."""
        task = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self._give_back(only_idle=False)

    def _spend_reserved(self, window: _Window, limit: Limit) -> Budget | None:
        """Spend from what is reserved, or refuse what is known to be spent; None when the database must be asked."""
        now = self._clock()
        if window.ends_at <= now:
            window.reserved = 0
            return None
        if window.reserved > 0:
            window.reserved -= 1
            window.was_spent = True
            return window.budget(limit, now)
        if window.refused_until > now:
            return window.budget(limit, now, is_over=True)
        return None

    async def _reserve(self, name: bytes, window: _Window, limit: Limit) -> Budget:
        now = self._clock()
        left = limit.count - window.used if window.ends_at > now else limit.count
        for amount in dict.fromkeys((max(1, left // _PART), 1)):
            row = await self._db.fetchrow(
                sql.reserve, budget=name, now=now, seconds=limit.seconds, amount=amount, count=limit.count
            )
            if row is not None:
                window.ends_at, window.used, window.reserved = row["ends_at"], row["used"], amount - 1
                window.was_spent = True
                return window.budget(limit, now)
        return await self._refuse(name, window, limit)

    async def _refuse(self, name: bytes, window: _Window, limit: Limit) -> Budget:
        """Refuse without asking again for a moment: another process may still give something back."""
        now = self._clock()
        row = await self._db.fetchrow(sql.read_window, budget=name, now=now)
        window.ends_at = row["ends_at"] if row else now + timedelta(seconds=GIVE_BACK_S)
        window.used, window.reserved = limit.count, 0
        window.refused_until = min(window.ends_at, now + timedelta(seconds=GIVE_BACK_S))
        return window.budget(limit, now, is_over=True)

    def _make_room(self) -> None:
        """Forget windows when there are too many: the truth about them is in the database."""
        if len(self._windows) < _WINDOWS_AT_MOST:
            return
        now = self._clock()
        self._windows = {name: window for name, window in self._windows.items() if window.ends_at > now}
        if len(self._windows) >= _WINDOWS_AT_MOST:
            self._windows.clear()

    async def _keep(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(GIVE_BACK_S)
            rounds += 1
            try:
                await self._give_back(only_idle=True)
                if rounds % _FORGET_EVERY == 0:
                    await self._db.execute(sql.forget_ended, now=self._clock())
            except Exception:
                log.exception("rate limit budgets cannot be tidied now")

    async def _give_back(self, *, only_idle: bool) -> None:
        returned: list[tuple[bytes, datetime, int]] = []
        for name, window in self._windows.items():
            if window.reserved and not (only_idle and window.was_spent):
                returned.append((name, window.ends_at, window.reserved))
                window.used, window.reserved = window.used - window.reserved, 0
            window.was_spent = False
        if returned:
            names, ends, amounts = zip(*returned, strict=True)
            await self._db.execute(sql.give_back, budgets=list(names), ends=list(ends), amounts=list(amounts))
