"""A deployment that the control plane no longer lists is closed once, and its close is never cancelled."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from portside.dataplane import listener
from portside.dataplane.api import ControlPlane
from portside.dataplane.build_slots import BuildSlots
from portside.dataplane.compute.interface import OpenLog
from portside.dataplane.failures import ComputeFailed, ControlPlaneRefused, DeployFailed
from portside.dataplane.listener import FirstStarts, Reconciler, ReconcilerSet
from portside.dataplane.rollout import ListenerContext
from portside.dataplane.settings import ListenerSettings
from portside.kernel.errors import UserMistake
from portside.listener_api import (
    DeploymentReport,
    DeploymentStatus,
    Desired,
    DesiredDeployment,
    DesiredRevision,
    Secret,
)
from tests.conftest import eventually
from tests.desired import build_desired_deployment, build_desired_revision


class SlowlyClosing:
    """A compute and its only target, whose servers take until `may_end` to stop."""

    compute_type = "process"
    builds_sources = True
    size_limits = None
    url = "http://127.0.0.1:1"
    is_running = False
    is_starting = False

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.closes = 0
        self.ends = 0

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "SlowlyClosing":
        return self

    async def is_provisioned(self) -> bool:
        return True

    async def update(self, deployment: DesiredDeployment) -> None: ...

    async def close(self) -> None:
        self.closes += 1
        await self.may_end.wait()
        self.ends += 1


class Starting(NamedTuple):
    """What `FirstStarts` asks of the reconciler of a deployment that served before."""

    has_started: asyncio.Event

    @property
    def is_starting(self) -> bool:
        return not self.has_started.is_set()


async def test_builds_wait_for_agents_that_served_before():
    starts = FirstStarts()
    agents = [Starting(asyncio.Event()), Starting(asyncio.Event())]
    await starts.wait()  # nothing is known yet, so nothing is to be built
    starts.expect(agents)  # type: ignore[arg-type]
    starts.expect([Starting(asyncio.Event())])  # type: ignore[list-item]  # deployments that came later

    waiting = asyncio.create_task(starts.wait())
    agents[0].has_started.set()
    assert not (await asyncio.wait([waiting], timeout=0.5))[0]
    agents[1].has_started.set()
    await waiting


async def test_unlisted_deployment_is_closed_once_however_often_it_is_not_listed(tmp_path: Path):
    settings = ListenerSettings(
        control_plane_url="http://127.0.0.1:1", control_plane_api_key="key", portside_home=str(tmp_path)
    )
    api = ControlPlane(settings.control_plane_url, "key")
    compute = SlowlyClosing()
    reconcilers = ReconcilerSet(ListenerContext(settings, api, compute, BuildSlots(1)))  # type: ignore[arg-type]

    reconcilers._apply(Desired(1, [build_desired_deployment()]))

    for generation in range(2, 5):
        reconcilers._apply(Desired(generation, []))
        await eventually(lambda: asyncio.sleep(0, compute.closes > 0))

    compute.may_end.set()
    await eventually(lambda: asyncio.sleep(0, compute.ends > 0))
    assert (compute.closes, compute.ends) == (1, 1)
    await reconcilers.close()
    await api.close()


class Undeletable(SlowlyClosing):
    """A compute whose deployments cannot be deleted."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure

    async def destroy(self, deployment: DesiredDeployment) -> None:
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "has_traceback"),
    [(ComputeFailed("the namespace agents is gone"), False), (KeyError("a mistake in the code"), True)],
)
async def test_failure_of_a_known_kind_is_one_line_and_shown_at_the_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, *, has_traceback: bool
):
    reports: list[DeploymentReport] = []

    async def report(_control: ControlPlane, _deployment_id: UUID, body: DeploymentReport) -> None:
        reports.append(body)

    monkeypatch.setattr(ControlPlane, "report_deployment", report)
    settings = ListenerSettings(
        control_plane_url="http://127.0.0.1:1", control_plane_api_key="key", portside_home=str(tmp_path)
    )
    api = ControlPlane(settings.control_plane_url, "key")
    context = ListenerContext(settings, api, Undeletable(failure), BuildSlots(1))  # type: ignore[arg-type]
    deployment = build_desired_deployment(status=DeploymentStatus.AWAITING_DELETE)

    with capture_logs() as lines:
        assert await Reconciler(context, deployment)._reconcile_logged()

    assert [(line["reason"], line["exc_info"] is not None) for line in lines] == [(str(failure), has_traceback)]
    assert [(body.status, str(failure) in (body.reason or "")) for body in reports] == [("UNKNOWN", True)]
    await api.close()


