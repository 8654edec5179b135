"""The image of `docker/agent.Dockerfile`: built, with projects on top of it, and served in containers.

In the split layout a project may pin any version of what the server has too.
"""

import asyncio
import json
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.machine import MachineCompute
from portside.dataplane.logs import RevisionLog
from portside.dataplane.settings import ListenerSettings
from portside.listener_api import NewLogEntry, Secret
from tests.conftest import eventually
from tests.db.test_dataplane_containers import Harness, list_containers, podman
from tests.desired import build_desired_deployment, build_desired_revision
from tests.images import WITHIN_S, agent_image, project_image
from tests.node_packages import JAVASCRIPT_PROJECT, install_packages

pytestmark = [pytest.mark.timeout(3 * WITHIN_S), pytest.mark.thorough]
SPLIT, COMBINED, NODE = (f"localhost/portside-test-agent:{name}" for name in ("split", "combined", "node"))
PINS = {"starlette": "0.27.0", "protobuf": "3.20.3", "httpx": "0.25.2"}
PROJECT = """
from importlib.metadata import version
from typing import Any, TypedDict
from langgraph.graph import StateGraph
import google.protobuf, starlette


class State(TypedDict, total=False):
    names: list[str]
    found: dict[str, str]


def look(state: State) -> dict[str, Any]:
    return {"found": {name: version(name) for name in state["names"]}}


graph = StateGraph(State).add_node("look", look).add_edge("__start__", "look").compile()
"""


@pytest.fixture
async def serve(
    tmp_path: Path, fresh_database: Callable[[], Awaitable[str]]
) -> AsyncIterator[Callable[..., Awaitable[Harness]]]:
    harnesses: list[Harness] = []

    async def serve(image: str, more: dict[str, str] | None = None) -> Harness:
        harnesses.append(Harness(tmp_path / "home", image, await fresh_database()))
        # Without an authentication of the project's or a platform the server wants to be told that everybody may call.
        given = {"LANGGRAPH_AUTH_TYPE": "noop", "LANGSMITH_TRACING": "false", **(more or {})}
        await harnesses[-1].serve("image", secrets=given, resource_spec={"memory_limit_mb": 1500})
        return harnesses[-1]

    yield serve

    for harness in harnesses:
        await asyncio.gather(*(replica_set.stop(0) for replica_set in harness.replica_sets))
        await harness.manager.clear()
        harness.host.close()
        harness.public.close()


def project(folder: Path, requirements: dict[str, str]) -> Path:
    folder.mkdir()
    (folder / "agent.py").write_text(PROJECT)
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"pins": "./agent.py:graph"}}))
    lines = ["langgraph", *(f"{name}=={version}" for name, version in requirements.items())]

    (folder / "requirements.txt").write_text("\n".join(lines))
    return folder


async def run(harness: Harness, graph: str, given: Any) -> Any:
    async with httpx2.AsyncClient(base_url=harness.url, timeout=300) as client:
        response = await client.post("/runs/wait", json={"assistant_id": graph, "input": given})
        assert response.status_code == 200, response.text + harness.log_text()
        return response.json()


INSTALL = "pip install --no-cache-dir -r /app/requirements.txt"


async def test_project_in_an_image_pins_versions_that_the_server_does_not_have(serve, tmp_path):
    base = await asyncio.to_thread(agent_image, SPLIT)
    image = await asyncio.to_thread(project_image, f"{SPLIT}-pins", base, project(tmp_path / "project", PINS), INSTALL)
    harness = await serve(image)
    assert await run(harness, "pins", {"names": list(PINS)}) == {"names": list(PINS), "found": PINS}

    # The server's own environment has others, and all that executors on other machines need.
    own = podman(
        "run",
        "--rm",
        "--network",
        "none",
        image,
        "/opt/portside/bin/python",
        "-Ic",
        ("import grpc, redis; from importlib.metadata import version; print(version('starlette'))"),
    )

    assert own.strip() != PINS["starlette"]


