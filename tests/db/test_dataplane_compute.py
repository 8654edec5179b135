"""Replicas as real processes on real sockets; the server is a small fake that follows the protocol."""

import asyncio
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from portside.dataplane.compute import replica_set as replica_sets
from portside.dataplane.compute import server_output
from portside.dataplane.compute.machine import MachineCompute, MachineTarget
from portside.dataplane.compute.replica import Replica, ReplicaPlan, find_replicas
from portside.dataplane.compute.replica_set import ProcessReplicaSet, ReplicaContext
from portside.dataplane.compute.resource_usage import GroupUsage, ProcessUsage, UsageReader
from portside.dataplane.compute.scaling import ReplicaBounds, ServerTier
from portside.dataplane.compute.server_output import OutputFollower
from portside.dataplane.compute.sockets import open_private, open_stable_socket
from portside.dataplane.compute.start_queue import StartQueue
from portside.dataplane.failures import ControlPlaneUnreachable, DeployFailed, NoConnectionsLeft
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessIdentity
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentState
from portside.listener_api import NewLogEntry, Scale
from tests.conftest import eventually
from tests.desired import build_desired_deployment, build_desired_revision
from tests.small_disk import needs_small_disk, small_disk

SERVER = Path(__file__).parent.parent / "fake_server.py"


class Harness:
    """The target of one deployment with its folder and its log; no database is needed."""

    def __init__(self, home: Path) -> None:
        settings = ListenerSettings(
            control_plane_url="http://platform.example",
            control_plane_api_key="key",
            portside_home=str(home),
            provision_database_url="postgresql://postgres.example",
            stop_grace_s=20,
        )

        self.lines: list[NewLogEntry] = []
        self.target = MachineTarget(MachineCompute(settings), UUID(int=1), self._log)
        self.folder = self.target.folder

    async def switch(self, plan: ReplicaPlan) -> None:
        await self.target.open_socket()
        await self.target.switch_to(self.replica_set(plan))

    async def restore(self, plan: ReplicaPlan) -> ProcessReplicaSet:
        await self.target.open_socket()
        replica_set = self.replica_set(plan)
        self.target.restore_with(replica_set)
        return replica_set

    def replica_set(
        self, plan: ReplicaPlan, scale: dict[ServerTier, ReplicaBounds] | None = None, down_after_s: float = 0
    ) -> ProcessReplicaSet:
        context = ReplicaContext(plan, self.target.socket, self.folder, self._log(plan.revision_id), 20)
        revision = build_desired_revision(id=plan.revision_id)
        return ProcessReplicaSet(context, revision, scale or {ServerTier.ALL: ReplicaBounds(1, 1)}, down_after_s)

    def _log(self, _revision: UUID) -> RevisionLog:
        return RevisionLog(self._ship)

    async def _ship(self, entries: list[NewLogEntry]) -> None:
        self.lines += entries

    def plan(self, name: str, timeout_s: float = 120, revision: UUID | None = None, **env: str) -> ReplicaPlan:
        revision = revision or uuid4()
        return ReplicaPlan(
            revision,
            [sys.executable, str(SERVER)],
            self.folder.home() / "graph.json",
            {"NAME": name, **env},
            self.folder.server_log(revision),
            timeout_s,
        )


@pytest.fixture(autouse=True)
def _wait_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until a server accepts nothing more, or gives its sockets away: the limits are for servers that hang."""
    monkeypatch.setattr("portside.dataplane.compute.replica._STOP_ACCEPTING_S", 600.0)
    monkeypatch.setattr("portside.dataplane.compute.sockets._INHERIT_TIMEOUT_S", 600.0)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(tmp_path)
    await harness.target.open_socket()
    yield harness
    await harness.target.close()
    assert harness.folder.state.replicas == []


async def get(port: int, path: str = "/") -> dict[str, Any]:
    """Send one request on its own connection; raise without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    response = await asyncio.wait_for(reader.read(), 60)
    writer.close()

    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), response
    found: dict[str, Any] = json.loads(body)

    return found


async def test_switch_loses_no_request(harness: Harness):
    await harness.switch(harness.plan("old", SLOW_S="0.5"))
    port = harness.target.socket.port
    names = []
    done = False

    async def client() -> None:
        while not done:
            names.append((await get(port))["name"])

    clients = [asyncio.create_task(client()) for _ in range(4)]
    slow = asyncio.create_task(get(port, "/slow"))
    await eventually(lambda: asyncio.sleep(0, len(names) > 20))
    await harness.switch(harness.plan("new"))
    assert {(await get(port))["name"] for _ in range(20)} == {"new"}
    done = True

    await asyncio.gather(*clients)
    assert (await slow)["name"] == "old"
    assert set(names) == {"old", "new"}
    await eventually(lambda: asyncio.sleep(0, len(harness.folder.state.replicas) == 1))


