"""Deployments with `pin_threads`: threads that wait go on with their revision's build, which is kept while it is used.

A real platform with its listener, real builds and agent servers. `tests/failure/test_pinned_revisions.py` has the rules
of the agent server.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.control_server import Control, control
from tests.conftest import eventually
from tests.failure.test_sleep import is_asleep, sleeps
from tests.platforms import Platform, Repository

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]

ASKS = """
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

class State(TypedDict, total=False):
    version: str

def act(state):
    answer = interrupt("may I?")
    return {{"version": "{version}" + answer}}

graph = StateGraph(State).add_node("act", act).add_edge(START, "act").add_edge("act", END).compile()
"""


class Agent:
    """A deployment whose graph asks, and a client of it."""

    def __init__(self, platform: Platform, repository: Repository, deployment: str) -> None:
        self.platform = platform
        self.repository = repository
        self.id = deployment

    async def deploy(self, version: str) -> str:
        """Deploy another version; return the id of its revision."""
        self.repository.commit(version, agent=ASKS)
        await self.platform.redeploy(self.id)
        return await self.wait_until_deployed()

    async def wait_until_deployed(self) -> str:
        revision = await self.platform.ended(self.id)
        assert revision["status"] == "DEPLOYED", revision
        return str(revision["id"])

    async def call(self, method: str, path: str, **body: Any) -> Any:
        url = await self.platform.url(self.id)
        async with httpx2.AsyncClient(timeout=300, headers=self.platform.headers) as client:
            response = await client.request(method, f"{url}{path}", json=body or None)

        assert response.is_success, response.text
        return response.json()

    async def ask_thread(self) -> str:
        thread = str((await self.call("POST", "/threads", metadata={}))["thread_id"])
        found = await self.call("POST", f"/threads/{thread}/runs/wait", assistant_id="agent", input={"version": ""})
        assert found["__interrupt__"], found
        return thread

    async def answer(self, thread: str) -> str:
        command = {"resume": "!"}
        found = await self.call("POST", f"/threads/{thread}/runs/wait", assistant_id="agent", command=command)
        return str(found["version"])

    async def uses(self, **expected: int) -> None:
        async def look() -> bool:
            metrics = await self.platform.call("GET", f"/v2/deployments/{self.id}/metrics")
            return bool(metrics["threads_by_revision"] == expected)

        await eventually(look)

    @property
    def folder(self) -> Path:
        return self.platform.home / "dataplane" / "deployments" / self.id / "revisions"

    def builds(self) -> set[str]:
        return {entry.name for entry in self.folder.iterdir()}

    async def print_deployment(self) -> Any:
        """Return what `portside deployments show` prints."""
        command = [sys.executable, "-m", "portside", "deployments", "show", self.id, "--url", self.platform.server.url]
        process = await asyncio.create_subprocess_exec(
            *command,
            env={"PORTSIDE_API_KEY": self.platform.headers["X-Api-Key"], "PATH": "/usr/bin", "COLUMNS": "200"},
            stdout=asyncio.subprocess.PIPE,
        )

        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode()


async def try_answer(agent: Agent, thread: str) -> str | None:
    """Answer a thread, unless the platform has only just been started."""
    try:
        return await agent.answer(thread)
    except (httpx2.TransportError, AssertionError):
        return None


def make_executor_older(build: Path) -> None:
    """Put an executor of another version into a build, which no server of this version can use."""
    [info] = build.glob("venv/lib/*/site-packages/portside-*.dist-info")
    version = info.name.removeprefix("portside-").removesuffix(".dist-info")
    link = info.parent / "portside" / "executor" / "link.py"
    for file in (info / "RECORD", info / "METADATA", link):
        content = file.read_text()
        # Files are hard links into uv's cache, which must stay as it is.
        file.unlink()
        file.write_text("raise SystemExit('of another version')" if file == link else content.replace(version, "0.0.1"))

    info.rename(info.with_name("portside-0.0.1.dist-info"))


@pytest.mark.thorough
async def test_threads_keep_their_revision_until_it_is_used_no_more(platform: Platform, repository: Repository):
    repository.commit("one", agent=ASKS)
    deployment = await platform.deploy(repository)
    found = await platform.call("PATCH", f"/v2/deployments/{deployment}", pin_threads=24)
    assert found["pin_threads"] == 24
    agent = Agent(platform, repository, deployment)
    one = await agent.wait_until_deployed()
    first, second, third = [await agent.ask_thread() for _ in range(3)]

    two = await agent.deploy("two")
    of_two = [await agent.ask_thread() for _ in range(2)]
    await agent.deploy("three")
    await agent.uses(**{one: 3, two: 2})

    lines = [line.split() for line in (await agent.print_deployment()).splitlines()]
    heading = next(line for line in lines if "THREADS" in line and "REVISION" in line)
    assert heading.index("THREADS") == len(heading) - 2
    counts = {line[0]: int(line[-1]) for line in lines if line and line[0] in {one, two}}
    assert counts == {one: 3, two: 2}
    assert await agent.answer(first) == "one!"
    new = await agent.ask_thread()
    assert await agent.answer(new) == "three!"

    # The platform, its listener and the servers end, and come back in a version whose executor earlier builds lack.
    await asyncio.to_thread(platform.server.stop)

    for revision in (one, two):
        make_executor_older(agent.folder / revision)

    await asyncio.to_thread(platform.server.start)
    assert await eventually(partial(try_answer, agent, second)) == "one!"
    assert await agent.answer(of_two[0]) == "two!"

    # A rollback to the first build: its threads and those of the revisions between go on.
    await platform.call("POST", f"/v2/deployments/{deployment}/revisions/{one}/redeploy")
    again = await agent.wait_until_deployed()
    assert {one, two, again} <= agent.builds()
    assert await agent.answer(third) == "one!"
    await agent.uses(**{two: 1})

    # The limit passes.
    await platform.call("PATCH", f"/v2/deployments/{deployment}", pin_threads=0.0001)
    await agent.uses()
    assert await agent.answer(of_two[1]) == "one!"
    left = await agent.call("GET", f"/threads/{of_two[1]}/state")
    assert left["metadata"]["left_revision_id"] == two

    async def is_logged() -> bool:
        return "a thread continues with the code of another revision" in await platform.logs(
            deployment, again, "deploy"
        )

    await eventually(is_logged)

    # Its build is used no more. That of the first revision is the active one's.
    async def is_removed() -> bool:
        return two not in agent.builds()

    await eventually(is_removed)
    assert {one, again} <= agent.builds()
    assert await agent.answer(await agent.ask_thread()) == "one!"
    await platform.delete(deployment)
    assert not (platform.home / "dataplane" / "deployments" / deployment).exists()


@pytest.mark.thorough
async def test_threads_of_an_agent_that_sleeps_wake_it_and_keep_their_revision(
    platform: Platform, repository: Repository
):
    repository.commit("one", agent=ASKS)
    deployment = await platform.deploy(repository)
    await platform.call("PATCH", f"/v2/deployments/{deployment}", pin_threads=24)
    agent = Agent(platform, repository, deployment)
    one = await agent.wait_until_deployed()
    first, second, third = [await agent.ask_thread() for _ in range(3)]
    two = await agent.deploy("two")

    of_two = await agent.ask_thread()
    await agent.uses(**{one: 3, two: 1})
    await sleeps(platform, deployment)

    # The answer wakes it, and so does a read of the state, which the earlier code makes as well.
    assert await agent.answer(first) == "one!"
    await is_asleep(platform, deployment)
    assert (await agent.call("GET", f"/threads/{second}/state"))["next"] == ["act"]
    await is_asleep(platform, deployment)

    # A revision that is deployed meanwhile changes nothing for them.
    await agent.deploy("three")
    await is_asleep(platform, deployment)
    await asyncio.to_thread(platform.server.stop)
    await asyncio.to_thread(platform.server.start)
    assert {one, two} <= agent.builds()
    assert await eventually(partial(try_answer, agent, second)) == "one!"
    assert await agent.answer(of_two) == "two!"

    assert await agent.answer(await agent.ask_thread()) == "three!"
    # While it sleeps, its threads are not counted. One more is left, and its build is kept.
    await platform.call("PATCH", f"/v2/deployments/{deployment}", sleep_after_s=3600)
    assert await agent.answer(await agent.ask_thread()) == "three!"
    await agent.uses(**{one: 1})
    assert await agent.answer(third) == "one!"
    await agent.uses()


@pytest.mark.thorough
async def test_combined_layout_is_refused_with_the_reason(platform: Platform, repository: Repository):
    repository.commit("one", agent=ASKS)
    deployment = await platform.deploy(repository, secrets={"EXECUTORS": "0"})
    await platform.call("PATCH", f"/v2/deployments/{deployment}", pin_threads=1)
    revision = await platform.ended(deployment)
    assert revision["status"] == "DEPLOY_FAILED", revision
    assert "pin_threads needs the split layout" in revision["status_message"]
    await platform.call("PATCH", f"/v2/deployments/{deployment}", pin_threads=0)

    agent = Agent(platform, repository, deployment)
    await platform.redeploy(deployment)
    await agent.wait_until_deployed()
    await platform.call("PATCH", f"/v2/deployments/{deployment}", pin_threads=1)

    async def says_so() -> bool:
        found = await platform.call("GET", f"/v2/deployments/{deployment}")
        return "pin_threads needs the split layout" in (found["status_message"] or "")

    await eventually(says_so)
    assert (await platform.call("GET", f"/v2/deployments/{deployment}"))["status"] == "READY"


@pytest.fixture
async def plane(control_databases) -> AsyncIterator[Control]:
    async with control(await control_databases()) as opened:
        yield opened


async def test_field_is_checked_kept_and_shown(plane: Control):
    made = await plane.create("pinned")
    path = f"/v2/deployments/{made['id']}"
    assert made["pin_threads"] == 0

    for hours, status in ((12.5, 200), (None, 200), (-1, 422), (9000, 422), ("1", 422)):
        response = await plane.client.patch(path, json={"pin_threads": hours, "display_name": "Pinned"})
        assert response.status_code == status, response.text

    found = (await plane.client.get(path)).json()
    assert found["pin_threads"] == 12.5
    assert found["latest_revision_id"] == made["latest_revision_id"], "it makes no revision"

    image = {
        "name": "image",
        "source": "external_image",
        "source_config": {"resource_spec": {}},
        "source_revision_config": {"image_uri": "example.org/agent:1"},
        "secrets": [],
    }

    refused = await plane.client.post("/v2/deployments", json={**image, "pin_threads": 1})
    assert refused.status_code == 400
    assert "pin_threads" in json.dumps(refused.json())
    assert (await plane.client.post("/v2/deployments", json={**image, "pin_threads": 0})).is_success
