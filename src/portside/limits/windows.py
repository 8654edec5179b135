"""Budgets: fixed windows that start with the first counted request; all processes share them through Postgres.

A process reserves a small share of what is left and spends it locally. The shares shrink with what is left, down to
single requests, and unused shares are returned after a moment. So all processes together admit exactly as many requests
as the limit allows, while most requests need no database query.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from portside.kernel.clock import now as now_utc
from portside.kernel.db import Database
from portside.kernel.supervision import Supervision
from portside.limits.sql import sql
from portside.limits.types import Budget, Limit

RETURN_AFTER_S = 0.25
# In rounds of RETURN_AFTER_S: once a minute.
_DELETE_EVERY = 240
_MAX_WINDOWS = 50_000
# A process reserves 1/64 of what is left at a time.
_SHARE = 64
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class _Window:
    """The local state of one budget."""

    __slots__ = ("ends_at", "lock", "refused_until", "reserved", "used", "was_spent")

    def __init__(self) -> None:
        self.ends_at = _LONG_AGO
        self.refused_until = _LONG_AGO
        self.used = self.reserved = 0
        self.was_spent = False
        self.lock = asyncio.Lock()

    def is_open(self, limit: Limit, now: datetime) -> bool:
        """Whether the window is open. A window that ends much too late was created before the clock was set back."""
        return now < self.ends_at <= now + _latest_end(limit)

    def budget(self, limit: Limit, now: datetime, *, is_over: bool = False) -> Budget:
        """Return the rest of the budget. Its duration is at least a second, because clients wait whole seconds."""
        seconds = max(1, math.ceil((self.ends_at - now).total_seconds()))
        remaining = 0 if is_over else max(0, limit.count - self.used) + self.reserved
        return Budget(limit, remaining=remaining, seconds_left=seconds, is_over=is_over)


class Windows:
    """All budgets of a process. `clock` returns the current time."""

    def __init__(self, db: Database, clock: Callable[[], datetime] = now_utc) -> None:
        self._db = db
        self._clock = clock
        self._windows: dict[bytes, _Window] = {}

        # Held while shares are on their way back: a count that is read meanwhile would still include them.
        self._returning = asyncio.Lock()

    async def spend(self, name: bytes, limit: Limit) -> Budget:
        """Count one request against a budget, and return the rest."""
        window = self._windows.get(name)
        if window is None:
            self._evict()
            window = self._windows.setdefault(name, _Window())

        budget = self._spend_reserved(window, limit)
        if budget is not None:
            return budget

        async with window.lock:
            if self._returning.locked():
                # Wait until the shares are back.
                async with self._returning:
                    pass

            return self._spend_reserved(window, limit) or await self._reserve(name, window, limit)

    async def read_use(self, names: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """Return the requests of open windows, by budget, and the seconds until they end. Shares count as used."""
        now = self._clock()
        rows = await self._db.fetch(sql.read_windows, budgets=names, now=now)
        return {row["budget"]: (row["used"], math.ceil((row["ends_at"] - now).total_seconds())) for row in rows}

    @asynccontextmanager
    async def maintained(self) -> AsyncIterator[None]:
        """Return unused shares and delete ended windows while the context is open."""
        task = asyncio.create_task(Supervision("rate limit budgets").run(self._maintain))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

            await self._return_shares(only_idle=False)

    def _spend_reserved(self, window: _Window, limit: Limit) -> Budget | None:
        """Spend from the share, or refuse if the budget is known to be spent; None if the database must decide."""
        now = self._clock()
        if not window.is_open(limit, now):
            window.reserved = 0
            return None

        if window.reserved > 0:
            window.reserved -= 1
            window.was_spent = True
            return window.budget(limit, now)

        if now < window.refused_until <= now + timedelta(seconds=RETURN_AFTER_S):
            return window.budget(limit, now, is_over=True)

        return None

    async def _reserve(self, name: bytes, window: _Window, limit: Limit) -> Budget:
        now = self._clock()
        remaining = limit.count - window.used if window.is_open(limit, now) else limit.count
        share = max(1, remaining // _SHARE)

        # Where the share is more than what is left, a single request may still be left.
        for amount in dict.fromkeys((share, 1)):
            row = await self._db.fetchrow(
                sql.reserve,
                budget=name,
                now=now,
                seconds=limit.seconds,
                latest=now + _latest_end(limit),
                amount=amount,
                count=limit.count,
            )

            if row is not None:
                window.ends_at = row["ends_at"]
                window.used = row["used"]
                window.reserved = amount - 1
                window.was_spent = True
                return window.budget(limit, now)

        return await self._refuse(name, window, limit)

    async def _refuse(self, name: bytes, window: _Window, limit: Limit) -> Budget:
        """Refuse this request, and others for a moment without a query; other processes may return shares meanwhile."""
        now = self._clock()
        row = await self._db.fetchrow(sql.read_window, budget=name, now=now)
        window.ends_at = row["ends_at"] if row else now + timedelta(seconds=RETURN_AFTER_S)
        window.used = limit.count
        window.reserved = 0
        window.refused_until = min(window.ends_at, now + timedelta(seconds=RETURN_AFTER_S))

        return window.budget(limit, now, is_over=True)

    def _evict(self) -> None:
        """Drop local windows when there are too many; the database has the true counts."""
        if len(self._windows) < _MAX_WINDOWS:
            return

        now = self._clock()
        self._windows = {name: window for name, window in self._windows.items() if window.ends_at > now}
        if len(self._windows) >= _MAX_WINDOWS:
            self._windows.clear()

    async def _maintain(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(RETURN_AFTER_S)
            rounds += 1
            await self._return_shares(only_idle=True)

            if rounds % _DELETE_EVERY == 0:
                await self._db.execute(sql.delete_ended, now=self._clock())

    async def _return_shares(self, *, only_idle: bool) -> None:
        async with self._returning:
            await self._return_unused(only_idle=only_idle)

    async def _return_unused(self, *, only_idle: bool) -> None:
        returned: list[tuple[bytes, datetime, int]] = []
        for name, window in self._windows.items():
            if window.reserved and not (only_idle and window.was_spent):
                returned.append((name, window.ends_at, window.reserved))
                window.used = window.used - window.reserved
                window.reserved = 0

            window.was_spent = False

        if returned:
            names, ends, amounts = zip(*returned, strict=True)
            await self._db.execute(sql.return_shares, budgets=list(names), ends=list(ends), amounts=list(amounts))


def _latest_end(limit: Limit) -> timedelta:
    """Return the latest possible end of a window from now, for clocks that differ by up to a window and a minute."""
    return timedelta(seconds=2 * limit.seconds + 60)
