"""Replicas as real processes that take over real sockets; the server is a small stand-in that keeps to the protocol."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.dataplane.compute import output
from portside.dataplane.compute.output import Follower
from portside.dataplane.compute.process import ReplicaPlan
from portside.dataplane.compute.running import RunningRevision
from portside.dataplane.compute.serving import Serving
from portside.dataplane.compute.sockets import open_private, open_stable
from portside.dataplane.failures import DeployFailed, Unreachable
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessMark
from portside.dataplane.state import DeploymentFolder
from portside.dataplane.types import LogEntry
from tests.conftest import eventually

SERVER = Path(__file__).parent.parent / "stand_in_server.py"


class House:
    """One deployment's folder, its logs and what serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = DeploymentFolder(folder, UUID(int=1))
        self.lines: list[LogEntry] = []
        self.serving = Serving(self.folder, "127.0.0.1", grace_s=20)

    async def switch(self, plan: ReplicaPlan) -> None:
        await self.serving.switch(self.fleet(plan))

    def fleet(self, plan: ReplicaPlan) -> RunningRevision:
        return RunningRevision(plan, self.serving.stable, self.folder, self._log(plan.revision_id))

    def _log(self, _revision: UUID) -> RevisionLog:
        return RevisionLog(self._ship)

    async def _ship(self, entries: list[LogEntry]) -> None:
        self.lines += entries

    def plan(self, name: str, timeout_s: float = 20, **env: str) -> ReplicaPlan:
        revision = uuid4()
        return ReplicaPlan(
            revision, [sys.executable, str(SERVER)], self.folder.home() / "graph.json",
            {"NAME": name, **env}, self.folder.server_log(revision), timeout_s,
        )  # fmt: skip


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    yield house
    await house.serving.stop()
    assert house.folder.state.replicas == []


async def get(port: int, path: str = "/") -> dict[str, Any]:
    """One request on a connection of its own; anything but an answer raises."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    found: dict[str, Any] = json.loads(body)
    return found


async def test_a_switch_loses_no_request_and_is_complete_when_it_returns(house: House):
    await house.switch(house.plan("old", SLOW_S="0.5"))
    port, names, done = house.serving.port, [], False

    async def client() -> None:
        while not done:
            names.append((await get(port))["name"])

    clients = [asyncio.create_task(client()) for _ in range(4)]
    slow = asyncio.create_task(get(port, "/slow"))
    await eventually(lambda: asyncio.sleep(0, len(names) > 20))
    await house.switch(house.plan("new"))
    assert {(await get(port))["name"] for _ in range(20)} == {"new"}
    done = True
    await asyncio.gather(*clients)
    assert (await slow)["name"] == "old"
    assert set(names) == {"old", "new"}
    await eventually(lambda: asyncio.sleep(0, len(house.serving.revisions()) == 1))


@pytest.mark.parametrize(
    ("fail", "timeout_s", "words"),
    [("exit", 20, "this module does not import"), ("deaf", 0.5, "has not answered GET /ok after 0.5 seconds")],
)
async def test_a_revision_that_fails_leaves_the_old_one_serving(house: House, fail: str, timeout_s: float, words: str):
    await house.switch(house.plan("old"))
    with pytest.raises(DeployFailed, match=words) as failure:
        await house.switch(house.plan("new", timeout_s, FAIL=fail))
    assert "plain words from new" in str(failure.value)
    assert (await get(house.serving.port))["name"] == "old"
    assert len(house.folder.state.replicas) == 1
    assert any(words in entry.message and entry.level == "ERROR" for entry in house.lines)


async def test_a_replica_that_dies_is_replaced_while_requests_wait(house: House):
    await house.switch(house.plan("one"))
    port = house.serving.port
    first = (await get(port))["pid"]
    os.kill(first, signal.SIGKILL)
    process = house.folder.state.replicas[0].process
    await eventually(lambda: asyncio.sleep(0, not process.is_alive))
    assert (await get(port))["pid"] != first
    await eventually(lambda: asyncio.sleep(0, any("killed by SIGKILL" in entry.message for entry in house.lines)))


async def test_output_becomes_the_log_with_levels(house: House):
    plan = house.plan("talker")
    await house.switch(plan)

    async def said() -> bool:
        return {"plain words from talker", "ready port=1"} <= {entry.message for entry in house.lines}

    await eventually(said)
    assert [entry.level for entry in house.lines if entry.message == "ready port=1"] == ["WARNING"]
    assert "plain words from talker" in plan.output.read_text()


async def test_a_server_sees_nothing_of_the_listeners_environment(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CONTROL_PLANE_API_KEY", "not for servers")
    await house.switch(house.plan("one"))
    assert "CONTROL_PLANE_API_KEY" not in (await get(house.serving.port))["env"]


async def test_stop_leaves_no_process_even_of_those_that_drain(house: House):
    await house.switch(house.plan("old", SLOW_S="600"))
    port = house.serving.port
    slow = asyncio.create_task(get(port, "/slow"))
    await get(port)
    await house.switch(house.plan("new"))
    marks = [record.process for record in house.folder.state.replicas]
    assert [mark.is_alive for mark in marks] == [True, True]
    async with asyncio.timeout(10):
        await house.serving.stop()
    assert not any(mark.is_alive for mark in marks)
    with pytest.raises(ConnectionError):
        await get(port)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


ORPHAN_MAKER = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.db.test_dataplane_compute import House

async def main():
    house = House(Path(sys.argv[1]))
    await house.switch(house.plan("orphan"))
    os._exit(0)

asyncio.run(main())
"""


