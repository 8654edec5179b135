"""An agent server that is killed, stopped and started again: runs go on, nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from tests.servers import PROJECTS, ServerProcess, agent_server, free_port

SLOW = {"assistant_id": "steps", "input": {"done": [], "pause_s": 1.0}}


def wait_for_step(log: Path, step: str, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not (log.exists() and step in log.read_text().split()):
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.02)


@pytest.fixture
def step_log(tmp_path: Path) -> Path:
    return tmp_path / "steps"


async def test_a_killed_run_goes_on_from_its_last_checkpoint(fresh_database, tmp_path, step_log):
    with agent_server(await fresh_database(), tmp_path, STEP_LOG=str(step_log)) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        run = httpx2.post(f"{server.url}/threads/{thread}/runs", json=SLOW).json()
        wait_for_step(step_log, "two")
        # What anybody has seen is stored; a step that ended a moment ago may not be, unless durability is sync.
        assert httpx2.get(f"{server.url}/threads/{thread}/state").json()["values"]["done"] == ["one"]
        server.kill()
        server.start()
        result = httpx2.get(f"{server.url}/threads/{thread}/runs/{run['run_id']}/join", timeout=60)
        assert result.json()["done"] == ["one", "two", "three"]
        assert step_log.read_text().split() == ["one", "two", "two", "three"]
        assert httpx2.get(f"{server.url}/threads/{thread}").json()["status"] == "idle"


async def test_runs_lost_too_often_end_in_an_error(fresh_database, tmp_path, step_log):
    environment = {"STEP_LOG": str(step_log), "BG_JOB_MAX_RETRIES": "0"}
    with agent_server(await fresh_database(), tmp_path, **environment) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        run = httpx2.post(f"{server.url}/threads/{thread}/runs", json=SLOW).json()
        after = httpx2.post(f"{server.url}/threads/{thread}/runs", json={**SLOW, "input": {"done": []}}).json()
        wait_for_step(step_log, "one")
        server.kill()
        server.start()
        result = httpx2.get(f"{server.url}/threads/{thread}/runs/{run['run_id']}/join", timeout=60).json()
        assert result["__error__"]["error"] == "WorkerLost"
        httpx2.get(f"{server.url}/threads/{thread}/runs/{after['run_id']}/join", timeout=60)
        assert httpx2.get(f"{server.url}/threads/{thread}").json()["status"] == "idle"


async def test_a_polite_stop_lets_runs_end(fresh_database, tmp_path, step_log):
    with agent_server(await fresh_database(), tmp_path, STEP_LOG=str(step_log)) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        httpx2.post(f"{server.url}/threads/{thread}/runs", json=SLOW)
        wait_for_step(step_log, "one")
        assert server.stop(signal.SIGTERM) == 0
        assert step_log.read_text().split() == ["one", "two", "three"]
        server.start()
        assert httpx2.get(f"{server.url}/threads/{thread}").json()["values"]["done"] == ["one", "two", "three"]


async def test_a_hurried_stop_hands_runs_back(fresh_database, tmp_path, step_log):
    with agent_server(await fresh_database(), tmp_path, STEP_LOG=str(step_log)) as server:
        thread = httpx2.post(f"{server.url}/threads", json={}).json()["thread_id"]
        run = httpx2.post(f"{server.url}/threads/{thread}/runs", json=SLOW).json()
        wait_for_step(step_log, "two")
        began = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        stopped_after_s = time.monotonic() - began
        server.start()
        result = httpx2.get(f"{server.url}/threads/{thread}/runs/{run['run_id']}/join", timeout=60).json()
        assert result["done"] == ["one", "two", "three"]
        assert stopped_after_s < 60


def test_an_embedded_server_recovers_from_the_kill_of_its_group(tmp_path: Path):
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


def test_dev_reloads_when_a_file_changes(tmp_path: Path):
    project = tmp_path / "project"
    project.mkdir()
    source = (PROJECTS / "graphs" / "graphs.py").read_text()
    (project / "graphs.py").write_text(source)
    (project / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"echo": "./graphs.py:echo"}}')
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "PORTSIDE_HOME": str(tmp_path / "home"), "DATABASE_URL": "", "DATABASE_URI": ""}
    command = [sys.executable, "-m", "portside", "dev", "--port", str(port)]
    with (tmp_path / "dev.log").open("wb") as log:
        dev = subprocess.Popen(command, cwd=project, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        answer_when_ready(url, "echo: hi")
        (project / "graphs.py").write_text(source.replace("echo: ", "changed: "))
        answer_when_ready(url, "changed: hi")
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0


def answer_when_ready(url: str, wanted: str) -> None:
    deadline = time.monotonic() + 100
    body = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": "hi"}]}}
    while time.monotonic() < deadline:
        try:
            answer = httpx2.post(f"{url}/runs/wait", json=body, timeout=10).json()
            if answer["messages"][-1]["content"] == wanted:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{wanted!r} was not answered in time")