@pytest.mark.parametrize(
    ("fail", "timeout_s", "words"),
    [("exit", 120, "this module does not import"), ("deaf", 1, "has not answered GET /ok after 1 seconds")],
)
async def test_a_revision_that_fails_leaves_the_old_one_serving(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, fail: str, timeout_s: float, words: str
):
    start = Replica.start

    async def start_and_hear(plan: ReplicaPlan, *arguments: Any) -> Replica:
        """Start a server whose time begins when it has said something, however long that takes."""
        started = await start(plan, *arguments)
        await eventually(lambda: asyncio.sleep(0, "plain words" in plan.output.read_text()))
        return started

    monkeypatch.setattr(Replica, "start", start_and_hear)
    await harness.switch(harness.plan("old"))
    with pytest.raises(DeployFailed, match=words) as failure:
        await harness.switch(harness.plan("new", timeout_s, FAIL=fail))

    assert "plain words from new" in str(failure.value)
    assert (await get(harness.target.socket.port))["name"] == "old"
    assert len(harness.folder.state.replicas) == 1

    # The reason begins with the cause; the log has each line once.
    assert words in str(failure.value).splitlines()[0]
    assert "error: " not in str(failure.value)
    logged = [entry.message for entry in harness.lines if entry.level == "ERROR"]
    assert [words in message for message in logged].count(True) == 1
    assert sum("plain words from new" in entry.message for entry in harness.lines) == 1


async def test_dead_replica_is_replaced_while_requests_wait(harness: Harness):
    await harness.switch(harness.plan("one"))
    port = harness.target.socket.port
    first = (await get(port))["pid"]
    os.kill(first, signal.SIGKILL)

    process = harness.folder.state.replicas[0].process
    await eventually(lambda: asyncio.sleep(0, not process.is_alive))
    assert (await get(port))["pid"] != first
    await eventually(lambda: asyncio.sleep(0, any("killed by SIGKILL" in entry.message for entry in harness.lines)))


async def test_server_output_becomes_log_entries_with_levels(harness: Harness):
    plan = harness.plan("talker")
    await harness.switch(plan)

    async def said() -> bool:
        return {"plain words from talker", "ready port=1"} <= {entry.message for entry in harness.lines}

    await eventually(said)
    assert [entry.level for entry in harness.lines if entry.message == "ready port=1"] == ["WARNING"]
    assert "plain words from talker" in plan.output.read_text()


