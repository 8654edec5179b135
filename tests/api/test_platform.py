"""A whole platform: deployments from real repositories, switched, failed, killed and deleted.

`active_revision_id` changes only after traffic has moved. A failing revision leaves the previous one serving, and no
request fails.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_client

from tests.repositories import CONFIG, Repository
from tests.servers import KEY, ServerProcess, platform_server

ALLOWED = {"X-Api-Key": KEY}
ENDED = ("DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED")
pytestmark = pytest.mark.timeout(900)


class Platform:
    """Calls of the platform's API."""

    def __init__(self, server: ServerProcess, home: Path) -> None:
        self.server = server
        self.home = home
        self.http = httpx2.Client(base_url=server.url, headers=ALLOWED, timeout=300)

    def create(self, name: str, repository: Repository, **changes: Any) -> httpx2.Response:
        integration = self.http.get("/v1/integrations/git_hosting/install").json()[0]["id"]
        body = {
            "name": name,
            "source": "git_hosting",
            "source_config": {
                "integration_id": integration,
                "repo_url": str(repository.folder),
                "deployment_type": "dev",
                "build_on_push": False,
                **changes.pop("source_config", {}),
            },
            "source_revision_config": {
                "repo_ref": "main",
                "graph_config_path": "langgraph.json",
                **changes.pop("source_revision_config", {}),
            },
            "secrets": [],
            **changes,
        }

        return self.http.post("/v2/deployments", json=body)

    def create_deployed(self, name: str, repository: Repository, **changes: Any) -> dict[str, Any]:
        made = self.create(name, repository, **changes)
        assert made.status_code == 201, made.text
        assert self.follow(made.json())["status"] == "DEPLOYED", self.log(made.json())
        return self.get(made.json()["id"])

    def get(self, deployment_id: str) -> dict[str, Any]:
        return self.http.get(f"/v2/deployments/{deployment_id}").json()

    def change(self, deployment: dict[str, Any], **body: Any) -> dict[str, Any]:
        response = self.http.patch(f"/v2/deployments/{deployment['id']}", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def follow(self, deployment: dict[str, Any], within_s: float = 600) -> dict[str, Any]:
        path = f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}"
        return wait_for(lambda: (r := self.http.get(path).json())["status"] in ENDED and r, within_s)

    def log(self, deployment: dict[str, Any], kind: str = "build") -> str:
        path = f"/v2/deployments/{deployment['id']}/revisions/{deployment['latest_revision_id']}/logs"
        entries = self.http.get(path, params={"type": kind, "limit": 1000}).json()["logs"]
        return "\n".join(entry["message"] for entry in entries)

    def replica(self, deployment: dict[str, Any]) -> int:
        """Return the process that serves a deployment: the newest one with its revision in its environment.

        Programs that it runs have the same environment.
        """
        wanted = f"LANGSMITH_HOST_REVISION_ID={deployment['active_revision_id']}".encode()
        found = {pid for pid in processes() if wanted in environment(pid)}
        return max((pid for pid in found if parent(pid) not in found), key=read_start_time, default=0)


def wait_for(probe: Any, within_s: float = 600) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        # An agent may be away for a moment.
        with contextlib.suppress(httpx2.HTTPError):
            if found := probe():
                return found

        time.sleep(0.05)

    raise AssertionError(f"not reached within {within_s} s")


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment(pid: int) -> bytes:
    return process_file(pid, "environ")


def command_line(pid: int) -> bytes:
    return process_file(pid, "cmdline")


def processes_below(home: Path) -> list[bytes]:
    """Return the command lines of processes whose environment names a platform's home."""
    return [command_line(pid) for pid in processes() if str(home).encode() in environment(pid)]


def process_file(pid: int, name: str) -> bytes:
    """Read a file of a process; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def read_start_time(pid: int) -> int:
    return status_field(pid, 19)


def parent(pid: int) -> int:
    return status_field(pid, 1)


def status_field(pid: int, place: int) -> int:
    """Return a field of a process, counted from its state; 0 if the process has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[place])
    return 0


