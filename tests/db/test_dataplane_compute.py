"""Replicas as real processes that take over real sockets; the server is a small stand-in that keeps to the protocol."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from portside.dataplane.compute import fleet as fleets
from portside.dataplane.compute import output
from portside.dataplane.compute.fleet import ProcessFleet
from portside.dataplane.compute.group import Yard
from portside.dataplane.compute.output import Follower
from portside.dataplane.compute.process import ReplicaPlan
from portside.dataplane.compute.scale import Bounds, Tier
from portside.dataplane.compute.serving import Serving
from portside.dataplane.compute.sockets import open_private, open_stable
from portside.dataplane.compute.usage import Used, read_usage
from portside.dataplane.failures import DeployFailed, Unreachable
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessMark
from portside.dataplane.state import DeploymentFolder
from portside.dataplane.types import DesiredDeployment, DesiredRevision, LogEntry, ScaleBounds
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

    def fleet(
        self, plan: ReplicaPlan, scale: dict[Tier, Bounds] | None = None, down_after_s: float = 0
    ) -> ProcessFleet:
        yard = Yard(plan, self.serving.stable, self.folder, self._log(plan.revision_id), 20)
        revision = DesiredRevision(id=plan.revision_id, number=1, status="DEPLOYING")
        return ProcessFleet(yard, revision, scale or {"all": Bounds(1, 1)}, down_after_s)

    def _log(self, _revision: UUID) -> RevisionLog:
        return RevisionLog(self._ship)

    async def _ship(self, entries: list[LogEntry]) -> None:
        self.lines += entries

    def plan(self, name: str, timeout_s: float = 20, revision: UUID | None = None, **env: str) -> ReplicaPlan:
        revision = revision or uuid4()
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
    port, names, done = house.serving.stable.port, [], False

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
    [("exit", 20, "this module does not import"), ("deaf", 3, "has not answered GET /ok after 3 seconds")],
)
async def test_a_revision_that_fails_leaves_the_old_one_serving(house: House, fail: str, timeout_s: float, words: str):
    await house.switch(house.plan("old"))
    with pytest.raises(DeployFailed, match=words) as failure:
        await house.switch(house.plan("new", timeout_s, FAIL=fail))
    assert "plain words from new" in str(failure.value)
    assert (await get(house.serving.stable.port))["name"] == "old"
    assert len(house.folder.state.replicas) == 1
    assert any(words in entry.message and entry.level == "ERROR" for entry in house.lines)


async def test_a_replica_that_dies_is_replaced_while_requests_wait(house: House):
    await house.switch(house.plan("one"))
    port = house.serving.stable.port
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
    assert "CONTROL_PLANE_API_KEY" not in (await get(house.serving.stable.port))["env"]


async def test_stop_leaves_no_process_even_of_those_that_drain(house: House):
    await house.switch(house.plan("old", SLOW_S="600"))
    port = house.serving.stable.port
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
from tests.db.test_dataplane_compute import House, REVISION

async def main():
    house = House(Path(sys.argv[1]))
    await house.switch(house.plan("orphan", revision=REVISION))
    os._exit(0)

asyncio.run(main())
"""
REVISION = UUID(int=7)


@pytest.fixture
async def orphaned(tmp_path: Path) -> AsyncIterator[House]:
    """A house whose replica was started by a listener that died."""
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-c", ORPHAN_MAKER, str(tmp_path), root]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=60, cwd="/")
    house = House(tmp_path)
    yield house
    await house.serving.stop()
    assert house.folder.state.replicas == []


class Clients:
    """Requests without an end, each on a connection of its own; one that fails, fails `stop`."""

    def __init__(self, port: int, count: int = 3) -> None:
        self.answers: list[dict[str, Any]] = []
        self._port, self._done = port, False
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(count)]

    async def _ask(self) -> None:
        while not self._done:
            self.answers.append(await get(self._port))

    async def after(self, count: int) -> None:
        """Wait until so many more were answered."""
        wanted = len(self.answers) + count
        await eventually(lambda: asyncio.sleep(0, len(self.answers) >= wanted))

    async def stop(self) -> set[str]:
        """Stop asking, and return which servers answered."""
        self._done = True
        await asyncio.gather(*self._tasks)
        return {answer["name"] for answer in self.answers}


async def test_a_new_listener_adopts_what_serves_and_no_request_notices(orphaned: House):
    port, orphan = orphaned.folder.state.port, orphaned.folder.state.replicas[0].process
    assert port is not None
    clients = Clients(port)
    await clients.after(20)
    orphaned.serving.restore(orphaned.fleet(orphaned.plan("orphan", revision=REVISION)))
    current = orphaned.serving.current
    assert current is not None
    await eventually(lambda: asyncio.sleep(0, current.replicas() == {orphan}))
    await clients.after(20)
    assert [record.process for record in orphaned.folder.state.replicas] == [orphan]
    await orphaned.switch(orphaned.plan("heir"))
    await clients.after(20)
    assert await clients.stop() == {"orphan", "heir"}
    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))