async def test_server_gets_no_listener_variables(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CONTROL_PLANE_API_KEY", "not for servers")
    await harness.switch(harness.plan("one"))
    assert "CONTROL_PLANE_API_KEY" not in (await get(harness.target.socket.port))["env"]


async def test_withdrawn_release_serves_nothing_until_another_one_does(harness: Harness):
    await harness.switch(harness.plan("given up", SLOW_S="0.5"))
    port = harness.target.socket.port
    slow = asyncio.create_task(get(port, "/slow"))
    await get(port)
    await harness.target.withdraw(build_desired_deployment())

    with pytest.raises(OSError, match="onnect"):
        await get(port)

    assert (await slow)["name"] == "given up", "what was in flight ends"
    assert (harness.target.is_running, harness.folder.state.active_revision_id) == (False, None)

    await harness.switch(harness.plan("next"))
    assert harness.target.socket.port == port
    assert (await get(port))["name"] == "next"


async def test_close_stops_draining_replicas_too(harness: Harness):
    await harness.switch(harness.plan("old", SLOW_S="600"))
    port = harness.target.socket.port
    slow = asyncio.create_task(get(port, "/slow"))
    await get(port)
    await harness.switch(harness.plan("new"))

    marks = [record.process for record in harness.folder.state.replicas]
    assert [mark.is_alive for mark in marks] == [True, True]
    async with asyncio.timeout(60):
        await harness.target.close()

    assert not any(mark.is_alive for mark in marks)
    with pytest.raises(ConnectionError):
        await get(port)

    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


class Restored:
    """Deployments that are restored at once; the server of each answers when `let` is called."""

    def __init__(self, home: Path, names: str) -> None:
        self.home = home
        self.queue = StartQueue(2)
        self.harnesses = {name: Harness(home / name) for name in names}

    async def restore(self, name: str, *, used_at: float = 0.0) -> None:
        harness = self.harnesses[name]
        harness.folder.state.used_at = used_at
        await harness.target.open_socket()
        replica_set = harness.replica_set(harness.plan(name, GATE=str(self.home / f"gate-{name}")))
        replica_set._context.slot = partial(self.queue.slot, harness.target._urgency)

        harness.target.restore_with(replica_set)

    def started(self) -> str:
        """The deployments that have a process, sorted by name."""
        return "".join(sorted(name for name, harness in self.harnesses.items() if harness.folder.state.replicas))

    async def starts(self, names: str) -> None:
        await eventually(lambda: asyncio.sleep(0, self.started() == names))

    async def let(self, name: str) -> None:
        await asyncio.to_thread((self.home / f"gate-{name}").touch)


async def test_restored_deployments_start_two_at_once_and_the_urgent_first(tmp_path: Path):
    all_of = Restored(tmp_path, "abcdef")
    try:
        for name in "ab":
            await all_of.restore(name)

        await all_of.starts("ab")
        await all_of.restore("c", used_at=1.0)
        await all_of.restore("d", used_at=3.0)
        await all_of.restore("e", used_at=2.0)
        await all_of.restore("f")

        # A client of the one that was used never, before its server runs.
        asking = asyncio.create_task(get(all_of.harnesses["f"].target.socket.port))
        await eventually(lambda: asyncio.sleep(0, all_of.harnesses["f"].target._urgency().rank == 0))

        for healthy, begun in (("a", "abf"), ("b", "abdf"), ("d", "abdef"), ("e", "abcdef")):
            assert len(begun) == len(all_of.started()) + 1
            await all_of.let(healthy)
            await all_of.starts(begun)

        await all_of.let("f")
        assert (await asking)["name"] == "f"
        await all_of.let("c")
    finally:
        await asyncio.gather(*(harness.target.close() for harness in all_of.harnesses.values()))


# Forks a listener for each folder that it reads. The listener dies at once; how it ended is printed.
ORPHAN_MAKER = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.db.test_dataplane_compute import Harness, REVISION

async def start_and_die(folder):
    harness = Harness(Path(folder))
    await harness.switch(harness.plan("orphan", revision=REVISION))
    os._exit(0)

for line in sys.stdin:
    listener = os.fork()
    if listener == 0:
        try:
            asyncio.run(start_and_die(line.rstrip("\\n")))
        finally:
            os._exit(1)

    print(os.waitpid(listener, 0)[1], flush=True)
"""
REVISION = UUID(int=7)


@pytest.fixture(scope="module")
def orphan_maker() -> Iterator["subprocess.Popen[str]"]:
    """A process that has imported what a listener needs, which takes more than a CPU-second."""
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-c", ORPHAN_MAKER, root]
    with subprocess.Popen(command, cwd="/", text=True, stdin=PIPE, stdout=PIPE) as process:
        yield process
        process.communicate()


@pytest.fixture
async def orphan_harness(orphan_maker: "subprocess.Popen[str]", tmp_path: Path) -> AsyncIterator[Harness]:
    """A harness for a replica that another listener started before it died."""

    def make_orphan() -> str:
        assert orphan_maker.stdin is not None and orphan_maker.stdout is not None
        orphan_maker.stdin.write(f"{tmp_path}\n")
        orphan_maker.stdin.flush()
        return orphan_maker.stdout.readline()

    assert await asyncio.to_thread(make_orphan) == "0\n"
    harness = Harness(tmp_path)

    yield harness
    await harness.target.close()
    assert harness.folder.state.replicas == []


class Clients:
    """Endless requests, each on its own connection; `stop` raises when one failed."""

    def __init__(self, port: int, count: int = 3) -> None:
        self.answers: list[dict[str, Any]] = []
        self._port = port
        self._done = False
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(count)]

    async def _ask(self) -> None:
        while not self._done:
            self.answers.append(await get(self._port))
            # Without a pause they would take a core, and show no more.
            await asyncio.sleep(0.01)

    async def after(self, count: int) -> None:
        """Wait for this many more answers."""
        wanted = len(self.answers) + count
        await eventually(lambda: asyncio.sleep(0, len(self.answers) >= wanted))

    async def stop(self) -> set[str]:
        """Stop, and return the names of the servers that answered."""
        self._done = True
        await asyncio.gather(*self._tasks)
        return {answer["name"] for answer in self.answers}


async def test_next_listener_adopts_replicas_without_lost_requests(orphan_harness: Harness):
    port = orphan_harness.folder.state.port
    orphan = orphan_harness.folder.state.replicas[0].process
    assert port is not None
    clients = Clients(port)

    await clients.after(20)
    current = await orphan_harness.restore(orphan_harness.plan("orphan", revision=REVISION))
    await eventually(lambda: asyncio.sleep(0, current.list_processes() == {orphan}))
    await clients.after(20)
    assert [record.process for record in orphan_harness.folder.state.replicas] == [orphan]

    await orphan_harness.switch(orphan_harness.plan("heir"))
    await clients.after(20)
    assert await clients.stop() == {"orphan", "heir"}
    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))


async def test_orphan_with_other_plan_is_replaced_without_lost_requests(orphan_harness: Harness):
    orphan = orphan_harness.folder.state.replicas[0].process
    assert orphan_harness.folder.state.port is not None
    clients = Clients(orphan_harness.folder.state.port)
    await clients.after(20)
    await orphan_harness.restore(orphan_harness.plan("heir", revision=REVISION))
    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))
    await clients.after(20)

    assert await clients.stop() == {"orphan", "heir"}
    await eventually(lambda: asyncio.sleep(0, len(orphan_harness.folder.state.replicas) == 1))


async def pause(process: ProcessIdentity) -> None:
    """Let a process stand still; returns when it does."""
    os.kill(process.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    await eventually(lambda: asyncio.sleep(0, stat.read_text().rpartition(")")[2].split()[0] == "T"))


async def test_orphan_that_gives_its_socket_late_is_adopted_and_nothing_else_waits(orphan_harness: Harness):
    orphan = orphan_harness.folder.state.replicas[0].process
    await pause(orphan)
    restoring = asyncio.create_task(orphan_harness.restore(orphan_harness.plan("orphan", revision=REVISION)))
    try:
        done, _pending = await asyncio.wait({restoring}, timeout=0.1)
        assert not done
    finally:
        orphan.signal(signal.SIGCONT)

    current = await restoring
    await eventually(lambda: asyncio.sleep(0, current.list_processes() == {orphan}))
    assert (await get(orphan_harness.target.socket.port))["pid"] == orphan.pid


async def test_orphan_that_does_not_give_its_socket_is_replaced(
    orphan_harness: Harness, monkeypatch: pytest.MonkeyPatch
):
    """It does not accept on the listener's own socket, to which the kernel gives a part of the connections."""
    monkeypatch.setattr("portside.dataplane.compute.sockets._INHERIT_TIMEOUT_S", 0.1)
    port = orphan_harness.folder.state.port
    orphan = orphan_harness.folder.state.replicas[0].process
    await pause(orphan)
    await orphan_harness.target.open_socket()
    orphan.signal(signal.SIGCONT)

    current = await orphan_harness.restore(orphan_harness.plan("orphan", revision=REVISION))
    await eventually(lambda: asyncio.sleep(0, current.list_processes()))
    assert orphan not in current.list_processes()

    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))
    assert orphan_harness.target.socket.port == port
    assert {(await get(port))["pid"] for _ in range(20)} == {process.pid for process in current.list_processes()}


