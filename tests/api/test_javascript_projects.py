"""Projects of JavaScript graphs are served while they are developed, and deployed, on a machine without their tools."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import eventually
from tests.node_packages import copy_of_project
from tests.servers import KEY, PROJECTS, ServerProcess, free_port, platform_server

MINE = """\
import { Annotation, StateGraph } from "@langchain/langgraph";

const State = Annotation.Root({ text: Annotation<string>() });

export default new StateGraph(State)
  .addNode("hear", ({ text }: { text: string }) => ({ text: `heard ${text}` }))
  .addEdge("__start__", "hear")
  .compile();
"""
pytestmark = pytest.mark.timeout(900)


async def run_graph(url: str, graph: str, given: dict[str, Any]) -> Any:
    """Return the values of a run; None while nothing answers."""
    async with httpx2.AsyncClient(timeout=300, headers={"X-Api-Key": KEY}) as client:
        try:
            response = await client.post(f"{url}/runs/wait", json={"assistant_id": graph, "input": given})
        except httpx2.TransportError:
            return None

    return response.json() if response.is_success else None


def run(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def start(command: list[str], environment: dict[str, str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)


@pytest.mark.thorough
async def test_dev_follows_changes_of_typescript(tmp_path: Path):
    project = copy_of_project(tmp_path / "project")
    port = free_port()
    (project / "langgraph.json").write_text('{"graphs": {"agent": "./mine.ts"}}')
    (project / "mine.ts").write_text(MINE)

    url = f"http://127.0.0.1:{port}"
    (project / "node_modules").rename(tmp_path / "packages")
    environment = {
        **os.environ,
        "PORTSIDE_HOME": str(tmp_path / "home"),
        "DATABASE_URL": "",
        "DATABASE_URI": "",
        "EXECUTOR_START_SECS": "600",
    }

    command = [sys.executable, "-m", "portside", "dev", "--port", str(port)]
    refused = await asyncio.to_thread(run, command, environment, project)
    assert refused.returncode == 1
    assert f"the packages of {project} are not installed; run npm i in {project}" in refused.stderr
    (tmp_path / "packages").rename(project / "node_modules")

    async def answers(text: str) -> bool:
        values = await run_graph(url, "agent", {"text": "one"})
        return values == {"text": text}

    dev = await asyncio.to_thread(start, command, environment, project, tmp_path / "log")
    try:
        await eventually(lambda: answers("heard one"), 300)
        (project / "mine.ts").write_text(MINE.replace("heard", "understood"))
        await eventually(lambda: answers("understood one"), 300)
        assert "mine.ts changed, restarting" in (tmp_path / "log").read_text()

        async def has_schemas() -> bool:
            return (project / ".langgraph_api" / "schemas.json").is_file()

        await eventually(has_schemas, 300)
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(120) == 0


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[ServerProcess]:
    # A PATH with the system's programs and no Node.
    programs = tmp_path / "programs"
    programs.mkdir()

    tools = {"node", "npm", "npx", "corepack", "yarn", "pnpm", "bun"}
    for folder in reversed(os.get_exec_path()):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if program.name not in tools:
                (programs / program.name).unlink(missing_ok=True)
                (programs / program.name).symlink_to(program)

    settings = {"PATH": str(programs), "DEPLOYMENT_START_TIMEOUT_S": "300"}
    with platform_server(tmp_path / "home", **settings) as server:
        yield server


@pytest.mark.thorough
async def test_workspace_with_both_languages_is_deployed_without_node(platform: ServerProcess, tmp_path: Path):
    source = tmp_path / "work"
    shutil.copytree(PROJECTS / "workspace", source)
    (source / ".git").mkdir()

    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PORTSIDE_URL": platform.url,
        "PORTSIDE_API_KEY": KEY,
    }

    command = [
        sys.executable,
        "-m",
        "portside",
        "deploy",
        str(source / "apps" / "agent"),
        "--build-command",
        "pnpm --filter greeting build",
    ]

    deployed = await asyncio.to_thread(run, command, environment, source)
    assert deployed.returncode == 0, deployed.stderr
    assert "installing Node 22" in deployed.stderr
    assert "Reading the schemas of graphs from their types" in deployed.stderr
    assert "The types cannot be read now" not in deployed.stderr
    assert deployed.stderr.count("Installing pnpm@10.12.4") == 1
    url = deployed.stdout.strip()
    script = await run_graph(url, "script", {"name": "Ada"})
    assert script["answer"] == "Good day, Ada, from Node 22"

    python = await run_graph(url, "python", {"name": "Ada"})
    assert python["answer"] == "Good day, Ada, from Python"
    caches = [folder.name for folder in (tmp_path / "home" / "dataplane" / "node-cache").iterdir()]
    assert {"npm", "pnpm"} <= set(caches)
    assert not re.search(r"npm warn unknown", deployed.stderr, re.IGNORECASE)


@pytest.mark.thorough
async def test_components_of_a_python_project_are_deployed_without_node(platform: ServerProcess, tmp_path: Path):
    source = tmp_path / "work"
    shutil.copytree(PROJECTS / "ui", source)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PORTSIDE_URL": platform.url,
        "PORTSIDE_API_KEY": KEY,
    }

    command = [sys.executable, "-m", "portside", "deploy", str(source)]
    deployed = await asyncio.to_thread(run, command, environment, source)
    assert deployed.returncode == 0, deployed.stderr
    assert "Bundling the components of ui" in deployed.stderr

    url = deployed.stdout.strip()
    async with httpx2.AsyncClient(timeout=300) as client:
        assert (await client.post(f"{url}/ui/agent", json={"name": "weather"})).status_code in {401, 403}
        response = await client.post(f"{url}/ui/agent", json={"name": "weather"}, headers={"X-Api-Key": KEY})

        # A page requests the script without a key.
        script = await client.get(response.text.split('src="')[1].split('"')[0])

    assert "sun in" in script.text
    (source / "components" / "styles.css").unlink()
    failed = await asyncio.to_thread(run, command, environment, source)
    assert failed.returncode == 1
    assert 'the components of ui cannot be bundled: ✘ [ERROR] Could not resolve "./styles.css"' in failed.stderr