def run_agent(url: str, text: str = "hi") -> str:
    body = {"assistant_id": "agent", "input": {"text": text}}
    response = httpx2.post(f"{url}/runs/wait", json=body, headers=ALLOWED, timeout=300)
    return response.raise_for_status().json()["text"]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("a home") / "portside"
    with platform_server(home, DEPLOYMENT_START_TIMEOUT_S="100") as server:
        opened = Platform(server, home)
        yield opened
        opened.http.close()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "my agent")
    made.commit_agent("one")
    return made


async def test_repository_becomes_a_running_traced_billed_agent(platform: Platform, repository: Repository):
    made = platform.create("billed", repository, secrets=[{"name": "FLAVOUR", "value": "mint & salt"}])
    assert made.status_code == 201
    body = made.json()
    assert (body["status"], body["active_revision_id"]) == ("AWAITING_DATABASE", None)
    revision = platform.follow(body)
    assert revision["status"] == "DEPLOYED", platform.log(body)
    assert revision["source_revision_config"]["repo_commit_sha"] == repository.git("rev-parse", "HEAD")
    assert revision["source_revision_config"]["repo_commit_author"] == repository.git("log", "-1", "--format=%an")
    assert revision["source_revision_config"]["repo_commit_subject"] == repository.git("log", "-1", "--format=%s")
    # A listener ships lines of logs in batches, which may come after the status.
    wait_for(lambda: "Building commit" in platform.log(body))

    deployment = platform.get(body["id"])
    assert deployment["status"] == "READY"
    assert deployment["active_revision_id"] == deployment["latest_revision_id"]

    url = deployment["source_config"]["custom_url"]
    async with get_client(url=url, api_key=KEY) as client:
        thread = await client.threads.create()
        modes = ["values", "updates", "messages-tuple"]
        events = [
            p async for p in client.runs.stream(thread["thread_id"], "agent", input={"text": "hi"}, stream_mode=modes)
        ]
        assert {"metadata", "values", "updates"} <= {event.event for event in events}
        assert await client.runs.wait(thread["thread_id"], "agent", input={"text": "again"}) == {"text": "one: again"}

        assert (await client.threads.get_state(thread["thread_id"]))["values"] == {"text": "one: again"}
        assert len(await client.threads.get_history(thread["thread_id"], limit=10)) == 6

    invalid_headers = (
        {},
        {"X-Api-Key": "lsv2_pt_wrong"},
        {"Authorization": "Bearer wrong"},
        {"X-Auth-Scheme": "langsmith"},
    )

    for wrong in invalid_headers:
        assert httpx2.post(f"{url}/threads", json={}, headers=wrong, timeout=300).status_code == 401

    assert httpx2.post(f"{url}/threads", json={}, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
    info = httpx2.get(f"{url}/info").json()["host"]
    assert (info["project_id"], info["host_revision_id"]) == (deployment["id"], deployment["active_revision_id"])
    assert b"FLAVOUR=mint & salt" in environment(platform.replica(deployment)).split(b"\0")
    wait_for(lambda: traces(platform, "billed") == 2)
    assert "mint & salt" not in platform.log(deployment) + platform.log(deployment, "deploy")
    check_deletion_leaves_nothing(platform, deployment)


def check_deletion_leaves_nothing(platform: Platform, deployment: dict[str, Any]) -> None:
    replica = platform.replica(deployment)
    assert platform.http.delete(f"/v2/deployments/{deployment['id']}").status_code == 204
    wait_for(lambda: platform.http.get(f"/v2/deployments/{deployment['id']}").status_code == 404)
    assert not Path(f"/proc/{replica}").exists()
    assert not (platform.home / "dataplane" / "deployments" / deployment["id"]).exists()
    assert httpx2.get(f"{deployment['source_config']['custom_url']}/ok").status_code == 404


def traces(platform: Platform, project: str) -> int:
    workspace = platform.http.get("/auth").json()["tenant_id"]
    response = platform.http.get(
        "/api/v1/orgs/current/billing/granular-usage",
        params={
            "start_time": "2026-01-01T00:00:00Z",
            "end_time": "2099-01-01T00:00:00Z",
            "workspace_ids": [workspace],
            "group_by": "project",
        },
    )

    assert response.status_code == 200, response.text
    return sum(r["traces"] for r in response.json()["usage"] if r["dimensions"]["project_name"] == project)


@pytest.mark.thorough
async def test_new_commit_takes_over_without_a_failed_request(platform: Platform, repository: Repository):
    deployment = platform.create_deployed("switched", repository)
    url = deployment["source_config"]["custom_url"]
    answers: list[str] = []
    done = asyncio.Event()

    async def send_requests(*, reuse: bool) -> None:
        async with httpx2.AsyncClient(base_url=url, headers=ALLOWED, timeout=300) as kept:
            while not done.is_set():
                client = kept if reuse else httpx2.AsyncClient(base_url=url, headers=ALLOWED, timeout=300)
                body = {"assistant_id": "agent", "input": {"text": "hi"}}
                response = await client.post("/runs/wait", json=body)
                assert response.status_code == 200, response.text
                answers.append(response.json()["text"])

                if not reuse:
                    await client.aclose()

    async def switch() -> None:
        try:
            for word in ("two", "three"):
                repository.commit_agent(word)
                changed = await asyncio.to_thread(
                    platform.change, deployment, source_revision_config={"repo_ref": "main"}
                )
                revision = await asyncio.to_thread(platform.follow, changed)
                assert revision["status"] == "DEPLOYED"
                assert (await asyncio.to_thread(run_agent, url)) == f"{word}: hi"
        finally:
            done.set()

    await asyncio.gather(switch(), *(send_requests(reuse=reuse) for reuse in (True, True, False, False)))
    assert {"one: hi", "two: hi", "three: hi"} >= set(answers)
    assert answers


def thorough(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"langgraph__json": "{"}, "BUILD_FAILED", "langgraph.json"),
        thorough({"requirements__txt": "no-such-package-anywhere==99.9"}, "BUILD_FAILED", "no-such-package-anywhere"),
        thorough({"agent__py": "import nothing_like_this\n"}, "DEPLOY_FAILED", "nothing_like_this"),
        thorough({"agent__py": "import time\ntime.sleep(3600)\n"}, "DEPLOY_FAILED", "100"),
    ],
    ids=["config", "dependency", "import", "silence"],
)
def test_failed_revision_leaves_the_old_one_serving(
    platform: Platform, repository: Repository, change: dict[str, str], status: str, says: str, request: Any
):
    deployment = platform.create_deployed(f"kept-{request.node.callspec.id}", repository)
    repository.commit_agent("broken", **change)
    changed = platform.change(deployment, source_revision_config={"repo_ref": "main"})
    revision = platform.follow(changed)
    kind = "build" if status == "BUILD_FAILED" else "deploy"
    assert revision["status"] == status
    wait_for(lambda: says in revision["status_message"] + platform.log(changed, kind))

    after = platform.get(deployment["id"])
    assert after["active_revision_id"] == deployment["active_revision_id"]
    assert run_agent(deployment["source_config"]["custom_url"]) == "one: hi"