async def test_orphan_with_another_socket_than_the_inherited_one_is_replaced(orphan_harness: Harness):
    """The listener before opened a socket beside that of a replica, and died before it replaced the replica."""
    state = orphan_harness.folder.state
    orphan = state.replicas[0].process
    state.replicas = [msgspec.structs.replace(state.replicas[0], public_inode=1)]

    current = await orphan_harness.restore(orphan_harness.plan("orphan", revision=REVISION))
    await eventually(lambda: asyncio.sleep(0, current.list_processes()))
    assert orphan not in current.list_processes()
    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))


async def test_orphan_of_a_listener_that_recorded_no_socket_is_adopted(orphan_harness: Harness):
    state = orphan_harness.folder.state
    orphan = state.replicas[0].process
    state.replicas = [msgspec.structs.replace(state.replicas[0], public_inode=0)]

    current = await orphan_harness.restore(orphan_harness.plan("orphan", revision=REVISION))
    await eventually(lambda: asyncio.sleep(0, current.list_processes()))
    assert current.list_processes() == {orphan}


def without_state(orphaned: Harness, content: str) -> tuple[Harness, ProcessIdentity]:
    """A harness for a listener with a damaged state file, and the replica that the file named before."""
    orphan = orphaned.folder.state.replicas[0].process
    (orphaned.folder.path / "state.json").write_text(content)
    orphaned.folder.state = DeploymentState()
    return Harness(orphaned.folder.path.parents[2]), orphan


async def test_switch_reaps_orphan_missing_from_state_file(orphan_harness: Harness):
    harness, orphan = without_state(orphan_harness, "{")
    await harness.switch(harness.plan("heir"))
    try:
        await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))
        assert {(await get(harness.target.socket.port))["name"] for _ in range(10)} == {"heir"}
    finally:
        await harness.target.close()


async def test_close_reaps_orphan_missing_from_state_file(orphan_harness: Harness):
    harness, orphan = without_state(orphan_harness, "{}")
    assert orphan.is_alive
    await harness.target.close()
    assert not orphan.is_alive


