"""How long threads are kept, and what becomes of those that nobody has used for that long.

Each chore is safe on every node at once: what another one is busy with is skipped.
"""

from portside.agent.config import ThreadTtl
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.reconcile import Status, Task

FOR_EVER_MINUTES = 525_600_000.0
# Histories are pruned under the locks of their threads: what is kept waiting is kept waiting for less than a second.
PRUNED_AT_ONCE = 50


async def set_default_lifetime(db: Database, ttl: ThreadTtl) -> None:
    """Set the lifetime of threads made from now on that name none; threads there are keep theirs."""
    minutes = None if ttl.default_ttl is None else min(ttl.default_ttl, FOR_EVER_MINUTES)
    await db.execute(sql.set_default_lifetime, ttl_minutes=minutes, strategy=ttl.strategy)


class ExpiredThreads(Task):
    """Deletes threads at the end of their lifetime, or leaves them with their latest checkpoint alone."""

    def __init__(self, db: Database, ttl: ThreadTtl) -> None:
        super().__init__(every_s=ttl.sweep_interval_minutes * 60)
        self._db = db
        self._limit = ttl.sweep_limit

    async def activate(self) -> Status:
        """Delete one batch and prune one."""
        deleted = await self._db.execute(sql.delete_expired_threads, limit=self._limit)
        batch = min(self._limit, PRUNED_AT_ONCE)
        pruned = await self._prune(batch)
        return Status(did={"deleted": deleted, "pruned": pruned}, again=deleted == self._limit or pruned == batch)

    async def _prune(self, batch: int) -> int:
        async with self._db.transaction() as tx:
            rows = await tx.fetch(sql.lock_threads_to_prune, limit=batch)
            thread_ids = [row["thread_id"] for row in rows]
            if thread_ids:
                await tx.execute(sql.keep_latest_checkpoints, thread_ids=thread_ids)
                await tx.execute(sql.note_pruned_threads, thread_ids=thread_ids)
        return len(thread_ids)
