"""The lifetimes of threads, and what is deleted at their end."""

from portside.agent.config import ThreadTtl
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.reconcile import Status, Task

# A thousand years; Postgres cannot represent the expiry of much longer lifetimes.
MAX_TTL_MINUTES = 525_600_000.0
# Histories are pruned under the locks of their threads; a batch of this size blocks others for less than a second.
PRUNE_BATCH = 50


async def set_default_lifetime(db: Database, ttl: ThreadTtl) -> None:
    """Set the lifetime of threads that are created without one; existing threads keep theirs."""
    minutes = None if ttl.default_ttl is None else min(ttl.default_ttl, MAX_TTL_MINUTES)
    await db.execute(sql.set_default_lifetime, ttl_minutes=minutes, strategy=ttl.strategy)


class ExpiredThreads(Task):
    """Deletes threads at the end of their lifetime, or all but their latest checkpoint."""

    deletes = True

    def __init__(self, db: Database, ttl: ThreadTtl) -> None:
        super().__init__(every_s=ttl.sweep_interval_minutes * 60)
        self._db = db
        self._limit = ttl.sweep_limit

    async def activate(self) -> Status:
        """Delete one batch and prune one."""
        deleted_count = await self._db.execute(sql.delete_expired_threads, limit=self._limit)
        batch = min(self._limit, PRUNE_BATCH)
        pruned_count = await self._prune(batch)

        return Status(
            did={"deleted": deleted_count, "pruned": pruned_count},
            again=deleted_count == self._limit or pruned_count == batch,
        )

    async def _prune(self, batch: int) -> int:
        async with self._db.transaction() as tx:
            rows = await tx.fetch(sql.lock_threads_to_prune, limit=batch)
            thread_ids = [row["thread_id"] for row in rows]
            if thread_ids:
                await tx.execute(sql.keep_latest_checkpoints, thread_ids=thread_ids)
                await tx.execute(sql.note_pruned_threads, thread_ids=thread_ids)

        return len(thread_ids)
