"""Running agents survive what an operator does to their objects: each is set back on its own, and data is kept.

The API server is in memory (`tests/cluster_api.py`). `tests/api/test_kubernetes_cluster.py` has a real one.
"""

import asyncio
import base64
import copy
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.manifests import ClusterSettings
from portside.dataplane.compute.kubernetes.objects import owned_by
from portside.dataplane.failures import CreateFailed, DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.kernel.quantities import parse_quantity
from portside.listener_api import Scale, Secret
from tests.conftest import eventually
from tests.kubernetes import DEPLOYMENT_ID, LISTENER, deployment, revision, settings

pytest.importorskip("lightkube", reason="the extra portside[kubernetes] is not installed")

from portside.dataplane.compute.kubernetes import applying
from portside.dataplane.compute.kubernetes.api import ClusterDenied, ClusterRefused
from portside.dataplane.compute.kubernetes.passwords import _derive_key
from portside.dataplane.compute.kubernetes.repairs import build_security_patch
from portside.dataplane.compute.kubernetes.target import KubernetesCompute, KubernetesTarget
from portside.dataplane.compute.kubernetes.watching import PollTiming
from tests.cluster_api import ClusterApi, connect, lacks_right

NAME = "hello-world-00000000abcd"
SERVING = revision(status="DEPLOYED")
# What the first test applied; each test begins with it.
APPLIED: dict[tuple[str, str, str], dict[str, Any]] = {}


class Harness:
    """A cluster with a deployment that serves."""

    def __init__(self, cluster: ClusterApi, compute: KubernetesCompute) -> None:
        self.cluster = cluster
        self.compute = compute
        self.target = self.build_target()

    def build_target(self) -> KubernetesTarget:
        async def ship(_entries: Any) -> None:
            pass

        target = self.compute.target(DEPLOYMENT_ID, lambda _: RevisionLog(ship))
        target._serving = Release(deployment(SERVING, active_revision_id=SERVING.id), SERVING, None)
        return target

    @property
    def refusals(self) -> list[str]:
        return self.target._refusals

    def spec(self, plural: str, name: str) -> dict[str, Any]:
        live = self.cluster.find(plural, name)
        assert live is not None, name
        return live["spec"]

    def password(self, name: str = f"{NAME}-postgres") -> str:
        live = self.cluster.find("secrets", name)
        assert live is not None
        return base64.b64decode(live["data"]["password"]).decode()

    def deleted(self) -> list[tuple[str, str]]:
        return [(plural, name) for method, plural, name in self.cluster.calls if method == "DELETE"]


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    cluster = ClusterApi()
    async with connect(cluster) as api:
        compute = KubernetesCompute(ClusterSettings(LISTENER, settings()), api, PollTiming(0.001, 0.01, retry_s=0.05))
        harness = Harness(cluster, compute)
        if not APPLIED:
            await harness.target.apply_serving()
            assert harness.refusals == []
            APPLIED.update(cluster.objects)

        cluster.objects = copy.deepcopy(APPLIED)
        cluster.calls.clear()
        yield harness


async def test_service_that_was_patched_by_hand_is_set_back_and_keeps_its_address(harness: Harness) -> None:
    service = harness.spec("services", NAME)
    service["clusterIP"] = "10.0.0.7"
    service["ports"] = [{"name": "http", "port": 9000, "protocol": "TCP"}]

    await harness.target.apply_serving()

    assert harness.refusals == []
    assert [port["port"] for port in harness.spec("services", NAME)["ports"]] == [8000]
    assert harness.spec("services", NAME)["clusterIP"] == "10.0.0.7"
    assert harness.deleted() == []


async def test_object_that_cannot_be_changed_is_created_anew(harness: Harness) -> None:
    """The pods of a StatefulSet run on, and belong to the new one."""
    harness.spec("statefulsets", f"{NAME}-postgres")["serviceName"] = "another"

    await harness.target.apply_serving()

    assert harness.refusals == []
    assert harness.spec("statefulsets", f"{NAME}-postgres")["serviceName"] == f"{NAME}-postgres"
    assert harness.deleted() == [("statefulsets", f"{NAME}-postgres")]
    assert harness.cluster.orphaned == [f"{NAME}-postgres"]


