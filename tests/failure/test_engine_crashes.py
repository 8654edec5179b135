"""Servers that are killed or paused while they execute runs.

Only the queue writes a run's status. A running run has a live lease or can be swept. Late writes of a lost attempt
are refused, so nothing is done twice.
"""

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
    is_up,
    list_steps,
    patiently,
    start_cluster,
)


@pytest.fixture(scope="module")
def servers(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    with start_cluster(2, module_database, tmp_path_factory.mktemp("crashes"), BG_JOB_MAX_RETRIES="1") as cluster:
        yield cluster


@pytest.fixture
async def cluster(servers: Cluster) -> AsyncIterator[Cluster]:
    await servers.start()
    yield servers
    for server in servers.servers:
        with contextlib.suppress(ProcessLookupError):
            servers.resume(server)


async def test_runs_of_a_killed_server_continue_on_another(cluster: Cluster, tmp_path: Path):
    """Killed in the middle of a step: only that step is repeated, after the lease has run out."""
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        threads = [await client.thread() for _ in range(4)]
        runs = [await client.run(thread, steps=4, gates={2: gate}) for thread in threads]

    held = [await cluster.ledger.begun(run, 2) for run in runs]
    await steps_are_stored(cluster, threads, 2)

    owners = {cluster.by_pid(entry.pid) for entry in held}
    for owner in owners:
        owner.kill()

    leases = await leases_of_first_attempt(cluster, runs)
    if len(owners) == 2:
        await cluster.start(cluster.servers[0])

    again = [await cluster.ledger.begun(run, 2, attempt=2) for run in runs]
    gate.touch()
    assert await cluster.over(*runs) == ["success"] * 4

    for thread, run, entry in zip(threads, runs, again, strict=True):
        assert leases.get(run, 0.0) <= entry.at
        begins = [(e.step, e.attempt) for e in cluster.ledger.entries(run) if e.event == "begin"]
        assert begins == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 2)]
        row = await cluster.thread_row(thread)
        assert (row["status"], row["active_runs"]) == ("idle", 0)
        assert list_steps(row["values"], run) == [(0, 1), (1, 1), (2, 2), (3, 2)]


async def test_node_that_blocks_the_graph_loop_does_not_delay_earlier_checkpoints(cluster: Cluster, tmp_path: Path):
    """With durability `async`, too: when the server is killed, the run continues with the blocking step."""
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        run = await client.run(thread, steps=4, gates={3: gate}, graph="hogging", durability="async")

    held = await cluster.ledger.begun(run, 3)
    await steps_are_stored(cluster, [thread], 3)
    cluster.by_pid(held.pid).kill()
    await cluster.start()
    await cluster.ledger.begun(run, 3, attempt=2)
    gate.touch()
    assert await cluster.over(run) == ["success"]

    begins = [(entry.step, entry.attempt) for entry in cluster.ledger.entries(run) if entry.event == "begin"]
    assert begins == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2)]


@pytest.mark.parametrize("held_at", [1, 3], ids=["between steps", "at the end"])
async def test_late_writes_of_a_paused_server_are_refused(cluster: Cluster, tmp_path: Path, held_at: int):
    """A server is paused for longer than its leases: only the writes of the server that took over are kept."""
    gate = tmp_path / "gate"
    first = Path(f"{gate}.1")
    second = Path(f"{gate}.2")

    async with Client(cluster.servers[0]) as client:
        threads = [await client.thread() for _ in range(4)]
        runs = [await client.run(thread, steps=4, gates={held_at: gate}) for thread in threads]

    held = [await cluster.ledger.begun(run, held_at) for run in runs]
    await steps_are_stored(cluster, threads, held_at)

    # The other server may have begun some of them.
    owner = cluster.by_pid(held[0].pid)
    mine = [place for place, entry in enumerate(held) if entry.pid == held[0].pid]
    threads = [threads[place] for place in mine]
    runs = [runs[place] for place in mine]

    cluster.pause(owner)
    leases = await leases_of_first_attempt(cluster, runs)
    again = [await cluster.ledger.begun(run, held_at, attempt=2) for run in runs]
    before = await traces_of_attempt(cluster, runs, 1)

    open_gate(first)
    cluster.resume(owner)
    await patiently(lambda: gave_up(owner))
    late = await traces_of_attempt(cluster, runs, 1)
    rows = [await cluster.run_row(run) for run in runs]

    open_gate(second)
    assert await cluster.over(*runs) == ["success"] * len(runs)
    assert [(row["status"], row["attempt"]) for row in rows] == [("running", 2)] * len(runs)
    assert late == before

    for thread, run, entry in zip(threads, runs, again, strict=True):
        assert leases.get(run, 0.0) <= entry.at
        done = list_steps((await cluster.thread_row(thread))["values"], run)
        assert done == [(step, 1 if step < held_at else 2) for step in range(4)]
        begun_late = [e for e in cluster.ledger.entries(run) if (e.event, e.attempt) == ("begin", 1)]
        assert max(e.step for e in begun_late) == held_at


