"""The service on a machine that systemd boots: it starts with it, and again after a reboot, a power cut and a crash."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.booted import Machine, machine
from tests.conftest import eventually
from tests.servers import KEY, free_port

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
HOME = Path("/var/lib/portside")
NEW = Path(sys.executable)


class Operator:
    """Somebody with a machine on which the platform is a service."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.port = machine, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def portside(self, *arguments: str, python: Path = NEW, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as root."""
        return self.machine.run(str(python), "-P", "-m", "portside", *arguments, check=check)

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


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with machine(tmp_path / "machine") as made:
        yield Operator(made)


async def test_service_starts_again_after_reboots_power_cuts_and_crashes(operator: Operator):
    machine = operator.machine
    await machine.boot()
    make_readable(machine, NEW)
    await asyncio.to_thread(operator.install, NEW)
    await operator.answers()
    assert operator.status(NEW)["UnitFileState"] == "enabled"
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


def make_readable(machine: Machine, python: Path) -> None:
    """Let everybody on the machine run an interpreter, as an installation for all would."""
    for path in {python, python.resolve()}:
        folders = [str(folder) for folder in path.parents if folder != Path("/")]
        machine.run("chmod", "a+rx", *folders)
