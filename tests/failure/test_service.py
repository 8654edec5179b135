"""The service on a machine that systemd boots: it starts with it, and again after a reboot, a power cut and a crash.

It is upgraded without a stop, and the next boot starts the new version, which loses no run.
"""

import asyncio
import contextlib
import functools
import json
import os
import re
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
from tests.failure.test_upgrade import ROOT, Installation
from tests.platforms import Platform, Repository
from tests.servers import KEY, ServerProcess, free_port

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3600)]
HOME = Path("/var/lib/portside")
NEW = Path(sys.executable)
# What builds need on this system: a service has no variables but those that it is given.
FOR_BUILDS = re.compile("SSL_CERT_FILE|SSL_CERT_DIR|(UV|PIP)_(?!CACHE).*|(HTTPS?|NO|ALL)_PROXY", re.IGNORECASE)
# The second node waits for a file, as a run does that lasts.
WAITS = """
import asyncio
from pathlib import Path
from typing import TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict, total=False):
    waits: bool
    steps: list

async def begin(state):
    return {{"steps": ["begin"]}}

async def wait(state):
    while state.get("waits") and not Path("~/go").expanduser().exists():
        await asyncio.sleep(0.1)
    return {{"steps": [*state["steps"], "{version}"]}}

graph = (
    StateGraph(State).add_node("begin", begin).add_node("wait", wait)
    .add_edge(START, "begin").add_edge("begin", "wait").add_edge("wait", END).compile()
)
"""


class Operator:
    """Somebody with a machine on which the platform is a service."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def portside(self, *arguments: str, python: Path = NEW, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as root."""
        return self.machine.run(str(python), "-P", "-m", "portside", *arguments, check=check)

    def as_user(self, *arguments: str) -> str:
        """Run a command as the service's user; return what it says."""
        user = ("setpriv", "--reuid=portside", "--regid=portside", "--clear-groups")
        done = self.machine.run(*user, str(NEW), "-P", "-m", "portside", *arguments, HOME=str(HOME))
        return done.stdout + done.stderr

    def upgrade(self) -> str:
        """Upgrade to this checkout as the service's user; return what the command says."""
        return self.as_user("upgrade", "--no-backup", "--home", str(HOME), "--port", str(self.port))

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

    def unit(self) -> str:
        """What systemd knows of the unit."""
        return self.machine.run("systemctl", "cat", "portside").stdout

    def log(self, lines: int = 60) -> str:
        """The end of the service's log."""
        return self.machine.run("journalctl", "-u", "portside", "--no-pager", "-n", str(lines), check=False).stdout

    def install(self, python: Path, **more: str) -> None:
        """Install the service and start it."""
        settings = {"PORTSIDE_PORT": self.port, "PORTSIDE_API_KEY": KEY, "PORTSIDE_FRONT": "false", **more}
        settings |= {name: value for name, value in os.environ.items() if FOR_BUILDS.fullmatch(name)}
        given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self.portside("service", "install", *given, python=python)

    async def has_backup(self) -> bool:
        """Whether the platform has taken a scheduled backup."""
        shown = await asyncio.to_thread(self.portside, "backup", "status", "--home", str(HOME), check=False)
        return shown.returncode == 0 and "/var/backups/portside/portside-" in shown.stdout

    async def crash(self) -> None:
        """Kill the platform; systemd starts it again."""
        before = self.status(NEW)["MainPID"]
        self.machine.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "portside")

        async def is_restarted() -> bool:
            now = self.status(NEW)
            return now["ActiveState"] == "active" and now["MainPID"] != before

        await eventually(is_restarted)

    @contextlib.asynccontextmanager
    async def platform(self) -> AsyncIterator[Platform]:
        """The platform, with a client that has the first key."""
        server = ServerProcess([], self.url, {}, Path(os.devnull))
        platform = Platform(server, self.machine.files / HOME.relative_to("/"), "")
        try:
            yield platform
        finally:
            await platform.client.aclose()


class LastingRun:
    """A run on a thread of its own that waits in its second step for a file."""

    def __init__(self, url: str, platform: Platform) -> None:
        self._client = platform.client
        self._url = url
        self._thread = ""

    async def begins(self) -> None:
        """Start it, and wait until its first step is stored."""
        threads = f"{self._url}/threads"
        self._thread = (await self._client.post(threads, json={})).raise_for_status().json()["thread_id"]
        body = {"assistant_id": "agent", "input": {"waits": True}, "durability": "sync"}
        (await self._client.post(f"{threads}/{self._thread}/runs", json=body)).raise_for_status()
        await eventually(lambda: self._has(["begin"]))

    async def ends(self) -> None:
        """Wait until it has done each step once."""
        await eventually(lambda: self._has(["begin", "one"]), 300)

    async def _has(self, steps: list[str]) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            state = await self._client.get(f"{self._url}/threads/{self._thread}/state")
            return state.is_success and state.json()["values"].get("steps") == steps

        return False


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """A folder that is the same on the machine."""
    made = tmp_path / "shared"
    made.mkdir()
    return made