async def test_find_replicas_ignores_children_and_other_folders(orphan_harness: Harness, tmp_path: Path):
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    folder = str(orphan_harness.folder.path)
    others = [
        (sleep, folder, True),  # a program that a replica started in a session of its own
        ([*sleep, "--tier", "all"], folder, False),
        ([*sleep, "--tier", "all"], f"{tmp_path}/dataplane-copy/deployments/{UUID(int=1)}", True),
    ]

    started = [
        subprocess.Popen(  # noqa: ASYNC220 - at once
            command, env={"PORTSIDE_REPLICA_OF": named}, start_new_session=is_leader, stdout=subprocess.PIPE
        )
        for command, named, is_leader in others
    ]

    try:
        for process in started:
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)

        harness, orphan = without_state(orphan_harness, "")
        found = find_replicas(tmp_path / "dataplane")
        assert {deployment: [record.process for record in found[deployment]] for deployment in found} == {
            UUID(int=1): [orphan]
        }
        await harness.target.close()
        assert not orphan.is_alive

        assert [process.poll() for process in started] == [None] * 3
    finally:
        for process in started:
            process.kill()
            process.communicate()


async def test_dead_adopted_replica_is_replaced(orphan_harness: Harness):
    orphan = orphan_harness.folder.state.replicas[0].process
    current = await orphan_harness.restore(orphan_harness.plan("orphan", revision=REVISION))
    await eventually(lambda: asyncio.sleep(0, current.list_processes() == {orphan}))
    orphan.kill_group()
    await eventually(lambda: asyncio.sleep(0, not orphan.is_alive))

    assert (await get(orphan_harness.target.socket.port))["pid"] != orphan.pid


async def test_queue_tier_scales_with_pending_runs_without_lost_requests(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica_sets, "_MEASURE_EVERY_S", 0.2)
    waiting = tmp_path / "waiting"
    waiting.write_text("0")
    replica_set = harness.replica_set(
        harness.plan("one", PENDING=str(waiting)),
        {ServerTier.API: ReplicaBounds(2, 2), ServerTier.QUEUE: ReplicaBounds(1, 3)},
    )

    await harness.target.switch_to(replica_set)
    clients = Clients(harness.target.socket.port)

    async def counts() -> tuple[int, int] | None:
        found = replica_set.metrics()
        return None if found is None else (found.replicas, found.queue_replicas)

    await eventually(lambda: is_so(counts, (2, 1)))
    await eventually(lambda: have_answered(clients, 2))
    waiting.write_text("1000")
    await eventually(lambda: is_so(counts, (2, 3)))
    waiting.write_text("0")
    await eventually(lambda: is_so(counts, (2, 1)))
    replica_set.update(build_desired_deployment(id=UUID(int=1), name="x"))

    await eventually(lambda: is_so(counts, (1, 0)))
    # Two replicas of the tier api, then one of the tier all.
    await eventually(lambda: have_answered(clients, 3))
    assert await clients.stop() == {"one"}


async def have_answered(clients: Clients, replicas: int) -> bool:
    return len({answer["pid"] for answer in clients.answers}) >= replicas


async def test_replicas_beyond_connection_budget_are_refused(harness: Harness):
    """Those that fit serve, and the deployment says why the others are missing until there are connections."""
    most = 2

    async def admit(replicas: int) -> None:
        if replicas > most:
            raise NoConnectionsLeft("no connections left for another replica")

    many = {ServerTier.ALL: ReplicaBounds(3, 3)}
    replicas = harness.replica_set(harness.plan("refused"), many)
    replicas._context.admit = admit

    with pytest.raises(DeployFailed, match="no connections left"):
        await harness.target.switch_to(replicas)

    assert harness.folder.state.replicas == []
    replicas = harness.replica_set(harness.plan("admitted"), {ServerTier.ALL: ReplicaBounds(1, 3)})
    replicas._context.admit = admit
    await harness.target.switch_to(replicas)

    for scaler in replicas._scalers.values():
        scaler.bounds = ReplicaBounds(3, 3)

    async def shown() -> bool:
        metrics = harness.target.metrics()
        return metrics is not None and metrics.replicas == 2 and "no connections left" in (metrics.problem or "")

    await eventually(shown)
    most = 3
    await eventually(lambda: asyncio.sleep(0, len(harness.folder.state.replicas) == 3))


