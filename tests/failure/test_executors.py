"""Graphs that harm their executor process: their own runs alone are lost, retried and ended with the reason.

The server keeps answering meanwhile. It is the same for executors on other machines.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.conftest import eventually
from tests.servers import PROJECTS, ServerProcess, agent_server, free_port, start_orchestrated
from tests.warm_executors import list_children

RETRIES = 1


@pytest.fixture(scope="module", params=["near", "far"])
def server(request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("executors")
    settings = {"EXECUTORS": "2", "BG_JOB_MAX_RETRIES": str(RETRIES), "EXECUTOR_HEARTBEAT_SECS": "10"}
    settings["EXECUTOR_START_SECS"] = "600"

    if request.param == "far":
        with start_orchestrated(module_database, folder, project="crashes", **settings) as tiers:
            yield tiers.orchestrator
        return

    with agent_server(module_database, folder, project="crashes", **settings) as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as made:
        yield made


async def begin(client: httpx2.AsyncClient, do: str, ledger: Path, **values: Any) -> tuple[str, str]:
    """Create a run on a thread of its own, whose steps wait for their checkpoints; return the ids of both."""
    thread_id = (await client.post("/threads", json={})).json()["thread_id"]
    body = {"assistant_id": "crashes", "input": {"do": do, "ledger": str(ledger), **values}, "durability": "sync"}
    response = await client.post(f"/threads/{thread_id}/runs", json=body)
    assert response.status_code == 200, response.text
    return thread_id, response.json()["run_id"]


async def wait_for_end(client: httpx2.AsyncClient, thread_id: str, run_id: str) -> dict[str, Any]:
    async def end() -> Any:
        run = (await client.get(f"/threads/{thread_id}/runs/{run_id}")).json()
        return run if run["status"] not in ("pending", "running") else None

    found: dict[str, Any] = await eventually(end)
    return found


def attempts(ledger: Path) -> list[tuple[int, int]]:
    """Return the process and the number of each attempt that began."""
    return [(int(pid), int(attempt)) for pid, attempt in map(str.split, ledger.read_text().splitlines())]


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("exit", "exited with code 7"),
        ("kill -9", "was killed by SIGKILL"),
        ("abort", "was killed by SIGABRT"),
        ("segfault", "was killed by SIGSEGV"),
        pytest.param("hold the GIL", "did not answer for 10 s", marks=pytest.mark.thorough),
    ],
)
async def test_run_that_harms_its_process_is_retried_and_then_ends_with_the_reason(client, tmp_path, do, reason):
    waiting = tmp_path / "waiting"
    innocent = await begin(client, "wait", waiting)

    async def waits() -> bool:
        return waiting.exists()

    await eventually(waits)
    guilty = tmp_path / "guilty"
    run = await begin(client, do, guilty)
    answers = asyncio.create_task(keeps_answering(client))
    over = await wait_for_end(client, *run)

    answers.cancel()
    assert over["status"] == "error"
    error = over["error"]
    assert error["error"] == "WorkerLost"
    assert reason in error["message"]
    pids = [pid for pid, _ in attempts(guilty)]
    assert len(set(pids)) == len(pids) >= RETRIES + 1

    thread = (await client.get(f"/threads/{run[0]}")).json()
    assert thread["status"] == "error"
    (tmp_path / "waiting.go").touch()
    assert (await wait_for_end(client, *innocent))["status"] == "success"

    # It goes on from its checkpoint if it shared a process: its first step was executed once.
    assert len((await client.get(f"/threads/{innocent[0]}/state")).json()["values"]["pids"]) == 2
    assert not answers.done() or answers.cancelled()


async def keeps_answering(client: httpx2.AsyncClient) -> None:
    """Fail if the server does not answer while an executor is down."""
    while True:
        assert (await client.get("/ok", timeout=300)).status_code == 200
        await asyncio.sleep(0.05)


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Make a group of processes with a limit of memory, as of a container; skip where none can be made."""
    first = Path("/sys/fs/cgroup/memory")
    second = Path("/sys/fs/cgroup")
    group = (first if first.is_dir() else second) / f"portside-test-{uuid4()}"
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if first.is_dir() else ("memory.max",)

    try:
        group.mkdir()
    except OSError as exc:
        pytest.skip(f"this user may make no groups of processes: {exc}")

    try:
        if not (group / limits[0]).exists():
            pytest.skip("groups of processes have no limit of memory here")

        for name in limits:
            if (group / name).exists():
                (group / name).write_text(str(limit_bytes))

        if (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")

        yield group
    finally:
        group.rmdir()


async def test_memory_that_ends_kills_the_executor_alone(agent_databases: Callable[[], Awaitable[str]], tmp_path: Path):
    """The server and its executors share a limit. The system kills a process, and it is the one that used it up."""
    url = await agent_databases()
    port = free_port()
    settings = {"DATABASE_URI": url, "LANGSMITH_TRACING": "false", "EXECUTORS": "2", "EXECUTOR_SPARES": "0"}
    settings |= {"BG_JOB_MAX_RETRIES": str(RETRIES), "EXECUTOR_START_SECS": "600"}
    arguments = ["serve", "--config", str(PROJECTS / "crashes" / "langgraph.json"), "--port", str(port)]

    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, tmp_path / "server.log")
    with memory_group(700_000_000) as group, ExitStack() as stack:
        server.starter = ["sh", "-c", f'echo $$ > {group / "cgroup.procs"} && exec "$@"', "sh"]
        stack.callback(server.stop)
        server.start()
        assert server.process is not None

        pid = server.process.pid
        async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
            waiting = tmp_path / "waiting"
            guilty = tmp_path / "guilty"
            innocent = await begin(client, "wait", waiting)

            async def waits() -> bool:
                return waiting.exists()

            await eventually(waits)
            run = await begin(client, "use up the memory", guilty)
            error = (await wait_for_end(client, *run))["error"]
            assert error["error"] == "WorkerLost"
            assert "its executor was killed by SIGKILL; the machine may be out of memory" in error["message"]
            assert len({pid for pid, _ in attempts(guilty)}) >= RETRIES + 1
            (tmp_path / "waiting.go").touch()

            assert (await wait_for_end(client, *innocent))["status"] == "success"
            assert server.process.poll() is None
            assert server.process.pid == pid