async def test_a_new_listener_finds_the_port_and_ends_the_orphan_once_its_own_replica_serves(tmp_path: Path):
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-c", ORPHAN_MAKER, str(tmp_path), root]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=60, cwd="/")
    house = House(tmp_path)
    port = house.folder.state.port
    assert port is not None
    orphan = house.folder.state.replicas[0].process
    assert (await get(port))["name"] == "orphan"
    house.serving.restore(house.fleet(house.plan("heir")))
    try:
        assert house.serving.port == port

        async def is_gone() -> bool:
            return not orphan.is_alive

        await eventually(is_gone)
        assert (await get(port))["name"] == "heir"
        await eventually(lambda: asyncio.sleep(0, len(house.folder.state.replicas) == 1))
    finally:
        await house.serving.stop()


async def test_a_process_id_that_was_reused_is_left_alone(tmp_path: Path):
    mark = ProcessMark.of(os.getpid())
    assert mark is not None
    stranger = ProcessMark(mark.pid, "at another time")
    stranger.signal(signal.SIGKILL)
    stranger.kill_group()
    assert mark.is_alive


async def test_a_follower_survives_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output, "_ROTATE_BYTES", 1000)
    file, lines = tmp_path / "log", []
    file.write_text("before\n")
    follower = Follower(file, lines.append)
    for number in range(500):
        descriptor, _length = output.open_output(file)
        os.write(descriptor, f"line {number}\n".encode())
        os.close(descriptor)
        if number % 50 == 0:
            follower.poll()
    await follower.close()
    assert lines == [f"line {number}" for number in range(500)]
    assert file.stat().st_size < 1000
    assert (tmp_path / "log.1").exists()


async def test_a_log_waits_while_the_control_plane_is_away():
    arrived: list[LogEntry] = []
    away = True

    async def ship(entries: list[LogEntry]) -> None:
        if away:
            raise Unreachable("away")
        arrived.extend(entries)

    log = RevisionLog(ship)
    for number in range(2500):
        log.add(f"line {number}\0\ud800")
    await log.flush(0.3)
    assert arrived == []
    away = False
    await log.flush(20)
    await log.close()
    assert [entry.message for entry in arrived] == [f"line {number}\ufffd?" for number in range(2500)]


def test_listening_sockets_are_passed_on_only_to_whom_they_are_meant_for():
    for listening in (open_stable("127.0.0.1", None), open_private()):
        assert not listening.get_inheritable()
        listening.close()


def test_a_port_that_was_taken_meanwhile_is_replaced():
    with open_private() as taken, open_stable("127.0.0.1", taken.getsockname()[1]) as moved:
        assert moved.getsockname()[1] != taken.getsockname()[1]
