"""Two servers that notify each other over Redis, or over a server that speaks its protocol."""

from collections.abc import Iterator

import httpx2
import pytest

from portside.agent.streams import bus
from tests.api.pair import Pair, start_pair
from tests.api.streaming import open_stream
from tests.conftest import eventually
from tests.redis_server import RedisServer

pytest.importorskip("redis", reason="the extra portside[redis] is not installed")
# More than a run has; processes send others all the time.
MESSAGES_OF_A_RUN = 100


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(scope="module")
def pair(module_database: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with start_pair(module_database, folder, REDIS_URI=redis_url, REDIS_KEY_PREFIX="test:") as running:
        yield running


async def test_a_run_is_followed_over_redis(pair: Pair, redis_url: str):
    from redis.asyncio import Redis

    body = {"assistant_id": "count", "input": {"upto": 3000}, "stream_mode": ["custom"], "stream_resumable": True}
    async with Redis.from_url(redis_url) as client, client.pubsub() as channel:
        await channel.psubscribe("test:portside:*")

        async def is_followed_over_redis() -> bool:
            """Follow a run. Redis may still be busy with what waited for it in another test, and then carries none."""
            async with (
                httpx2.AsyncClient(base_url=pair.front.url, timeout=300) as http,
                open_stream(http, "POST", "/runs/stream", json=body) as stream,
            ):
                events = await stream.all()

            assert [event.data for event in events if event.name == "custom"] == list(range(3000))

            for _ in range(MESSAGES_OF_A_RUN):
                message = await channel.get_message(timeout=1)
                if message is None:
                    return False
                if message["type"] == "pmessage" and bus._msgpack_decoder.decode(message["data"]).chunks:
                    return True

            return False

        await eventually(is_followed_over_redis)


async def test_large_events_go_over_redis_as_well(pair: Pair):
    body = {"assistant_id": "flood", "input": {"pieces": 5}, "stream_mode": ["custom"]}
    async with (
        httpx2.AsyncClient(base_url=pair.front.url, timeout=300) as http,
        open_stream(http, "POST", "/runs/stream", json=body) as stream,
    ):
        events = await stream.all()

    assert [len(event.data) for event in events if event.name == "custom"] == [1_000_000] * 5


async def test_stalled_redis_blocks_no_stream(pair: Pair, redis_server: RedisServer):
    """More than may wait for it; what it does not carry is read where it was written."""
    body = {"assistant_id": "flood", "input": {"pieces": 20}, "stream_mode": ["custom"]}
    redis_server.pause()
    try:
        async with (
            httpx2.AsyncClient(base_url=pair.front.url, timeout=300) as http,
            open_stream(http, "POST", "/runs/stream", json=body) as stream,
        ):
            events = await stream.all()
    finally:
        redis_server.resume()

    assert [len(event.data) for event in events if event.name == "custom"] == [1_000_000] * 20


async def test_silent_redis_is_noticed_by_who_only_listens(monkeypatch, redis_server: RedisServer):
    """A connection on which nothing arrives any more looks like one on which nobody speaks."""
    import asyncio

    monkeypatch.setattr(bus, "CHECK_EVERY_S", 0.1)
    monkeypatch.setattr(bus, "WITHIN_S", 0.5)
    connected, ended = asyncio.Queue(), asyncio.Event()  # type: ignore[var-annotated]

    class Ear(bus.RedisBus):
        async def _receive_from_one_connection(self, receive: bus.Receive) -> None:
            try:
                await super()._receive_from_one_connection(receive)
            finally:
                ended.set()

    ear = Ear(redis_server.url, "silence", 10)
    await ear.open(lambda news, _chunks: connected.put_nowait(news))
    try:
        await asyncio.wait_for(connected.get(), 60)
        redis_server.pause()
        try:
            await asyncio.wait_for(ended.wait(), 60)
        finally:
            redis_server.resume()

        assert (await asyncio.wait_for(connected.get(), 60)).sender == bus.NOBODY
    finally:
        await ear.close()


async def test_oversized_redis_message_drops_its_chunks(monkeypatch, redis_url: str):
    import asyncio
    from uuid import uuid4

    from portside.agent.streams.chunks import Chunk
    from portside.agent.streams.notifications import NOBODY, Notification

    monkeypatch.setattr(bus, "MESSAGE_LIMIT_BYTES", 1000)
    # A server on a busy machine may need longer for its answer than the five seconds of the product.
    monkeypatch.setattr(bus, "WITHIN_S", 60.0)
    received: asyncio.Queue = asyncio.Queue()
    ear = bus.RedisBus(redis_url, "limit", 10)
    mouth = bus.RedisBus(redis_url, "limit", 10)

    await ear.open(lambda hints, chunks: received.put_nowait((hints, chunks)))
    thread_id = uuid4()
    try:
        # A message sent before it is subscribed would be lost.
        assert (await asyncio.wait_for(received.get(), 60))[0].sender == NOBODY

        for size, count in ((10, 1), (2000, 0)):
            chunk = Chunk(thread_id, 1, None, uuid4(), b"x" * size)
            await mouth.send(Notification(sender=uuid4(), written=[thread_id]), [chunk])
            hints, chunks = await asyncio.wait_for(received.get(), 60)
            assert hints.written == [thread_id]
            assert len(chunks) == count
    finally:
        await ear.close()
        await mouth.close()
