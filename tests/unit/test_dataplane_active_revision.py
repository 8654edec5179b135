"""An active revision that cannot serve after a start of the listener: what was lost, and when it is tried again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import httpx2
import msgspec
import pytest

from portside.dataplane import listener
from portside.dataplane.api import ControlPlane
from portside.dataplane.build_slots import BuildSlots
from portside.dataplane.compute.interface import OpenLog, Release
from portside.dataplane.failures import CreateFailed, DeployFailed
from portside.dataplane.listener import Reconciler
from portside.dataplane.rollout import ListenerContext
from portside.dataplane.settings import ListenerSettings
from portside.listener_api import DeploymentReport, DeploymentStatus, DesiredDeployment, RevisionReport, RevisionStatus
from tests.conftest import eventually
from tests.desired import build_desired_deployment, build_desired_revision

ACTIVE = build_desired_revision(status=RevisionStatus.DEPLOYED, source="external_image")
# It names no configuration file, so it cannot be built again.
LOST = build_desired_revision(status=RevisionStatus.DEPLOYED, source="git_hosting")
NO_CONFIG = "the revision names no graph configuration file; set source_revision_config.graph_config_path"
NEWER = build_desired_revision(status=RevisionStatus.CREATING, source="external_image", number=2)


class Reports:
    """The control plane's side: it accepts every report."""

    def __init__(self) -> None:
        self.deployment: list[DeploymentReport] = []
        self.revisions: dict[UUID, list[str]] = {}

    @property
    def statuses(self) -> list[str]:
        return [report.status for report in self.deployment]

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path.split("/")
        if path[-1] == "status" and path[-3] == "revisions":
            report = msgspec.json.decode(request.content, type=RevisionReport)
            self.revisions.setdefault(UUID(path[-2]), []).append(report.status)
        elif path[-1] == "status":
            self.deployment.append(msgspec.json.decode(request.content, type=DeploymentReport))

        return httpx2.Response(204)


class Machine:
    """A compute and its only target. A restore fails as often as `failing` says."""

    compute_type = "process"
    builds_sources = True
    size_limits = None
    url = "http://127.0.0.1:1"
    is_starting = False

    def __init__(self, *, has_database: bool = True, failing: int = 0) -> None:
        self.has_database = has_database
        self.failing = failing
        self.refusals = 0
        self.provisions: list[bool] = []
        self.restores: list[UUID] = []
        self.served: list[UUID] = []

    @property
    def is_running(self) -> bool:
        return bool(self.served)

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "Machine":
        return self

    def list_revisions(self) -> set[UUID]:
        return set(self.served)

    async def is_provisioned(self) -> bool:
        return self.has_database

    async def provision(self, deployment: DesiredDeployment, *, is_new: bool) -> None:
        self.provisions.append(is_new)
        if len(self.provisions) <= self.refusals:
            raise CreateFailed("the compute refuses this listener")
        if not is_new:
            raise CreateFailed("its database is not on this Postgres server")

    async def restore(self, release: Release) -> None:
        self.restores.append(release.revision.id)
        if len(self.restores) <= self.failing:
            raise DeployFailed("the server ended at once")

        self.served.append(release.revision.id)

    async def switch(self, release: Release) -> None:
        self.served.append(release.revision.id)

    async def update(self, deployment: DesiredDeployment) -> None: ...


@contextlib.asynccontextmanager
async def reconcile(home: Path, machine: Machine, desired: DesiredDeployment) -> AsyncIterator[Reports]:
    """Reconcile a deployment during the block, as a listener does that has just started."""
    settings = ListenerSettings(
        control_plane_url="http://control", control_plane_api_key="key", portside_home=str(home)
    )

    api = ControlPlane(settings.control_plane_url, "key")
    reports = Reports()
    async with httpx2.AsyncClient(base_url="http://control", transport=httpx2.MockTransport(reports.answer)) as client:
        await api.close()
        api._client = client
        context = ListenerContext(settings, api, machine, BuildSlots(1))  # type: ignore[arg-type]

        working = asyncio.create_task(Reconciler(context, desired).run())
        try:
            yield reports
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def until_served(machine: Machine, revision_id: UUID) -> None:
    await eventually(lambda: asyncio.sleep(0, revision_id in machine.served))


