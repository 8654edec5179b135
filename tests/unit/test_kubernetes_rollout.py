"""A release on a cluster: it serves once it is ready, and is undone when it is not; data always stays.

The API server is in memory (`tests/cluster_api.py`), and what its controllers would say of workloads is written at
once. `tests/api/test_kubernetes_cluster.py` has a real one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.manifests import ClusterSettings
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.listener_api import DesiredRevision, NewLogEntry
from tests.cluster_api import ClusterApi, Json, connect
from tests.conftest import eventually
from tests.kubernetes import DEPLOYMENT_ID, FULL_SPEC, LISTENER, deployment, revision, settings

pytest.importorskip("lightkube", reason="the extra portside[kubernetes] is not installed")

from portside.dataplane.compute.kubernetes import pods
from portside.dataplane.compute.kubernetes.target import KubernetesCompute, KubernetesTarget
from portside.dataplane.compute.kubernetes.watching import PollTiming, WorkloadWatch

NAME = "hello-world-00000000abcd"
BAD_IMAGE = "agents/bad:1"
ACTIVE = revision(status="DEPLOYED")
NEXT = revision(id=UUID(int=2), number=2, image_uri="agents/hello:2")
BAD = revision(id=UUID(int=3), number=3, image_uri=BAD_IMAGE)
SETTINGS = settings(kubernetes_health_check="none")
# What stays when everything else of a deployment is deleted.
DATA = {("persistentvolumeclaims", f"{NAME}-postgres"), ("secrets", f"{NAME}-postgres")}


class Cluster(ClusterApi):
    """Workloads are ready as soon as they are applied, but for those whose image cannot run."""

    def put(self, plural: str, namespace: str, name: str, content: Json) -> Json:
        live = super().put(plural, namespace, name, content)
        if plural in {"deployments", "statefulsets"}:
            count = live["spec"]["replicas"]
            generation = live["metadata"]["generation"]
            (server, *_) = live["spec"]["template"]["spec"]["containers"]
            ready = {"replicas": count, "updatedReplicas": count, "availableReplicas": count, "readyReplicas": count}
            failed = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "it cannot run"}]}
            live["status"] = {"observedGeneration": generation, **(failed if server["image"] == BAD_IMAGE else ready)}

        return live

    @property
    def names(self) -> set[tuple[str, str]]:
        return {(plural, name) for plural, _namespace, name in self.objects}

    @property
    def image(self) -> str:
        live = self.find("deployments", NAME)
        assert live is not None
        return str(live["spec"]["template"]["spec"]["containers"][0]["image"])

    def list_applied(self, *plurals: str) -> list[tuple[str, str]]:
        return [(plural, name) for method, plural, name in self.calls if method == "apply" and plural in plurals]


class Harness:
    """A listener of a deployment on a cluster, which has nothing yet."""

    def __init__(self, cluster: Cluster, compute: KubernetesCompute) -> None:
        self.cluster = cluster
        self.lines: list[str] = []
        self.compute = compute
        self.target: KubernetesTarget = compute.target(DEPLOYMENT_ID, lambda _: RevisionLog(self._ship))

    async def _ship(self, entries: list[NewLogEntry]) -> None:
        self.lines += [entry.message for entry in entries]

    async def switch(self, to: DesiredRevision, active: DesiredRevision | None = None, **changes: Any) -> None:
        revisions = [to] if active is None else [active, to]
        active_id = None if active is None else active.id
        await self.target.switch(Release(deployment(*revisions, active_revision_id=active_id, **changes), to, None))


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    cluster = Cluster()
    async with connect(cluster) as api:
        compute = KubernetesCompute(ClusterSettings(LISTENER, SETTINGS), api, PollTiming(0.001, 0.01, retry_s=0.05))
        harness = Harness(cluster, compute)
        yield harness
        await harness.target.close()


async def test_a_release_serves_once_its_stores_and_then_its_servers_are_ready(harness: Harness) -> None:
    await harness.switch(ACTIVE)

    assert harness.target.is_running
    assert harness.target.url == f"http://{NAME}.agents.svc.cluster.local:8000"
    applied = harness.cluster.list_applied("statefulsets", "deployments")
    assert [plural for plural, _ in applied] == ["statefulsets"] * 2 + ["deployments"] * 2
    assert [line for line in harness.lines if line.startswith("Deployment: ")] == [
        "Deployment: 1 of 1 replicas are ready"
    ]


async def test_a_release_that_does_not_start_is_undone_while_the_earlier_one_serves(harness: Harness) -> None:
    await harness.switch(ACTIVE)
    with pytest.raises(DeployFailed, match=r"(Queue )?Deployment does not start: .*it cannot run"):
        await harness.switch(BAD, ACTIVE)

    assert harness.target.is_running
    await eventually(lambda: asyncio.sleep(0, harness.cluster.image == ACTIVE.image_uri))


async def test_a_first_release_that_does_not_start_leaves_its_data_alone(harness: Harness) -> None:
    with pytest.raises(DeployFailed, match="does not start"):
        await harness.switch(BAD)

    assert not harness.target.is_running
    assert harness.cluster.names == DATA


async def test_a_withdrawn_release_leaves_its_data_alone(harness: Harness) -> None:
    await harness.switch(ACTIVE)
    await harness.target.withdraw(deployment(ACTIVE))

    assert not harness.target.is_running
    assert harness.cluster.names == DATA


async def test_a_release_that_is_under_way_is_not_undone(harness: Harness) -> None:
    await harness.switch(ACTIVE)
    names = harness.cluster.names
    await harness.target.update(deployment(NEXT))
    assert harness.cluster.names == names

    given_up = revision(status="INTERRUPTED")
    restarted = harness.compute.target(DEPLOYMENT_ID, lambda _: RevisionLog(harness._ship))
    await restarted.update(deployment(given_up))
    assert harness.cluster.names == DATA, "an earlier listener applied what was given up meanwhile"


async def test_changes_of_the_serving_release_are_applied_at_once(harness: Harness) -> None:
    await harness.switch(ACTIVE)
    custom = deployment(ACTIVE, active_revision_id=ACTIVE.id, custom_url="https://agent.example.com")
    await harness.target.update(custom)

    assert harness.target.url == "https://agent.example.com"
    await eventually(lambda: asyncio.sleep(0, len(harness.cluster.list_applied("services")) > 3))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}, "hostPath is not a kind of volume"),
        ({"image_pull_secrets": [{"name": "of-others"}]}, "may not name the Secret of-others"),
        ({"cpu": 100}, "resource_spec.cpu"),
    ],
)
async def test_nothing_of_a_release_is_applied_that_asks_for_too_much(
    harness: Harness, spec: dict[str, Any], reason: str
) -> None:
    harness.target._cluster = ClusterSettings(LISTENER, settings(kubernetes_health_check="none", kubernetes_max_cpu=4))
    with pytest.raises(DeployFailed, match=reason):
        await harness.switch(revision(resource_spec={**FULL_SPEC, **spec}))

    assert harness.cluster.objects == {}
    assert not harness.target.is_running


@pytest.mark.parametrize(
    ("check", "url"),
    [
        ("service", f"http://{NAME}.agents.svc.cluster.local:8000/agents/{NAME}"),
        ("ingress", f"https://example.com/agents/{NAME}"),
        ("none", None),
    ],
)
async def test_a_release_answers_at_the_address_that_the_operator_chose(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, check: str, url: str | None
) -> None:
    asked: list[str] = []

    async def until_healthy(_watch: WorkloadWatch, address: str, _limit_s: float) -> None:
        asked.append(address)

    monkeypatch.setattr(WorkloadWatch, "until_healthy", until_healthy)
    addressed = settings(kubernetes_health_check=check, kubernetes_ingress_url="https://example.com/agents")
    harness.target._cluster = ClusterSettings(LISTENER, addressed)
    await harness.switch(ACTIVE)

    assert asked == ([] if url is None else [url])
    assert harness.target.url == f"https://example.com/agents/{NAME}"


async def test_only_a_server_that_is_ready_is_asked_for_its_metrics(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_metrics(pod: Json) -> bytes:
        return json.dumps({"problems": [pod["metadata"]["name"]]}).encode()

    def build_pod(name: str, component: str, *, is_ready: bool) -> Json:
        conditions = [{"type": "Ready", "status": str(is_ready)}]
        labels = {"app.kubernetes.io/component": component}
        return {"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions}}

    await harness.switch(ACTIVE)
    follower = harness.target._follower
    assert follower is not None
    monkeypatch.setattr(harness.compute.api, "read_metrics", read_metrics)
    answers = await follower._ask_servers(
        [
            build_pod("starts", "api", is_ready=False),
            build_pod("serves", "api", is_ready=True),
            build_pod("executes", "queue", is_ready=True),
            build_pod("database", "postgres", is_ready=True),
        ]
    )
    assert [answer.problems for answer in answers] == [["serves"], ["executes"]]


@pytest.mark.parametrize("is_restored", [False, True])
async def test_secrets_that_servers_print_are_masked_in_their_logs(harness: Harness, *, is_restored: bool) -> None:
    if is_restored:
        await harness.target.restore(Release(deployment(ACTIVE, active_revision_id=ACTIVE.id), ACTIVE, None))
    else:
        await harness.switch(ACTIVE)

    follower = harness.target._follower
    assert follower is not None
    printed = follower._open_log(ACTIVE.id)
    printed.add("calling with s3cr3t")
    await printed.close()

    assert harness.lines[-1] == "calling with ***"


async def test_what_the_cluster_no_longer_shows_is_not_reported_as_serving(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "_POLL_S", 0.01)
    monkeypatch.setattr(pods, "_HIDDEN_AFTER_S", 0.0)
    await harness.switch(ACTIVE)
    harness.cluster.rules.append(lambda _method, plural, _namespace, _name: (503, "down") if plural == "pods" else None)

    async def is_hidden() -> bool:
        metrics = harness.target.metrics()
        problem = None if metrics is None else metrics.problem
        return "The cluster has not shown the pods of this deployment since" in (problem or "")

    await eventually(is_hidden)
