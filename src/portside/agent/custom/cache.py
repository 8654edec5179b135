"""The cache of the SDK (`langgraph_sdk.cache`), for the project's own code: nodes, routes, authentication.

Entries are stored in the database, so all processes share them. They last a day at most, and are lost if Postgres
crashes. The SDK defines what these functions do, and imports them from the server by name.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from portside.agent.custom.loopback import LOOPBACK
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.http.in_process import ServerNotRunning
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
T = TypeVar("T")
MAX_CACHE_TTL = timedelta(days=1)
KEY_LIMIT_BYTES = 1024
CONTENT_LIMIT_BYTES = 1024 * 1024
CacheStatus = Literal["miss", "fresh", "stale", "expired"]


class CacheEntry(NamedTuple):
    """A cached value and its age."""

    value: Any
    age_s: float


class Cache:
    """The entries of one database. Any loop may call; the queries run on the server's loop."""

    def __init__(self) -> None:
        self._db: Database | None = None
        self._refreshing: dict[str, asyncio.Task[Any]] = {}

    def open(self, db: Database | None) -> None:
        """Use this database; None when the server stops."""
        self._db = db

    async def read(self, key: str) -> CacheEntry | None:
        """Return an entry, or None. Raises ValueError for a bad key, and ServerNotRunning."""
        row = await LOOPBACK.run(self._opened().fetchrow(sql.read_cache, key=_checked(key)))
        return None if row is None else CacheEntry(json.loads(row["content"]), row["age_s"])

    async def write(self, key: str, value: Any, ttl: timedelta = MAX_CACHE_TTL) -> None:
        """Store a value. Raises ValueError and TypeError for a bad value or key, and ServerNotRunning."""
        content = json.dumps(value, allow_nan=False)
        if len(content) > CONTENT_LIMIT_BYTES:
            raise ValueError(f"the value is larger than {CONTENT_LIMIT_BYTES} bytes as JSON")
        seconds = min(ttl, MAX_CACHE_TTL).total_seconds()
        await LOOPBACK.run(self._opened().execute(sql.write_cache, key=_checked(key), content=content, ttl_s=seconds))

    def refresh(self, key: str, load: Callable[[], Awaitable[Any]]) -> None:
        """Reload a value in the background, unless this process already does; a failure is logged."""
        if key not in self._refreshing:
            self._refreshing[key] = task = asyncio.ensure_future(_attempt(key, load))
            task.add_done_callback(lambda _task: self._refreshing.pop(key, None))

    def _opened(self) -> Database:
        if self._db is None:
            raise ServerNotRunning("the cache works only while the server runs, not while modules are imported")
        return self._db


CACHE = Cache()


class SWRResult(Generic[T]):
    """A value and its cache status: `miss`, `fresh`, `stale` or `expired`."""

    def __init__(self, value: T, status: CacheStatus, renew: "Callable[[Any], Awaitable[T]]") -> None:
        self.value = value
        self.status: CacheStatus = status
        self._renew = renew

    async def mutate(self, value: Any = ...) -> T:
        """Replace the value, or reload it."""
        self.value = await self._renew(value)
        self.status = "fresh"
        return self.value


async def cache_get(key: str) -> Any | None:
    """Return a cached value, or None."""
    entry = await CACHE.read(key)
    return None if entry is None else entry.value


async def cache_set(key: str, value: Any, ttl: timedelta | None = None) -> None:
    """Store a value, for a day at most."""
    if ttl is not None and ttl < timedelta(0):
        raise ValueError("the ttl is negative")
    await CACHE.write(key, value, ttl or MAX_CACHE_TTL)


async def swr(
    key: str, loader: Callable[[], Awaitable[T]], *, fresh_for: timedelta, max_age: timedelta, model: Any = None
) -> SWRResult[T]:
    """Return a cached value, and reload it in the background once it is older than `fresh_for`."""

    async def renew(value: Any = ...) -> T:
        loaded: Any = await loader() if value is ... else value
        if model is not None:
            loaded = model.model_validate(loaded)
        await CACHE.write(key, loaded if model is None else loaded.model_dump(mode="json"))
        kept: T = loaded
        return kept

    entry = _read_as(model, await CACHE.read(key))
    if entry is None or entry.age_s >= min(max_age, MAX_CACHE_TTL).total_seconds():
        return SWRResult(await renew(), "miss" if entry is None else "expired", renew)
    if entry.age_s < fresh_for.total_seconds():
        return SWRResult(entry.value, "fresh", renew)
    CACHE.refresh(key, renew)
    return SWRResult(entry.value, "stale", renew)


# What the SDK imports, by its names.
SDK_NAMES = {"cache_get": cache_get, "cache_set": cache_set, "swr": swr, "SWRResult": SWRResult}


class OldCacheEntries(Task):
    """Deletes expired entries."""

    every_s = 60.0
    batch = 1000

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted = await self._db.execute(sql.delete_old_cache, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


def _read_as(model: Any, entry: CacheEntry | None) -> CacheEntry | None:
    """Return an entry with its value as an instance of the model; None for a value of another revision's form."""
    if model is None or entry is None:
        return entry
    try:
        return CacheEntry(model.model_validate(entry.value), entry.age_s)
    except ValueError:
        return None


async def _attempt(key: str, load: Callable[[], Awaitable[Any]]) -> None:
    try:
        await load()
    except Exception:
        log.exception("a cached value could not be reloaded", key=key)


def _checked(key: str) -> str:
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "replace")) <= KEY_LIMIT_BYTES or "\0" in key:
        raise ValueError(f"a cache key is a string of 1 to {KEY_LIMIT_BYTES} bytes without NUL characters")
    return key
