"""The stock `langgraph deploy` against a platform of which it knows only the address and a key.

The command is run as its users run it, and its output, one JSON object a line, is what they see.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.control_server import control
from tests.conftest import eventually
from tests.images import image_for_tests, read_digest
from tests.repositories import AGENT, CONFIG
from tests.servers import KEY, platform_server

pytestmark = pytest.mark.timeout(1200)
LANGGRAPH = Path(sys.executable).parent / "langgraph"


@dataclass
class Shell:
    """A project's folder, and a shell in it with two variables set."""

    url: str
    project: Path
    key: str = KEY

    def langgraph(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.project.parent),
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "LANGGRAPH_HOST_URL": self.url,
            "LANGSMITH_API_KEY": self.key,
        }

        return subprocess.run(
            [str(LANGGRAPH), "deploy", *arguments],
            cwd=self.project,
            env=environment,
            timeout=600,
            capture_output=True,
            text=True,
            check=False,
        )

    def says(self, *arguments: str) -> str:
        done = self.langgraph(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait_for_log(self, text: str, *arguments: str) -> None:
        """Wait for a line of a server: the listener ships them within a second, perhaps after the deployment is up."""
        deadline = time.monotonic() + 120
        while text not in (said := self.says("logs", *arguments)):
            assert time.monotonic() < deadline, said

    def deploy(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        done = self.langgraph("--no-input", "--json", *arguments)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.project / name.replace("__", ".")).write_text(text)

    def get(self, path: str) -> Any:
        return httpx2.get(f"{self.url}{path}", headers={"X-Api-Key": KEY}, timeout=300).json()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("stock")
    with platform_server(folder / "home", DEPLOYMENT_START_TIMEOUT_S="200") as server:
        project = folder / "a project"
        project.mkdir()
        yield Shell(server.url, project)


def test_a_folder_is_deployed_and_deployed_again(shell: Shell):
    config = json.dumps({**CONFIG, "env": ".env"})
    shell.write(langgraph__json=config, requirements__txt="", agent__py=AGENT.format(answer="one"), __env='A="x & y"\n')
    code, events = shell.deploy("--remote", "--name", "demo")
    result = events[-1]
    assert (code, result["status"]) == (0, "succeeded"), events
    assert _ask(result["url"]) == "one: hi"
    shown = shell.get(f"/v2/deployments/{result['deployment_id']}")
    assert {secret["name"]: secret["value"] for secret in shown["secrets"]} == {"A": "x & y"}

    _look_at_it(shell, result["deployment_id"], result["url"])
    shell.write(agent__py=AGENT.format(answer="two"), langgraph__json=json.dumps(CONFIG))
    (shell.project / ".env").unlink()
    code, events = shell.deploy("--remote", "--name", "demo")
    assert (code, events[-1]["deployment_id"]) == (0, result["deployment_id"]), events
    assert (events[-1]["url"], _ask(result["url"])) == (result["url"], "two: hi")

    # It sends an empty list where there is no .env file.
    assert shell.get(f"/v2/deployments/{result['deployment_id']}")["secrets"] == shown["secrets"]
    assert shell.says("revisions", "list", result["deployment_id"]).count("DEPLOYED") == 1
    _break_it(shell, result)
    assert "Deleted deployment" in shell.says("delete", "--force", result["deployment_id"])

    # It may be gone by now, or go after it was listed.
    assert result["deployment_id"] not in shell.says("list") or _status(shell, result) in {None, "AWAITING_DELETE"}


def _look_at_it(shell: Shell, deployment_id: str, url: str) -> None:
    """The commands that show what there is."""
    listed = shell.says("list")
    assert deployment_id in listed and url in listed
    assert "demo" in shell.says("list", "--name-contains", "dem")
    assert "DEPLOYED" in shell.says("revisions", "list", deployment_id)
    assert "local" in shell.says("listeners", "list")
    shell.wait_for_log("Build finished", "--deployment-id", deployment_id, "--type", "build")
    shell.wait_for_log("agent server ready", "--name", "demo", "--query", "ready")

    assert "agent server ready" in _follow_logs(shell, deployment_id)


def _follow_logs(shell: Shell, deployment_id: str) -> str:
    """What `logs -f` prints up to the line that is waited for; it would go on for ever."""
    command = [str(LANGGRAPH), "deploy", "logs", "-f", "--deployment-id", deployment_id]
    environment = {**os.environ, "LANGGRAPH_HOST_URL": shell.url, "LANGSMITH_API_KEY": KEY, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=shell.project, env=environment, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        with contextlib.closing(following.stdout):
            said = next((line for line in following.stdout if "agent server ready" in line), "")
            following.kill()

    return said


def _break_it(shell: Shell, result: dict[str, Any]) -> None:
    """A build that fails shows its log and leaves what serves as it is."""
    shell.write(requirements__txt="no-such-package-anywhere==99.9")
    code, events = shell.deploy("--remote", "--name", "demo")
    assert (code, events[-1]["status"]) == (1, "failed")
    assert any("no-such-package-anywhere" in event["message"] for event in events if event["event"] == "log")
    assert _ask(result["url"]) == "two: hi"


def _status(shell: Shell, result: dict[str, Any]) -> str | None:
    return shell.get(f"/v2/deployments/{result['deployment_id']}").get("status")


def _ask(url: str) -> str:
    body = {"assistant_id": "agent", "input": {"text": "hi"}}
    response = httpx2.post(f"{url}/runs/wait", json=body, headers={"X-Api-Key": KEY}, timeout=300)
    return str(response.raise_for_status().json()["text"])


def test_an_image_is_deployed(shell: Shell):
    name = image_for_tests().rpartition(":")[0]
    digest = read_digest(image_for_tests())
    shell.write(langgraph__json=json.dumps(CONFIG), requirements__txt="", agent__py=AGENT.format(answer="one"))
    code, events = shell.deploy("--image-uri", f"{name}@{digest}", "--name", "imaged")
    assert (code, events[-1]["status"]) == (0, "succeeded"), events
    assert httpx2.get(f"{events[-1]['url']}/ok", timeout=300).status_code == 200
    shell.wait_for_log("the server is up", "--deployment-id", events[-1]["deployment_id"])

    assert "Deleted deployment" in shell.says("delete", "--force", events[-1]["deployment_id"])


async def test_stock_commands_read_what_the_platform_says(
    control_databases: Callable[[], Awaitable[str]], tmp_path: Path
):
    """The test plays the listener: a failure ends the command with its reason, and what there is, is listed."""
    async with control(await control_databases()) as plane:
        shell = Shell(str(plane.client.base_url), tmp_path, plane.client.headers["x-api-key"])
        shell.write(langgraph__json=json.dumps(CONFIG), requirements__txt="", agent__py=AGENT.format(answer="one"))
        await plane.listener.connect()
        image = "registry.invalid/no/such@sha256:" + "0" * 64
        deploying = asyncio.create_task(asyncio.to_thread(shell.deploy, "--image-uri", image, "--name", "missing"))

        async def list_deployments() -> Any:
            return (await plane.client.get("/v2/deployments")).json()["resources"]

        (made,) = await eventually(list_deployments)
        ids = (made["id"], made["latest_revision_id"])
        await plane.listener.walk(*ids, "AWAITING_DEPLOY", "DEPLOYING")
        reason = "the image cannot be pulled"
        assert (await plane.listener.report(*ids, "DEPLOY_FAILED", status_message=reason)).status_code == 204
        code, events = await deploying
        assert (code, events[-1]["status"]) == (1, "failed"), events
        (revision,) = await plane.revisions(made["id"])
        assert revision["source_revision_config"]["image_uri"] == image
        listed = await asyncio.to_thread(shell.says, "list", "--json")
        assert json.loads(listed) == [{"id": made["id"], "name": "missing"}]


def test_failed_deployments_exit_with_their_reason(shell: Shell):
    missing = "registry.invalid/no/such@sha256:" + "0" * 64
    shell.write(langgraph__json=json.dumps(CONFIG), requirements__txt="", agent__py=AGENT.format(answer="one"))
    code, events = shell.deploy("--image-uri", missing, "--name", "missing")
    assert (code, events[-1]["status"]) == (1, "failed")
    shown = shell.get(f"/v2/deployments/{events[-1]['deployment_id']}/revisions")["resources"][0]
    assert shown["status"] == "DEPLOY_FAILED"
    assert "image" in shown["status_message"]
