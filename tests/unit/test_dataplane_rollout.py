"""A rollout step by step: what is reported, what is undone, and what is removed. Nothing is built or started here."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import msgspec
import pytest

from portside.dataplane.api import ControlPlane
from portside.dataplane.build_slots import BuildSlots
from portside.dataplane.builds.build import BuildRecord
from portside.dataplane.compute.interface import OpenLog, Release
from portside.dataplane.failures import BuildFailed, ControlPlaneRefused, DeployFailed
from portside.dataplane.rollout import ListenerContext, Rollout
from portside.dataplane.settings import Layout, ListenerSettings
from portside.listener_api import DesiredDeployment, DesiredRevision, MetricsReport, Secret
from tests.desired import build_desired_deployment, build_desired_revision

DEPLOYMENT_ID = UUID(int=7)
COMMIT = "c0ffee" * 6 + "c0ff"


class ControlSide:
    """The control plane: it notes reports, and refuses those of revisions with a status in `refused`."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.knows_nothing = False
        self.steps: list[str] = []
        self.reports: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []

    @property
    def statuses(self) -> list[tuple[str, str | None]]:
        return [(report["status"], report.get("reason")) for report in self.reports]

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = msgspec.json.decode(request.content) if request.content else {}
        if self.knows_nothing:
            return httpx2.Response(404)

        if request.url.path.endswith("/metrics"):
            self.metrics.append(body)
        elif "/revisions/" in request.url.path and request.url.path.endswith("/status"):
            if body["status"] in self.refused:
                return httpx2.Response(409, text="the revision was interrupted")

            self.steps.append(body["status"])
            self.reports.append(body)
        elif request.method == "DELETE":
            self.steps.append("deleted")
        elif request.url.path.endswith("/status"):
            self.steps.append(f"deployment {body['status']}")
            self.reports.append(body)

        return httpx2.Response(204)


class Target:
    """A compute and its only target, which serves what it is told to and fails when it is told to."""

    compute_type = "process"
    builds_sources = True
    size_limits = None
    url = "http://127.0.0.1:1"
    is_starting = False

    def __init__(self, folder: Path) -> None:
        self.state = folder / "dataplane" / "deployments" / str(DEPLOYMENT_ID) / "state.json"
        self.failure: Exception | None = None
        self.served: list[UUID | None] = []
        self.used: set[UUID] = set()
        self.latest: MetricsReport | None = None
        self.next_url = self.url

    @property
    def is_running(self) -> bool:
        return bool(self.served) and self.served[-1] is not None

    def target(self, deployment_id: UUID, open_log: OpenLog) -> "Target":
        return self

    def list_revisions(self) -> set[UUID]:
        return self.used

    def list_earlier_revisions(self) -> set[UUID]:
        return set()

    def forget_unused(self) -> bool:
        return False

    def metrics(self) -> MetricsReport | None:
        return self.latest

    async def switch(self, release: Release) -> None:
        if self.failure is not None:
            raise self.failure

        self.served.append(release.revision.id)
        self.state.parent.mkdir(parents=True, exist_ok=True)
        self.state.write_bytes(msgspec.json.encode({"active_revision_id": release.revision.id}))

    async def withdraw(self, deployment: DesiredDeployment) -> None:
        self.served.append(None)

    async def restore(self, release: Release) -> None:
        self.served.append(release.revision.id)

    async def update(self, deployment: DesiredDeployment) -> None:
        self.url = self.next_url

    async def destroy(self, deployment: DesiredDeployment) -> None:
        if self.failure is not None:
            raise self.failure


