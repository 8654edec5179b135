"""The whole way of a deployment: a real platform with its listener, real repositories, builds and agent servers."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import eventually
from tests.servers import ServerProcess, free_port

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]

AGENT = """
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    seen: int
    version: str

def answer(state):
    return {{"seen": state.get("seen", 0) + 1, "version": "{version}"}}

graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile()
"""
CONFIG = '{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}'


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, version: str, *, agent: str = AGENT, config: str = CONFIG) -> str:
        (self.folder / "agent.py").write_text(agent.format(version=version))
        (self.folder / "langgraph.json").write_text(config)
        self._git("add", "-A")
        self._git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", version)
        return self._git("rev-parse", "HEAD")

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()


class Platform:
    """A running platform and a client that holds its first key."""

    def __init__(self, server: ServerProcess, home: Path) -> None:
        self.server, self.home = server, home
        headers = {"X-Api-Key": (home / "api-key").read_text().strip()}
        self.client = httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60)

    async def call(self, method: str, path: str, **body: Any) -> Any:
        answer = await self.client.request(method, path, json=body or None)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def deploy(self, repository: Repository, name: str = "my-agent") -> str:
        integrations = await self.call("GET", "/v1/integrations/git_hosting/install")
        made = await self.call(
            "POST", "/v2/deployments", name=name, source="git_hosting",
            source_config={
                "integration_id": integrations[0]["id"], "repo_url": str(repository.folder),
                "deployment_type": "dev", "build_on_push": False,
            },
            source_revision_config={"repo_ref": "main", "graph_config_path": "langgraph.json"},
            secrets=[{"name": "MY_SECRET", "value": "s3cret"}],
        )  # fmt: skip
        return str(made["id"])

    async def redeploy(self, deployment: str) -> None:
        await self.call("PATCH", f"/v2/deployments/{deployment}", source_revision_config={"repo_ref": "main"})

    async def ended(self, deployment: str) -> Any:
        """Wait for the latest revision to end, and return it."""
        latest = (await self.call("GET", f"/v2/deployments/{deployment}"))["latest_revision_id"]

        async def look() -> Any:
            revision = await self.call("GET", f"/v2/deployments/{deployment}/revisions/{latest}")
            return revision if revision["status"] == "DEPLOYED" or "FAILED" in revision["status"] else None

        return await eventually(look, 120)

    async def url(self, deployment: str) -> str:
        return str((await self.call("GET", f"/v2/deployments/{deployment}"))["source_config"]["custom_url"])

    async def logs(self, deployment: str, revision: str, kind: str) -> str:
        path = f"/v2/deployments/{deployment}/revisions/{revision}/logs?type={kind}&limit=1000"
        return "\n".join(entry["message"] for entry in (await self.call("GET", path))["logs"])

    async def delete(self, deployment: str) -> None:
        await self.call("DELETE", f"/v2/deployments/{deployment}")

        async def is_gone() -> bool:
            return (await self.client.get(f"/v2/deployments/{deployment}")).status_code == 404

        await eventually(is_gone, 60)


@pytest.fixture
async def platform(fresh_database: Callable[[], Awaitable[str]], tmp_path: Path) -> AsyncIterator[Platform]:
    home, port = tmp_path / "a home", free_port()
    command = ["up", "--no-example", "--home", str(home), "--port", str(port)]
    environment = {"DATABASE_URL": await fresh_database(), "DEPLOYMENT_START_TIMEOUT_S": "60"}
    server = ServerProcess(command, f"http://127.0.0.1:{port}", environment, tmp_path / "up.log")
    await asyncio.to_thread(server.start)
    platform = Platform(server, home)
    try:
        yield platform
        for deployment in (await platform.call("GET", "/v2/deployments"))["resources"]:
            await platform.delete(deployment["id"])
    finally:
        await platform.client.aclose()
        await asyncio.to_thread(server.stop)
    assert processes_of(home) == []


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "repository")
    repository.commit("one")
    return repository


def processes_of(home: Path) -> list[int]:
    """The processes whose program lies in the home: the agent servers."""
    return [pid for pid, arguments in _processes() if arguments[0].startswith(str(home))]


def listener_of(server: ServerProcess) -> int:
    assert server.process is not None
    (found,) = [
        pid for pid, arguments in _processes()
        if "listener" in arguments and f"\nPPid:\t{server.process.pid}\n" in Path(f"/proc/{pid}/status").read_text()
    ]  # fmt: skip
    return found


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().decode().split("\0")
                if arguments[0]:
                    yield int(entry.name), arguments


async def run(client: httpx2.AsyncClient, url: str, thread: str | None = None) -> Any:
    path = f"{url}/threads/{thread}/runs/wait" if thread else f"{url}/runs/wait"
    answer = await client.post(path, json={"assistant_id": "agent", "input": {}})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_deployment_is_switched_without_a_lost_request_and_failures_leave_it_serving(
    platform: Platform, repository: Repository
):
    deployment = await platform.deploy(repository)
    first = await platform.ended(deployment)
    assert first["status"] == "DEPLOYED", first
    url = await platform.url(deployment)
    answers: list[str] = []
    done = False

    async def client() -> None:
        async with httpx2.AsyncClient(timeout=60) as agent:
            thread = (await agent.post(f"{url}/threads", json={})).json()["thread_id"]
            while not done:
                answers.append((await run(agent, url, thread))["version"])

    clients = [asyncio.create_task(client()) for _ in range(2)]
    commit = repository.commit("two")
    await platform.redeploy(deployment)
    second = await platform.ended(deployment)
    assert (second["status"], second["source_revision_config"]["repo_commit_sha"]) == ("DEPLOYED", commit)
    async with httpx2.AsyncClient(timeout=60) as agent:
        assert (await run(agent, url))["version"] == "two"
    done = True
    await asyncio.gather(*clients)
    assert set(answers) == {"one", "two"}
    await fails(platform, deployment, repository, "BUILD_FAILED", "langgraph.json", config="{")
    await fails(platform, deployment, repository, "DEPLOY_FAILED", "no_such_module", agent="import no_such_module\n")
    async with httpx2.AsyncClient(timeout=60) as agent:
        assert (await run(agent, url))["version"] == "two"
    found = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert found["active_revision_id"] == second["id"]
    assert "Building commit" in await platform.logs(deployment, second["id"], "build")
    await eventually(lambda: said(platform, deployment, second["id"], "answering on the deployment's address"))


async def fails(
    platform: Platform, deployment: str, repository: Repository, status: str, words: str, **files: str
) -> None:
    """Deploy a commit that fails, and find the reason on the revision and in its log."""
    repository.commit("broken", **files)
    await platform.redeploy(deployment)
    revision = await platform.ended(deployment)
    assert revision["status"] == status, revision
    assert words in revision["status_message"]
    assert words in await platform.logs(deployment, revision["id"], "build" if status == "BUILD_FAILED" else "deploy")


async def said(platform: Platform, deployment: str, revision: str, words: str) -> bool:
    return words in await platform.logs(deployment, revision, "deploy")


async def test_what_ran_comes_back_after_every_kind_of_death_without_a_rebuild(
    platform: Platform, repository: Repository
):
    deployment = await platform.deploy(repository)
    revision = await platform.ended(deployment)
    assert revision["status"] == "DEPLOYED", revision
    url = await platform.url(deployment)
    built = next(platform.home.glob("dataplane/deployments/*/revisions/*/built.json"))
    before = built.stat().st_mtime_ns
    async with httpx2.AsyncClient(timeout=60) as agent:
        thread = (await agent.post(f"{url}/threads", json={})).json()["thread_id"]
        assert (await run(agent, url, thread))["seen"] == 1

    (replica,) = processes_of(platform.home)
    os.kill(replica, signal.SIGKILL)
    await serves_again(platform, url, thread, 2, replica)

    (replica,) = processes_of(platform.home)
    os.kill(listener_of(platform.server), signal.SIGKILL)
    await serves_again(platform, url, thread, 3, replica)

    (replica,) = processes_of(platform.home)
    await asyncio.to_thread(platform.server.kill)
    await asyncio.to_thread(platform.server.start)
    await serves_again(platform, url, thread, 4, replica)
    assert await platform.url(deployment) == url
    assert built.stat().st_mtime_ns == before
    found = await platform.call("GET", f"/v2/deployments/{deployment}")
    assert found["latest_revision_id"] == found["active_revision_id"] == revision["id"]


async def serves_again(platform: Platform, url: str, thread: str, seen: int, gone: int) -> None:
    """Wait until another replica serves alone, and continue the thread on it."""

    async def has_successor() -> bool:
        found = processes_of(platform.home)
        return len(found) == 1 and found != [gone]

    await eventually(has_successor, 60)
    async with httpx2.AsyncClient(timeout=60) as agent:

        async def answers() -> Any:
            with contextlib.suppress(httpx2.TransportError):
                return (await agent.get(f"{url}/threads/{thread}/state")).json()["values"]
            return None

        assert (await eventually(answers, 60))["seen"] == seen - 1
        assert (await run(agent, url, thread))["seen"] == seen


async def test_nothing_is_left_of_a_deleted_deployment_even_while_it_builds(platform: Platform, repository: Repository):
    deployment = await platform.deploy(repository)
    assert (await platform.ended(deployment))["status"] == "DEPLOYED"
    url = await platform.url(deployment)
    repository.commit("two", config=CONFIG.replace('"."', '".", "orjson"'))
    await platform.redeploy(deployment)
    await platform.delete(deployment)
    assert processes_of(platform.home) == []
    assert list((platform.home / "dataplane" / "deployments").iterdir()) == []
    async with httpx2.AsyncClient() as agent:
        with pytest.raises(httpx2.ConnectError):
            await agent.get(f"{url}/ok")


async def test_an_unknown_repository_fails_in_the_words_of_git(platform: Platform, repository: Repository):
    repository.folder.rename(repository.folder.with_name("moved"))
    deployment = await platform.deploy(repository)
    revision = await platform.ended(deployment)
    assert revision["status"] == "BUILD_FAILED"
    assert "does not appear to be a git repository" in revision["status_message"]
