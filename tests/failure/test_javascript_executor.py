"""Node processes that execute JavaScript graphs may die: runs go on from their last checkpoint, and nothing is left."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from portside.agent.executors.spawned_executor import Program, SpawnedExecutor
from portside.agent.executors.start import BUILT, PROGRAM, find_node, javascript_command
from portside.executor import messages
from portside.executor.messages import GraphCall, ServerHello
from portside.executor.requests import RunRequest
from portside.kernel.errors import UserMistake
from tests.conftest import eventually
from tests.db.test_executor_pool import STORES_NOTHING
from tests.failure.test_executor_handlers import handlers_pid
from tests.node_packages import copy_of_project, javascript_runtime
from tests.servers import ServerProcess, agent_server, peak_mb

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory):
    """A server whose graphs are all in JavaScript, so that it imports nothing of the project."""
    with javascript_only(module_database, tmp_path_factory.mktemp("javascript")) as running:
        yield running


@contextlib.contextmanager
def javascript_only(database_url: str, folder: Path, **environment: str) -> Iterator[ServerProcess]:
    project = copy_of_project(folder / "project")
    config = json.loads((project / "langgraph.json").read_text())
    graphs = {name: config["graphs"][name] for name in ("stages", "failing", "steps", "blocking", "heap", "flood")}
    (project / "langgraph.json").write_text(json.dumps({"graphs": graphs}))

    settings = {"BG_JOB_MAX_RETRIES": "1", "EXECUTOR_HEARTBEAT_SECS": "8", "EXECUTOR_START_SECS": "600", **environment}
    settings["EXECUTOR_JAVASCRIPT"] = str(javascript_runtime())
    with agent_server(database_url, folder, project=str(project), **settings) as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as made:
        yield made


async def begin(client: httpx2.AsyncClient, graph: str, **given: Any) -> str:
    """Create a run on a thread of its own, whose steps wait for their checkpoints; return its path."""
    thread = (await client.post("/threads", json={})).json()["thread_id"]
    body = {"assistant_id": graph, "input": given, "durability": "sync"}
    run = (await client.post(f"/threads/{thread}/runs", json=body)).json()
    return f"/threads/{thread}/runs/{run['run_id']}"


async def wait_for_end(client: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    async def end() -> Any:
        run = (await client.get(path)).json()
        return run if run["status"] not in ("pending", "running") else None

    found: dict[str, Any] = await eventually(end)
    return found


def lines(ledger: Path) -> list[list[str]]:
    return [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []


def allow(ledger: Path) -> None:
    """Let the second step end."""
    ledger.with_name(f"{ledger.name}.go").touch()


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def ticks(pid: int) -> int:
    """Return the time that a process has computed, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


async def wait_for_lines(ledger: Path, count: int) -> list[list[str]]:
    async def enough() -> Any:
        return lines(ledger) if len(lines(ledger)) >= count else None

    found: list[list[str]] = await eventually(enough)
    return found


async def test_killed_run_goes_on_from_its_checkpoint(client: httpx2.AsyncClient, tmp_path: Path):
    ledger = tmp_path / "ledger"
    path = await begin(client, "stages", file=str(ledger))
    (_, first), _ = await wait_for_lines(ledger, 2)
    os.kill(int(first), signal.SIGKILL)

    _, _, (name, second) = await wait_for_lines(ledger, 3)
    assert (name, second != first) == ("two", True)
    allow(ledger)
    assert (await wait_for_end(client, path))["status"] == "success"
    assert [name for name, _ in lines(ledger)] == ["one", "two", "two"]


async def steps(client: httpx2.AsyncClient) -> Any:
    return (await client.post("/runs/wait", json={"assistant_id": "steps", "input": {"steps": []}})).json()["steps"]


async def test_node_that_computes_for_long_delays_no_other_run(client: httpx2.AsyncClient, tmp_path: Path):
    ledger = tmp_path / "ledger"
    path = await begin(client, "blocking", file=str(ledger))
    ((_, pid),) = await wait_for_lines(ledger, 1)

    # It gets no answer before another process has started.
    state = asyncio.create_task(client.get(f"{path.partition('/runs')[0]}/state"))
    assert await steps(client) == ["one", "two", "three"]
    assert (await state).json()["next"] == ["block"]
    assert is_running(int(pid))
    allow(ledger)
    assert (await wait_for_end(client, path))["status"] == "success"
    assert lines(ledger) == [["block", pid]]