class Harness:
    """The rollouts of one deployment."""

    def __init__(self, folder: Path, target: Target, control: ControlSide, api: ControlPlane) -> None:
        settings = ListenerSettings(
            control_plane_url="http://control", control_plane_api_key="key", portside_home=str(folder)
        )
        self.target = target
        self.control = control
        self.folder = settings.folder / "deployments" / str(DEPLOYMENT_ID)
        context = ListenerContext(settings, api, target, BuildSlots(1))  # type: ignore[arg-type]
        self.rollout = Rollout(context, DEPLOYMENT_ID)

    async def run(self, revision: DesiredRevision, **changes: Any) -> None:
        await self.rollout.run(desired(revision, **changes), revision)

    def add_build(self, number: int, layout: Layout = Layout.SPLIT) -> Path:
        """Put a finished build of a revision in its folder."""
        build = self.folder / "revisions" / str(UUID(int=number))
        build.mkdir(parents=True)
        record = BuildRecord(commit=COMMIT, config="langgraph.json", layout=layout)
        (build / "built.json").write_bytes(msgspec.json.encode(record))
        return build

    def list_builds(self) -> set[int]:
        return {UUID(path.name).int for path in (self.folder / "revisions").iterdir()}


def image(number: int, **fields: Any) -> DesiredRevision:
    return build_desired_revision(
        **{"id": UUID(int=number), "number": number, "source": "external_image", "status": "CREATING", **fields}
    )


def source(number: int, **fields: Any) -> DesiredRevision:
    return image(number, source="git_hosting", repo_url="https://host.example/x", **fields)


def desired(*revisions: DesiredRevision, **changes: Any) -> DesiredDeployment:
    return build_desired_deployment(*revisions, id=DEPLOYMENT_ID, **changes)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    control = ControlSide()
    api = ControlPlane("http://control", "key")
    async with httpx2.AsyncClient(base_url="http://control", transport=httpx2.MockTransport(control.answer)) as client:
        await api.close()
        api._client = client
        yield Harness(tmp_path, Target(tmp_path), control, api)


async def test_an_image_is_deployed_step_by_step(harness: Harness) -> None:
    await harness.run(image(1))

    assert harness.control.steps == ["AWAITING_DEPLOY", "DEPLOYING", "deployment READY", "DEPLOYED"]
    assert harness.target.served == [UUID(int=1)]


async def test_a_revision_that_does_not_start_fails_with_its_reason_and_without_its_secrets(harness: Harness) -> None:
    harness.target.failure = DeployFailed("no such key a-key-of-a-model")
    await harness.run(image(1, secrets=[Secret("KEY", "a-key-of-a-model")]))

    assert harness.control.statuses[-1] == ("DEPLOY_FAILED", "no such key ***")
    assert not harness.target.served


async def test_a_switch_that_was_given_up_before_its_report_is_taken_back(harness: Harness) -> None:
    active = image(1, status="DEPLOYED")
    harness.control.refused = {"DEPLOYED"}
    with pytest.raises(ControlPlaneRefused):
        await harness.run(image(2))

    await harness.rollout.rollback(desired(active, active_revision_id=active.id))
    assert harness.target.served == [UUID(int=2), UUID(int=1)]

    await harness.rollout.rollback(desired(active, active_revision_id=active.id))
    assert harness.target.served == [UUID(int=2), UUID(int=1)], "once"


async def test_a_first_revision_that_was_given_up_before_its_report_serves_no_longer(harness: Harness) -> None:
    harness.control.refused = {"DEPLOYED"}
    with pytest.raises(ControlPlaneRefused):
        await harness.run(image(1))

    await harness.rollout.rollback(desired())
    assert harness.target.served == [UUID(int=1), None]


async def test_what_serves_is_not_switched_without_a_rollout_that_was_given_up(harness: Harness) -> None:
    await harness.run(image(2))
    active = image(1, status="DEPLOYED")
    await harness.rollout.rollback(desired(active, active_revision_id=active.id))

    harness.target.failure = DeployFailed("the server ended at once")
    await harness.run(image(3))
    await harness.rollout.rollback(desired(active, active_revision_id=active.id))
    assert harness.target.served == [UUID(int=2)], "the target keeps the earlier release by itself"


async def test_builds_that_nothing_uses_any_more_are_removed_after_a_deploy(harness: Harness) -> None:
    for number in (1, 2, 3):
        harness.add_build(number)

    harness.target.used = {UUID(int=2), UUID(int=3)}
    await harness.run(source(3, status="AWAITING_DEPLOY"))

    assert harness.control.steps == ["DEPLOYING", "deployment READY", "DEPLOYED"]
    assert harness.list_builds() == {2, 3}


