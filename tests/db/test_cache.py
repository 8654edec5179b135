"""The cache that the SDK offers to the project's code, on a real Postgres."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from portside.agent.custom.cache import CONTENT_LIMIT_BYTES, SDK_CACHE, OldCacheEntries
from portside.agent.custom.web_app import running
from portside.kernel.db import Database
from portside.kernel.http.in_process import ServerNotRunning
from tests.conftest import eventually

cache_get = SDK_CACHE.cache_get
cache_set = SDK_CACHE.cache_set
swr = SDK_CACHE.swr
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = timedelta(0)


class Price(BaseModel):
    tea: int


@pytest.fixture
async def db(agent_databases: Callable[[], Awaitable[str]]) -> AsyncIterator[Database]:
    opened = await Database.connect(await agent_databases(), schema="portside", max_size=4)
    async with running(None, None, opened):
        yield opened

    await opened.close()


async def test_cached_value_is_found_from_any_loop(db: Database) -> None:
    value = {"a": [1, None, "\x00\ud800", 2.5]}
    await cache_set("key", value)
    assert await cache_get("key") == value
    assert await asyncio.to_thread(lambda: asyncio.run(cache_get("key"))) == value
    assert await cache_get("other") is None


async def test_cache_entries_expire(db: Database) -> None:
    await cache_set("short", 1, timedelta(microseconds=1))
    await cache_set("long", 2, timedelta(days=100))
    assert await cache_get("short") is None
    assert (await OldCacheEntries(db).activate()).did == {"deleted": 1}
    assert (await OldCacheEntries(db).activate()).did == {"deleted": 0}
    assert await cache_get("long") == 2
    assert await db.pool.fetchval("select expires_at - now() from cache_entries") <= DAY
    await db.pool.execute("update cache_entries set stored_at = now() - interval '1 hour'")
    await cache_set("long", 3)
    assert await db.pool.fetchval("select now() - stored_at < interval '30 minutes' from cache_entries")


@pytest.mark.parametrize(
    ("key", "value", "ttl"),
    [
        ("", 1, None),
        ("k" * 1025, 1, None),
        ("é" * 513, 1, None),
        ("a\0", 1, None),
        ("k", "x" * (CONTENT_LIMIT_BYTES - 1), None),
        ("k", float("nan"), None),
        ("k", 1, timedelta(seconds=-1)),
    ],
)
async def test_bad_keys_and_values_are_refused(db: Database, key: str, value: Any, ttl: timedelta | None) -> None:
    with pytest.raises(ValueError, match=r"key|value|ttl|Out of range"):
        await cache_set(key, value, ttl)

    with pytest.raises(TypeError):
        await cache_set("k", object())


async def test_keys_and_values_may_be_as_large_as_their_limits(db: Database) -> None:
    value = "x" * (CONTENT_LIMIT_BYTES - len('""'))
    await cache_set("é" * 512, value)
    assert await cache_get("é" * 512) == value


async def test_swr_loads_missing_values_and_refreshes_stale_ones_in_background(db: Database) -> None:
    loads = 0

    async def load() -> Price:
        nonlocal loads
        loads += 1
        return Price(tea=loads)

    def ask(fresh_for: timedelta = HOUR, max_age: timedelta = DAY) -> Any:
        return swr("price", load, fresh_for=fresh_for, max_age=max_age, model=Price)

    first = await ask()
    again = await ask()
    assert [(each.value, each.status) for each in (first, again)] == [(Price(tea=1), "miss"), (Price(tea=1), "fresh")]
    stale = await ask(fresh_for=NOW)
    assert (stale.value, stale.status) == (Price(tea=1), "stale")

    async def refreshed() -> bool:
        return (await ask()).value == Price(tea=2)

    await eventually(refreshed)
    expired = await ask(max_age=NOW)
    assert (expired.value, expired.status) == (Price(tea=3), "expired")
    assert await expired.mutate(Price(tea=9)) == Price(tea=9)
    assert (await ask()).value == Price(tea=9)
    assert await expired.mutate() == Price(tea=4)
    assert (expired.value, expired.status) == (Price(tea=4), "fresh")


async def test_entry_that_does_not_fit_the_model_is_a_miss(db: Database) -> None:
    async def load() -> Price:
        return Price(tea=1)

    await cache_set("price", {"coffee": 1})
    result = await swr("price", load, fresh_for=HOUR, max_age=DAY, model=Price)
    assert (result.value, result.status) == (Price(tea=1), "miss")


async def test_cache_needs_a_running_server() -> None:
    with pytest.raises(ServerNotRunning):
        await cache_get("key")