async def test_repeated_tier_changes_lose_no_request(harness: Harness):
    replica_set = harness.replica_set(harness.plan("one"))
    await harness.target.switch_to(replica_set)
    clients = Clients(harness.target.socket.port)
    together = build_desired_deployment(id=UUID(int=1), name="x")
    apart = msgspec.structs.replace(together, scale=Scale(max_scale=3))

    async def tiers() -> list[str]:
        return sorted(record.tier for record in harness.folder.state.replicas)

    for desired, wanted in ((apart, ["api", "queue"]), (together, ["all"]), (apart, ["api", "queue"])):
        for _ in range(3):
            replica_set.update(desired)
            await asyncio.sleep(0)

        await eventually(lambda wanted=wanted: is_so(tiers, wanted))

    for desired in (together, apart):  # cancelled before it was done
        replica_set.update(desired)
        await asyncio.sleep(0)

    await eventually(lambda: is_so(tiers, ["api", "queue"]))
    assert await clients.stop() == {"one"}


async def is_so(look: Callable[[], Awaitable[Any]], wanted: object) -> bool:
    return await look() == wanted


async def test_replica_above_memory_limit_is_replaced_without_lost_requests(harness: Harness):
    plan = harness.plan("large")
    replica_set = harness.replica_set(dataclasses.replace(plan, memory=2**40))
    await harness.target.switch_to(replica_set)
    (before,) = replica_set.list_processes()
    clients = Clients(harness.target.socket.port)
    held = UsageReader().read({before.pid}).groups[before.pid].memory

    replica_set.enforce_memory_limit({before.pid: GroupUsage(memory=2**40 + held)})
    await eventually(lambda: asyncio.sleep(0, not before.is_alive))
    assert await clients.stop() == {"large"}
    words = "MB of memory, more than its limit"

    await eventually(lambda: asyncio.sleep(0, any(words in entry.message for entry in harness.lines)))


async def test_metrics_report_what_the_server_says(harness: Harness):
    await harness.switch(harness.plan("refused", PROBLEM="The tracing platform refuses the API key."))

    async def reported() -> bool:
        metrics = harness.target.metrics()
        return metrics is not None and metrics.problem == "The tracing platform refuses the API key."

    await eventually(reported)