async def test_endless_loop_ends_when_it_is_cancelled(client: httpx2.AsyncClient, tmp_path: Path):
    ledger = tmp_path / "ledger"
    path = await begin(client, "blocking", file=str(ledger))
    ((_, pid),) = await wait_for_lines(ledger, 1)
    await client.post(f"{path}/cancel?wait=true")
    assert (await wait_for_end(client, path))["status"] == "interrupted"

    async def is_gone() -> bool:
        return not is_running(int(pid))

    await eventually(is_gone)
    assert await steps(client) == ["one", "two", "three"]


async def test_run_beside_an_endless_loop_goes_on_after_its_cancellation(client: httpx2.AsyncClient, tmp_path: Path):
    beside = tmp_path / "beside"
    looping = tmp_path / "looping"
    path = await begin(client, "stages", file=str(beside))
    (_, first), _ = await wait_for_lines(beside, 2)
    loop = await begin(client, "blocking", file=str(looping))
    ((_, pid),) = await wait_for_lines(looping, 1)

    # Both are in one process, whose only thread the loop has.
    assert pid == first
    await client.post(f"{loop}/cancel?wait=true")
    assert (await wait_for_end(client, loop))["status"] == "interrupted"
    _, _, (name, second) = await wait_for_lines(beside, 3)
    assert (name, second != first) == ("two", True)
    allow(beside)
    assert (await wait_for_end(client, path))["status"] == "success"

    assert [name for name, _ in lines(beside)] == ["one", "two", "two"]


@pytest.mark.thorough
async def test_memory_does_not_grow_with_runs(client: httpx2.AsyncClient):
    async def heap() -> int:
        body = {"assistant_id": "heap", "input": {"bytes": 0}}
        return int((await client.post("/runs/wait", json=body)).json()["bytes"])

    async def run_many(count: int) -> None:
        async def work() -> None:
            for _ in range(count // 20):
                assert await steps(client) == ["one", "two", "three"]

        await asyncio.gather(*(work() for _ in range(20)))

    await run_many(1000)
    before = await heap()
    await run_many(5000)

    # A run that left its state alone would leave some kilobytes.
    assert (await heap() - before) / 5000 < 500


async def test_memory_is_bounded_while_a_graph_emits_faster_than_the_server_reads(
    module_databases: Callable[[], str], tmp_path: Path
):
    """A graph emits 800 MB. All of it would wait in the process."""
    settings = {"EXECUTOR_HEARTBEAT_SECS": "120", "EXECUTOR_SPARES": "0"}
    with javascript_only(module_databases(), tmp_path, **settings) as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=600) as client:
            node = handlers_pid(server, "graphs")
            before = peak_mb(node)
            thread = (await client.post("/threads", json={})).json()["thread_id"]
            body = {"assistant_id": "flood", "input": {"events": 800}, "stream_mode": "custom"}
            assert (await client.post(f"/threads/{thread}/runs/wait", json=body)).status_code == 200

            # It would be 0 if the process had ended.
            assert before <= peak_mb(node) < before + 450


async def test_endless_loop_ends_at_the_time_limit(module_databases: Callable[[], str], tmp_path: Path):
    with javascript_only(module_databases(), tmp_path, BG_JOB_TIMEOUT_SECS="3") as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
            over = await wait_for_end(client, await begin(client, "failing", how="loop"))

    assert (over["status"], over["error"]["error"]) == ("timeout", "TimeoutError")