async def test_refused_object_stops_no_other_and_is_named(harness: Harness) -> None:
    def refuse(method: str, plural: str, _namespace: str, name: str) -> tuple[int, str] | None:
        if method in {"apply", "merge", "CHECK"} and plural == "services" and name.startswith(f"{NAME}-redis"):
            return 422, 'Service "x" is invalid: because'
        return None

    harness.cluster.rules.append(refuse)
    del harness.cluster.objects["deployments", "agents", NAME]
    await harness.target.apply_serving()

    assert harness.refusals == [f'Service {NAME}-redis: Service "x" is invalid: because']
    assert harness.cluster.find("deployments", NAME) is not None, "the other objects are repaired"
    assert harness.deleted() == [], "what the cluster would not create is not deleted"


async def test_servers_keep_their_variables_when_the_cluster_refuses_new_ones(harness: Harness) -> None:
    def refuse(method: str, plural: str, _namespace: str, name: str) -> tuple[int, str] | None:
        return (403, "exceeded quota") if method == "apply" and plural == "secrets" and "-env-" in name else None

    before = copy.deepcopy(harness.spec("deployments", NAME))
    changed = msgspec.structs.replace(SERVING, secrets=[Secret("TOKEN", "another")])
    harness.target._serving = Release(deployment(changed, active_revision_id=changed.id), changed, None)
    harness.cluster.rules.append(refuse)
    await harness.target.apply_serving()

    assert len(harness.refusals) == 1
    assert harness.spec("deployments", NAME) == before, "its pods would lack the Secret"


@pytest.mark.parametrize(("live", "kept"), [(4, 4), (1, 2), (50, 7)])
async def test_number_of_replicas_is_that_of_the_autoscaler_within_its_bounds(
    harness: Harness, live: int, kept: int
) -> None:
    scaled = deployment(SERVING, active_revision_id=SERVING.id, scale=Scale(min_scale=2, max_scale=7))
    harness.target._serving = Release(scaled, SERVING, None)
    harness.spec("deployments", NAME)["replicas"] = live

    await harness.target.apply_serving()

    assert harness.refusals == []
    assert harness.spec("deployments", NAME)["replicas"] == kept


async def test_right_that_was_lost_stops_no_other_object_and_is_named(harness: Harness) -> None:
    def refuse(method: str, plural: str, namespace: str, _name: str) -> tuple[int, str] | None:
        return lacks_right("patch", plural, namespace) if (method, plural) == ("apply", "ingresses") else None

    harness.target = harness.build_target()
    harness.compute.cluster = harness.target._cluster = ClusterSettings(
        LISTENER, settings(kubernetes_ingress_url="https://*.example.com")
    )
    harness.cluster.rules.append(refuse)
    await harness.target.apply_serving()
    (refusal,) = harness.refusals
    assert 'cannot patch resource "ingresses"' in refusal


async def test_claim_keeps_its_class_and_its_size(harness: Harness) -> None:
    claim = harness.spec("persistentvolumeclaims", f"{NAME}-postgres")
    claim["storageClassName"] = "old"
    claim["resources"]["requests"]["storage"] = "20Gi"
    harness.target._cluster = ClusterSettings(LISTENER, settings(kubernetes_storage_class="new"))

    await harness.target.apply_serving()

    assert harness.refusals == []
    after = harness.spec("persistentvolumeclaims", f"{NAME}-postgres")
    assert (after["storageClassName"], after["resources"]["requests"]["storage"]) == ("old", "20Gi")
    assert harness.deleted() == []


async def test_claim_keeps_the_class_that_this_listener_gave_it(harness: Harness) -> None:
    """Whoever applies a field and leaves it out later removes it, which the cluster refuses for a class."""
    del harness.cluster.objects["persistentvolumeclaims", "agents", f"{NAME}-postgres"]
    for name in ("first", "second"):
        harness.target._cluster = ClusterSettings(LISTENER, settings(kubernetes_storage_class=name))
        await harness.target.apply_serving()

    assert harness.refusals == []
    assert harness.spec("persistentvolumeclaims", f"{NAME}-postgres")["storageClassName"] == "first"