class Busy(SlowlyClosing):
    """A compute that does not end what it began, and has nothing to delete."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.is_destroyed = False

    async def is_provisioned(self) -> bool:
        self.has_begun.set()
        return await asyncio.Future()

    async def destroy(self, deployment: DesiredDeployment) -> None:
        self.is_destroyed = True


async def test_deletion_does_not_wait_for_work_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    confirmed: list[UUID] = []

    async def confirm(_control: ControlPlane, deployment_id: UUID) -> None:
        confirmed.append(deployment_id)

    monkeypatch.setattr(ControlPlane, "confirm_deleted", confirm)
    settings = ListenerSettings(
        control_plane_url="http://127.0.0.1:1", control_plane_api_key="key", portside_home=str(tmp_path)
    )
    api = ControlPlane(settings.control_plane_url, "key")
    compute = Busy()
    deployment = build_desired_deployment()
    reconciler = Reconciler(ListenerContext(settings, api, compute, BuildSlots(1)), deployment)  # type: ignore[arg-type]

    running = asyncio.create_task(reconciler.run())
    await compute.has_begun.wait()
    reconciler.update(msgspec.structs.replace(deployment, name="another name"))
    reconciler.update(msgspec.structs.replace(deployment, status=DeploymentStatus.AWAITING_DELETE))

    await asyncio.wait_for(running, 300)
    assert (compute.is_destroyed, confirmed) == (True, [deployment.id])
    await api.close()


@pytest.fixture
async def reconciler(tmp_path: Path) -> AsyncIterator[Reconciler]:
    """The reconciler of a deployment whose first revision is rolled out."""
    settings = ListenerSettings(
        control_plane_url="http://127.0.0.1:1", control_plane_api_key="key", portside_home=str(tmp_path)
    )
    api = ControlPlane(settings.control_plane_url, "key")
    context = ListenerContext(settings, api, SlowlyClosing(), BuildSlots(1))  # type: ignore[arg-type]
    reconciler = Reconciler(context, build_desired_deployment(build_desired_revision(id=UUID(int=1)), id=UUID(int=7)))
    reconciler._working_on = UUID(int=1)
    yield reconciler
    await api.close()


@pytest.mark.parametrize(
    ("status", "is_cancelled"),
    [("DEPLOYING", False), ("DEPLOYED", False), ("INTERRUPTED", True), ("SKIPPED", True), (None, True)],
)
async def test_work_on_a_revision_that_was_given_up_is_cancelled(
    reconciler: Reconciler, status: str | None, *, is_cancelled: bool
):
    work = asyncio.create_task(asyncio.Event().wait())
    reconciler._work = work  # type: ignore[assignment]
    revisions = [] if status is None else [build_desired_revision(id=UUID(int=1), status=status)]
    reconciler.update(build_desired_deployment(*revisions, id=UUID(int=7), name="another name"))

    assert bool(work.cancelling()) is is_cancelled
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_only_a_change_by_somebody_else_brings_the_next_attempt_forward(reconciler: Reconciler):
    """The status and the address of a deployment are what this listener itself reports."""
    desired = reconciler._desired
    reconciler._restore_at = 1e12
    own_report = msgspec.structs.replace(desired, status=DeploymentStatus.UNKNOWN, custom_url="http://127.0.0.1:2")
    reconciler.update(own_report)
    assert reconciler._restore_at == 1e12

    reconciler.update(msgspec.structs.replace(own_report, environment={"LANGSMITH_API_KEY": "new"}))
    assert reconciler._restore_at == 0.0


async def test_revisions_are_rolled_out_by_number_and_once(reconciler: Reconciler):
    revisions = [
        build_desired_revision(id=UUID(int=number), number=number, status=status)
        for number, status in ((5, "CREATING"), (3, "BUILDING"), (2, "DEPLOYED"), (4, "DEPLOY_FAILED"))
    ]
    reconciler._desired = build_desired_deployment(*revisions, id=UUID(int=7))
    order = []
    while (revision := reconciler._next_revision()) is not None:
        order.append(revision.number)
        reconciler._rolled_out.add(revision.id)

    assert order == [3, 5]


async def test_an_attempt_to_restore_waits_for_its_time(reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch):
    restored: list[UUID] = []

    async def restore(_desired: DesiredDeployment, active: DesiredRevision) -> None:
        restored.append(active.id)

    monkeypatch.setattr(reconciler._rollout, "restore", restore)
    active = build_desired_revision(id=UUID(int=1))
    reconciler._desired = build_desired_deployment(active, id=UUID(int=7), active_revision_id=active.id)
    reconciler._restore_at = float("inf")
    await reconciler._restore_when_due()
    assert restored == []

    reconciler._restore_at = 0.0
    for _ in range(2):
        await reconciler._restore_when_due()

    assert restored == [active.id]


@pytest.mark.parametrize(
    ("is_running", "status", "is_reported"),
    [(False, "READY", True), (True, "READY", False), (False, "AWAITING_DELETE", False)],
)
async def test_only_a_deployment_of_which_nothing_runs_is_reported_as_down_and_without_secrets(
    reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch, status: str, *, is_running: bool, is_reported: bool
):
    reports: list[str] = []

    async def report_down(message: str) -> None:
        reports.append(message)

    monkeypatch.setattr(reconciler._rollout, "report_down", report_down)
    monkeypatch.setattr(reconciler._rollout.target, "is_running", is_running)
    active = build_desired_revision(id=UUID(int=1), secrets=[Secret("KEY", "a-key-of-a-model")])
    reconciler._desired = build_desired_deployment(
        active, id=UUID(int=7), active_revision_id=active.id, status=DeploymentStatus(status)
    )
    failure = DeployFailed("no such key a-key-of-a-model")
    await reconciler._report_down(failure, "soon")

    message = "Nothing of this deployment runs. The next attempt is soon. no such key ***"
    assert reports == ([message] if is_reported else [])
    assert reconciler._describe(failure) == "no such key ***", "in the log of the listener"


async def test_a_deployment_that_is_not_ready_yet_has_no_metrics(
    reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
):
    reported: list[str] = []

    async def report_metrics() -> None:
        reported.append(reconciler._desired.status)

    monkeypatch.setattr(reconciler._rollout, "report_metrics", report_metrics)
    for status in DeploymentStatus:
        reconciler._desired = build_desired_deployment(id=UUID(int=7), status=status)
        await reconciler.report_metrics()

    assert reported == ["READY", "UNKNOWN"]


async def test_a_listener_that_the_control_plane_does_not_know_connects_again(tmp_path: Path):
    """The control plane was set up again."""
    connected = 0
    polled: list[tuple[UUID, int]] = []
    knows_both = asyncio.Event()

    class Control:
        async def connect(self, _introduction: object) -> UUID:
            nonlocal connected
            connected += 1
            return UUID(int=connected)

        async def get_desired(self, listener_id: UUID, after: int, wait_s: int) -> Desired:
            polled.append((listener_id, after))
            if len(polled) == 1:
                return Desired(5, [])
            if len(polled) == 2:
                raise ControlPlaneRefused(404, "no such listener")

            knows_both.set()
            return await asyncio.Future()

    class Cluster(SlowlyClosing):
        async def claim(self, listener_id: UUID) -> None:
            self.claimed = listener_id

    settings = ListenerSettings(
        control_plane_url="http://127.0.0.1:1", control_plane_api_key="key", portside_home=str(tmp_path)
    )
    compute = Cluster()
    reconcilers = ReconcilerSet(ListenerContext(settings, Control(), compute, BuildSlots(1)))  # type: ignore[arg-type]
    running = asyncio.create_task(reconcilers.run())
    await asyncio.wait_for(knows_both.wait(), 300)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert polled == [(UUID(int=1), 0), (UUID(int=1), 5), (UUID(int=2), 0)]
    assert compute.claimed == UUID(int=2)


async def test_one_listener_works_in_a_home(tmp_path: Path):
    stopping = asyncio.Event()
    stopping.set()
    async with listener._lock_home(tmp_path / "lock", stopping):
        with pytest.raises(UserMistake, match="another listener uses"):
            async with listener._lock_home(tmp_path / "lock", stopping):
                pass

    async with listener._lock_home(tmp_path / "lock", stopping):
        pass
