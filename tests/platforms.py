"""A platform of one's own with its listener, repositories to deploy from, and what runs because of it."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2

from tests.conftest import eventually
from tests.servers import ServerProcess, free_port

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
PASSWORD = "correct horse battery"
CONFIG = '{"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}'


class Source(Protocol):
    """What can be deployed: a repository in a folder."""

    @property
    def folder(self) -> Path: ...


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
        return self.read_head()

    def read_head(self) -> str:
        return self._git("rev-parse", "HEAD")

    def branch(self, name: str) -> None:
        self._git("branch", name)

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()


class Platform:
    """A running platform and a client that holds its first key."""

    def __init__(self, server: ServerProcess, home: Path, database_url: str) -> None:
        self.server = server
        self.home = home
        self.database_url = database_url
        self.headers = {"X-Api-Key": (home / "api-key").read_text().strip()}
        self.client = httpx2.AsyncClient(base_url=server.url, headers=self.headers, timeout=300)

    async def call(self, method: str, path: str, **body: Any) -> Any:
        response = await self.client.request(method, path, json=body or None)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def add_member(self, email: str, role: str) -> None:
        """Add a member with a role in the first workspace, who signs in with `PASSWORD`."""
        workspaces = [workspace["id"] for workspace in (await self.call("GET", "/workspaces"))[:1]]
        await self.call(
            "POST", "/orgs/current/members", email=email, password=PASSWORD, workspaces=workspaces, workspace_role=role
        )

    async def deploy(
        self,
        repository: Source,
        name: str = "my-agent",
        config: str = "langgraph.json",
        secrets: Mapping[str, str] | None = None,
    ) -> str:
        integrations = await self.call("GET", "/v1/integrations/git_hosting/install")
        made = await self.call(
            "POST",
            "/v2/deployments",
            name=name,
            source="git_hosting",
            source_config={
                "integration_id": integrations[0]["id"],
                "repo_url": str(repository.folder),
                "deployment_type": "dev",
                "build_on_push": False,
            },
            source_revision_config={"repo_ref": "main", "graph_config_path": config},
            secrets=[
                {"name": name, "value": value} for name, value in {"MY_SECRET": "s3cret", **(secrets or {})}.items()
            ],
        )

        return str(made["id"])

    async def redeploy(self, deployment: str) -> None:
        await self.call("PATCH", f"/v2/deployments/{deployment}", source_revision_config={"repo_ref": "main"})

    async def ended(self, deployment: str, within_s: float = 500) -> Any:
        """Wait for the latest revision to end, and return it."""
        latest = (await self.call("GET", f"/v2/deployments/{deployment}"))["latest_revision_id"]

        async def look() -> Any:
            revision = await self.call("GET", f"/v2/deployments/{deployment}/revisions/{latest}")
            return revision if revision["status"] == "DEPLOYED" or "FAILED" in revision["status"] else None

        return await eventually(look, within_s)

    async def url(self, deployment: str) -> str:
        return str((await self.call("GET", f"/v2/deployments/{deployment}"))["source_config"]["custom_url"])

    async def logs(self, deployment: str, revision: str, kind: str) -> str:
        path = f"/v2/deployments/{deployment}/revisions/{revision}/logs?type={kind}&limit=1000"
        return "\n".join(entry["message"] for entry in (await self.call("GET", path))["logs"])

    async def delete(self, deployment: str) -> None:
        await self.call("DELETE", f"/v2/deployments/{deployment}")

        async def is_gone() -> bool:
            return (await self.client.get(f"/v2/deployments/{deployment}")).status_code == 404

        await eventually(is_gone)


def find_servers(home: Path) -> list[int]:
    """The agent servers of the deployments in a home."""
    return [pid for pid, arguments in _processes() if "serve" in arguments and _names(arguments, home)]


def find_processes(home: Path) -> list[int]:
    """The agent servers of the deployments in a home, and their executors."""
    return [
        pid
        for pid, arguments in _processes()
        if arguments[0].startswith(str(home)) or ("serve" in arguments and _names(arguments, home))
    ]


def _names(arguments: list[str], home: Path) -> bool:
    return any(argument.startswith(str(home / "dataplane")) for argument in arguments)


def find_listener(server: ServerProcess) -> int:
    assert server.process is not None
    (found,) = [
        pid for pid, arguments in _processes() if "listener" in arguments and _parent(pid) == server.process.pid
    ]
    return found


def _parent(pid: int) -> int | None:
    """Return the parent of a process; None if the process has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/status").read_text().partition("\nPPid:\t")[2].split()[0])
    return None


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                if arguments[0]:
                    yield int(entry.name), arguments


async def run(client: httpx2.AsyncClient, url: str, thread: str | None = None) -> Any:
    path = f"{url}/threads/{thread}/runs/wait" if thread else f"{url}/runs/wait"
    response = await client.post(path, json={"assistant_id": "agent", "input": {}})
    assert response.status_code == 200, response.text
    return response.json()


@asynccontextmanager
async def open_platform(folder: Path, database_url: str, **environment: str) -> AsyncIterator[Platform]:
    """Run a platform whose home is in the folder; afterwards nothing of its deployments may be left."""
    home = folder / "a home"
    port = free_port()
    command = ["up", "--no-example", "--home", str(home), "--port", str(port)]
    environment = {"DATABASE_URL": database_url, "DEPLOYMENT_START_TIMEOUT_S": "200", **environment}
    server = ServerProcess(command, f"http://127.0.0.1:{port}", environment, folder / "up.log", is_preloaded=True)

    await asyncio.to_thread(server.start)
    platform = Platform(server, home, database_url)
    try:
        yield platform
        for deployment in (await platform.call("GET", "/v2/deployments"))["resources"]:
            await platform.delete(deployment["id"])
    finally:
        await platform.client.aclose()
        await asyncio.to_thread(server.stop)

    assert find_processes(home) == []