def test_killed_agent_restarts_with_its_state(platform: Platform, repository: Repository):
    deployment = platform.create_deployed("killed", repository)
    url = deployment["source_config"]["custom_url"]
    thread = httpx2.post(f"{url}/threads", json={}, headers=ALLOWED).json()["thread_id"]
    body = {"assistant_id": "agent", "input": {"text": "hi"}}
    assert httpx2.post(f"{url}/threads/{thread}/runs/wait", json=body, headers=ALLOWED, timeout=300).status_code == 200
    victim = platform.replica(deployment)

    os.kill(victim, signal.SIGKILL)
    wait_for(
        lambda: (
            platform.replica(deployment) not in (0, victim) and httpx2.get(f"{url}/ok", timeout=300).status_code == 200
        )
    )

    history = httpx2.get(f"{url}/threads/{thread}/history?limit=10", headers=ALLOWED).json()
    assert len(history) == 3
    assert history[0]["values"] == {"text": "one: hi"}


def list_listeners(platform: Platform) -> set[int]:
    """Return the listener processes of a platform."""
    return {
        pid
        for pid in processes()
        if b"CONTROL_PLANE_API_KEY=" in environment(pid)
        and str(platform.home).encode() in environment(pid)
        and b"listener" in command_line(pid)
    }


