"""Executors whose server is paused or cut off: they stop its runs before another server is given them.

Code that does not stop ends with its process, a few seconds later.
"""

import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.conftest import eventually
from tests.node_packages import copy_of_project, javascript_runtime
from tests.servers import ServerProcess, Tiers, agent_server, start_orchestrated

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]
# The node writes a line with its process and attempt every 20 ms, until another file exists.
PYTHON = """
import asyncio, os, time
from pathlib import Path
from typing import TypedDict

from langgraph.graph import StateGraph


class State(TypedDict, total=False):
    file: str


def goes_on(state, config):
    with open(state["file"], "a") as file:
        file.write(f"{os.getpid()} {config['metadata']['run_attempt']}\\n")
    return not Path(state["file"] + ".go").exists()


async def awaiting(state: State, config):
    while goes_on(state, config):
        await asyncio.sleep(0.02)


async def blocking(state: State, config):
    while goes_on(state, config):
        time.sleep(0.02)


def threaded(state: State, config):
    while goes_on(state, config):
        time.sleep(0.02)


def made(node):
    return StateGraph(State).add_node("node", node).add_edge("__start__", "node").compile()


graphs = {node.__name__: made(node) for node in (awaiting, blocking, threaded)}
awaiting, blocking, threaded = graphs.values()
"""
JAVASCRIPT = """
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { Annotation, StateGraph } from "@langchain/langgraph";

const State = Annotation.Root({ file: Annotation() });

function made(isStopped) {
  const node = async (state, config) => {
    do {
      appendFileSync(state.file, `${process.pid} ${config.metadata.run_attempt}\\n`);
      await pause(20);
    } while (!existsSync(`${state.file}.go`) && !isStopped(config));
    return {};
  };
  return new StateGraph(State).addNode("node", node).addEdge("__start__", "node").compile();
}

export const heeding = made((config) => config.signal?.aborted);
export const heedless = made(() => false);
"""


class Line(NamedTuple):
    """The process and the attempt of a step of the node."""

    pid: int
    attempt: int


def read_lines(file: Path) -> list[Line]:
    text = file.read_text() if file.exists() else ""
    return [Line(*map(int, line.split())) for line in text.splitlines() if len(line.split()) == 2]


async def wait_for_lines(file: Path, attempt: int) -> Line:
    """Wait until an attempt has written ten lines; return the last one."""

    async def look() -> Line | None:
        found = [line for line in read_lines(file) if line.attempt == attempt]
        return found[-1] if len(found) >= 10 else None

    line: Line = await eventually(look)
    return line


async def begin(server: ServerProcess, graph: str, file: Path) -> str:
    """Start a run that waits for no checkpoint; return its path."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        body = {"assistant_id": graph, "input": {"file": str(file)}, "durability": "async"}
        response = await client.post(f"/threads/{thread}/runs", json=body)
        assert response.status_code == 200, response.text
        return f"/threads/{thread}/runs/{response.json()['run_id']}"


async def ends_well(server: ServerProcess, path: str, file: Path) -> None:
    file.with_name(f"{file.name}.go").touch()
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:

        async def end() -> Any:
            run = (await client.get(path)).json()
            return run if run["status"] not in ("pending", "running") else None

        assert (await eventually(end, 120))["status"] == "success"


def has_ended(pid: int) -> bool:
    """Whether a process runs no more; a paused parent has not noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@contextmanager
def pause(process: Any) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def check_take_over(
    servers: tuple[ServerProcess, ServerProcess],
    pausing: ServerProcess,
    graph: str,
    tmp_path: Path,
    *,
    stops: bool,
) -> None:
    """Pause what the first server's run needs; the second server goes on with it, and the run ends once."""
    first, second = servers
    file = tmp_path / "lines"
    path = await begin(first, graph, file)
    before = (await wait_for_lines(file, 1)).pid
    assert pausing.process is not None

    with pause(pausing.process):
        after = (await wait_for_lines(file, 2)).pid
        assert after != before

        if stops:
            # Nothing was done twice at the same time.
            attempts = [line.attempt for line in read_lines(file)]
            assert attempts == sorted(attempts)
        else:

            async def is_over() -> bool:
                return has_ended(before)

            await eventually(is_over)

        await ends_well(second, path, file)

    # It has not lost more than this run.
    again = tmp_path / "again"
    path = await begin(first, graph, again)
    await wait_for_lines(again, 1)
    await ends_well(first, path, again)
    assert {line.attempt for line in read_lines(file)} == {1, 2}


