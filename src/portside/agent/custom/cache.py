"""The cache of the SDK (`langgraph_sdk.cache`), for the project's own code: nodes, routes, authentication.

Its entries are in the database, so every process of the server has the same. They last a day at most, and are lost when
Postgres crashes. The SDK says what these functions are to do; it asks the server for them by their names.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from portside.agent.custom.loopback import INSIDE
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.http.inside import NotServing
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
T = TypeVar("T")
MAX_CACHE_TTL = timedelta(days=1)
KEY_LIMIT_BYTES = 1024
CONTENT_LIMIT_BYTES = 1024 * 1024
CacheStatus = Literal["miss", "fresh", "stale", "expired"]


class Entry(NamedTuple):
    """What is kept, and since how many seconds."""

    value: Any
    age_s: float


class Cache:
    """The entries of one database, which is spoken to on the server's loop, from whichever loop it is asked."""

    def __init__(self) -> None:
        self._db: Database | None = None
        self._refreshing: dict[str, asyncio.Task[Any]] = {}

    def open(self, db: Database | None) -> None:
        """Keep entries in this database; in none again when the server stops."""
        self._db = db

    async def read(self, key: str) -> Entry | None:
        """Return an entry, None where there is none. Raises ValueError for a bad key, and NotServing."""
        row = await INSIDE.run(self._opened().fetchrow(sql.read_cache, key=_checked(key)))
        return None if row is None else Entry(json.loads(row["content"]), row["age_s"])

    async def write(self, key: str, value: Any, ttl: timedelta = MAX_CACHE_TTL) -> None:
        """Keep a value. Raises ValueError and TypeError for what is no JSON or too large, and NotServing."""
        content = json.dumps(value, allow_nan=False)
        if len(content) > CONTENT_LIMIT_BYTES:
            raise ValueError(f"the value is larger than {CONTENT_LIMIT_BYTES} bytes as JSON")
        seconds = min(ttl, MAX_CACHE_TTL).total_seconds()
        await INSIDE.run(self._opened().execute(sql.write_cache, key=_checked(key), content=content, ttl_s=seconds))

    def refresh(self, key: str, load: Callable[[], Awaitable[Any]]) -> None:
        """Load a value anew in the background, once at a time in this process; what fails is logged."""
        if key not in self._refreshing:
            self._refreshing[key] = task = asyncio.ensure_future(_attempt(key, load))
            task.add_done_callback(lambda _task: self._refreshing.pop(key, None))

    def _opened(self) -> Database:
        if self._db is None:
            raise NotServing("the cache is there when the server runs: not while modules are imported")
        return self._db


CACHE = Cache()


class SWRResult(Generic[T]):
    """A value, and whether it was there: `miss`, `fresh`, `stale` or `expired`."""

    def __init__(self, value: T, status: CacheStatus, renew: "Callable[[Any], Awaitable[T]]") -> None:
        self.value = value
        self.status: CacheStatus = status
        self._renew = renew

    async def mutate(self, value: Any = ...) -> T:
        """Put a value in the place of this one, or load it anew."""
        self.value = await self._renew(value)
        self.status = "fresh"
        return self.value


async def cache_get(key: str) -> Any | None:
    """Return a value that is kept, or None."""
    entry = await CACHE.read(key)
    return None if entry is None else entry.value


async def cache_set(key: str, value: Any, ttl: timedelta | None = None) -> None:
    """Keep a value, for a day at most."""
    if ttl is not None and ttl < timedelta(0):
        raise ValueError("the ttl is negative")
    await CACHE.write(key, value, ttl or MAX_CACHE_TTL)


async def swr(
    key: str, loader: Callable[[], Awaitable[T]], *, fresh_for: timedelta, max_age: timedelta, model: Any = None
) -> SWRResult[T]:
    """Return what is kept, and load it anew in the background once it is older than `fresh_for`."""

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


# What the SDK imports, by the names that it imports it by.
OFFERED = {"cache_get": cache_get, "cache_set": cache_set, "swr": swr, "SWRResult": SWRResult}


class OldCacheEntries(Task):
    """Deletes entries that are over."""

    every_s = 60.0
    batch = 1000

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted = await self._db.execute(sql.delete_old_cache, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


def _read_as(model: Any, entry: Entry | None) -> Entry | None:
    """Return an entry with its value as the model has it; one of another form, of another revision, is none."""
    if model is None or entry is None:
        return entry
    try:
        return Entry(model.model_validate(entry.value), entry.age_s)
    except ValueError:
        return None


async def _attempt(key: str, load: Callable[[], Awaitable[Any]]) -> None:
    try:
        await load()
    except Exception:
        log.exception("a value of the cache could not be loaded anew", key=key)


def _checked(key: str) -> str:
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "replace")) <= KEY_LIMIT_BYTES or "\0" in key:
        raise ValueError(f"a key of the cache is text of 1 to {KEY_LIMIT_BYTES} bytes, without NUL characters")
    return key
