"""Compute kubernetes on a real API server: applied, watched, pruned, undone, removed.

PORTSIDE_TEST_KUBECONFIG names a kubeconfig of a cluster with its controllers, which may create namespaces there.
Nodes are not needed: what a node would report of pods is written by the test. With nodes, PORTSIDE_TEST_IMAGE names an
image that they have: it answers `GET /ok` at $PORT, and has the programs of Postgres and Redis, or ones of their names.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portside.cli.manifests import build_listener_rights
from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.objects import KINDS, owned_by
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.kernel.tasks import cancel_and_wait
from portside.listener_api import DesiredRevision, NewLogEntry, Secret
from tests.conftest import eventually
from tests.kubernetes import DEPLOYMENT_ID, FULL_SPEC, LISTENER, deployment, revision, settings

KUBECONFIG = os.environ.get("PORTSIDE_TEST_KUBECONFIG")
pytestmark = [
    pytest.mark.skipif(not KUBECONFIG, reason="PORTSIDE_TEST_KUBECONFIG names no cluster"),
    pytest.mark.timeout(900),
]
IMAGE = os.environ.get("PORTSIDE_TEST_IMAGE")
BAD_IMAGE = "agents/does-not-exist:1"
# Clusters older than the supported ones lack autoscaling/v2 and policy/v1; one replica needs neither.
SMALL = {"cpu": 0.01, "memory_mb": 32, "memory_limit_mb": 128, "queue_cpu": 0.01, "queue_memory_mb": 32}
SMALL |= {"redis_cpu": 0.01, "redis_memory_mb": 32, "redis_memory_limit_mb": 64, "db_cpu": 0.01}
SPEC = {**FULL_SPEC, **SMALL} if IMAGE else FULL_SPEC
# What a small node can run, if there are nodes.
RUNNABLE: dict[str, Any] = {"resource_spec": SPEC, **({"image_uri": IMAGE} if IMAGE else {})}
FIRST = revision(status="DEPLOYED", **RUNNABLE)


@dataclass
class ClusterHarness:
    """A namespace with a target in it."""

    api: Any
    target: Any
    namespace: str
    lines: list[str] = field(default_factory=list)

    async def switch(self, one: DesiredRevision, active: DesiredRevision | None = None) -> None:
        known = [one, *([active] if active else [])]
        desired = deployment(*known, active_revision_id=active and active.id)
        await self.target.switch(Release(desired, one, None))

    async def live(self, kind: str, name_end: str = "") -> dict[str, Any] | None:
        return await self.api.get(kind, self.namespace, f"hello-world-00000000abcd{name_end}")

    async def names(self) -> set[tuple[str, str]]:
        found = set()
        for kind in ("Deployment", "StatefulSet", "Service", "Secret", "PersistentVolumeClaim", "NetworkPolicy"):
            items = await self.api.list(kind, self.namespace, owned_by(DEPLOYMENT_ID))
            found |= {(kind, item["metadata"]["name"].removeprefix("hello-world-00000000abcd")) for item in items}

        return found


@pytest.fixture
async def harness() -> AsyncIterator[ClusterHarness]:
    from lightkube import KubeConfig
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Namespace

    from portside.dataplane.compute.kubernetes.api import KubernetesApi
    from portside.dataplane.compute.kubernetes.manifests import ClusterSettings
    from portside.dataplane.compute.kubernetes.target import KubernetesCompute
    from portside.dataplane.compute.kubernetes.watching import PollTiming

    api = KubernetesApi(KubeConfig.from_file(Path(KUBECONFIG or "")))
    namespace = f"portside-test-{secrets.token_hex(4)}"
    await api._client.create(Namespace(metadata=ObjectMeta(name=namespace)))
    listener = await api_of_a_listener(api, namespace)
    images = {"kubernetes_postgres_image": IMAGE, "kubernetes_redis_image": IMAGE} if IMAGE else {}
    kubernetes = settings(kubernetes_namespaces=namespace, kubernetes_health_check="none", **images)
    cluster = ClusterSettings(msgspec.structs.replace(LISTENER, deployment_start_timeout_s=40), kubernetes)
    compute = KubernetesCompute(cluster, listener, PollTiming(poll_s=0.2, permanent_after_s=1.0))
    lines: list[str] = []

    async def ship(entries: list[NewLogEntry]) -> None:
        lines.extend(entry.message for entry in entries)

    target = compute.target(DEPLOYMENT_ID, lambda _: RevisionLog(ship))
    nodes = [] if IMAGE else [asyncio.create_task(report_like_a_node(api, namespace))]
    yield ClusterHarness(api, target, namespace, lines)
    await target.close()
    await cancel_and_wait(*nodes)
    await api._client.delete(Namespace, namespace)

    await compute.close()
    await api.close()


async def api_of_a_listener(admin: Any, namespace: str) -> Any:
    """The API server with the rights of a listener that `portside manifests` installed."""
    from lightkube import KubeConfig, codecs
    from lightkube.config.models import User
    from lightkube.models.authentication_v1 import TokenRequestSpec
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ServiceAccount, ServiceAccountToken

    from portside.dataplane.compute.kubernetes.api import KubernetesApi

    await admin._client.create(ServiceAccount(metadata=ObjectMeta(name="portside-listener", namespace=namespace)))

    for manifest in build_listener_rights(namespace, namespace):
        await admin._client.create(codecs.from_dict(manifest))

    request = ServiceAccountToken(metadata=ObjectMeta(), spec=TokenRequestSpec(audiences=[]))
    token = await admin._client.create(request, "portside-listener", namespace=namespace)
    config = KubeConfig.from_one(
        cluster=admin._client.config.cluster, user=User(token=token.status.token), namespace=namespace
    )

    return KubernetesApi(config)


async def report_like_a_node(api: Any, namespace: str) -> None:
    """Write what a node would report: all containers run except those whose image cannot be pulled."""
    from lightkube.resources.core_v1 import Pod

    while True:
        for pod in await api.list("Pod", namespace, {}):
            name = pod["metadata"]["name"]
            with contextlib.suppress(Exception):
                if "deletionTimestamp" in pod["metadata"]:
                    await api._client.delete(Pod, name, namespace=namespace, grace_period=0)
                elif not pod["status"].get("containerStatuses"):
                    await api._client.patch(Pod.Status, name, {"status": build_pod_status(pod)}, namespace=namespace)

        await asyncio.sleep(0.1)


def build_pod_status(pod: dict[str, Any]) -> dict[str, Any]:
    is_bad = pod["spec"]["containers"][0]["image"] == BAD_IMAGE
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": f"Back-off pulling {BAD_IMAGE}"}}
    state = waiting if is_bad else {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}

    container = {
        "name": pod["spec"]["containers"][0]["name"],
        "image": "x",
        "imageID": "x",
        "restartCount": 0,
        "ready": not is_bad,
        "state": state,
    }

    ready = {"type": "Ready", "status": "False" if is_bad else "True"}
    return {"phase": "Pending" if is_bad else "Running", "conditions": [ready], "containerStatuses": [container]}


async def test_rollout_is_idempotent(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    api = await harness.live("Deployment")
    queue = await harness.live("Deployment", "-queue")
    assert api["status"]["availableReplicas"] == queue["status"]["availableReplicas"] == 1
    assert api["metadata"]["managedFields"][0]["manager"] == "portside"
    assert harness.target.url == f"http://hello-world-00000000abcd.{harness.namespace}.svc.cluster.local:8000"

    for kind, name_end in (("StatefulSet", "-postgres"), ("PersistentVolumeClaim", "-postgres"), ("Service", "")):
        assert await harness.live(kind, name_end), kind

    await harness.target.apply_serving()
    again = await harness.live("Deployment")
    assert again["metadata"]["generation"] == api["metadata"]["generation"]
    await harness.target.close()
    assert any("1 of 1 replicas are ready" in line for line in harness.lines)


async def test_failed_release_says_why_and_is_undone(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    before = await harness.names()

    token = [Secret("TOKEN", "another")]
    bad = revision(id=DEPLOYMENT_ID, number=2, image_uri=BAD_IMAGE, resource_spec=SPEC, secrets=token)
    # A node alternates between the attempt that failed and the pause after it.
    problem = r"does not start: .*(ImagePullBackOff: Back-off pulling|ErrImagePull: failed to pull)"
    with pytest.raises(DeployFailed, match=problem):
        await harness.switch(bad, active=FIRST)

    async def is_back() -> bool:
        live = await harness.live("Deployment")
        image = live["spec"]["template"]["spec"]["containers"][0]["image"]
        return image == FIRST.image_uri and await harness.names() == before

    await eventually(is_back)
    assert (await harness.live("Deployment"))["status"]["availableReplicas"] == 1


async def test_failed_first_release_keeps_data(harness: ClusterHarness) -> None:
    with pytest.raises(DeployFailed):
        await harness.switch(revision(image_uri=BAD_IMAGE))
    assert await harness.names() == {("Secret", "-postgres"), ("PersistentVolumeClaim", "-postgres")}


async def test_abandoned_release_is_undone(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    before = await harness.names()
    bad = revision(id=DEPLOYMENT_ID, number=2, image_uri=BAD_IMAGE, secrets=[Secret("TOKEN", "another")])
    work = asyncio.create_task(harness.switch(bad, active=FIRST))

    async def is_on_its_way() -> bool:
        return await harness.names() != before

    await eventually(is_on_its_way)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    given_up = msgspec.structs.replace(bad, status="INTERRUPTED")

    await harness.target.update(deployment(FIRST, given_up, active_revision_id=FIRST.id))

    async def is_back() -> bool:
        return await harness.names() == before

    await eventually(is_back)


async def test_prune_keeps_data_and_foreign_objects(harness: ClusterHarness) -> None:
    foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "not-ours", "namespace": harness.namespace}}
    await harness.api.apply(foreign)
    await harness.switch(FIRST)
    password = (await harness.live("Secret", "-postgres"))["data"]
    own = [Secret("POSTGRES_URI_CUSTOM", "postgresql://x/y"), Secret("REDIS_URI_CUSTOM", "redis://z")]

    await harness.switch(revision(id=DEPLOYMENT_ID, number=2, secrets=own, **RUNNABLE), active=FIRST)
    assert await harness.live("StatefulSet", "-postgres") is None
    assert await harness.live("StatefulSet", "-redis") is None
    assert await harness.live("PersistentVolumeClaim", "-postgres")

    # The database is the same one, so it must keep its password.
    await harness.switch(revision(number=3, **RUNNABLE))
    assert (await harness.live("Secret", "-postgres"))["data"] == password
    await harness.target.destroy(deployment())
    assert await harness.names() == set()
    assert await harness.api.get("Secret", harness.namespace, "not-ours")


async def test_removed_object_is_applied_again(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    await harness.api.delete("Service", harness.namespace, "hello-world-00000000abcd")
    changed = msgspec.structs.replace(FIRST, status="DEPLOYED")
    await harness.target.update(deployment(changed, active_revision_id=FIRST.id))

    async def is_back() -> bool:
        return await harness.live("Service") is not None

    await eventually(is_back)


async def test_changed_custom_url_is_the_address_at_once(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    own = "https://chat.example.com"
    for requested, shown in ((own, own), (None, f"http://hello-world-00000000abcd.{harness.namespace}.svc.")):
        await harness.target.update(deployment(FIRST, active_revision_id=FIRST.id, custom_url=requested))
        assert harness.target.url.startswith(shown)


async def test_next_listener_takes_over_running_release(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    uids = {pod["metadata"]["uid"] for pod in await harness.api.list("Pod", harness.namespace, owned_by(DEPLOYMENT_ID))}
    await harness.target.close()
    successor = harness.target._compute.target(DEPLOYMENT_ID, harness.target._open_log)

    await successor.restore(Release(deployment(FIRST, active_revision_id=FIRST.id), FIRST, None))
    assert successor.url == harness.target.url
    await successor.apply_serving()
    await successor.close()

    after = {
        pod["metadata"]["uid"] for pod in await harness.api.list("Pod", harness.namespace, owned_by(DEPLOYMENT_ID))
    }
    assert after == uids


async def test_exceeded_quota_is_reported(harness: ClusterHarness) -> None:
    from lightkube.models.core_v1 import ResourceQuotaSpec
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ResourceQuota

    quota = ResourceQuota(metadata=ObjectMeta(name="q"), spec=ResourceQuotaSpec(hard={"requests.cpu": "2"}))
    await harness.api._client.create(quota, namespace=harness.namespace)

    big = revision(resource_spec={**FIRST.resource_spec, "cpu": 4, "cpu_limit": 4, "db_cpu": 0.1, "redis_cpu": 0.1})
    own = [Secret("POSTGRES_URI_CUSTOM", "postgresql://x/y"), Secret("REDIS_URI_CUSTOM", "redis://z")]
    with pytest.raises(DeployFailed, match="exceeded quota"):
        await harness.switch(msgspec.structs.replace(big, secrets=own))


async def test_refused_pod_of_a_store_is_reported(harness: ClusterHarness) -> None:
    from lightkube.models.core_v1 import ResourceQuotaSpec
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ResourceQuota

    quota = ResourceQuota(metadata=ObjectMeta(name="q"), spec=ResourceQuotaSpec(hard={"pods": "0"}))
    await harness.api._client.create(quota, namespace=harness.namespace)
    with pytest.raises(DeployFailed, match=r"Postgres does not start: .*its pods cannot be created: .*exceeded quota"):
        await harness.switch(FIRST)


async def test_password_of_another_deployment_cannot_be_named(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    name = "hello-world-00000000abcd-postgres"
    for label in ({}, {"portside/workspace": "any"}):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": harness.namespace}}
        await harness.api.merge(secret, {"metadata": {"labels": label}})
        stolen = {"name": "STOLEN", "secret_name": name, "secret_key": "password"}
        with pytest.raises(DeployFailed, match=r"may not name the Secret hello-world-00000000abcd-postgres"):
            await harness.switch(msgspec.structs.replace(FIRST, secret_references=[stolen]), active=FIRST)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"labels": {"team": "not a label value"}}, "a valid label must be"),
        ({"volumes": [{"name": "x", "emptyDirectory": {}}]}, "emptyDirectory"),
        ({"volume_mounts": [{"name": "nowhere", "mountPath": "/x"}]}, "nowhere"),
    ],
)
async def test_cluster_refusal_ends_revision_with_message(
    harness: ClusterHarness, spec: dict[str, Any], expected: str
) -> None:
    with pytest.raises(DeployFailed, match=expected) as refused:
        await harness.switch(revision(resource_spec={**FIRST.resource_spec, **spec}))
    assert "s3cr3t" not in str(refused.value)


def test_deletion_looks_for_every_kind() -> None:
    assert {"Deployment", "StatefulSet", "Ingress", "HorizontalPodAutoscaler", "PodDisruptionBudget"} < set(KINDS)


NAME = "hello-world-00000000abcd"


async def change(harness: ClusterHarness, kind: str, name: str, patch: dict[str, Any], how: str = "STRATEGIC") -> None:
    """Change an object as somebody does with kubectl."""
    from lightkube.types import PatchType

    from portside.dataplane.compute.kubernetes.api import _RESOURCES

    await harness.api._client.patch(
        _RESOURCES[kind],
        name,
        patch,
        namespace=harness.namespace,
        patch_type=PatchType[how],
        field_manager="kubectl-edit",
    )


async def test_service_with_another_port_is_set_back_and_keeps_its_address(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    before = await harness.live("Service")
    ports = [{"name": "http", "port": 9000, "targetPort": "http", "protocol": "TCP"}]
    await change(harness, "Service", NAME, {"spec": {"ports": ports}}, how="MERGE")

    await harness.target.apply_serving()
    after = await harness.live("Service")
    assert harness.target._refusals == []
    assert [port["port"] for port in after["spec"]["ports"]] == [8000]
    assert after["spec"]["clusterIP"] == before["spec"]["clusterIP"]


async def test_stateful_set_that_cannot_be_changed_is_made_anew_around_its_pod(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    pods = await harness.api.list("Pod", harness.namespace, {"app.kubernetes.io/component": "postgres"})
    live = await harness.live("StatefulSet", "-postgres")
    await harness.api.delete("StatefulSet", harness.namespace, f"{NAME}-postgres", keep_owned=True)

    async def is_gone() -> bool:
        return await harness.live("StatefulSet", "-postgres") is None

    await eventually(is_gone)
    metadata = {name: live["metadata"][name] for name in ("name", "namespace", "labels")}
    spec = {**live["spec"], "serviceName": "another"}
    manifest = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
    await harness.api.create(manifest)

    await harness.target.apply_serving()
    assert harness.target._refusals == []
    assert (await harness.live("StatefulSet", "-postgres"))["spec"]["serviceName"] == f"{NAME}-postgres"
    after = await harness.api.list("Pod", harness.namespace, {"app.kubernetes.io/component": "postgres"})
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in pods]


async def test_added_security_settings_are_removed(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    container = {"name": "api-server", "securityContext": {"runAsUser": 12345, "capabilities": {"add": ["NET_ADMIN"]}}}
    pod = {"containers": [container], "securityContext": {"runAsGroup": 12345}}
    await change(harness, "Deployment", NAME, {"spec": {"template": {"spec": pod}}})

    await harness.target.apply_serving()
    live = (await harness.live("Deployment"))["spec"]["template"]["spec"]
    assert "runAsUser" not in live["containers"][0]["securityContext"]
    assert live["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "runAsGroup" not in live.get("securityContext", {})

    generation = (await harness.live("Deployment"))["metadata"]["generation"]
    await harness.target.apply_serving()
    assert (await harness.live("Deployment"))["metadata"]["generation"] == generation


async def test_passwords_and_claims_are_kept(harness: ClusterHarness) -> None:
    from portside.dataplane.compute.kubernetes.manifests import ClusterSettings

    await harness.switch(FIRST)
    password = (await harness.live("Secret", "-postgres"))["data"]
    claim = await harness.live("PersistentVolumeClaim", "-postgres")
    await harness.api.delete("Secret", harness.namespace, f"{NAME}-postgres")
    kubernetes = msgspec.structs.replace(harness.target._cluster.kubernetes, kubernetes_storage_class="another")
    harness.target._cluster = ClusterSettings(LISTENER, kubernetes)

    await harness.target.apply_serving()
    assert harness.target._refusals == []
    assert (await harness.live("Secret", "-postgres"))["data"] == password
    after = await harness.live("PersistentVolumeClaim", "-postgres")
    assert after["metadata"]["uid"] == claim["metadata"]["uid"]
    assert after["spec"].get("storageClassName") == claim["spec"].get("storageClassName")


@pytest.mark.skipif(not IMAGE, reason="needs nodes: PORTSIDE_TEST_IMAGE names no image")
async def test_database_that_fits_no_node_runs_again_after_its_spec_was_set_back(harness: ClusterHarness) -> None:
    await harness.switch(FIRST)
    large = revision(id=DEPLOYMENT_ID, number=2, image_uri=IMAGE, resource_spec={**SPEC, "db_cpu": 500})
    with pytest.raises(DeployFailed, match="cannot be scheduled"):
        await harness.switch(large, active=FIRST)

    async def runs_again() -> bool:
        (pod,) = await harness.api.list("Pod", harness.namespace, {"app.kubernetes.io/component": "postgres"})
        conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
        return conditions.get("Ready") == "True"

    await eventually(runs_again)


async def test_lost_rights_are_at_the_deployment(harness: ClusterHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightkube.resources.rbac_authorization_v1 import RoleBinding

    from portside.dataplane.compute.kubernetes import pods

    monkeypatch.setattr(pods, "_HIDDEN_AFTER_S", 0.0)
    monkeypatch.setattr(pods, "_POLL_S", 0.2)
    await harness.switch(FIRST)
    binding = await harness.api._client.get(RoleBinding, "portside-listener", namespace=harness.namespace)
    await harness.api._client.delete(RoleBinding, "portside-listener", namespace=harness.namespace)

    async def is_named() -> bool:
        metrics = harness.target.metrics()
        return metrics is not None and "cannot list resource" in (metrics.problem or "") and metrics.replicas is None

    await eventually(is_named)
    binding.metadata.resourceVersion = None
    await harness.api._client.create(binding)

    async def is_well() -> bool:
        metrics = harness.target.metrics()
        return metrics is not None and metrics.replicas == 1

    await eventually(is_well)
