"""A deployment on a machine, without its servers: what is kept for it, shown of it, and deleted with it.

`tests/db/test_dataplane_compute.py` has real servers.
"""

import dataclasses
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from portside.dataplane.compute import machine
from portside.dataplane.compute.interface import Build, Release
from portside.dataplane.compute.machine import MachineCompute, MachineTarget
from portside.dataplane.logs import RevisionLog
from portside.dataplane.processes import ProcessIdentity
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder, ReplicaRecord
from portside.kernel.errors import UserMistake
from portside.listener_api import DesiredDeployment, MetricsReport, Secret
from tests.desired import build_desired_deployment, build_desired_revision

DEPLOYMENT_ID = UUID(int=7)
KEY = "a-key-of-a-model"
OLD, EARLIER, ACTIVE = (UUID(int=number) for number in (1, 2, 3))


class FakeDatabases:
    """Databases of deployments that are only named."""

    def __init__(self) -> None:
        self.ensured: list[bool] = []
        self.dropped: list[UUID] = []

    async def ensure(self, _deployment_id: UUID, _password_file: Path, *, is_new: bool) -> None:
        self.ensured.append(is_new)

    async def drop(self, deployment_id: UUID) -> None:
        self.dropped.append(deployment_id)


class FakeServers:
    """The replica set of the active revision, with these metrics."""

    revision_id = ACTIVE
    idle_s = None

    def __init__(self, metrics: MetricsReport) -> None:
        self._metrics = metrics
        self.is_stopped = False

    def metrics(self) -> MetricsReport:
        return self._metrics

    async def stop(self, kill_after_s: float) -> None:
        self.is_stopped = True


class WakingServers(FakeServers):
    """Servers that start, and note what else they are told."""

    def __init__(self) -> None:
        super().__init__(MetricsReport(replicas=1))
        self.told: list[object] = []

    async def start(self) -> None:
        self.told.append("start")

    def supervise(self) -> None:
        self.told.append("supervise")

    def update(self, deployment: DesiredDeployment) -> None:
        self.told.append(deployment)


class Harness:
    """The target of a deployment that had three revisions."""

    def __init__(self, folder: Path) -> None:
        settings = ListenerSettings(
            control_plane_url="http://127.0.0.1:9",
            control_plane_api_key="key",
            portside_home=str(folder),
            provision_database_url="postgresql://portside@127.0.0.1:9/portside",
        )
        self.settings = settings
        self.databases = FakeDatabases()
        compute = MachineCompute(settings)
        compute.databases = self.databases  # type: ignore[assignment]
        self.target: MachineTarget = compute.target(DEPLOYMENT_ID, lambda _: RevisionLog(self._ship))
        for revision_id in (OLD, EARLIER, ACTIVE):
            self.target.folder.activate(revision_id)

    async def _ship(self, entries: Any) -> None: ...

    def serve(self, **metrics: Any) -> FakeServers:
        servers = FakeServers(MetricsReport(replicas=1, **metrics))
        self.target.current = servers  # type: ignore[assignment]
        return servers

    def build(self, revision_id: UUID) -> Build:
        folder = self.target.folder.revision(revision_id)
        return Build(folder, folder / "source" / "langgraph.json", "c0ffee", server_code="1", describing_code="1")

    def release(self, *, pin_threads: float = 0) -> Release:
        revision = build_desired_revision(id=ACTIVE, secrets=[Secret("KEY", KEY)])
        deployment = build_desired_deployment(revision, id=DEPLOYMENT_ID, pin_threads=pin_threads)
        return Release(deployment, revision, self.build(ACTIVE), {EARLIER: self.build(EARLIER)})

    def read_pins(self) -> list[dict[str, Any]]:
        file = self.target.folder.pinned_revisions
        return msgspec.json.decode(file.read_bytes()) if file.exists() else []


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    await harness.target.close()


def test_a_machine_needs_a_postgres_for_its_deployments(tmp_path: Path) -> None:
    settings = ListenerSettings(
        control_plane_url="http://127.0.0.1:9", control_plane_api_key="key", portside_home=str(tmp_path)
    )
    with pytest.raises(UserMistake, match="PROVISION_DATABASE_URL is not set"):
        MachineCompute(settings)


async def test_problems_that_metrics_show_have_no_secrets(harness: Harness) -> None:
    harness.serve(problem=f"the server exited with code 1: no such key {KEY}")
    harness.target._release = harness.release()

    metrics = harness.target.metrics()
    assert metrics is not None
    assert metrics.problem == "the server exited with code 1: no such key ***"


async def test_a_deleted_deployment_leaves_no_server_and_no_database(harness: Harness) -> None:
    servers = harness.serve()
    await harness.target.destroy(build_desired_deployment(id=DEPLOYMENT_ID))

    assert servers.is_stopped
    assert harness.databases.dropped == [DEPLOYMENT_ID]


async def test_a_deployment_that_lost_its_folder_is_not_new(harness: Harness) -> None:
    """Otherwise it would get an empty database in place of the one that has its threads."""
    assert not harness.target.folder.password_file.exists()
    assert not await harness.target.is_provisioned()

    await harness.target.provision(build_desired_deployment(id=DEPLOYMENT_ID), is_new=False)
    assert harness.databases.ensured == [False]


async def test_a_deployment_stays_on_the_port_that_it_moved_to(harness: Harness) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        harness.target.folder.state.port = taken.getsockname()[1]
        await harness.target.open_socket()
        moved = harness.target.socket.port
        assert moved != taken.getsockname()[1]

    # What the next listener reads.
    assert DeploymentFolder(harness.settings.folder, DEPLOYMENT_ID).state.port == moved


