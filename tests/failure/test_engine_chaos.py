"""A mixed load on two API servers and three workers, which are killed, stopped and paused at random.

CHAOS_SEED chooses the faults and their times; CHAOS_SECONDS makes the test longer (`make chaos`). A second test uses a
Redis between the servers, which is killed and paused, too. In a third one the workers have two executors each, which
are killed, paused and cut off as well.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from tests.failure import cuttable_executor
from tests.failure.cluster import Cluster, is_up, patiently
from tests.failure.load import Load
from tests.failure.rules import violations
from tests.redis_server import RedisServer
from tests.servers import ServerProcess

SEED = int(os.environ.get("CHAOS_SEED") or 257447)
SECONDS = float(os.environ.get("CHAOS_SECONDS") or 12)
CLIENTS = 40
HEARTBEAT_S = 4.0
API = ["--tier", "api"]
QUEUE = ["--tier", "queue"]
# A run may lose many workers here.
SETTINGS = {
    "BG_JOB_MAX_RETRIES": "100",
    "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": "1",
    "LOG_LEVEL": "WARNING",
    # All events are replayed at the end, however long the faults last.
    "RESUMABLE_STREAM_TTL_SECONDS": "3600",
}


class Faults:
    """Kills, stops and pauses servers."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.done: dict[str, int] = {}
        self._free = list(cluster.servers)
        self._under_way: set[asyncio.Task[None]] = set()

    async def cause(self, seconds: float) -> None:
        """Cause faults for some seconds; afterwards every server is up."""
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


class ExecutorFaults(Faults):
    """Also kills, pauses and cuts off executors of the servers that are up."""

    async def _one(self, server: ServerProcess) -> None:
        if self.rng.random() < 0.4:
            await super()._one(server)
            return

        if victims := self.cluster.find_executors(server):
            what = self.rng.choice((self._kill_executor, self._pause_executor, self._cut_executor))
            self.done[what.__name__] = self.done.get(what.__name__, 0) + 1
            with contextlib.suppress(ProcessLookupError):
                await what(self.rng.choice(victims))

        self._free.append(server)

    async def _kill_executor(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    async def _pause_executor(self, pid: int) -> None:
        """Pause an executor: for a moment, for longer than leases last, or until it is killed for its silence."""
        with self.cluster.paused(pid):
            await asyncio.sleep(self.rng.choice((0.5, 6.5, 1.5 * HEARTBEAT_S)))

    async def _cut_executor(self, pid: int) -> None:
        os.kill(pid, cuttable_executor.CUT)


class RedisFaults:
    """Kills and pauses the Redis between the servers, one after the other."""

    def __init__(self, redis: RedisServer, rng: random.Random) -> None:
        self._redis = redis
        self._rng = rng

    async def cause(self) -> None:
        """Cause faults until cancelled."""
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


@pytest.mark.timeout(600 + 4 * SECONDS)
async def test_chaos(module_database: str, tmp_path: Path):
    await check_under_faults(module_database, tmp_path, random.Random(SEED))


@pytest.mark.thorough
@pytest.mark.timeout(600 + 4 * SECONDS)
async def test_chaos_with_redis_faults(module_database: str, tmp_path: Path):
    pytest.importorskip("redis", reason="the extra portside[redis] is not installed")
    rng = random.Random(SEED)
    redis = RedisServer(tmp_path)
    redis.start()

    faults = asyncio.create_task(RedisFaults(redis, random.Random(SEED)).cause())
    try:
        await check_under_faults(module_database, tmp_path, rng, REDIS_URI=redis.url)
        assert not faults.done()
    finally:
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        redis.kill()


@pytest.mark.thorough
@pytest.mark.timeout(600 + 4 * SECONDS)
async def test_chaos_with_executors(module_database: str, tmp_path: Path):
    settings = {
        "EXECUTORS": "2",
        "EXECUTOR_START_SECS": "600",
        "EXECUTOR_HEARTBEAT_SECS": f"{HEARTBEAT_S:g}",
        "EXECUTOR_PYTHON": str(cuttable_executor.interpreter(tmp_path)),
    }

    done = await check_under_faults(module_database, tmp_path, random.Random(SEED), ExecutorFaults, **settings)
    assert {"_kill_executor", "_pause_executor", "_cut_executor"} & done.keys()


async def check_under_faults(
    database: str, folder: Path, rng: random.Random, faults_of: type[Faults] = Faults, **settings: str
) -> dict[str, int]:
    """Cause faults in servers under load, and then check all runs, threads and streams; return how many of each."""
    show(f"CHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g}")
    cluster = Cluster(database, folder, **SETTINGS, **settings)
    fronts = [cluster.add(*API) for _ in range(2)]

    for _ in range(3):
        cluster.add(*QUEUE)

    try:
        await asyncio.to_thread(cluster.start_all)
        load = Load(cluster, fronts, rng, threads=24)
        faults = faults_of(cluster, rng)
        over = asyncio.Event()
        requests = asyncio.create_task(load.run(CLIENTS, over))

        await faults.cause(SECONDS)
        over.set()
        await requests
        await cluster.quiet()
        show(f"requests {load.request_counts}, accepted {len(load.accepted)}, faults {faults.done}")

        wrong = await violations(load)
        assert not wrong, "\n".join([f"CHAOS_SEED={SEED}", *wrong[:40]])
        assert all(is_up(server) for server in cluster.servers)
        await patiently(lambda: has_no_stuck_statement(cluster))

        return faults.done
    finally:
        cluster.close()


def show(text: str) -> None:
    """Print a line; pytest shows it with `-s`, and if the test fails."""
    sys.stdout.write(text + "\n")


async def has_no_stuck_statement(cluster: Cluster) -> bool:
    """Whether no statement or transaction of a server lasts for longer than a second."""
    query = """
        select from pg_stat_activity
        where datname = current_database() and application_name = 'portside' and state <> 'idle'
            and state_change < now() - interval '1 second'
    """

    return not await cluster.fetch(query)
