"""The service on a machine that systemd boots: it starts with it, survives a reboot, and is upgraded without a stop.

A reboot or a crash of the machine loses no run: one that was interrupted goes on from its last checkpoint.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from portside.kernel.version import full_version
from tests.booted import Machine, machine
from tests.conftest import eventually
from tests.failure.test_listener import EndlessClients
from tests.failure.test_upgrade import Installation
from tests.platforms import Platform, Repository
from tests.servers import KEY, ServerProcess, free_port

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
HOME = Path("/var/lib/portside")
NEW = Path(sys.executable)
# The second node waits for a file, as a run does that lasts.
WAITS = """
import asyncio
from pathlib import Path
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    seen: int
    steps: list

async def begin(state):
    return {{"steps": state.get("steps", []) + ["begin"]}}

async def wait(state):
    while state.get("seen") == 1 and not Path("~/go").expanduser().exists():
        await asyncio.sleep(0.1)
    return {{"steps": state["steps"] + ["{version}"]}}

graph = (
    StateGraph(State).add_node("begin", begin).add_node("wait", wait)
    .add_edge(START, "begin").add_edge("begin", "wait").add_edge("wait", END).compile()
)
"""


class Operator:
    """Somebody with a machine on which the platform is a service."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.port = machine, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def portside(self, *arguments: str, python: Path = NEW, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as root."""
        return self.machine.run(str(python), "-P", "-m", "portside", *arguments, check=check)

    def portside_as_user(
        self, *arguments: str, python: Path = NEW, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the service's user."""
        user = ("setpriv", "--reuid=portside", "--regid=portside", "--clear-groups")
        command = (*user, str(python), "-P", "-m", "portside", *arguments)
        return self.machine.run(*command, check=check, HOME=str(HOME))

    def status(self, python: Path) -> dict[str, str]:
        """How systemd and the unit say that the service is."""
        return dict(json.loads(self.portside("service", "status", "--json", python=python, check=False).stdout))

    async def answers(self) -> None:
        """Wait until the platform does."""
        async with httpx2.AsyncClient() as client:

            async def is_ok() -> bool:
                try:
                    return (await client.get(f"{self.url}/ok", timeout=5)).status_code == 200
                except httpx2.HTTPError:
                    return False

            try:
                await eventually(is_ok, 300)
            except AssertionError as exc:
                raise AssertionError(self.log()) from exc

    def log(self, lines: int = 60) -> str:
        """The end of the service's log."""
        return self.machine.run("journalctl", "-u", "portside", "--no-pager", "-n", str(lines), check=False).stdout

    def install(self, python: Path) -> None:
        """Install the service and start it."""
        settings = {"PORTSIDE_PORT": self.port, "PORTSIDE_API_KEY": KEY, "PORTSIDE_FRONT": "false"}
        given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.portside("service", "install", *given, python=python)

    async def crash(self) -> None:
        """Kill the platform; systemd starts it again."""
        before = self.status(NEW)["MainPID"]
        self.machine.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "portside")

        async def is_restarted() -> bool:
            now = self.status(NEW)
            return now["ActiveState"] == "active" and now["MainPID"] != before

        await eventually(is_restarted, 120)

    @contextlib.asynccontextmanager
    async def platform(self) -> AsyncIterator[Platform]:
        """A client of the platform, which has the first key."""
        server = ServerProcess([], self.url, {}, Path("/dev/null"))
        platform = Platform(server, self.machine.files / HOME.relative_to("/"), "")
        try:
            yield platform
        finally:
            await platform.client.aclose()


class LastingRun:
    """A run on a thread of its own that waits in its second step for a file."""

    def __init__(self, url: str, platform: Platform) -> None:
        self._client, self._url = platform.client, url
        self._thread = self._run = ""

    async def begins(self) -> None:
        """Start it, and wait until its first step is stored."""
        threads = f"{self._url}/threads"
        self._thread = (await self._client.post(threads, json={})).raise_for_status().json()["thread_id"]
        body = {"assistant_id": "agent", "input": {"seen": 1}, "durability": "sync"}
        made = await self._client.post(f"{threads}/{self._thread}/runs", json=body)
        self._run = made.raise_for_status().json()["run_id"]
        await eventually(lambda: self._has(["begin"]))

    async def ends(self) -> None:
        """Wait until it has ended, each step done once."""
        await eventually(lambda: self._has(["begin", "one"]), 300)
        run = await self._client.get(f"{self._url}/threads/{self._thread}/runs/{self._run}")
        assert run.json()["status"] in ("running", "success"), run.text

    async def _has(self, steps: list[str]) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            state = await self._client.get(f"{self._url}/threads/{self._thread}/state")
            return state.is_success and state.json()["values"].get("steps") == steps
        return False


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with machine(tmp_path / "machine", shared) as made:
        yield Operator(made)


async def test_service_survives_reboots_and_is_upgraded_without_a_stop(operator: Operator, tmp_path: Path):
    shared, machine = tmp_path / "shared", operator.machine
    before = await asyncio.to_thread(Installation, shared / "before", "HEAD", "feedfac")
    repository = Repository(shared / "agent")
    repository.commit("one", agent=WAITS)
    await machine.boot()
    make_readable(machine, NEW)
    machine.run("git", "config", "--system", "--add", "safe.directory", "*")
    await asyncio.to_thread(operator.install, before.python)
    await operator.answers()
    async with operator.platform() as platform:
        grace = {"BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": "1"}
        deployment = await platform.deploy(repository, secrets=grace)
        assert (await platform.ended(deployment))["status"] == "DEPLOYED"
        url = await platform.url(deployment)
        running = operator.status(before.python)["MainPID"]

        clients = EndlessClients(url, platform.headers)
        upgraded = await asyncio.to_thread(
            operator.portside_as_user, "upgrade", "--no-backup", "--home", str(HOME), "--port", str(operator.port)
        )
        answered = clients.answered
        await eventually(lambda: asyncio.sleep(0, clients.answered > answered))
        await clients.leave()
        assert clients.failures == []
        assert (await platform.call("GET", "/info"))["portside_version"] == full_version()
        # Systemd still watches it.
        assert operator.status(NEW)["MainPID"] == running
        # The unit names the installation of before, which the next boot would start.
        assert "portside service install --no-start" in upgraded.stderr
        await asyncio.to_thread(operator.portside, "service", "install", "--no-start")
        assert operator.status(NEW)["is_current"] == "yes"
        assert operator.status(NEW)["MainPID"] == running

        go = str(HOME / "dataplane/deployments" / deployment / "home" / "go")
        for stops in (machine.shut_down, machine.cut_off, operator.crash):
            run = LastingRun(url, platform)
            await run.begins()
            await stops()
            if stops != operator.crash:
                await machine.boot()
            await operator.answers()
            machine.run("touch", go)
            await run.ends()
            machine.run("rm", go)
            assert (await platform.call("GET", "/info"))["portside_version"] == full_version()
    journal = operator.log(lines=100_000)
    assert KEY not in journal
    assert "/login/link" not in journal
    await asyncio.to_thread(operator.portside, "service", "uninstall")
    assert machine.run("pgrep", "-u", "portside", check=False).stdout == ""
    assert (machine.files / HOME.relative_to("/") / "master-key").exists()


def make_readable(machine: Machine, python: Path) -> None:
    """Let everybody on the machine run an interpreter, as an installation for all would."""
    for path in {python, python.resolve()}:
        folders = [str(folder) for folder in path.parents if folder != Path("/")]
        machine.run("chmod", "a+rx", *folders)