async def test_builds_of_the_active_revision_and_the_one_before_are_kept(harness: Harness) -> None:
    assert harness.target.list_revisions() == {ACTIVE, EARLIER}

    harness.target._pin_threads = 1.0
    assert harness.target.list_revisions() == {ACTIVE, EARLIER, OLD}, "threads may continue with it"


async def test_earlier_code_is_forgotten_once_no_thread_uses_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = harness.target.folder
    harness.serve(threads_by_revision={EARLIER: 1, ACTIVE: 5})
    assert not harness.target.forget_unused(), "servers that ended just now may have begun threads since the count"

    monkeypatch.setattr(machine, "_COUNTED_WITHIN_S", 0.0)
    harness.serve(threads_by_revision=None)
    assert not harness.target.forget_unused(), "nobody knows"

    harness.serve(threads_by_revision={EARLIER: 1, ACTIVE: 5})
    harness.target._orphans.append(None)  # type: ignore[arg-type]
    assert not harness.target.forget_unused(), "an earlier server still ends"
    harness.target._orphans.clear()

    assert folder.state.earlier.keys() == {OLD, EARLIER}
    assert harness.target.forget_unused()
    assert folder.state.earlier.keys() == {EARLIER}


async def test_threads_continue_with_split_builds_until_their_time_limit(harness: Harness) -> None:
    combined = dataclasses.replace(harness.build(OLD), server_code="")
    release = harness.release(pin_threads=2)
    harness.target._pin(dataclasses.replace(release, earlier={**release.earlier, OLD: combined}))

    until = {UUID(pin["id"]): pin["until"] for pin in harness.read_pins()}
    assert until.keys() == {ACTIVE, EARLIER}
    assert until[ACTIVE] is None
    assert until[EARLIER] == pytest.approx(harness.target.folder.state.earlier[EARLIER] + 2 * 3600)
    assert until[EARLIER] > time.time()


async def test_no_thread_is_pinned_once_that_is_turned_off(harness: Harness) -> None:
    harness.target._pin(harness.release(pin_threads=2))
    off: DesiredDeployment = harness.release().deployment
    await harness.target.update(off)

    assert harness.read_pins() == []


async def test_a_switch_that_fails_pins_no_thread_to_its_revision(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(harness.target, "_replica_set", lambda _release: None)
    monkeypatch.setattr(harness.target, "switch_to", fail)
    with pytest.raises(OSError, match="No space left"):
        await harness.target.switch(harness.release(pin_threads=2))

    assert [UUID(pin["id"]) for pin in harness.read_pins()] == [EARLIER]


async def test_servers_that_wake_know_what_was_changed_meanwhile(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(_deployment_id: UUID) -> None: ...

    harness.target._machine.wake_queue.admit = admit
    harness.target._release = harness.release()
    harness.target.remember(due_at=None)
    servers = WakingServers()
    monkeypatch.setattr(harness.target, "_replica_set", lambda _release: servers)

    await harness.target.wake()

    assert servers.told == ["start", "supervise", harness.release().deployment]
    assert harness.target.folder.state.sleep is None
    assert harness.target.folder.state.active_revision_id == ACTIVE


@pytest.mark.parametrize(
    ("sleep_after_s", "has_servers", "sleeps_on"), [(60.0, False, True), (0.0, False, False), (60.0, True, False)]
)
async def test_a_deployment_that_slept_sleeps_on_unless_it_was_woken_or_may_not(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    sleep_after_s: float,
    *,
    has_servers: bool,
    sleeps_on: bool,
) -> None:
    async def due() -> None: ...

    restored: list[object] = []
    monkeypatch.setattr(harness.target, "_replica_set", lambda _release: "servers")
    monkeypatch.setattr(harness.target, "restore_with", restored.append)
    monkeypatch.setattr(harness.target, "next_due", due)
    harness.target.remember(due_at=None)
    if has_servers:
        record = ReplicaRecord(ProcessIdentity(1, "at another time"), ACTIVE)
        harness.target._orphans.append(record)

    release = harness.release()
    sleepy = msgspec.structs.replace(release.deployment, sleep_after_s=sleep_after_s)
    await harness.target.restore(dataclasses.replace(release, deployment=sleepy))

    assert harness.target._cycle.is_asleep is sleeps_on
    assert (harness.target.folder.state.sleep is not None) is sleeps_on
    assert restored == ([] if sleeps_on else ["servers"])


async def test_a_revision_that_serves_again_is_no_earlier_one(harness: Harness) -> None:
    folder = harness.target.folder
    folder.activate(OLD)
    assert folder.state.earlier.keys() == {EARLIER, ACTIVE}
    assert (folder.state.active_revision_id, folder.state.previous_revision_id) == (OLD, ACTIVE)

    harness.target.remember(due_at=None)
    folder.deactivate()
    assert (folder.state.active_revision_id, folder.state.sleep) == (None, None)


async def test_a_build_that_is_gone_is_not_shared(harness: Harness) -> None:
    harness.target.folder.share_revision(OLD, ACTIVE)
    assert not harness.target.folder.revision(ACTIVE).is_symlink()


async def test_servers_get_the_limits_of_their_revision(harness: Harness) -> None:
    await harness.target.open_socket()
    release = harness.release()
    assert release.build is not None
    for spec, memory in (({"memory_limit_mb": 300}, 300 * 2**20), ({}, None)):
        limited = msgspec.structs.replace(release.revision, resource_spec=spec)
        plan = harness.target._build_plan(
            dataclasses.replace(release, revision=limited), release.build, "postgresql://agent@db/agent"
        )
        assert plan.memory == memory
        assert plan.env["DATABASE_URI"] == "postgresql://agent@db/agent"
        assert plan.env["KEY"] == KEY