async def test_lost_password_is_recovered_from_the_variables(harness: Harness) -> None:
    before = harness.password(), harness.password(f"{NAME}-redis")
    for component in ("postgres", "redis"):
        del harness.cluster.objects["secrets", "agents", f"{NAME}-{component}"]

    await harness.target.apply_serving()

    assert (harness.password(), harness.password(f"{NAME}-redis")) == before
    assert harness.refusals == []


async def test_lost_password_of_a_database_with_data_is_never_invented(harness: Harness) -> None:
    for live in list(harness.cluster.objects.values()):
        if live["kind"] == "Secret":
            del harness.cluster.objects["secrets", "agents", live["metadata"]["name"]]

    with pytest.raises(
        DeployFailed, match=f"the Secret {NAME}-postgres with the password .* is missing.*from a backup"
    ):
        await harness.target.apply_serving()
    assert harness.cluster.find("secrets", f"{NAME}-postgres") is None


async def test_password_is_that_of_the_newest_variables_with_the_address_of_the_store(harness: Harness) -> None:
    """An earlier revision may have had the user's own database, and the password of this one may have been changed."""
    before = harness.password()
    labels = {**owned_by(DEPLOYMENT_ID), "app.kubernetes.io/component": "environment"}
    for name, url, created_at in (
        ("changed-since", f"postgresql://portside:old@{NAME}-postgres:5432/portside", "2025-01-01T00:00:00Z"),
        ("another-database", "postgresql://mine:theirs@elsewhere:5432/portside", "2027-01-01T00:00:00Z"),
    ):
        data = {"DATABASE_URI": base64.b64encode(url.encode()).decode()}
        content = {"data": data, "metadata": {"labels": labels, "creationTimestamp": created_at}}
        harness.cluster.put("secrets", "agents", name, content)

    del harness.cluster.objects["secrets", "agents", f"{NAME}-postgres"]
    await harness.target.apply_serving()

    assert harness.password() == before


@pytest.mark.parametrize("plural", ["secrets", "persistentvolumeclaims"])
async def test_data_that_cannot_be_changed_is_never_created_anew(harness: Harness, plural: str) -> None:
    def refuse(method: str, kind: str, _namespace: str, name: str) -> tuple[int, str] | None:
        is_change = method in {"apply", "merge"} and (kind, name) == (plural, f"{NAME}-postgres")
        return (422, "x is invalid: field is immutable") if is_change else None

    harness.cluster.rules.append(refuse)
    await harness.target.apply_serving()

    assert len(harness.refusals) == 1
    assert harness.deleted() == []


async def test_what_a_release_no_longer_needs_is_deleted_but_no_data_and_nothing_of_others(harness: Harness) -> None:
    ours = owned_by(DEPLOYMENT_ID)
    of_postgres = {**ours, "app.kubernetes.io/component": "postgres"}
    of_another = owned_by(UUID(int=9))
    owner = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "x", "uid": "y"}
    kept = [
        ("persistentvolumeclaims", "earlier-database", {"labels": of_postgres}),
        ("secrets", "earlier-password", {"labels": of_postgres}),
        ("services", "of-an-operator", {"labels": ours, "ownerReferences": [owner]}),
        ("services", "of-another-deployment", {"labels": of_another}),
        ("services", "of-somebody", {}),
    ]
    for plural, name, metadata in [*kept, ("services", "left", {"labels": ours}), ("secrets", "old", {"labels": ours})]:
        harness.cluster.put(plural, "agents", name, {"metadata": metadata})

    await harness.target.apply_serving()

    assert harness.deleted() == [("services", "left"), ("secrets", "old")]
    assert harness.refusals == []


async def test_own_stores_start_no_servers_again(harness: Harness) -> None:
    """The name of the Secret with the variables must not change from one repair to the next."""
    own = [Secret("POSTGRES_URI_CUSTOM", "postgresql://x/y"), Secret("REDIS_URI_CUSTOM", "redis://z")]
    custom = msgspec.structs.replace(SERVING, secrets=own)
    harness.cluster.objects.clear()
    harness.target._serving = Release(deployment(custom, active_revision_id=custom.id), custom, None)

    names = []
    for _ in range(2):
        await harness.target.apply_serving()
        template = harness.spec("deployments", NAME)["template"]["spec"]
        names.append(template["containers"][0]["envFrom"][0]["secretRef"]["name"])

    assert names[0] == names[1]