async def test_a_failed_revision_leaves_no_build_and_not_without_the_one_that_it_shared(harness: Harness) -> None:
    own = harness.add_build(1)
    harness.target.failure = DeployFailed("the server ended at once")

    await harness.run(source(2, built_from=UUID(int=1)))
    assert harness.control.steps == ["AWAITING_DEPLOY", "DEPLOYING", "DEPLOY_FAILED"]
    assert (own / "built.json").exists()
    assert harness.list_builds() == {1}

    await harness.run(source(1, status="AWAITING_DEPLOY"))
    assert harness.list_builds() == set()


async def test_a_build_is_removed_before_its_failure_is_reported(harness: Harness) -> None:
    """The report ends the revision, and the work of a revision that has ended is cancelled."""
    harness.add_build(1)
    harness.target.failure = DeployFailed("the server ended at once")
    harness.control.refused = {"DEPLOY_FAILED"}
    with pytest.raises(ControlPlaneRefused):
        await harness.run(source(1, status="AWAITING_DEPLOY"))

    assert harness.list_builds() == set()


async def test_a_split_build_is_not_reused_for_graphs_in_the_process_of_the_server(harness: Harness) -> None:
    harness.add_build(1)
    harness.target.used = {UUID(int=1), UUID(int=2)}
    await harness.run(source(2, built_from=UUID(int=1)))
    assert harness.target.served == [UUID(int=2)]

    await harness.run(source(3, built_from=UUID(int=1), secrets=[Secret("EXECUTORS", "0")]))
    assert harness.control.steps[-3:] == ["AWAITING_BUILD", "BUILDING", "BUILD_FAILED"], "it would be built again"
    assert harness.target.served == [UUID(int=2)]


async def test_the_commit_of_a_build_is_reported_with_it(harness: Harness) -> None:
    harness.add_build(1)
    await harness.run(source(2, built_from=UUID(int=1)))

    assert harness.control.reports[0]["status"] == "AWAITING_DEPLOY"
    assert harness.control.reports[0]["repo_commit_sha"] == COMMIT


async def test_a_source_of_a_kind_that_is_not_known_is_refused(harness: Harness) -> None:
    unknown = source(1, graph_config_path="langgraph.json")
    with pytest.raises(BuildFailed, match="this listener cannot build the source 'svn'"):
        harness.rollout._builder._to_source(msgspec.structs.replace(unknown, source="svn"))
    with pytest.raises(BuildFailed, match="this listener cannot build the source 'git_hosting'"):
        harness.rollout._builder._to_source(msgspec.structs.replace(unknown, repo_url=None))


@pytest.mark.parametrize("kind", ["git_hosting", "internal_source"])
async def test_a_source_may_be_as_large_as_the_operator_allows(harness: Harness, kind: str) -> None:
    made: Any = harness.rollout._builder._to_source(msgspec.structs.replace(source(1), source=kind))
    assert made.max_bytes == harness.rollout._context.settings.max_source_bytes


async def test_an_address_that_changes_is_reported_once_it_can_be(harness: Harness) -> None:
    active = image(1, status="DEPLOYED")
    await harness.rollout.update(desired(active, active_revision_id=active.id))
    assert harness.control.steps == []

    harness.target.next_url = "http://127.0.0.1:2"
    harness.control.knows_nothing = True
    with pytest.raises(ControlPlaneRefused):
        await harness.rollout.update(desired(active, active_revision_id=active.id))

    harness.control.knows_nothing = False
    for _ in range(2):
        await harness.rollout.update(desired(active, active_revision_id=active.id))

    assert [(report["status"], report["custom_url"]) for report in harness.control.reports] == [
        ("READY", "http://127.0.0.1:2")
    ]


