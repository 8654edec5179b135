"""An agent server that is killed, stopped and started again: runs continue, and no data is lost."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import eventually
from tests.failure.cluster import is_closed
from tests.preloaded import PreloadedProcess
from tests.servers import PROJECTS, ServerProcess, agent_server, free_port


def build_held_run(step: str, gate: Path) -> dict[str, Any]:
    """Return the body of a run that waits in a step until a file exists."""
    config = {"configurable": {"gates": {step: str(gate)}}}
    return {"assistant_id": "steps", "input": {"done": [], "pause_s": 0}, "config": config}


def read_steps(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


async def begun(log: Path, step: str) -> None:
    """Wait until a step of a run has begun."""

    async def look() -> bool:
        return step in read_steps(log)

    await eventually(look)


@pytest.fixture
def step_log(tmp_path: Path) -> Path:
    return tmp_path / "steps"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


async def test_killed_run_resumes_from_its_last_checkpoint(agent_databases, tmp_path, step_log, gate):
    with agent_server(await agent_databases(), tmp_path, STEP_LOG=str(step_log)) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        run = httpx2.post(f"{server.url}/threads/{thread}/runs", json=build_held_run("two", gate)).json()
        await begun(step_log, "two")

        # A state that a client has read is stored; a step that has just ended may not be, unless durability is sync.
        assert httpx2.get(f"{server.url}/threads/{thread}/state").json()["values"]["done"] == ["one"]
        server.kill()
        gate.touch()
        server.start()

        result = httpx2.get(f"{server.url}/threads/{thread}/runs/{run['run_id']}/join")
        assert result.json()["done"] == ["one", "two", "three"]
        assert read_steps(step_log) == ["one", "two", "two", "three"]
        assert httpx2.get(f"{server.url}/threads/{thread}").json()["status"] == "idle"


async def test_run_lost_too_often_ends_in_an_error(agent_databases, tmp_path, step_log, gate):
    environment = {"STEP_LOG": str(step_log), "BG_JOB_MAX_RETRIES": "0"}
    with agent_server(await agent_databases(), tmp_path, **environment) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        run = httpx2.post(f"{server.url}/threads/{thread}/runs", json=build_held_run("one", gate)).json()
        body = {"assistant_id": "steps", "input": {"done": []}}
        after = httpx2.post(f"{server.url}/threads/{thread}/runs", json=body).json()

        await begun(step_log, "one")
        server.kill()
        server.start()
        result = httpx2.get(f"{server.url}/threads/{thread}/runs/{run['run_id']}/join").json()
        assert result["__error__"]["error"] == "WorkerLost"
        httpx2.get(f"{server.url}/threads/{thread}/runs/{after['run_id']}/join")
        assert httpx2.get(f"{server.url}/threads/{thread}").json()["status"] == "idle"


async def test_sigterm_lets_runs_end(agent_databases, tmp_path, step_log, gate):
    with agent_server(await agent_databases(), tmp_path, STEP_LOG=str(step_log)) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        httpx2.post(f"{server.url}/threads/{thread}/runs", json=build_held_run("two", gate))
        await begun(step_log, "two")
        server.send(signal.SIGTERM)
        await eventually(lambda: is_closed(server))
        gate.touch()
        assert server.wait_until_stopped() == 0

        assert read_steps(step_log) == ["one", "two", "three"]
        server.start()
        assert httpx2.get(f"{server.url}/threads/{thread}").json()["values"]["done"] == ["one", "two", "three"]


async def test_sigint_hands_runs_back(agent_databases, tmp_path, step_log, gate):
    with agent_server(await agent_databases(), tmp_path, STEP_LOG=str(step_log)) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        run = httpx2.post(f"{server.url}/threads/{thread}/runs", json=build_held_run("two", gate)).json()
        await begun(step_log, "two")

        # The gate is closed: a server that waited for the run would not stop.
        assert server.stop(signal.SIGINT) == 0
        gate.touch()
        server.start()
        result = httpx2.get(f"{server.url}/threads/{thread}/runs/{run['run_id']}/join").json()
        assert result["done"] == ["one", "two", "three"]


def test_embedded_server_recovers_after_its_process_group_is_killed(tmp_path: Path):
    port = free_port()
    arguments = ["serve", "--config", str(PROJECTS / "graphs" / "langgraph.json"), "--port", str(port)]
    environment = {"PORTSIDE_HOME": str(tmp_path / "a home"), "LANGSMITH_TRACING": "false"}
    unset = dict.fromkeys(("DATABASE_URL", "DATABASE_URI", "POSTGRES_URI"), "")
    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", {**environment, **unset}, tmp_path / "log")

    server.start()
    thread = httpx2.post(f"{server.url}/threads", json={"metadata": {"kept": 1}}).json()["thread_id"]
    assert server.process is not None
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()
    server.start()
    assert httpx2.get(f"{server.url}/threads/{thread}").json()["metadata"] == {"kept": 1}

    server.stop()
    assert not list((tmp_path / "a home" / "postgres" / "data").glob("postmaster.pid"))


async def test_dev_reloads_when_a_file_changes(tmp_path: Path):
    project = tmp_path / "project"
    project.mkdir()
    source = (PROJECTS / "graphs" / "graphs.py").read_text()
    (project / "graphs.py").write_text(source)

    # Nearly every template names an env file that is not in the repository.
    config = {"dependencies": ["."], "graphs": {"echo": "./graphs.py:echo"}, "env": ".env", "image_distro": "wolfi"}
    (project / "langgraph.json").write_text(json.dumps(config))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "PORTSIDE_HOME": str(tmp_path / "home"), "DATABASE_URL": "", "DATABASE_URI": ""}
    dev = PreloadedProcess(["dev", "--port", str(port)], environment, tmp_path / "dev.log", folder=project)
    http = httpx2.AsyncClient()
    try:
        await eventually(lambda: answers(http, url, "echo: hi"))
        lines = (tmp_path / "dev.log").read_text()
        assert f"({sys.executable}); nothing is installed" in lines

        assert [
            lines.count(event)
            for event in ("the env file is missing and counts as empty", "a configuration key is ignored")
        ] == [1, 1]

        (project / "graphs.py").write_text(source.replace("echo: ", "changed: "))
        await eventually(lambda: answers(http, url, "changed: hi"))
    finally:
        await http.aclose()
        dev.send_signal(signal.SIGINT)
        assert dev.wait(120) == 0


async def answers(http: httpx2.AsyncClient, url: str, expected: str) -> bool:
    """Whether the project answers as its current source says. While it reloads, it does not answer."""
    body = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": "hi"}]}}
    try:
        response = (await http.post(f"{url}/runs/wait", json=body)).json()
    except httpx2.TransportError:
        return False

    # A wait that the reload cut off is answered without messages.
    return bool(response.get("messages")) and response["messages"][-1]["content"] == expected