async def test_idle_servers_are_asked_for_their_metrics_less_often(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their usage is measured as before, and a run that uses CPU ends that."""
    monkeypatch.setattr(replica_sets, "_MEASURE_EVERY_S", 0.01)
    monkeypatch.setattr(replica_sets, "ASK_IDLE_EVERY_S", 3600.0)
    moment = 0

    async def usage(groups: set[int]) -> ProcessUsage:
        nonlocal moment
        moment += 1
        return ProcessUsage(moment, {group: GroupUsage(moment * cores) for group in groups})

    cores = 0.0
    monkeypatch.setattr(replica_sets.READER, "usage", usage)
    waiting = tmp_path / "waiting"
    waiting.write_text("0")

    replica_set = harness.replica_set(harness.plan("one", PENDING=str(waiting)))
    await harness.target.switch_to(replica_set)

    async def be_measured_often() -> None:
        last_moment = moment + 50
        await eventually(lambda: asyncio.sleep(0, moment >= last_moment))

    async def reports_pending_runs() -> bool:
        found = replica_set.metrics()
        return found is not None and found.pending_runs == 7

    await be_measured_often()
    waiting.write_text("7")
    await be_measured_often()
    assert not await reports_pending_runs()
    cores = 0.5
    await eventually(reports_pending_runs)


async def test_metrics_report_restarts_and_their_reason(harness: Harness):
    replica_set = harness.replica_set(harness.plan("one"))
    await harness.target.switch_to(replica_set)
    (replica,) = replica_set.list_processes()
    replica.kill_group()

    async def reported() -> bool:
        found = replica_set.metrics()
        return found is not None and found.restarts == 1 and "killed by SIGKILL" in (found.problem or "")

    await eventually(reported)


async def test_reused_process_id_is_never_signalled(tmp_path: Path):
    mark = ProcessIdentity.find(os.getpid())
    assert mark is not None
    stranger = ProcessIdentity(mark.pid, "at another time")
    stranger.signal(signal.SIGKILL)
    stranger.kill_group()
    assert mark.is_alive


@pytest.mark.parametrize("how", ["by a descriptor", "by polling"])
async def test_end_of_a_process_of_another_parent_is_noticed(how: str, monkeypatch: pytest.MonkeyPatch):
    if how == "by polling":
        monkeypatch.delattr(os, "pidfd_open", raising=False)

    # The shell ends, so its child is nobody's.
    shell = await asyncio.create_subprocess_exec("sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!", stdout=PIPE)
    printed, _ = await shell.communicate()
    process = ProcessIdentity.find(int(printed))
    assert process is not None
    waiting = asyncio.create_task(process.wait())

    await asyncio.sleep(0.01)
    assert not waiting.done()
    process.signal(signal.SIGKILL)
    await asyncio.wait_for(waiting, 60)
    assert not process.is_alive
    await asyncio.wait_for(process.wait(), 60)
    await asyncio.wait_for(ProcessIdentity(os.getpid(), "at another time").wait(), 60)


async def test_quiet_output_is_looked_at_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_output, "_POLL_S", 0.0)
    monkeypatch.setattr(server_output, "_QUIET_AFTER_S", 0.0)
    monkeypatch.setattr(server_output, "_QUIET_POLL_S", 0.01)
    path = tmp_path / "out.log"
    lines = []
    follower = OutputFollower(path, lines.append)

    for number in range(3):
        with path.open("a") as file:
            file.write(f"{number}\n")
        await eventually(lambda count=number: asyncio.sleep(0, len(lines) > count))

    await follower.close()
    assert lines == ["0", "1", "2"]


async def test_output_follower_survives_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_output, "_ROTATE_BYTES", 1000)
    file = tmp_path / "log"
    lines = []
    file.write_text("before\n")

    follower = OutputFollower(file, lines.append, ["line 7"])
    for number in range(500):
        descriptor, _length = server_output.open_output(file)
        os.write(descriptor, f"line {number}\n".encode())
        os.close(descriptor)

        if number % 50 == 0:
            follower.poll()

    await follower.close()
    assert lines == [f"line {number}" for number in range(500)]
    assert file.stat().st_size < 1000
    assert (tmp_path / "log.1").stat().st_mode & 0o777 == 0o600


async def test_server_that_prints_faster_than_it_is_read_cannot_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_output, "_ROTATE_BYTES", 100_000)
    monkeypatch.setattr(server_output, "_MAX_BYTES", 500_000)
    monkeypatch.setattr(server_output, "_READ_BYTES", 1000)
    file = tmp_path / "log"
    lines = []

    file.write_bytes(b"")
    follower = OutputFollower(file, lines.append)
    sizes = []
    with file.open("ab", buffering=0) as output:
        for number in range(2000):
            output.write(f"{number} {'x' * 10_000}\n".encode())
            follower.poll()
            sizes.append(file.stat().st_size)

        output.write(b"the last line\n")

    await follower.close()
    assert max(sizes) < 600_000
    assert lines[-1] == "the last line"
    left_out = [int(line.split()[0].replace(",", "")) for line in lines if "left out" in line]
    assert len(left_out) > 10
    assert sum(left_out) + sum(len(line) + 1 for line in lines if "left out" not in line) >= 2000 * 10_000


async def test_printed_secrets_are_blanked_in_log_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_output, "_READ_BYTES", 56)
    file = tmp_path / "log"
    lines = []
    descriptor, _length = server_output.open_output(file)

    os.write(descriptor, b"first hunter2-hunter2 of an earlier listener\n")
    follower = OutputFollower(file, lines.append, ["hunter2-hunter2", "pass word", "short"])
    try:
        os.write(descriptor, b"then hunter2-hunter2 and pass%20word, but short stays\n")
        await eventually(lambda: asyncio.sleep(0, b"hunter2" not in file.read_bytes() and len(lines) == 1))
        os.write(descriptor, b"last hunter2-hunter2\n")
    finally:
        await follower.close()
        os.close(descriptor)

    assert file.read_bytes() == (
        b"first *************** of an earlier listener\nthen *************** and ***********, but short stays\n"
        b"last ***************\n"
    )

    assert lines == ["then hunter2-hunter2 and pass%20word, but short stays", "last hunter2-hunter2"]


async def test_revision_log_waits_while_control_plane_is_away():
    arrived: list[NewLogEntry] = []
    away = True

    async def ship(entries: list[NewLogEntry]) -> None:
        if away:
            raise ControlPlaneUnreachable("away")
        arrived.extend(entries)

    log = RevisionLog(ship)
    for number in range(2500):
        log.add(f"line {number}\0\ud800")

    await log.flush(0.3)
    assert arrived == []
    away = False
    await log.flush(60)
    await log.close()
    assert [entry.message for entry in arrived] == [f"line {number}\ufffd?" for number in range(2500)]


async def test_listening_sockets_are_not_inheritable(tmp_path: Path):
    stable = await open_stable_socket("127.0.0.1", None, tmp_path)
    assert stable.inheritance is not None
    for listening in (stable.public, stable.inheritance, open_private()):
        assert not listening.get_inheritable()
        listening.close()


async def test_taken_port_is_replaced(tmp_path: Path):
    with open_private() as taken:
        moved = await open_stable_socket("127.0.0.1", taken.getsockname()[1], tmp_path)
        assert moved.port != taken.getsockname()[1]
        moved.close()


async def is_served_by_another(port: int, pid: int) -> bool:
    return bool((await get(port))["pid"] != pid)


async def test_closed_log_is_shipped_when_the_control_plane_is_back():
    is_back = False
    shipped = []

    async def ship(entries: list[NewLogEntry]) -> None:
        if not is_back:
            raise ControlPlaneUnreachable("away")
        shipped.extend(entry.message for entry in entries)

    log = RevisionLog(ship)
    log.add("the build failed: no space left")
    await log.close(0)
    is_back = True

    await eventually(lambda: asyncio.sleep(0, shipped == ["the build failed: no space left"]))
    await asyncio.wait_for(log._task, 60)


@needs_small_disk
async def test_dead_replica_is_replaced_once_disk_has_space(tmp_path: Path):
    with small_disk(tmp_path / "disk", 4) as disk:
        harness = Harness(disk.path)
        await harness.switch(harness.plan("one"))
        port = harness.target.socket.port
        first = (await get(port))["pid"]

        disk.fill()
        os.kill(first, signal.SIGKILL)

        async def was_tried_in_vain() -> bool:
            return any("No space left on device" in entry.message for entry in harness.lines)

        await eventually(was_tried_in_vain)
        disk.empty()
        await eventually(partial(is_served_by_another, port, first))
        await eventually(lambda: asyncio.sleep(0, len(harness.folder.state.replicas) == 1))
        await harness.target.close()


async def test_dead_replica_is_replaced_once_descriptors_are_free(harness: Harness):
    await harness.switch(harness.plan("one"))
    port = harness.target.socket.port
    first = (await get(port))["pid"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    # A limit below the next descriptor's number: open descriptors work, but none can be opened.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        os.kill(first, signal.SIGKILL)

        async def was_tried_in_vain() -> bool:
            return any("Too many open files" in entry.message for entry in harness.lines)

        await eventually(was_tried_in_vain)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    await eventually(partial(is_served_by_another, port, first))


@needs_small_disk
async def test_output_follower_recovers_from_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a full disk the file cannot be rotated, but later lines still arrive."""
    monkeypatch.setattr(server_output, "_ROTATE_BYTES", 200_000)
    lines: list[str] = []
    with small_disk(tmp_path / "disk", 1) as disk:
        path = disk.path / "server.log"
        path.write_bytes(b"")
        follower = OutputFollower(path, lines.append)

        with path.open("ab", buffering=0) as file:
            file.write(b"long " * 50_000 + b"\n")
            disk.fill()
            await eventually(lambda: asyncio.sleep(0, len(lines) == 1))
            disk.empty()
            file.write(b"and on\n")
            await eventually(lambda: asyncio.sleep(0, lines[-1] == "and on"))

        await follower.close()

    assert len(lines) == 2


async def test_changed_platform_variables_replace_replicas_without_lost_requests(harness: Harness):
    plan = harness.plan("one", LANGSMITH_API_KEY="old")
    replica_set = harness.replica_set(plan)
    await harness.target.switch_to(replica_set)
    (before,) = replica_set.list_processes()
    deployment = build_desired_deployment(id=UUID(int=1), name="x", environment={"LANGSMITH_API_KEY": "old"})

    replica_set.update(deployment)
    clients = Clients(harness.target.socket.port)
    replica_set.update(msgspec.structs.replace(deployment, environment={"LANGSMITH_API_KEY": "new"}))
    await eventually(lambda: asyncio.sleep(0, not before.is_alive))
    assert (await get(harness.target.socket.port))["env"]["LANGSMITH_API_KEY"] == "new"
    assert await clients.stop() == {"one"}
    assert len(replica_set.list_processes()) == 1


async def test_replica_that_starts_while_variables_change_is_replaced(harness: Harness, tmp_path: Path):
    gate = tmp_path / "gate"
    gate.touch()
    replica_set = harness.replica_set(harness.plan("one", LANGSMITH_API_KEY="old", GATE=str(gate)))
    await harness.target.switch_to(replica_set)

    (first,) = replica_set.list_processes()
    gate.unlink()
    first.kill_group()
    await eventually(lambda: asyncio.sleep(0, any(found.process != first for found in harness.folder.state.replicas)))

    deployment = build_desired_deployment(id=UUID(int=1), name="x", environment={"LANGSMITH_API_KEY": "new"})
    replica_set.update(deployment)
    gate.touch()

    async def has_new_key() -> bool:
        answer = await get(harness.target.socket.port)
        return bool(answer["env"]["LANGSMITH_API_KEY"] == "new")

    await eventually(has_new_key)
