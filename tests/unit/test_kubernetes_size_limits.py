"""A release that is larger than the operator allows, or than every node, is refused before it changes anything."""

import contextlib
from typing import Any

import pytest

from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.manifests import ClusterSettings
from portside.dataplane.compute.kubernetes.resources import read_resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.kernel.errors import UserMistake
from portside.kernel.settings import load_settings
from tests.kubernetes import DEPLOYMENT_ID, FULL_SPEC, LISTENER, deployment, objects, revision, settings

pytest.importorskip("lightkube", reason="the extra portside[kubernetes] is not installed")

from portside.dataplane.compute.kubernetes.size_limits import check_fit, check_sizes
from portside.dataplane.compute.kubernetes.target import KubernetesCompute
from portside.dataplane.compute.kubernetes.watching import PollTiming
from tests.cluster_api import ClusterApi, connect, lacks_right

LIMITED = settings(
    kubernetes_max_cpu=4, kubernetes_max_memory_mb=8192, kubernetes_max_storage_gi=50, kubernetes_max_scale=3
)


def build_node(cpu: str, memory: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "node"}, "spec": spec, "status": {"allocatable": {"cpu": cpu, "memory": memory}}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"db_cpu": 8}, r"resource_spec\.db_cpu is 8, and this listener allows at most 4 CPUs \(KUBERNETES_MAX_CPU\)"),
        ({"cpu_limit": 4.5}, r"resource_spec\.cpu_limit is 4\.5"),
        ({"redis_memory_mb": 9000}, r"redis_memory_mb is 9000, .* 8192 MB \(KUBERNETES_MAX_MEMORY_MB\)"),
        ({"db_storage_gi": 51}, r"db_storage_gi is 51, .* 50 GiB \(KUBERNETES_MAX_STORAGE_GI\)"),
        ({"queue_max_scale": 4}, r"queue_max_scale is 4, .* 3 replicas \(KUBERNETES_MAX_SCALE\)"),
        (
            {"sidecars": [{"name": "a", "resources": {"limits": {"cpu": "4100m"}}}]},
            r"sidecars\[0\]\.resources\.limits\.cpu is 4\.1",
        ),
        (
            {"init_containers": [{"name": "a", "resources": {"requests": {"memory": "9Gi"}}}]},
            r"init_containers\[0\]\.resources\.requests\.memory is 9216",
        ),
        (
            {"sidecars": [{"name": "a", "resources": {"limits": {"cpu": "lots"}}}]},
            r"sidecars\[0\]\.resources\.limits\.cpu is 'lots', which is no quantity",
        ),
    ],
)
def test_size_above_the_operators_limit_names_field_and_limit(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DeployFailed, match=message):
        check_sizes(read_resources({**FULL_SPEC, **spec}), LIMITED)


def test_sizes_within_the_limits_and_without_limits_pass() -> None:
    check_sizes(read_resources({**FULL_SPEC, "cpu": 4, "cpu_limit": 4, "db_storage_gi": 50}), LIMITED)
    check_sizes(read_resources({**FULL_SPEC, "cpu": 400, "db_storage_gi": 5000}), settings())


def test_pod_that_fits_no_node_names_what_it_requests_and_the_largest_node() -> None:
    workloads = objects(revision(resource_spec={**FULL_SPEC, "db_cpu": 8})).of_kind("StatefulSet")
    with pytest.raises(
        DeployFailed, match=r"-postgres, which requests 8 CPUs .*the largest node has 4 CPUs and 8192 MB"
    ):
        check_fit(
            workloads, [build_node("2", "4Gi"), build_node("4", "8Gi"), build_node("64", "1Ti", unschedulable=True)]
        )

    check_fit(workloads, [build_node("2", "4Gi"), build_node("16", "64Gi")])
    check_fit(workloads, [])


@pytest.mark.parametrize("may_list", [True, False], ids=["granted", "not granted"])
async def test_nodes_are_asked_only_where_that_is_granted(*, may_list: bool) -> None:
    async def ship(_entries: Any) -> None:
        pass

    cluster = ClusterApi()
    cluster.put("nodes", "", "node", build_node("2", "4Gi"))
    if not may_list:
        cluster.rules.append(
            lambda _method, plural, namespace, _name: (
                lacks_right("list", plural, namespace) if plural == "nodes" else None
            )
        )

    large = revision(resource_spec={**FULL_SPEC, "db_cpu": 8})
    async with connect(cluster) as api:
        timing = PollTiming(0.001, 0.01, retry_s=0.01)
        listener = ClusterSettings(LISTENER, settings())
        target = KubernetesCompute(listener, api, timing).target(DEPLOYMENT_ID, lambda _: RevisionLog(ship))
        target._cluster = ClusterSettings(LISTENER, settings(kubernetes_health_check="none"))

        with contextlib.ExitStack() as stack:
            if may_list:
                stack.enter_context(pytest.raises(DeployFailed, match="no node of the cluster can hold"))
                await target.switch(Release(deployment(large), large, None))
            else:
                from portside.dataplane.compute.kubernetes.size_limits import check_nodes

                await check_nodes(api, objects(large))

        await target.close()

    assert not [call for call in cluster.calls if call[0] == "apply"]


def test_limits_are_read_from_the_environment() -> None:
    read = load_settings(KubernetesSettings, {"KUBERNETES_NAMESPACES": "agents", "KUBERNETES_MAX_CPU": "2.5"})
    assert read.kubernetes_max_cpu == 2.5
    with pytest.raises(UserMistake, match="KUBERNETES_MAX_SCALE"):
        load_settings(KubernetesSettings, {"KUBERNETES_NAMESPACES": "agents", "KUBERNETES_MAX_SCALE": "0"})
