"""A mixed load on two servers that answer and three that execute, which are killed, stopped and paused meanwhile.

What is done to them, and when, is chosen by CHAOS_SEED, as far as processes can be made to repeat things; CHAOS_SECONDS
makes the trouble last longer (`make chaos`). The same once more over a Redis that is in trouble itself.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from tests.failure.cluster import Cluster, is_up
from tests.failure.load import Load
from tests.failure.verdict import wrong_after
from tests.redis_server import RedisServer
from tests.servers import ServerProcess

SEED = int(os.environ.get("CHAOS_SEED") or 257447)
SECONDS = float(os.environ.get("CHAOS_SECONDS") or 12)
CLIENTS = 40
API = ["--tier", "api"]
QUEUE = ["--tier", "queue"]
# A run may meet many losses here, none of which is its fault.
SETTINGS = {
    "BG_JOB_MAX_RETRIES": "100", "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": "1", "LOG_LEVEL": "WARNING",
    # What was told is asked for again at the end, however long the trouble lasts.
    "RESUMABLE_STREAM_TTL_SECONDS": "3600",
}  # fmt: skip


class Trouble:
    """Does something to one server after the other."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.done: dict[str, int] = {}
        self._free = list(cluster.servers)
        self._under_way: set[asyncio.Task[None]] = set()

    async def make(self, seconds: float) -> None:
        """Make trouble for some seconds, then leave every server up."""
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            # At most three at once are down or paused.
            if len(self._free) > len(self.cluster.servers) - 3:
                task = asyncio.create_task(self._one(self._free.pop(self.rng.randrange(len(self._free)))))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(self.rng.uniform(0.2, 1.2))
        await asyncio.gather(*self._under_way)

    async def _one(self, server: ServerProcess) -> None:
        what = self.rng.choice((self._kill, self._kill, self._stop, self._pause, self._pause))
        self.done[what.__name__] = self.done.get(what.__name__, 0) + 1
        await what(server)
        self._free.append(server)

    async def _kill(self, server: ServerProcess) -> None:
        server.kill()
        await self.cluster.start(server)

    async def _stop(self, server: ServerProcess) -> None:
        await asyncio.to_thread(server.stop, signal.SIGTERM)
        await self.cluster.start(server)

    async def _pause(self, server: ServerProcess) -> None:
        self.cluster.pause(server)
        await asyncio.sleep(self.rng.choice((0.5, 3, 6.5)))
        self.cluster.resume(server)


class RedisTrouble:
    """Kills and pauses the Redis between the servers, one after the other."""

    def __init__(self, redis: RedisServer, rng: random.Random) -> None:
        self._redis, self._rng = redis, rng

    async def make(self) -> None:
        """Make trouble until cancelled."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.5, 3))
            away_s = self._rng.choice((0.2, 2, 6.5))
            if self._rng.random() < 0.5:
                self._redis.pause()
                await asyncio.sleep(away_s)
                self._redis.resume()
            else:
                self._redis.kill()
                await asyncio.sleep(away_s)
                await asyncio.to_thread(self._redis.start)


@pytest.mark.timeout(240 + 4 * SECONDS)
async def test_chaos(module_database: str, tmp_path: Path):
    await endure(module_database, tmp_path, random.Random(SEED))


@pytest.mark.thorough
@pytest.mark.timeout(240 + 4 * SECONDS)
async def test_chaos_over_a_redis_in_trouble(module_database: str, tmp_path: Path):
    pytest.importorskip("redis", reason="the extra portside[redis] is not installed")
    rng, redis = random.Random(SEED), RedisServer(tmp_path)
    redis.start()
    trouble = asyncio.create_task(RedisTrouble(redis, random.Random(SEED)).make())
    try:
        await endure(module_database, tmp_path, rng, REDIS_URI=redis.url)
        assert not trouble.done()
    finally:
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        redis.kill()


async def endure(database: str, folder: Path, rng: random.Random, **settings: str) -> None:
    """Make trouble for servers under load, and look what is wrong afterwards."""
    tell(f"CHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g}")
    cluster = Cluster(database, folder, **SETTINGS, **settings)
    fronts = [cluster.add(*API) for _ in range(2)]
    for _ in range(3):
        cluster.add(*QUEUE)
    try:
        await asyncio.to_thread(cluster.start_all)
        load, trouble, over = Load(cluster, fronts, rng, threads=24), Trouble(cluster, rng), asyncio.Event()
        asking = asyncio.create_task(load.run(CLIENTS, over))
        await trouble.make(SECONDS)
        over.set()
        await cluster.quiet(within_s=60)
        await asyncio.wait_for(asking, 60)
        tell(f"asked {load.asked}, accepted {len(load.promised)}, trouble {trouble.done}")
        wrong = [*await wrong_after(load), *await stuck_statements(cluster)]
        assert not wrong, "\n".join([f"CHAOS_SEED={SEED}", *wrong[:40]])
        assert all(is_up(server) for server in cluster.servers)
    finally:
        cluster.close()


def tell(text: str) -> None:
    """Show a line to whoever looks at this test: always with `-s`, else where it fails."""
    sys.stdout.write(text + "\n")


async def stuck_statements(cluster: Cluster) -> list[str]:
    """Return what connections of servers have been at for longer than a chore takes."""
    query = """
        select state, now() - state_change as since, wait_event, query from pg_stat_activity
        where datname = current_database() and application_name = 'portside' and state <> 'idle'
            and state_change < now() - interval '1 second'
    """
    return [f"a connection is stuck: {dict(row)}" for row in await cluster.fetch(query)]
