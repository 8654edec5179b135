"""Servers that are killed or paused while they execute runs: one live owner, and nothing is done twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from tests.failure.cluster import (
    Client,
    Cluster,
    begun_twice_after_its_end,
    cluster_of,
    is_up,
    patiently,
    steps_of,
)

RESUMED_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def servers(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    with cluster_of(2, module_database, tmp_path_factory.mktemp("crashes"), BG_JOB_MAX_RETRIES="1") as cluster:
        yield cluster


@pytest.fixture
async def cluster(servers: Cluster) -> AsyncIterator[Cluster]:
    await servers.start()
    yield servers
    for server in servers.servers:
        with contextlib.suppress(ProcessLookupError):
            servers.resume(server)


async def test_a_killed_owner_s_runs_go_on_elsewhere(cluster: Cluster, tmp_path: Path):
    """Killed in the middle of a step: only that step is done again, soon after the lease ran out."""
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        threads = [await client.thread() for _ in range(4)]
        runs = [await client.run(thread, steps=4, gates={2: gate}) for thread in threads]
    held = [await cluster.ledger.begun(run, 2) for run in runs]
    owners = {cluster.by_pid(entry.pid) for entry in held}
    for owner in owners:
        owner.kill()
    leases = [(await cluster.run_row(run))["leased_until"].timestamp() for run in runs]
    if len(owners) == 2:
        await cluster.start(cluster.servers[0])
    again = [await cluster.ledger.begun(run, 2, attempt=2) for run in runs]
    gate.touch()
    assert await cluster.over(*runs) == ["success"] * 4
    for thread, run, lease, entry in zip(threads, runs, leases, again, strict=True):
        assert lease <= entry.at <= lease + RESUMED_WITHIN_S
        begins = [(e.step, e.attempt) for e in cluster.ledger.entries(run) if e.event == "begin"]
        assert begins == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2)]
        row = await cluster.thread_row(thread)
        assert (row["status"], row["active_runs"]) == ("idle", 0)
        assert steps_of(row["values"], run) == [(0, 1), (1, 1), (2, 2), (3, 2)]


async def test_a_node_that_blocks_its_loop_does_not_keep_the_steps_before_it_from_being_stored(
    cluster: Cluster, tmp_path: Path
):
    """Although nothing waits for the database: killed while it blocks, the run goes on with that step."""
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        run = await client.run(thread, steps=4, gates={3: gate}, graph="hogging", durability="async")
    held = await cluster.ledger.begun(run, 3)

    async def is_stored() -> bool:
        # One for the input, one for the start, and one for each step that is over.
        rows = await cluster.fetch("select from checkpoints where thread_id = $1", thread)
        return len(rows) == 5

    await patiently(is_stored, 60)
    cluster.by_pid(held.pid).kill()
    await cluster.start(*cluster.servers)
    await cluster.ledger.begun(run, 3, attempt=2)
    gate.touch()
    assert await cluster.over(run) == ["success"]
    begins = [(entry.step, entry.attempt) for entry in cluster.ledger.entries(run) if entry.event == "begin"]
    assert begins == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2)]


@pytest.mark.parametrize("held_at", [1, 3], ids=["between steps", "at the end"])
async def test_a_paused_owner_s_late_writes_are_refused(cluster: Cluster, tmp_path: Path, held_at: int):
    """Paused for longer than the lease: whoever took over is the only one whose word counts."""
    gate = tmp_path / "gate"
    first, second = Path(f"{gate}.1"), Path(f"{gate}.2")
    async with Client(cluster.servers[0]) as client:
        threads = [await client.thread() for _ in range(4)]
        runs = [await client.run(thread, steps=4, gates={held_at: gate}) for thread in threads]
    held = [await cluster.ledger.begun(run, held_at) for run in runs]
    (owner,) = {cluster.by_pid(entry.pid) for entry in held}
    cluster.pause(owner)
    leases = [(await cluster.run_row(run))["leased_until"].timestamp() for run in runs]
    again = [await cluster.ledger.begun(run, held_at, attempt=2) for run in runs]
    before = await traces_of_attempt(cluster, runs, 1)
    open_gate(first)
    cluster.resume(owner)
    await patiently(lambda: gave_up(owner), 20)
    late = await traces_of_attempt(cluster, runs, 1)
    rows = [await cluster.run_row(run) for run in runs]
    open_gate(second)
    assert await cluster.over(*runs) == ["success"] * 4
    assert [(row["status"], row["attempt"]) for row in rows] == [("running", 2)] * 4
    assert late == before
    for thread, run, lease, entry in zip(threads, runs, leases, again, strict=True):
        assert lease <= entry.at <= lease + RESUMED_WITHIN_S
        done = steps_of((await cluster.thread_row(thread))["values"], run)
        assert done == [(step, 1 if step < held_at else 2) for step in range(4)]
        begun_late = [e for e in cluster.ledger.entries(run) if (e.event, e.attempt) == ("begin", 1)]
        assert max(e.step for e in begun_late) == held_at


def open_gate(path: Path) -> None:
    path.touch()


async def traces_of_attempt(cluster: Cluster, runs: list[str], attempt: int) -> list[tuple[str, str]]:
    """Return the checkpoints and writes that an attempt at runs left."""
    rows = await cluster.fetch(
        """
        select checkpoint_id, 'checkpoint' as kind from checkpoints
        where metadata ->> 'run_id' = any($1::text[]) and (metadata ->> 'run_attempt')::int = $2
        union all
        select w.checkpoint_id, w.task_id || w.idx from checkpoint_writes w
        join checkpoints c using (thread_id, checkpoint_ns, checkpoint_id)
        where w.run_id = any($1::text[]) and (c.metadata ->> 'run_attempt')::int = $2 order by 1, 2
        """,
        runs,
        attempt,
    )
    return [tuple(row) for row in rows]


async def gave_up(server) -> bool:
    """Whether a server executes nothing any more."""
    async with httpx2.AsyncClient() as http:
        text = (await http.get(f"{server.url}/metrics")).text
    return any(line.startswith("lg_api_workers_active") and float(line.split()[-1]) == 0 for line in text.splitlines())


async def test_kills_under_a_load_of_short_runs_lose_and_double_nothing(cluster: Cluster):
    """Runs of a few milliseconds: kills hit admissions, borders of steps and ends of runs alike."""
    accepted: list[tuple[str, str]] = []
    stop = asyncio.Event()
    ledger_before = len(cluster.ledger.entries())

    async def keep_making(number: int) -> None:
        thread: str | None = None
        async with Client(cluster.servers[number % 2]) as client:
            while not stop.is_set():
                try:
                    thread = thread or await client.thread()
                    accepted.append((thread, await client.run(thread, steps=2)))
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)

    makers = [asyncio.create_task(keep_making(number)) for number in range(6)]
    for victim in (cluster.servers[0], cluster.servers[1]):
        seen = len(accepted)
        await patiently(lambda seen=seen: reached(accepted, seen + 60), 30)
        victim.kill()
        await cluster.start(victim)
    stop.set()
    await asyncio.gather(*makers)
    await cluster.quiet()
    entries = cluster.ledger.entries()[ledger_before:]
    assert begun_twice_after_its_end(entries) == []
    statuses = {str(row["run_id"]): row["status"] for row in await cluster.fetch("select run_id, status from runs")}
    assert {statuses.get(run) for _, run in accepted} == {"success"}
    for thread in {thread for thread, _ in accepted}:
        row = await cluster.thread_row(thread)
        assert (row["status"], row["active_runs"]) == ("idle", 0)
        order = await cluster.fetch("select run_id from runs where thread_id = $1::text::uuid order by number", thread)
        done = [(run, step) for run, step, _ in row["values"]["done"]]
        assert done == [(str(record["run_id"]), step) for record in order for step in range(2)]


async def reached(things: list[object], count: int) -> bool:
    return len(things) >= count


async def test_a_run_that_kills_its_workers_ends_in_an_error_and_lets_the_next_one_go(cluster: Cluster, tmp_path: Path):
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        deadly = await client.run(thread, gates={0: gate}, kill_at=1)
        after = await client.run(thread)
    survival = asyncio.create_task(keep_alive(cluster))
    gate.touch()
    statuses = await cluster.over(deadly, after, within_s=60)
    survival.cancel()
    row, thread_row = await cluster.run_row(deadly), await cluster.thread_row(thread)
    assert statuses == ["error", "success"]
    assert "WorkerLost" in row["error"]
    assert (thread_row["status"], thread_row["active_runs"]) == ("idle", 0)
    assert [(e.step, e.attempt) for e in cluster.ledger.entries(deadly) if e.event == "begin"] == [
        (0, 1),
        (1, 1),
        (1, 2),
    ]


async def keep_alive(cluster: Cluster) -> None:
    while True:
        if not all(is_up(server) for server in cluster.servers):
            await cluster.start()
        await asyncio.sleep(0.1)


async def test_a_lone_server_that_was_paused_has_one_execution_of_each_run(
    fresh_database: Callable[[], Awaitable[str]], tmp_path: Path
):
    """It may sweep its own leases when it wakes up, and claim the runs that it is still executing."""
    with cluster_of(1, await fresh_database(), tmp_path) as alone:
        (server,) = alone.servers
        async with Client(server) as client:
            threads = [await client.thread() for _ in range(6)]
            runs = [await client.run(thread, steps=80, pause_s=0.05) for thread in threads]
        for run in runs:
            await alone.ledger.begun(run, 5)
        alone.pause(server)
        await patiently(lambda: leases_ran_out(alone), 10)
        alone.resume(server)
        assert await alone.over(*runs) == ["success"] * 6
        for thread, run in zip(threads, runs, strict=True):
            done = [step for step, _ in steps_of((await alone.thread_row(thread))["values"], run)]
            assert done == list(range(80))
            entries = alone.ledger.entries(run)
            resumed = next((place for place, entry in enumerate(entries) if entry.attempt == 2), len(entries))
            assert [e for e in entries[resumed:] if (e.event, e.attempt) == ("begin", 1)] == []


async def leases_ran_out(cluster: Cluster) -> bool:
    return not await cluster.fetch("select 1 from runs where leased_until > now() - interval '200 milliseconds'")