@pytest.fixture(scope="module")
def python_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    (folder / "agent.py").write_text(PYTHON)
    graphs = {name: f"./agent.py:{name}" for name in ("awaiting", "blocking", "threaded")}
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": graphs}))
    return folder


@contextmanager
def two_servers(
    url: str, tmp_path: Path, project: Path, **environment: str
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    settings = {"EXECUTORS": "1", "EXECUTOR_START_SECS": "600", "EXECUTOR_SPARES": "0", **environment}
    with ExitStack() as stack:
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()

        first, second = (
            stack.enter_context(agent_server(url, folder, project=str(project), **settings)) for folder in folders
        )
        yield first, second


@pytest.mark.parametrize(
    ("graph", "stops"),
    [
        ("awaiting", True),
        pytest.param("blocking", False, marks=pytest.mark.thorough),
        pytest.param("threaded", False, marks=pytest.mark.thorough),
    ],
)
async def test_executors_of_a_paused_server_stop_its_runs(
    agent_databases: Callable[[], Awaitable[str]], tmp_path: Path, python_project: Path, graph: str, *, stops: bool
):
    with two_servers(await agent_databases(), tmp_path, python_project) as servers:
        await check_take_over(servers, servers[0], graph, tmp_path, stops=stops)


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "stops"), [("heeding", True), ("heedless", False)])
async def test_executors_in_node_stop_the_runs_of_a_paused_server(
    agent_databases: Callable[[], Awaitable[str]], tmp_path: Path, graph: str, *, stops: bool
):
    project = copy_of_project(tmp_path / "project")
    (project / "ticking.mjs").write_text(JAVASCRIPT)
    graphs = {name: f"./ticking.mjs:{name}" for name in ("heeding", "heedless")}
    (project / "langgraph.json").write_text(json.dumps({"graphs": graphs}))

    runtime = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime())}
    with two_servers(await agent_databases(), tmp_path, project, **runtime) as servers:
        await check_take_over(servers, servers[0], graph, tmp_path, stops=stops)


@pytest.fixture
def two_orchestrators(module_database: str, tmp_path: Path, python_project: Path) -> Iterator[tuple[Tiers, Tiers]]:
    with ExitStack() as stack:
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()

        config = str(python_project / "langgraph.json")
        settings = {"EXECUTORS": "1", "EXECUTOR_HEARTBEAT_SECS": "15"}
        first, second = (
            stack.enter_context(start_orchestrated(module_database, folder, config=config, **settings))
            for folder in folders
        )

        yield first, second


@pytest.mark.parametrize("graph", ["awaiting", pytest.param("threaded", marks=pytest.mark.thorough)])
async def test_executors_of_a_paused_orchestrator_stop_its_runs(
    two_orchestrators: tuple[Tiers, Tiers], tmp_path: Path, graph: str
):
    servers = two_orchestrators[0].orchestrator, two_orchestrators[1].orchestrator
    await check_take_over(servers, servers[0], graph, tmp_path, stops=graph == "awaiting")


@pytest.mark.thorough
async def test_executor_of_a_paused_executor_server_stops_its_runs(
    two_orchestrators: tuple[Tiers, Tiers], tmp_path: Path
):
    """The orchestrator hears nothing of it, and gives up after the time of its heartbeat."""
    servers = two_orchestrators[0].orchestrator, two_orchestrators[1].orchestrator
    [executor_server] = two_orchestrators[0].executors
    await check_take_over(servers, executor_server, "awaiting", tmp_path, stops=True)