def test_killed_listener_is_restarted_and_adopts_running_agents(platform: Platform, repository: Repository):
    deployment = platform.create_deployed("adopted", repository)
    url = deployment["source_config"]["custom_url"]

    # Lines that a listener has not shipped die with it.
    wait_for(lambda: "Build finished" in platform.log(deployment))

    # A process that the listener has just begun to start looks like a second one.
    (listener,) = wait_for(lambda: len(found := list_listeners(platform)) == 1 and found)
    old = platform.replica(deployment)
    os.kill(listener, signal.SIGKILL)
    assert run_agent(url) == "one: hi"
    wait_for(lambda: list_listeners(platform) - {listener})
    assert platform.replica(deployment) == old

    # A listener that starts another agent has adopted this one.
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: platform.replica(deployment) not in (0, old) and run_agent(url) == "one: hi")
    assert "Building" not in platform.log(deployment).split("Build finished", 1)[1]


def test_unknown_source_fails_with_a_reason(platform: Platform, repository: Repository):
    missing = platform.create("nowhere", repository, source_config={"repo_url": str(repository.folder) + "-not"})
    revision = platform.follow(missing.json())
    assert revision["status"] == "BUILD_FAILED"
    assert "does not" in revision["status_message"]
    config = platform.create(
        "no-config", repository, source_revision_config={"graph_config_path": "deep/langgraph.json"}
    )
    revision = platform.follow(config.json())
    assert revision["status"] == "BUILD_FAILED"

    assert "deep/langgraph.json" in revision["status_message"]


def test_invalid_requests_name_the_field(platform: Platform, repository: Repository):
    tagged = platform.create(
        "tagged", repository, source_config={"build_on_push": True}, source_revision_config={"repo_ref": "refs/tags/v1"}
    )
    assert tagged.status_code == 400
    assert "build_on_push" in tagged.json()["detail"]
    large = platform.http.post("/v2/deployments", content=b"x" * 30_000_000)
    assert large.status_code == 413

    assert "HTTP_MAX_REQUEST_BODY_BYTES" in large.json()["detail"]
    refused = httpx2.get(f"{platform.server.url}/v2/deployments", headers={"X-Api-Key": "lsv2_pt_wrong"})
    assert refused.status_code == 401
    assert "X-Api-Key" in refused.json()["detail"]
    wrong = platform.http.post("/v2/deployments", json={"name": 7})
    assert wrong.status_code == 422
    assert {"loc", "msg", "type"} <= set(wrong.json()["detail"][0])


def test_killed_platform_loses_nothing(tmp_path: Path):
    repository = Repository(tmp_path / "agent")
    repository.commit({"langgraph.json": json.dumps(CONFIG), "requirements.txt": ""})
    repository.commit_agent("one")

    home = tmp_path / "home"
    with platform_server(home) as server:
        platform = Platform(server, home)
        deployment = platform.create_deployed("survivor", repository)
        url = deployment["source_config"]["custom_url"]
        thread = httpx2.post(f"{url}/threads", json={"metadata": {"kept": "yes"}}, headers=ALLOWED).json()["thread_id"]
        body = {"assistant_id": "agent", "input": {"text": "hi"}}
        response = httpx2.post(f"{url}/threads/{thread}/runs/wait", json=body, headers=ALLOWED, timeout=300)
        assert response.status_code == 200

        assert server.process is not None
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        server.start()
        wait_for(lambda: run_agent(url) == "one: hi")

        kept = httpx2.get(f"{url}/threads/{thread}", headers=ALLOWED).json()
        assert (kept["metadata"]["kept"], kept["values"]) == ("yes", {"text": "one: hi"})
        assert platform.get(deployment["id"])["active_revision_id"] == deployment["active_revision_id"]
        platform.http.close()

        # The greeting comes after the server answers.
        wait_for(lambda: "API key        in " in server.log.read_text())
        assert server.stop(signal.SIGTERM) == 0

    log_text = server.log.read_text()
    assert log_text.count(KEY) == 1, "the first key is shown only at the first start"
    assert f"API key        in {home / 'api-key'}\n" in log_text
    wait_for(lambda: not processes_below(home))