@pytest.fixture
def operator(tmp_path: Path, shared_folder: Path) -> Iterator[Operator]:
    # The machine's /tmp is its own, also where this checkout is there.
    checkout = [ROOT] if ROOT.is_relative_to("/tmp") else []
    with machine(tmp_path / "machine", shared_folder, *checkout) as made:
        yield Operator(made)


async def test_service_starts_again_after_reboots_power_cuts_and_crashes(operator: Operator):
    machine = operator.machine
    await machine.boot()
    make_readable(machine, NEW)

    # A folder beside its home, in which its user may not make one.
    backups = {"BACKUP_TO": "/var/backups/portside", "PORTSIDE_BACKUP_PASSPHRASE": "correct horse battery"}
    await asyncio.to_thread(functools.partial(operator.install, NEW, **backups))
    await operator.answers()
    assert operator.status(NEW)["UnitFileState"] == "enabled"
    await eventually(operator.has_backup)

    for stops in (machine.shut_down, machine.cut_off, operator.crash):
        await stops()
        if stops != operator.crash:
            await machine.boot()

        await operator.answers()
        assert operator.status(NEW)["ActiveState"] == "active"

    # Others read the system's log.
    journal = operator.log(lines=100_000)
    assert "Platform" in journal
    assert KEY not in journal
    assert "/login/link" not in journal
    await asyncio.to_thread(operator.portside, "service", "uninstall")
    assert machine.run("pgrep", "-u", "portside", check=False).stdout == ""
    assert (machine.files / HOME.relative_to("/") / "master-key").exists()

    # Its user restores a backup into an empty home, with the settings of the service, and may not write beside it.
    machine.run("mv", str(HOME), f"{HOME}.before")
    await asyncio.to_thread(operator.portside, "service", "install", "--no-start")
    await asyncio.to_thread(operator.as_user, "backup", "restore", "/var/backups/portside", "--home", str(HOME))
    machine.run("systemctl", "start", "portside")
    await operator.answers()


async def test_service_is_upgraded_without_a_stop_and_boots_the_new_version(operator: Operator, shared_folder: Path):
    machine = operator.machine
    before = await asyncio.to_thread(Installation, shared_folder / "before", "HEAD", "feedfac")
    repository = Repository(shared_folder / "agent")
    repository.commit("one", agent=WAITS)
    await machine.boot()

    for python in (before.python, NEW):
        make_readable(machine, python)

    # It belongs to another user than the service's.
    machine.run("git", "config", "--system", "--add", "safe.directory", "*")
    await asyncio.to_thread(operator.install, before.python)
    await operator.answers()

    async with operator.platform() as platform:
        deployment = await platform.deploy(repository)
        latest = await platform.ended(deployment)
        assert latest["status"] == "DEPLOYED", await platform.logs(deployment, latest["id"], "build")
        url = await platform.url(deployment)
        running = operator.status(before.python)["MainPID"]

        async with EndlessClients(url, platform.headers) as clients:
            said = await asyncio.to_thread(operator.upgrade)
            answered = clients.answered
            await eventually(lambda: asyncio.sleep(0, clients.answered > answered))

        assert clients.failures == []
        assert (await platform.call("GET", "/info"))["portside_version"] == full_version()

        # Systemd watches the same process, but would start the version before.
        assert operator.status(NEW)["MainPID"] == running
        assert operator.status(NEW)["is_current"] == "no"
        assert f"{NEW} -m portside service install --no-start" in said
        assert str(before.python) in operator.unit()
        await asyncio.to_thread(operator.portside, "service", "install", "--no-start")
        assert operator.status(NEW)["is_current"] == "yes"
        assert operator.status(NEW)["MainPID"] == running

        assert str(NEW) in operator.unit()
        assert str(before.python) not in operator.unit()

        lasting = LastingRun(url, platform)
        await lasting.begins()
        await machine.cut_off()
        await machine.boot()
        await operator.answers()
        machine.run("touch", str(HOME / "dataplane/deployments" / deployment / "home/go"))
        await lasting.ends()

        assert (await platform.call("GET", "/info"))["portside_version"] == full_version()


def make_readable(machine: Machine, python: Path) -> None:
    """Let everybody on the machine run an interpreter, as an installation for all would."""
    for path in {python, python.resolve()}:
        folders = [str(folder) for folder in path.parents if folder != Path("/")]
        machine.run("chmod", "a+rx", *folders)