async def test_without_a_redis_no_servers_are_started_again(harness: Harness) -> None:
    harness.cluster.objects.clear()
    harness.compute.cluster = ClusterSettings(LISTENER, settings(kubernetes_redis=False))
    harness.target = harness.build_target()

    names = []
    for _ in range(2):
        await harness.target.apply_serving()
        template = harness.spec("deployments", NAME)["template"]["spec"]
        names.append(template["containers"][0]["envFrom"][0]["secretRef"]["name"])

    assert names[0] == names[1]
    assert harness.cluster.find("statefulsets", f"{NAME}-redis") is None


async def test_added_security_settings_are_removed(harness: Harness) -> None:
    pod = harness.spec("deployments", NAME)["template"]["spec"]
    pod["hostNetwork"] = True
    pod["securityContext"] = {**pod.get("securityContext", {}), "runAsUser": 0}
    pod["containers"][0]["securityContext"]["privileged"] = True
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = ["NET_ADMIN"]

    await harness.target.apply_serving()

    pod = harness.spec("deployments", NAME)["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert "hostNetwork" not in pod
    assert "runAsUser" not in pod["securityContext"]
    assert "privileged" not in context
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["containers"][0]["image"] == "agents/hello:1"

    harness.cluster.calls.clear()
    await harness.target.apply_serving()
    assert "strategic" not in {method for method, _, _ in harness.cluster.calls}


def test_security_settings_of_other_containers_are_left_alone() -> None:
    ours = {"containers": [{"name": "a", "securityContext": {"runAsUser": 1, "seccompProfile": {"type": "X"}}}]}
    live = {
        "securityContext": {},
        "containers": [
            {"name": "a", "securityContext": {"runAsUser": 1, "seccompProfile": {"type": "X"}}},
            {"name": "injected", "securityContext": {"privileged": True}},
        ],
    }
    assert build_security_patch(ours, live) == {}


def build_pod(state: dict[str, Any], revision_hash: str, **metadata: Any) -> dict[str, Any]:
    labels = {
        "controller-revision-hash": revision_hash,
        "app.kubernetes.io/component": "postgres",
        **owned_by(DEPLOYMENT_ID),
    }
    return {"metadata": {"labels": labels, **metadata}, "status": state}


UNSCHEDULABLE = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
BAD_IMAGE = {"phase": "Pending", "containerStatuses": [{"name": "p", "state": {"waiting": {"reason": "ErrImagePull"}}}]}
STARTING = {
    "phase": "Pending",
    "containerStatuses": [{"name": "p", "state": {"waiting": {"reason": "ContainerCreating"}}}],
}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "p", "ready": False, "state": {"running": {}}}]}


@pytest.mark.parametrize(
    ("state", "revision_hash", "is_deleted"),
    [
        (UNSCHEDULABLE, "too-large", True),
        (BAD_IMAGE, "too-large", True),
        (UNSCHEDULABLE, "newest", False),
        (STARTING, "too-large", False),
        (RUNNING, "too-large", False),
    ],
    ids=["unschedulable", "bad image", "of the newest spec", "starts", "runs"],
)
async def test_pod_of_an_earlier_spec_that_cannot_start_is_deleted(
    harness: Harness, state: Any, revision_hash: str, *, is_deleted: bool
) -> None:
    """The controller of a StatefulSet waits for it for ever, also after the spec was set back."""
    store = harness.cluster.find("statefulsets", f"{NAME}-postgres")
    assert store is not None
    store["status"] = {"observedGeneration": store["metadata"]["generation"], "updateRevision": "newest"}
    harness.cluster.put("pods", "agents", f"{NAME}-postgres-0", build_pod(state, revision_hash))

    await harness.target.apply_serving()
    assert harness.deleted() == ([("pods", f"{NAME}-postgres-0")] if is_deleted else [])


