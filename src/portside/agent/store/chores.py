"""The store's chores: forgetting what has expired, and embedding anew. Safe on every node at once."""

from typing import Any, ClassVar

from portside.agent.sql import sql
from portside.agent.store.search_index import SearchIndex, StoreSetup
from portside.kernel.codec import load
from portside.kernel.db import Database, Record
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)


class ExpiredItems(Task):
    """Deletes items whose time is over; nobody has seen them since."""

    every_s: ClassVar[float] = 300.0
    batch: ClassVar[int] = 1000

    def __init__(self, db: Database, setup: StoreSetup) -> None:
        super().__init__(every_s=setup.ttl.sweep_interval_minutes * 60 if setup.ttl else None)
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted = await self._db.execute(sql.delete_expired_items, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


class ReindexItems(Task):
    """Embeds the items that the search index of this configuration has not seen.

    What cannot be embedded is passed over until the next round, so that one bad item holds up no other.
    """

    every_s: ClassVar[float] = 60.0
    batch: ClassVar[int] = 64

    def __init__(self, db: Database, index: SearchIndex) -> None:
        super().__init__()
        self._db = db
        self._index = index
        self._after = (-1, -1)

    async def activate(self) -> Status:
        """Embed one batch. Raises EmbeddingFailed."""
        async with self._db.transaction() as tx:
            # The lock is held while the embedding works: two processes would pay for it twice.
            if not await tx.fetchval(sql.claim_reindexing):
                return Status()
            rows = await tx.fetch(
                sql.list_items_to_index,
                generation=self._index.generation,
                after_generation=self._after[0],
                after_id=self._after[1],
                limit=self.batch,
            )
            self._after = (rows[-1]["indexed_by"], rows[-1]["id"]) if len(rows) == self.batch else (-1, -1)
            if rows:
                await tx.execute(sql.index_items, **await self._indexed(rows), generation=self._index.generation)
        if rows:
            log.info("store items were embedded anew", items=len(rows), generation=self._index.generation)
        return Status(did={"indexed": len(rows)}, again=len(rows) == self.batch)

    async def _indexed(self, rows: list[Record]) -> dict[str, list[Any]]:
        vectors = await self._index.vectors_of([(row["id"], load(row["value"]), row["index_fields"]) for row in rows])
        return {
            "ids": [row["id"] for row in rows],
            "revisions": [row["revision"] for row in rows],
            "owners": vectors.owners,
            "places": vectors.places,
            "embeddings": vectors.embeddings,
        }


def store_chores(db: Database, setup: StoreSetup) -> list[Task]:
    """Return the chores of a store that is set up like this."""
    chores: list[Task] = [ExpiredItems(db, setup)]
    if setup.index is not None:
        chores.append(ReindexItems(db, setup.index))
    return chores