async def test_run_goes_on_from_its_checkpoint_in_another_process(client, tmp_path):
    ledger = tmp_path / "once"
    run = await begin(client, "exit", ledger, times=1)
    assert (await wait_for_end(client, *run))["status"] == "success"
    (first, _), (second, _) = attempts(ledger)
    assert first != second
    values = (await client.get(f"/threads/{run[0]}/state")).json()["values"]
    assert values["pids"] == [first, second]


async def test_crash_ends_no_run_that_shared_the_process(client, tmp_path):
    """One of many runs crashes each process that it is in: the others all succeed."""
    innocents = [await begin(client, "exit", tmp_path / f"innocent{number}", times=0) for number in range(4)]
    waiting = [await begin(client, "wait", tmp_path / f"waiting{number}") for number in range(6)]

    async def all_wait() -> bool:
        return all((tmp_path / f"waiting{number}").exists() for number in range(6))

    await eventually(all_wait)
    guilty = await begin(client, "exit", tmp_path / "guilty")

    for number in range(6):
        (tmp_path / f"waiting{number}.go").touch()

    assert (await wait_for_end(client, *guilty))["status"] == "error"

    for run in (*innocents, *waiting):
        assert (await wait_for_end(client, *run))["status"] == "success"


async def test_stream_of_a_crashed_run_goes_on(client, tmp_path):
    """A client that follows the run sees the events of both attempts, and the end."""
    thread_id = (await client.post("/threads", json={})).json()["thread_id"]
    body = {
        "assistant_id": "crashes",
        "input": {"do": "segfault", "ledger": str(tmp_path / "streamed"), "times": 1},
        "stream_mode": "updates",
        "stream_resumable": True,
    }

    run_id = (await client.post(f"/threads/{thread_id}/runs", json=body)).json()["run_id"]
    await wait_for_end(client, thread_id, run_id)
    url = f"/threads/{thread_id}/runs/{run_id}/stream"
    text = (await client.get(url, headers={"Last-Event-ID": "-1"})).text
    assert '{"first":' in text
    assert '{"act":' in text
    assert "event: error" not in text


async def has_no_children(pid: int) -> bool:
    return not list_children(pid)


@pytest.mark.parametrize("is_mended", [True, False], ids=["mended", "broken"])
async def test_runs_wait_in_the_queue_while_no_executor_starts(agent_databases, tmp_path, *, is_mended):
    """They end with the reason when that takes longer than a run may take."""
    project = tmp_path / "project"
    shutil.copytree(PROJECTS / "crashes", project)
    code = project / "graphs.py"
    limits = {} if is_mended else {"BG_JOB_TIMEOUT_SECS": "5"}

    settings = {"EXECUTORS": "1", "EXECUTOR_START_SECS": "600", "EXECUTOR_IDLE_SECS": "1", **limits}
    with agent_server(await agent_databases(), tmp_path, project=str(project), **settings) as server:
        assert server.process is not None
        await eventually(partial(has_no_children, server.process.pid))
        code.rename(tmp_path / "away")

        async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
            thread, run = await begin(client, "nothing", tmp_path / "ledger")
            if not is_mended:
                over = await wait_for_end(client, thread, run)
                assert over["status"] == "error"
                assert over["error"]["error"] == "Unavailable"
                assert "graphs.py" in over["error"]["message"]
                assert "longer than it may take" in over["error"]["message"]

                return

            async def problems() -> list[str]:
                found: list[str] = (await client.get("/metrics?format=json")).json().get("problems", [])
                return found

            [problem] = await eventually(problems)
            assert "graphs.py" in problem

            async def waits() -> bool:
                found = (await client.get(f"/threads/{thread}/runs/{run}")).json()
                return bool(found["status"] == "pending")

            await eventually(waits)
            (tmp_path / "away").rename(code)
            assert (await wait_for_end(client, thread, run))["status"] == "success"