@pytest.mark.parametrize(("known", "steps"), [("http://127.0.0.1:1", []), ("http://127.0.0.1:9", ["deployment READY"])])
async def test_a_restored_deployment_reports_its_address_if_that_is_another_one(
    harness: Harness, known: str, steps: list[str]
) -> None:
    active = image(1, status="DEPLOYED")
    await harness.rollout.restore(desired(active, active_revision_id=active.id, custom_url=known), active)

    assert harness.target.served == [active.id]
    assert harness.control.steps == steps


async def test_builds_that_no_thread_needs_any_more_are_removed_later(harness: Harness) -> None:
    for number in (1, 2, 3, 4):
        harness.add_build(number)

    harness.target.used = {UUID(int=3)}
    waiting = source(4)
    await harness.rollout.update(desired(waiting))
    assert harness.list_builds() == {1, 2, 3, 4}

    harness.rollout.has_unused_builds = True
    await harness.rollout.update(desired(waiting))
    assert harness.list_builds() == {3, 4}, "the fourth is being rolled out"


async def test_a_deployment_is_confirmed_as_deleted_once_nothing_is_left_of_it(harness: Harness) -> None:
    harness.add_build(1)
    harness.target.failure = OSError("Postgres does not answer")
    with pytest.raises(OSError, match="Postgres does not answer"):
        await harness.rollout.destroy(desired())
    assert harness.list_builds() == {1}, "with the password of its database"

    harness.target.failure = None
    await harness.rollout.destroy(desired())
    assert not harness.folder.exists()
    assert harness.control.steps == ["deleted"]


async def test_threads_cannot_be_pinned_to_an_image(harness: Harness) -> None:
    await harness.run(image(1), pin_threads=24)

    status, reason = harness.control.statuses[-1]
    assert status == "DEPLOY_FAILED"
    assert reason is not None
    assert reason.startswith("pin_threads needs the split layout")
    assert not harness.target.served


async def test_a_compute_that_builds_nothing_says_so(harness: Harness) -> None:
    harness.target.builds_sources = False
    await harness.run(source(1))

    status, reason = harness.control.statuses[-1]
    assert status == "BUILD_FAILED"
    assert reason is not None
    assert "only serves container images" in reason


@pytest.mark.parametrize(
    ("metrics", "status"),
    [
        (MetricsReport(replicas=1), "READY"),
        (MetricsReport(replicas=1, problem="another replica is being started"), "READY"),
        (MetricsReport(replicas=0, problem="the server ended at once"), "UNKNOWN"),
        (MetricsReport(replicas=None, problem="the cluster does not answer"), "UNKNOWN"),
        (MetricsReport(replicas=0, is_asleep=True), "READY"),
    ],
)
async def test_a_deployment_is_down_only_when_nothing_of_it_serves(
    harness: Harness, metrics: MetricsReport, status: str
) -> None:
    harness.target.latest = metrics
    await harness.rollout.report_metrics()

    assert harness.control.statuses == [(status, metrics.problem)]


async def test_metrics_and_status_are_reported_when_they_change(harness: Harness) -> None:
    for metrics in (
        MetricsReport(replicas=1, cpu=0.1, memory_mb=100.0),
        MetricsReport(replicas=1, cpu=0.11, memory_mb=101.0),
        MetricsReport(replicas=1, cpu=0.2, memory_mb=101.0),
        MetricsReport(replicas=1, cpu=0.2, memory_mb=110.0),
        MetricsReport(replicas=1, cpu=0.2, memory_mb=110.0, pending_runs=1),
    ):
        harness.target.latest = metrics
        await harness.rollout.report_metrics()

    assert [(body["cpu"], body["memory_mb"]) for body in harness.control.metrics] == [
        (0.1, 100.0),
        (0.2, 101.0),
        (0.2, 110.0),
        (0.2, 110.0),
    ]
    assert harness.control.statuses == [("READY", None)]


async def test_a_deployment_that_serves_again_is_reported_as_ready(harness: Harness) -> None:
    for metrics in (MetricsReport(replicas=0, problem="the server ended at once"), MetricsReport(replicas=1)):
        harness.target.latest = metrics
        await harness.rollout.report_metrics()

    assert [status for status, _ in harness.control.statuses] == ["UNKNOWN", "READY"]
