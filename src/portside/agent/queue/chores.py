"""The queue's periodic chores: expired leases, threads of ended stateless runs, old idempotency keys.

Every process may run them at once: each batch skips rows that another process has locked.
"""

from collections.abc import Callable
from typing import ClassVar

from prometheus_client import Counter

from portside.agent.queue.statements import STATEMENT_TIMEOUT_S
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
EXPIRED = Counter("lg_api_leases_expired_total", "Leases that ran out and were swept by this process.", ["outcome"])


class ExpiredLeases(Task):
    """Returns runs with expired leases to the queue; after too many lost attempts a run ends with an error instead.

    `is_overdue` says whether this process stood still and has not renewed its own leases since: it would take the runs
    from itself.
    """

    every_s: ClassVar[float] = 1.0
    batch: ClassVar[int] = 200

    def __init__(
        self,
        db: Database,
        *,
        max_retries: int,
        on_released: Callable[[], None],
        is_overdue: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._db = db
        self._max_attempts = max_retries + 1
        self._on_released = on_released
        self._is_overdue = is_overdue

    async def activate(self) -> Status:
        """Release one batch."""
        if self._is_overdue():
            return Status()

        async with timeout(STATEMENT_TIMEOUT_S):
            rows = await self._db.fetch(sql.release_expired_runs, limit=self.batch, max_attempts=self._max_attempts)

        for row in rows:
            log.warning("a run's worker was lost", run_id=str(row["run_id"]), outcome=row["outcome"])
            EXPIRED.labels(row["outcome"]).inc()

        if rows:
            self._on_released()

        return Status(did={"released": len(rows)}, again=len(rows) == self.batch)


class DueThreads(Task):
    """Deletes the threads of stateless runs when the time in which clients may fetch the result is over."""

    every_s: ClassVar[float] = 15.0
    batch: ClassVar[int] = 500

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        threads = await self._db.execute(sql.delete_due_threads, limit=self.batch)
        return Status(did={"deleted": threads}, again=threads == self.batch)


class LapsedRunKeys(Task):
    """Clears idempotency keys that are older than a day."""

    every_s: ClassVar[float] = 60.0
    batch: ClassVar[int] = 1000

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Clear one batch."""
        keys = await self._db.execute(sql.clear_run_keys, limit=self.batch)
        return Status(did={"forgotten": keys}, again=keys == self.batch)