async def test_what_a_new_listener_would_start_otherwise_gives_way_without_a_lost_request(orphaned: House):
    orphan = orphaned.folder.state.replicas[0].process
    assert orphaned.folder.state.port is not None
    clients = Clients(orphaned.folder.state.port)
    await clients.after(20)
    orphaned.serving.restore(orphaned.fleet(orphaned.plan("heir", revision=REVISION)))
    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))
    await clients.after(20)
    assert await clients.stop() == {"orphan", "heir"}
    await eventually(lambda: asyncio.sleep(0, len(orphaned.folder.state.replicas) == 1))


async def test_an_adopted_replica_that_dies_is_replaced(orphaned: House):
    orphan = orphaned.folder.state.replicas[0].process
    orphaned.serving.restore(orphaned.fleet(orphaned.plan("orphan", revision=REVISION)))
    current = orphaned.serving.current
    assert current is not None
    await eventually(lambda: asyncio.sleep(0, current.replicas() == {orphan}))
    orphan.kill_group()
    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))
    assert (await get(orphaned.serving.stable.port))["pid"] != orphan.pid


async def test_replicas_follow_what_waits_and_no_request_notices(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fleets, "_LOOK_EVERY_S", 0.2)
    waiting = tmp_path / "waiting"
    waiting.write_text("0")
    fleet = house.fleet(house.plan("one", PENDING=str(waiting)), {"api": Bounds(2, 2), "queue": Bounds(1, 3)})
    await house.serving.switch(fleet)
    clients = Clients(house.serving.stable.port)

    async def counts() -> tuple[int, int] | None:
        found = fleet.measures()
        return None if found is None else (found.replicas, found.queue_replicas)

    await eventually(lambda: is_so(counts, (2, 1)))
    waiting.write_text("1000")
    await eventually(lambda: is_so(counts, (2, 3)))
    waiting.write_text("0")
    await eventually(lambda: is_so(counts, (2, 1)))
    fleet.follow(DesiredDeployment(id=UUID(int=1), name="x", status="READY"))
    await eventually(lambda: is_so(counts, (1, 0)))
    await clients.after(5)
    assert await clients.stop() == {"one"}
    serving = {answer["pid"] for answer in clients.answers}
    assert len(serving) >= 3, "two replicas of the tier api, then one of the tier all"


async def test_tiers_come_and_go_however_often_they_are_asked_for_and_no_request_notices(house: House):
    fleet = house.fleet(house.plan("one"))
    await house.serving.switch(fleet)
    clients = Clients(house.serving.stable.port)
    together = DesiredDeployment(id=UUID(int=1), name="x", status="READY")
    apart = msgspec.structs.replace(together, scale=ScaleBounds(max_scale=3))

    async def tiers() -> list[str]:
        return sorted(record.tier for record in house.folder.state.replicas)

    for desired, wanted in ((apart, ["api", "queue"]), (together, ["all"]), (apart, ["api", "queue"])):
        for _ in range(3):
            fleet.follow(desired)
            await asyncio.sleep(0)
        await eventually(lambda wanted=wanted: is_so(tiers, wanted))
    for desired in (together, apart):  # taken back before it was done
        fleet.follow(desired)
        await asyncio.sleep(0)
    await eventually(lambda: is_so(tiers, ["api", "queue"]))
    assert await clients.stop() == {"one"}


async def is_so(look: Callable[[], Awaitable[Any]], wanted: object) -> bool:
    return await look() == wanted


async def test_a_replica_that_outgrows_its_memory_gives_way_without_a_lost_request(house: House):
    plan = house.plan("large")
    fleet = house.fleet(dataclasses.replace(plan, memory=2**40))
    await house.serving.switch(fleet)
    (before,) = fleet.replicas()
    clients = Clients(house.serving.stable.port)
    held = read_usage({before.pid})[before.pid].memory
    fleet.hold_memory({before.pid: Used(memory=2**40 + held)})
    await eventually(lambda: asyncio.sleep(0, not before.is_alive))
    assert await clients.stop() == {"large"}
    words = "MB of memory, more than its limit"
    await eventually(lambda: asyncio.sleep(0, any(words in entry.message for entry in house.lines)))


async def test_why_a_replica_does_not_stay_is_told(house: House):
    fleet = house.fleet(house.plan("one"))
    await house.serving.switch(fleet)
    (replica,) = fleet.replicas()
    replica.kill_group()

    async def told() -> bool:
        found = fleet.measures()
        return found is not None and found.restarts == 1 and "killed by SIGKILL" in (found.problem or "")

    await eventually(told)


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


def test_listening_sockets_are_passed_on_only_to_whom_they_are_meant_for(tmp_path: Path):
    stable = open_stable("127.0.0.1", None, tmp_path)
    assert stable.heir is not None
    for listening in (stable.public, stable.heir, open_private()):
        assert not listening.get_inheritable()
        listening.close()


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path):
    with open_private() as taken:
        moved = open_stable("127.0.0.1", taken.getsockname()[1], tmp_path)
        assert moved.port != taken.getsockname()[1]
        moved.close()