async def test_missing_namespace_blocks_only_its_own_deployments(harness: Harness) -> None:
    def refuse(_method: str, plural: str, namespace: str, _name: str) -> tuple[int, str] | None:
        return lacks_right("list", plural, namespace) if namespace == "more-agents" else None

    harness.cluster.rules.append(refuse)
    await harness.target.provision(deployment(SERVING), is_new=True)
    with pytest.raises(CreateFailed, match=r"namespace more-agents: .*check that the namespace exists"):
        await harness.target.provision(deployment(SERVING, k8s_namespace="more-agents"), is_new=True)

    with pytest.raises(ClusterDenied, match=r"the namespace more-agents .* take it out of KUBERNETES_NAMESPACES"):
        await harness.target.destroy(deployment(SERVING, k8s_namespace="more-agents"))
    await harness.target.destroy(deployment(SERVING))
    assert harness.cluster.objects == {}


async def test_a_deployment_is_deleted_once_its_last_pod_has_ended(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "_DELETE_POLL_S", 0.01)
    harness.cluster.put("pods", "agents", "ends", {"metadata": {"labels": owned_by(DEPLOYMENT_ID)}})
    harness.cluster.put("services", "agents", "of-somebody", {})

    deleting = asyncio.create_task(harness.target.destroy(deployment(SERVING)))
    await eventually(lambda: asyncio.sleep(0, len(harness.cluster.objects) == 2))
    harness.cluster.calls.clear()
    await eventually(lambda: asyncio.sleep(0, ("GET", "pods", "") in harness.cluster.calls))
    assert not deleting.done()

    del harness.cluster.objects["pods", "agents", "ends"]
    await deleting
    assert set(harness.cluster.objects) == {("services", "agents", "of-somebody")}


def test_what_stands_for_a_password_is_of_one_deployment_and_store() -> None:
    key = {"LANGSMITH_API_KEY": "key"}
    releases = [Release(deployment(id=UUID(int=number), environment=key), SERVING, None) for number in (1, 2)]
    keys = {_derive_key(release, component) for release in releases for component in ("postgres", "redis")}
    assert len(keys) == 4
    assert all(len(each) == 64 for each in keys)


@pytest.mark.parametrize(
    ("group", "plural", "remedy"),
    [
        ("postgresql.cnpg.io", "clusters", r"CloudNativePG \(portside manifests --cloudnative-pg\)"),
        ("keda.sh", "scaledobjects", r"KEDA \(portside manifests --keda\)"),
        ("gateway.networking.k8s.io", "httproutes", r"agents\.parentRefs"),
    ],
)
async def test_missing_right_to_objects_of_an_operator_names_what_gives_it(
    harness: Harness, group: str, plural: str, remedy: str
) -> None:
    refusal = 403, f'{plural}.{group} is forbidden: User "x" cannot patch resource "{plural}" in API group "{group}"'
    harness.cluster.rules.append(lambda *_: refusal)
    with pytest.raises(ClusterDenied, match=remedy):
        await harness.compute.api.list("Secret", "agents", {})


async def test_only_a_right_that_a_role_lacks_may_come_back_by_itself(harness: Harness) -> None:
    """Quotas and admission refuse with the same status, and would refuse again."""
    answers = [(403, "exceeded quota: most"), lacks_right("list", "secrets", "agents")]
    harness.cluster.rules.append(lambda *_: answers.pop(0))

    with pytest.raises(ClusterRefused, match="exceeded quota"):
        await harness.compute.api.list("Secret", "agents", {})
    with pytest.raises(ClusterDenied, match="cannot list resource"):
        await harness.compute.api.list("Secret", "agents", {})


async def test_roles_that_the_api_server_does_not_know_yet_are_waited_for(harness: Harness) -> None:
    """Right after its start it refuses everything."""
    refused: list[str] = []

    def refuse(_method: str, plural: str, namespace: str, _name: str) -> tuple[int, str] | None:
        refused.append(plural)
        return lacks_right("list", plural, namespace) if len(refused) <= 1 else None

    harness.cluster.rules.append(refuse)
    harness.compute.timing = PollTiming(0.001, 0.01, retry_s=600)
    await harness.target.provision(deployment(SERVING), is_new=True)
    assert len(refused) > 1


@pytest.mark.parametrize(
    ("text", "amount"), [("500m", 0.5), ("2", 2), ("1Gi", 2**30), ("10M", 10**7), ("1e3", 1000), ("1.5Ki", 1536)]
)
def test_quantities_are_read(text: str, amount: float) -> None:
    assert parse_quantity(text) == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "lots", "1X", "1ki", "i"])
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)