# A server starts Node, which holds its only thread.
STARTS = """
import os, subprocess, sys
subprocess.run([str(os.getpid()) if argument == "PARENT" else argument for argument in sys.argv[1:]])
"""
LOOPS = """
import { renameSync, writeFileSync } from "node:fs";
writeFileSync("half", String(process.pid));
renameSync("half", "pid");
while (true);
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends with the link")
async def test_node_that_never_yields_ends_with_its_parent(tmp_path: Path):
    (tmp_path / PROGRAM).write_text(LOOPS)
    command = javascript_command(node=find_node(None), runtime=tmp_path, project=tmp_path, parent=0)
    arguments = ["PARENT" if argument == "0" else argument for argument in command.arguments]
    assert "PARENT" in arguments
    parent = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", STARTS, *arguments, cwd=tmp_path)

    async def begun() -> bool:
        return "pid" in os.listdir(tmp_path)  # noqa: PTH208

    await eventually(begun)
    pid = int((tmp_path / "pid").read_text())
    assert is_running(pid)
    parent.kill()
    await parent.wait()

    async def is_gone() -> bool:
        return not is_running(pid)

    await eventually(is_gone)


async def why_it_does_not_start(
    project: Path, graph: str, *, runtime: Path = BUILT, protocol: int = messages.PROTOCOL, **variables: str
) -> str:
    """Start an executor of one graph that does not load; return what it says."""
    command = javascript_command(node=find_node(None), runtime=runtime, project=project, parent=os.getpid())
    hello = ServerHello(
        protocol=protocol,
        file=str(project / "langgraph.json"),
        dependencies=[],
        env={"SET_BY_BOTH": "the project", "SET_BY_ONE": "the project"},
        loops=1,
        graphs={"graph": {"path": graph, "description": None}},
    )

    program = Program(
        command.arguments, {**os.environ, **command.variables, **variables}, hello, start_within_s=600, folder=project
    )
    with pytest.raises(UserMistake) as failed:
        await SpawnedExecutor.start(program, STORES_NOTHING)

    return str(failed.value)


async def test_a_server_of_another_version_of_the_protocol_is_told_what_to_upgrade(tmp_path: Path):
    javascript_runtime()
    for protocol, older in ((messages.PROTOCOL + 1, "this executor"), (messages.PROTOCOL - 1, "the server")):
        assert f"upgrade {older}" in await why_it_does_not_start(tmp_path, "./graph.mjs:graph", protocol=protocol)


async def test_variables_of_the_server_come_before_those_of_the_project(tmp_path: Path):
    javascript_runtime()
    (tmp_path / "graph.mjs").write_text("throw new Error(`${process.env.SET_BY_BOTH}, ${process.env.SET_BY_ONE}`);")
    assert "the server, the project" in await why_it_does_not_start(
        tmp_path, "./graph.mjs:graph", SET_BY_BOTH="the server"
    )


async def test_typescript_without_the_packages_that_read_it_is_named(tmp_path: Path):
    javascript_runtime()
    runtime = tmp_path / "runtime"
    shutil.copytree(BUILT, runtime)
    (tmp_path / "graph.ts").write_text("export const graph = 1;")
    reason = await why_it_does_not_start(tmp_path, "./graph.ts:graph", runtime=runtime)
    assert "./graph.ts:graph is TypeScript, and the executor's packages (tsx) are not installed" in reason


async def test_node_ends_with_its_server(client: httpx2.AsyncClient, server: ServerProcess, tmp_path: Path):
    ledger = tmp_path / "ledger"
    await begin(client, "stages", file=str(ledger))
    pid = int((await wait_for_lines(ledger, 2))[0][1])
    before = ticks(pid)
    loop = await begin(client, "failing", how="loop")

    async def loops() -> bool:
        return ticks(pid) > before + 100

    await eventually(loops)
    server.kill()

    async def is_gone() -> bool:
        return not is_running(pid)

    await eventually(is_gone)
    allow(ledger)
    server.start()

    # The next attempt loops as well, and a test that comes after this one may share its process.
    await client.post(f"{loop}/cancel?wait=true")
    assert (await wait_for_end(client, loop))["status"] == "interrupted"


async def test_events_that_nobody_follows_come_together_or_after_a_moment(tmp_path: Path):
    """As with Python graphs (`tests/db/test_executor_pool.py`)."""
    project = copy_of_project(tmp_path / "project")
    command = javascript_command(
        node=find_node(None), runtime=javascript_runtime(), project=project, parent=os.getpid()
    )

    hello = ServerHello(
        protocol=messages.PROTOCOL,
        file=str(project / "langgraph.json"),
        dependencies=[],
        env={},
        loops=1,
        graphs={
            name: {"path": path, "description": None}
            for name, path in (("stages", "./agents.ts:stages"), ("steps", "./plain.mjs:steps"))
        },
    )

    variables = {**os.environ, **command.variables}
    program = Program(command.arguments, variables, hello, start_within_s=600, folder=command.folder)
    executor = await SpawnedExecutor.start(program, STORES_NOTHING)
    batches: list[list[str]] = []
    came = asyncio.Event()

    def take(events: list[Any]) -> None:
        # The first item says that the run has begun.
        if events:
            batches.append([name for name, _ in events])
            came.set()

    def execution(graph: str, **given: Any) -> GraphCall:
        config = {"configurable": {"thread_id": str(uuid4()), "run_id": str(uuid4())}, "metadata": {"run_attempt": 1}}
        request = RunRequest(graph_id=graph, input=given, config=config, stream_modes=["values"])
        return GraphCall(request=request, timeout_s=600.0, is_unfollowed=True)

    try:
        ledger = tmp_path / "ledger"
        waiting = asyncio.create_task(
            executor.link.call(messages.EXECUTE, execution("stages", file=str(ledger)), on_item=take)
        )

        async with asyncio.timeout(60):
            await came.wait()

        allow(ledger)
        await waiting
        batches.clear()
        await executor.link.call(messages.EXECUTE, execution("steps", steps=[]), on_item=take)

        # On a machine that is never 100 ms late there is one batch.
        assert [name for batch in batches for name in batch] == ["values"] * 4
    finally:
        await executor.close()