async def steps_are_stored(cluster: Cluster, threads: list[str], steps: int) -> None:
    """Wait until the first steps of each thread's run are in the database; a step begins before that."""

    async def look() -> bool:
        rows = await cluster.fetch(
            "select thread_id, count(*) from checkpoints where thread_id = any($1) group by 1", threads
        )

        # One for the input, one for the start, and one for each step that is over.
        return [row["count"] for row in rows] == [steps + 2] * len(threads)

    await patiently(look)


async def leases_of_first_attempt(cluster: Cluster, runs: list[str]) -> dict[str, float]:
    """Return when the leases of runs end. On a busy machine some have ended already, and another server has the run."""
    rows = await cluster.fetch(
        "select run_id, leased_until from runs"
        " where run_id = any($1::uuid[]) and attempt = 1 and leased_until is not null",
        runs,
    )

    return {str(row["run_id"]): row["leased_until"].timestamp() for row in rows}


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
    try:
        async with httpx2.AsyncClient() as http:
            text = (await http.get(f"{server.url}/metrics")).text
    except httpx2.TransportError:
        return False

    return any(line.startswith("lg_api_workers_active") and float(line.split()[-1]) == 0 for line in text.splitlines())


async def test_kills_under_load_lose_and_repeat_no_run(cluster: Cluster):
    """Runs take a few milliseconds, so kills hit admissions, ends of steps and ends of runs."""
    accepted: list[tuple[str, str]] = []
    ledger_before = len(cluster.ledger.entries())

    async def keep_making(number: int, stop: asyncio.Event) -> None:
        thread: str | None = None
        async with Client(cluster.servers[number % 2]) as client:
            while not stop.is_set():
                try:
                    thread = thread or await client.thread()
                    accepted.append((thread, await client.run(thread, steps=2)))
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)

    for victim in cluster.servers:
        seen = len(accepted)
        stop = asyncio.Event()
        makers = [asyncio.create_task(keep_making(number, stop)) for number in range(6)]
        await patiently(lambda seen=seen: has_reached(accepted, seen + 60))
        victim.kill()

        seen = len(accepted)
        await patiently(lambda seen=seen: has_reached(accepted, seen + 20))
        stop.set()
        await cluster.start(victim)
        await asyncio.gather(*makers)

        # A run may lose one worker here, not two: those that this kill hit are over before the next.
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


async def has_reached(things: list[object], count: int) -> bool:
    return len(things) >= count


async def test_run_that_kills_its_workers_ends_in_an_error_and_unblocks_the_next(cluster: Cluster, tmp_path: Path):
    gate = tmp_path / "gate"
    async with Client(cluster.servers[0]) as client:
        thread = await client.thread()
        deadly = await client.run(thread, gates={0: gate}, kill_at=1)
        after = await client.run(thread)

    over = asyncio.Event()
    restarting = asyncio.create_task(restart_dead_servers(cluster, over))
    gate.touch()
    statuses = await cluster.over(deadly, after)

    over.set()
    await restarting
    row = await cluster.run_row(deadly)
    thread_row = await cluster.thread_row(thread)
    assert statuses == ["error", "success"]
    assert "WorkerLost" in row["error"]
    assert (thread_row["status"], thread_row["active_runs"]) == ("idle", 0)

    assert [(e.step, e.attempt) for e in cluster.ledger.entries(deadly) if e.event == "begin"] == [
        (0, 1),
        (1, 1),
        (1, 2),
    ]


async def restart_dead_servers(cluster: Cluster, over: asyncio.Event) -> None:
    while not over.is_set():
        if not all(is_up(server) for server in cluster.servers):
            # The run may kill a server again before that has answered its first request.
            with contextlib.suppress(AssertionError):
                await cluster.start()

        await asyncio.sleep(0.1)


async def test_paused_single_server_executes_each_run_once(
    agent_databases: Callable[[], Awaitable[str]], tmp_path: Path
):
    """When it continues, it may sweep its own leases and claim the runs that it is still executing."""
    with start_cluster(1, await agent_databases(), tmp_path) as alone:
        (server,) = alone.servers
        async with Client(server) as client:
            threads = [await client.thread() for _ in range(6)]
            runs = [await client.run(thread, steps=80, pause_s=0.05) for thread in threads]

        for run in runs:
            await alone.ledger.begun(run, 5)

        alone.pause(server)
        await patiently(lambda: leases_ran_out(alone))
        alone.resume(server)
        assert await alone.over(*runs) == ["success"] * 6

        for thread, run in zip(threads, runs, strict=True):
            done = [step for step, _ in list_steps((await alone.thread_row(thread))["values"], run)]
            assert done == list(range(80))
            entries = alone.ledger.entries(run)
            resumed = next((place for place, entry in enumerate(entries) if entry.attempt == 2), len(entries))
            assert [e for e in entries[resumed:] if (e.event, e.attempt) == ("begin", 1)] == []


async def leases_ran_out(cluster: Cluster) -> bool:
    return not await cluster.fetch("select 1 from runs where leased_until > now() - interval '200 milliseconds'")