async def until_reported(reports: Reports, status: str) -> DeploymentReport:
    await eventually(lambda: asyncio.sleep(0, status in reports.statuses))
    return reports.deployment[reports.statuses.index(status)]


async def test_lost_database_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    machine = Machine(has_database=False)
    desired = build_desired_deployment(LOST, NEWER, active_revision_id=LOST.id)

    async with reconcile(tmp_path, machine, desired) as reports:
        report = await until_reported(reports, "UNKNOWN")

    assert set(machine.provisions) == {False}, "the deployment is not new"
    assert report.reason is not None and "its database is not on this Postgres server" in report.reason
    assert (machine.restores, machine.served) == ([], []), "nothing serves without the data"
    assert reports.revisions == {NEWER.id: ["CREATE_FAILED"]}


async def test_new_deployment_gets_a_database(tmp_path: Path) -> None:
    machine = Machine(has_database=False)
    desired = build_desired_deployment(NEWER, status=DeploymentStatus.AWAITING_DATABASE)

    async with reconcile(tmp_path, machine, desired):
        await until_served(machine, NEWER.id)

    assert machine.provisions == [True]


async def test_new_deployment_whose_database_was_created_by_a_listener_that_died_is_ready(tmp_path: Path) -> None:
    machine = Machine(has_database=True)
    desired = build_desired_deployment(NEWER, status=DeploymentStatus.AWAITING_DATABASE)

    async with reconcile(tmp_path, machine, desired) as reports:
        await until_reported(reports, "READY")

    assert machine.provisions == [True]


async def test_restore_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_RESTORE_FIRST_S", 0.01)
    machine = Machine(failing=1)
    desired = build_desired_deployment(ACTIVE, active_revision_id=ACTIVE.id)

    async with reconcile(tmp_path, machine, desired) as reports:
        failed = await until_reported(reports, "UNKNOWN")
        await until_served(machine, ACTIVE.id)
        await until_reported(reports, "READY")

    assert failed.reason == ("Nothing of this deployment runs. The next attempt is in 0.01 s. the server ended at once")
    assert machine.restores == [ACTIVE.id, ACTIVE.id]
    assert reports.statuses == ["UNKNOWN", "READY"]


async def test_lost_build_that_cannot_be_built_again_does_not_hold_up_a_new_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_RESTORE_FIRST_S", 36000.0)
    machine = Machine()
    desired = build_desired_deployment(LOST, NEWER, active_revision_id=LOST.id)

    async with reconcile(tmp_path, machine, desired) as reports:
        await until_served(machine, NEWER.id)
        await eventually(lambda: asyncio.sleep(0, "DEPLOYED" in reports.revisions[NEWER.id]))

    assert (machine.restores, machine.served) == ([], [NEWER.id])
    assert [report.reason for report in reports.deployment if report.status == "UNKNOWN"] == [
        "Nothing of this deployment runs until its active revision is built again.",
        f"Nothing of this deployment runs. The next attempt is in 36000 s. {NO_CONFIG}",
    ]

    assert reports.statuses[-1] == "READY"
    assert LOST.id not in reports.revisions, "the control plane knows it as deployed"


async def test_deployment_that_cannot_be_created_is_tried_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compute lacks may be mended later. Until then the listener must not ask without a pause."""
    pauses: list[float | None] = []
    machine = Machine(has_database=False)
    machine.refusals = 3

    async def wait(self: Reconciler, within_s: float | None) -> None:
        pauses.append(within_s)
        await asyncio.sleep(0 if len(pauses) <= machine.refusals else 600)

    monkeypatch.setattr(Reconciler, "_wait_for_change", wait)
    desired = build_desired_deployment(NEWER, status=DeploymentStatus.AWAITING_DATABASE)

    async with reconcile(tmp_path, machine, desired) as reports:
        await until_reported(reports, "READY")

    assert reports.revisions == {NEWER.id: ["CREATE_FAILED"]}
    assert machine.provisions == [True, True, True, True]
    assert pauses[:3] == [5.0, 10.0, 20.0]