async def test_image_is_orchestrator_and_executor(serve, tmp_path):
    """As on a cluster: containers of one image, of which only the orchestrator has the database."""
    base = await asyncio.to_thread(agent_image, SPLIT)
    image = await asyncio.to_thread(project_image, f"{SPLIT}-pins", base, project(tmp_path / "project", PINS), INSTALL)
    key = secrets.token_hex(32)
    own = {"PORTSIDE_TIER": "orchestrator", "CORE_API_HOST": "0.0.0.0", "CORE_API_KEY": key, "EXECUTORS": "0"}
    harness = await serve(image, own)
    [orchestrator] = harness.running()
    address = podman("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", orchestrator)
    given = {"PORTSIDE_TIER": "executor", "CORE_API": f"{address.strip()}:50054", "CORE_API_KEY": key}
    options = [f"--env={name}={value}" for name, value in given.items()]

    executor = podman("run", "--detach", "--network", "podman", "--cap-drop", "all", *options, image).strip()
    try:
        assert (await run(harness, "pins", {"names": list(PINS)}))["found"] == PINS
    finally:
        podman("rm", "--force", "--time", "0", executor)


async def test_agent_in_a_container_sleeps_until_a_request_wakes_it(postgres: str, tmp_path: Path):
    base = await asyncio.to_thread(agent_image, SPLIT)
    image = await asyncio.to_thread(project_image, f"{SPLIT}-pins", base, project(tmp_path / "project", PINS), INSTALL)
    settings = ListenerSettings(
        control_plane_url="http://127.0.0.1:9",
        control_plane_api_key="",
        portside_home=str(tmp_path / "home"),
        provision_database_url=postgres,
        deployment_start_timeout_s=300,
    )

    machine = MachineCompute(settings)
    deployment = build_desired_deployment(id=uuid4(), name="demo", sleep_after_s=1)
    given = {"LANGGRAPH_AUTH_TYPE": "noop", "LANGSMITH_TRACING": "false"}

    revision = build_desired_revision(
        id=uuid4(),
        source="external_image",
        image_uri=image,
        resource_spec={"min_scale": 1, "memory_limit_mb": 1500},
        secrets=[Secret(name, value) for name, value in given.items()],
    )

    target = machine.target(deployment.id, lambda _revision: RevisionLog(_ignore))

    async def is_asleep() -> bool:
        found = target.metrics()
        return found is not None and found.is_asleep and list_containers(deployment.id) == []

    await target.provision(deployment, is_new=True)
    try:
        await target.switch(Release(deployment, revision, None))

        for _ in range(2):
            await eventually(is_asleep)
            async with httpx2.AsyncClient(base_url=str(target.url), timeout=300) as client:
                body = {"assistant_id": "pins", "input": {"names": []}}
                answers = await asyncio.gather(*(client.post("/runs/wait", json=body) for _ in range(3)))

            assert [answer.status_code for answer in answers] == [200] * 3
            assert len(list_containers(deployment.id)) == 1, "many requests start one"

        await eventually(is_asleep)
    finally:
        await target.destroy(deployment)
        await machine.close()


async def _ignore(_entries: list[NewLogEntry]) -> None:
    pass


async def test_image_with_one_environment_for_both(serve, tmp_path):
    base = await asyncio.to_thread(agent_image, COMBINED, "--target", "combined")
    folder = project(tmp_path / "project", {"protobuf": "6.33.0"})
    image = await asyncio.to_thread(project_image, f"{COMBINED}-project", base, folder, INSTALL)
    found = (await run(await serve(image), "pins", {"names": ["portside"]}))["found"]
    assert "+" in found["portside"]
    assert podman("run", "--rm", "--network", "none", image, "find", "/opt", "-name", "portside") == ""


async def test_javascript_graphs_run_in_an_image_with_node(serve, tmp_path):
    base = await asyncio.to_thread(agent_image, NODE, "--build-arg", "NODE=22")
    folder = tmp_path / "project"
    install_packages(JAVASCRIPT_PROJECT)
    shutil.copytree(JAVASCRIPT_PROJECT, folder)

    lock = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"]
    await asyncio.to_thread(subprocess.run, lock, cwd=folder, check=True, capture_output=True)
    image = await asyncio.to_thread(project_image, f"{NODE}-project", base, folder, "cd /app && npm ci")
    values = await run(await serve(image), "echo", {"messages": [{"role": "user", "content": "hi"}]})
    assert values["messages"][-1]["content"] == "echo: hi"
