"""Servers whose database is away for a while: no run fails or is lost because of it, and the servers recover alone."""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest

from portside.kernel.embedded import EmbeddedPostgres
from tests.conftest import eventually
from tests.failure.cluster import Client, Cluster, begun_twice_after_its_end, list_steps, patiently, start_cluster

TABLES = ("runs", "threads", "checkpoints", "checkpoint_values", "checkpoint_writes")
CONNECTED = "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() limit 1"
# What a server logs when it cannot renew its leases, or cannot store the checkpoints of a run.
NOTICED = (
    "leases could not be renewed",
    "leases are not renewed yet",
    "a run is interrupted and resumes when the database answers again",
)
STOPPED = "a run was stopped: its lease was lost or ran out"
FULL = """
create or replace function public.refuse() returns trigger language plpgsql as
$$ begin raise exception 'could not extend file: No space left on device' using errcode = 'disk_full'; end $$;
"""


@pytest.fixture(scope="module")
def engine():
    """A Postgres of this module's own: it is stopped while others use theirs."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder))
        server.acquire()
        yield server
        server.release()


@pytest.fixture(scope="module")
def cluster(engine: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory):
    with start_cluster(2, engine.url("portside"), tmp_path_factory.mktemp("database")) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def cut_off(cluster: Cluster, _engine: EmbeddedPostgres) -> AsyncIterator[None]:
    """Every connection is ended by the server, a few times."""
    for _ in range(3):
        await cluster.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )

        await patiently(lambda: cluster.fetch(CONNECTED))

    yield


@contextlib.asynccontextmanager
async def stopped(_cluster: Cluster, engine: EmbeddedPostgres) -> AsyncIterator[None]:
    """Postgres is gone at once, as in a crash, and comes back when the block is left."""
    with engine._start_lock():
        engine._run("pg_ctl", "stop", "-D", str(engine.data), "-m", "immediate", "-w")
        yield
        await asyncio.to_thread(engine._start, 300)


@contextlib.asynccontextmanager
async def read_only(cluster: Cluster, _engine: EmbeddedPostgres) -> AsyncIterator[None]:
    """Every statement that writes is refused, as on a standby."""
    async with cluster.database() as connection:
        await connection.execute("alter system set default_transaction_read_only = on")
        await connection.execute("select pg_reload_conf()")
        yield
        await connection.execute("set default_transaction_read_only = off")
        await connection.execute("alter system reset default_transaction_read_only")
        await connection.execute("select pg_reload_conf()")


@contextlib.asynccontextmanager
async def full_disk(cluster: Cluster, _engine: EmbeddedPostgres) -> AsyncIterator[None]:
    """Every write of a row is refused."""
    async with fill_tables(cluster, TABLES):
        yield


@contextlib.asynccontextmanager
async def full_disk_of_checkpoints(cluster: Cluster, _engine: EmbeddedPostgres) -> AsyncIterator[None]:
    """Only checkpoints are refused: runs can be claimed and ended, but not continue."""
    async with fill_tables(cluster, ("checkpoints", "checkpoint_values", "checkpoint_writes")):
        yield


@contextlib.asynccontextmanager
async def fill_tables(cluster: Cluster, tables: tuple[str, ...]) -> AsyncIterator[None]:
    async with cluster.database() as connection:
        await connection.execute(FULL)

        for table in tables:
            await connection.execute(
                f"create trigger full_disk before insert or update on {table} execute function public.refuse()"
            )

        yield

        for table in tables:
            await connection.execute(f"drop trigger full_disk on {table}")


Trouble = Callable[[Cluster, EmbeddedPostgres], AbstractAsyncContextManager[None]]


@pytest.mark.parametrize("trouble", [cut_off, stopped, read_only, full_disk, full_disk_of_checkpoints])
async def test_runs_survive_database_outages(
    cluster: Cluster, engine: EmbeddedPostgres, trouble: Trouble, tmp_path: Path
):
    """Some runs finish a step while the database refuses, some wait in a step or behind another run, some go on."""
    gate = tmp_path / "gate"
    later = tmp_path / "later"
    async with Client(cluster.servers[0]) as here, Client(cluster.servers[1]) as there:
        threads = [await here.thread() for _ in range(9)]
        writing = [await here.run(thread, gates={1: gate}) for thread in threads[:3]]
        waiting = [await there.run(thread, gates={1: later}) for thread in threads[3:6]]
        going = [await here.run(thread, steps=60, pause_s=0.05) for thread in threads[6:]]
        behind = [await there.run(thread) for thread in threads]

    for run in (*writing, *waiting):
        await cluster.ledger.begun(run, 1)

    for run in going:
        await cluster.ledger.begun(run, 3)

    cluster.skip_logs()
    async with trouble(cluster, engine):
        gate.touch()
        await patiently(lambda: have_ended_step(cluster, writing, 1))
        if trouble is not cut_off:
            await patiently(lambda: have_noticed(cluster, NOTICED))

    later.touch()
    runs = [*writing, *waiting, *going, *behind]
    assert await cluster.over(*runs) == ["success"] * len(runs)

    for thread, first, second in zip(threads, [*writing, *waiting, *going], behind, strict=True):
        row = await cluster.thread_row(thread)
        count = 60 if first in going else 3
        assert (row["status"], row["active_runs"]) == ("idle", 0)
        assert [step for step, _ in list_steps(row["values"], first)] == list(range(count))
        assert [step for step, _ in list_steps(row["values"], second)] == [0, 1, 2]

    assert begun_twice_after_its_end([e for e in cluster.ledger.entries() if e.run in runs]) == []
    await all_answer(cluster)


async def test_runs_survive_an_outage_longer_than_the_lease(cluster: Cluster, engine: EmbeddedPostgres, tmp_path: Path):
    """All leases run out during the outage; afterwards each run continues on one server."""
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as here:
        threads = [await here.thread() for _ in range(4)]
        runs = [await here.run(thread, gates={1: gate}) for thread in threads]

    for run in runs:
        await cluster.ledger.begun(run, 1)

    cluster.skip_logs()
    async with stopped(cluster, engine):
        for run in runs:
            await patiently(lambda run=run: have_noticed(cluster, (f"{STOPPED} .*{run}",)))

    gate.touch()
    assert await cluster.over(*runs) == ["success"] * 4

    for thread, run in zip(threads, runs, strict=True):
        steps = list_steps((await cluster.thread_row(thread))["values"], run)
        assert [step for step, _ in steps] == [0, 1, 2]

    await all_answer(cluster)


async def is_healthy(client: Client) -> bool:
    return (await client.http.get("/ok")).status_code == 200


async def have_noticed(cluster: Cluster, lines: tuple[str, ...]) -> bool:
    """Whether a server has logged one of these lines since the trouble began."""
    return any(re.search(line, text) for text in cluster.logs() for line in lines)


async def have_ended_step(cluster: Cluster, runs: list[str], step: int) -> bool:
    """Whether each run has ended a step, or was stopped before it could: on a busy machine its lease runs out first."""
    ended = {e.run for e in cluster.ledger.entries() if (e.event, e.step) == ("end", step)}
    return all([run in ended or await have_noticed(cluster, (f"{STOPPED} .*{run}",)) for run in runs])


async def all_answer(cluster: Cluster) -> None:
    """Every server recovers without help: it is healthy, and clients get their results."""
    for server in cluster.servers:
        async with Client(server) as client:
            await eventually(lambda client=client: is_healthy(client))
            body = {"assistant_id": "ledger", "input": {"at": 0, "steps": 1}}
            response: httpx2.Response = await client.http.post("/runs/wait", json=body)
            assert response.json()["at"] == 1
