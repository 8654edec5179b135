"""The cache of the SDK (`langgraph_sdk.cache`), for the project's own code: nodes, routes, authentication.

Entries are stored in the database, so all processes share them. They last a day at most, and are lost if Postgres
crashes. The SDK defines what these functions do, and imports them from the server by name.
"""

from portside.agent.custom.loopback import LOOPBACK
from portside.agent.sql import sql
from portside.executor.sdk_modules import MAX_CACHE_TTL, SdkCache
from portside.kernel.db import Database
from portside.kernel.http.in_process import ServerNotRunning
from portside.kernel.reconcile import Status, Task

KEY_LIMIT_BYTES = 1024
CONTENT_LIMIT_BYTES = 1024 * 1024


class Cache:
    """The entries of one database. Any loop may call; the queries run on the server's loop."""

    def __init__(self) -> None:
        self._db: Database | None = None

    def open(self, db: Database | None) -> None:
        """Use this database; None when the server stops."""
        self._db = db

    async def read(self, key: str) -> tuple[str, float] | None:
        """Return the JSON of an entry and its age in seconds, or None. Raises ValueError, and ServerNotRunning."""
        row = await LOOPBACK.run(self._opened().fetchrow(sql.read_cache, key=_checked(key)))
        return None if row is None else (row["content"], row["age_s"])

    async def write(self, key: str, content: str, ttl_s: float) -> None:
        """Store JSON, for a day at most. Raises ValueError for a bad value or key, and ServerNotRunning."""
        # The SDK's values are JSON in ASCII: as many characters as bytes.
        if len(content) > CONTENT_LIMIT_BYTES:
            raise ValueError(f"the value is larger than {CONTENT_LIMIT_BYTES} bytes as JSON")

        ttl_s = min(ttl_s, MAX_CACHE_TTL.total_seconds())
        await LOOPBACK.run(self._opened().execute(sql.write_cache, key=_checked(key), content=content, ttl_s=ttl_s))

    def _opened(self) -> Database:
        if self._db is None:
            raise ServerNotRunning("the cache works only while the server runs, not while modules are imported")
        return self._db


CACHE = Cache()
SDK_CACHE = SdkCache(CACHE)


class OldCacheEntries(Task):
    """Deletes expired entries."""

    every_s = 60.0
    deletes = True
    batch = 1000

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted = await self._db.execute(sql.delete_old_cache, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


def _checked(key: str) -> str:
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "replace")) <= KEY_LIMIT_BYTES or "\0" in key:
        raise ValueError(f"a cache key is a string of 1 to {KEY_LIMIT_BYTES} bytes without NUL characters")
    return key
