"""A server that loses only its connection to the database.

It stops its runs when their leases end, by its own clock. It notices silently dead connections, and they hold nothing
for longer than that.
"""

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from tests.conftest import eventually
from tests.failure.cluster import LEASE_S, Client, Cluster, list_steps, start_cluster
from tests.failure.wires import Wire
from tests.servers import ServerProcess


def through(url: str, folder: Path) -> tuple[str, str]:
    """Return the path of a database's socket, and its URL with the socket in another folder."""
    query = parse_qs(urlsplit(url).query)
    path = f"{query.get('host', [''])[0]}/.s.PGSQL.5432"
    return path, f"{url.partition('?')[0]}?host={quote(str(folder))}"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.thorough
async def test_a_server_that_is_cut_off_stops_when_its_leases_end(
    agent_databases: Callable[[], Awaitable[str]], tmp_path: Path, short_folder: Path
):
    url = await agent_databases()
    gate = tmp_path / "gate"
    target, cut_url = through(url, short_folder)
    wire = Wire(partial(asyncio.open_unix_connection, target))
    with start_cluster(0, url, tmp_path) as cluster:
        if target.startswith("/.s"):
            pytest.skip("the database is not behind a socket file")

        alone = cluster.add()
        other = cluster.add()
        alone.environment = {**cluster.environment, "DATABASE_URI": cut_url}

        async with wire.listening(short_folder / ".s.PGSQL.5432"):
            await cluster.start(alone)
            async with Client(alone) as client:
                threads = [await client.thread() for _ in range(3)]
                # Durability that waits for nothing: only the clock can stop these runs. The last step is held, so that
                # none of them ends before that.
                work = {"steps": 150, "pause_s": 0.05, "gates": {149: gate}, "durability": "exit"}
                runs = [await client.run(thread, **work) for thread in threads]

            for run in runs:
                await cluster.ledger.begun(run, 2)

            wire.cut()
            leases = [(await cluster.run_row(run))["leased_until"].timestamp() for run in runs]

            # Not before: it may take so long to start that nothing would be left to cut off.
            await cluster.start(other)

            for run in runs:
                await cluster.ledger.begun(run, 3, attempt=2)

            # Unasked: nothing gets through to it yet.
            await eventually(lambda: have_stopped(alone, runs))
            begun = [begun_by_first_attempt(cluster, run) for run in runs]
            wire.mend()
            gate.touch()
            assert await cluster.over(*runs) == ["success"] * 3

    assert [begun_by_first_attempt(cluster, run) for run in runs] == begun
    for run, lease in zip(runs, leases, strict=True):
        # It executed its runs for as long as it surely held the leases.
        last = max(e.at for e in cluster.ledger.entries(run) if (e.event, e.attempt) == ("begin", 1))
        assert lease <= last + LEASE_S

    await check_states(cluster, threads, runs)


@pytest.mark.thorough
async def test_server_replaces_silently_dead_connections(
    agent_databases: Callable[[], Awaitable[str]], tmp_path: Path, short_folder: Path
):
    """As behind a firewall that forgot them. What is under way there is given up in time, and done on new ones."""
    url = await agent_databases()
    target, wired_url = through(url, short_folder)
    wire = Wire(partial(asyncio.open_unix_connection, target))
    with start_cluster(0, url, tmp_path) as cluster:
        if target.startswith("/.s"):
            pytest.skip("the database is not behind a socket file")

        server = cluster.add()
        server.environment = {**cluster.environment, "DATABASE_URI": wired_url}
        async with wire.listening(short_folder / ".s.PGSQL.5432"):
            await cluster.start(server)
            async with Client(server) as client:
                threads = [await client.thread() for _ in range(3)]
                runs = [await client.run(thread, steps=20, pause_s=0.05) for thread in threads]

            for run in runs:
                await cluster.ledger.begun(run, 2)

            assert wire.lose() > 2
            assert await cluster.over(*runs) == ["success"] * 3
            async with Client(server) as client:
                await eventually(lambda: is_well(client))

            for thread, run in zip(threads, runs, strict=True):
                done = list_steps((await cluster.thread_row(thread))["values"], run)
                assert [step for step, _ in done] == list(range(20))


async def have_stopped(server: ServerProcess, runs: list[str]) -> bool:
    log = server.log.read_text()
    return all(re.search(f"a run was stopped: its lease was lost or ran out .*{run}", log) for run in runs)


def begun_by_first_attempt(cluster: Cluster, run: str) -> int:
    return sum((e.event, e.attempt) == ("begin", 1) for e in cluster.ledger.entries(run))


async def is_well(client: Client) -> bool:
    return (await client.http.get("/ok")).status_code == 200


async def check_states(cluster: Cluster, threads: list[str], runs: list[str]) -> None:
    for thread, run in zip(threads, runs, strict=True):
        done = list_steps((await cluster.thread_row(thread))["values"], run)
        assert done == [(step, 2) for step in range(150)]
