"""A workspace names only what an operator labelled for it, and asks for no rights on the node.

Each way to name an object of the namespace is tried, and each way to reach the node.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest
from lightkube import KubeConfig
from lightkube.config.models import Cluster, User

from portside.control.types import Container, ContainerPort, Volume
from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.resources import read_resources
from portside.dataplane.compute.kubernetes.workspace_rules import (
    NamedObject,
    check_named_objects,
    check_release,
    list_named_objects,
)
from portside.dataplane.failures import DeployFailed
from tests.kubernetes import DEPLOYMENT_ID, FULL_SPEC, ApiServer, revision, settings
from tests.receiver import serve

WORKSPACE_ID = UUID(int=7)
ALL_VOLUMES = "configMap,downwardAPI,emptyDir,persistentVolumeClaim,projected,secret,nfs,csi"


def list_names(**spec: Any) -> list[tuple[str, str]]:
    """Kind and name of each object that a spec names."""
    fields = {**FULL_SPEC, **spec}
    named_objects = list_named_objects(revision(resource_spec=fields), read_resources(fields))
    return [(kind, name) for kind, name, _field in named_objects]


def check(*, secret_references: Any = (), kubernetes: Any = None, **spec: Any) -> None:
    fields = {**FULL_SPEC, **spec}
    one = revision(resource_spec=fields, secret_references=list(secret_references))
    check_release(one, read_resources(fields), kubernetes or settings())


def build_sidecar(**fields: Any) -> dict[str, Any]:
    return {"sidecars": [{"name": "proxy", "image": "proxy:1", **fields}]}


# A part of a spec, and what it names.
NAMES: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"service_account_name": "other"}, ("ServiceAccount", "other")),
    ({"image_pull_secrets": [{"name": "other"}]}, ("Secret", "other")),
    ({"volumes": [{"name": "v", "secret": {"secretName": "other"}}]}, ("Secret", "other")),
    ({"volumes": [{"name": "v", "configMap": {"name": "other"}}]}, ("ConfigMap", "other")),
    (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "other"}}]},
        ("PersistentVolumeClaim", "other"),
    ),
    ({"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "other"}}]}}]}, ("Secret", "other")),
    (
        {"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "other"}}]}}]},
        ("ConfigMap", "other"),
    ),
    (
        {"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "other"}}}]},
        ("Secret", "other"),
    ),
    (build_sidecar(envFrom=[{"secretRef": {"name": "other"}, "prefix": "P_"}]), ("Secret", "other")),
    (build_sidecar(envFrom=[{"configMapRef": {"name": "other"}}]), ("ConfigMap", "other")),
    (
        build_sidecar(
            env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k", "optional": True}}}]
        ),
        ("Secret", "other"),
    ),
    (
        build_sidecar(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "other", "key": "k"}}}]),
        ("ConfigMap", "other"),
    ),
]


@pytest.mark.parametrize(("spec", "expected"), NAMES)
def test_each_way_to_name_an_object_is_seen(spec: dict[str, Any], expected: tuple[str, str]) -> None:
    assert list_names(**spec) == [expected]


def test_containers_before_and_beside_the_server_are_seen_alike() -> None:
    (container,) = build_sidecar(envFrom=[{"secretRef": {"name": "other"}}])["sidecars"]
    assert list_names(init_containers=[container]) == [("Secret", "other")]


def test_references_of_the_server_are_seen() -> None:
    one = revision(secret_references=[{"name": "KEY", "secret_name": "other", "secret_key": "k"}])
    (named,) = list_named_objects(one, read_resources(FULL_SPEC))
    assert named == NamedObject("Secret", "other", "secret_references[0].secret_name")


def test_values_of_the_pod_itself_name_nothing() -> None:
    variables = [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]

    volumes = [{"name": "v", "emptyDir": {}}, {"name": "w", "downwardAPI": {"items": []}}]
    assert list_names(**build_sidecar(env=variables), volumes=volumes) == []
    check(**build_sidecar(env=variables), volumes=volumes)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            build_sidecar(env=[{"name": "A", "valueFrom": {"vaultRef": {"name": "x"}}}]),
            r"sidecars\[0\].env\[0\].valueFrom",
        ),
        (build_sidecar(envFrom=[{"vaultRef": {"name": "x"}}]), r"envFrom\[0\].vaultRef"),
        ({"volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {}}]}}]}, "podCertificate"),
        ({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}, "set it"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "../../kube-system/secrets/x"}}]}, "must be the name"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "x/../y"}}]}, "must be the name"),
        ({"volumes": [{"name": "v", "secret": {}}]}, "must be the name"),
        ({"volumes": [{"name": "v", "secret": {"secretName": ["x"]}}]}, "must be the name"),
        ({"volumes": [{"name": "v", "secret": "x"}]}, "must be an object"),
        (build_sidecar(env="x"), "must be a list"),
        ({"image_pull_secrets": [{"name": f"s{index}"} for index in range(201)]}, "more than 200"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath is not a kind"),
        ({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}, "KUBERNETES_VOLUMES"),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, "KUBERNETES_VOLUMES"),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, "ephemeral is not a kind"),
        (build_sidecar(volumeDevices=[{"name": "v", "devicePath": "/dev/x"}]), "volumeDevices is not a field"),
        ({"annotations": {"sidecar.istio.io/userVolume": "[]"}}, "KUBERNETES_ANNOTATIONS"),
        ({"annotations": {"nginx.ingress.kubernetes.io/auth-tls-secret": "x/y"}}, "KUBERNETES_ANNOTATIONS"),
        ({"labels": {"portside/workspace": "any"}}, "for a controller"),
    ],
)
def test_what_is_not_known_is_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(DeployFailed, match=field):
        check(**spec)


NODE_RIGHTS: list[dict[str, Any]] = [
    build_sidecar(securityContext={"privileged": True}),
    build_sidecar(securityContext={"allowPrivilegeEscalation": True}),
    build_sidecar(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    build_sidecar(securityContext={"capabilities": {"add": "SYS_ADMIN"}}),
    build_sidecar(securityContext={"capabilities": "all"}),
    build_sidecar(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    build_sidecar(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
    build_sidecar(securityContext={"procMount": "Unmasked"}),
    build_sidecar(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
    build_sidecar(securityContext={"windowsOptions": {"hostProcess": True}}),
    build_sidecar(ports=[{"containerPort": 80, "hostPort": 80}]),
    build_sidecar(startupProbe={"httpGet": {"host": "169.254.169.254", "port": 80}}),
    build_sidecar(lifecycle={"postStart": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}),
    build_sidecar(volumeMounts=[{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]),
    {"volume_mounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]},
]


@pytest.mark.parametrize("spec", NODE_RIGHTS)
def test_rights_on_the_node_are_the_operators_decision(spec: dict[str, Any]) -> None:
    with pytest.raises(DeployFailed, match="KUBERNETES_PRIVILEGED_CONTAINERS"):
        check(**spec)

    check(**spec, kubernetes=settings(kubernetes_privileged_containers=True))
    init_containers = spec.get("sidecars")
    if init_containers is not None:
        with pytest.raises(DeployFailed, match="init_containers"):
            check(init_containers=init_containers)


def test_ordinary_containers_pass() -> None:
    context = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }

    probe = {"httpGet": {"path": "/", "port": "proxy", "httpHeaders": [{"name": "Host", "value": "x"}]}}
    ports = [{"name": "proxy", "containerPort": 9000}]
    check(
        **build_sidecar(securityContext=context, ports=ports, startupProbe=probe, lifecycle={"preStop": {"sleep": {}}}),
        annotations={"note": "x", "prometheus.io/scrape": "true"},
        labels={"team": "blue"},
    )


def test_operator_may_allow_volumes_and_annotations() -> None:
    check(
        kubernetes=settings(kubernetes_volumes="nfs", kubernetes_annotations="example.com/*"),
        volumes=[{"name": "v", "nfs": {"server": "s", "path": "/"}}],
        annotations={"example.com/note": "x"},
    )

    # The labels by which the listener knows its own objects are nobody else's.
    with pytest.raises(DeployFailed, match="for a controller"):
        check(kubernetes=settings(kubernetes_annotations="*"), labels={"portside/workspace": "any"})


def test_every_field_of_the_api_is_known_to_the_rules() -> None:
    container = msgspec.to_builtins(Container("c", "i", ports=[ContainerPort(80)]))
    check(sidecars=[{name: value for name, value in container.items() if value is not None}])
    for name in sorted(container.keys() - {"name", "image"}):
        check(sidecars=[{"name": "c", "image": "i", name: None}])

    volume = msgspec.to_builtins(Volume("v"))
    assert set(ALL_VOLUMES.split(",")) == volume.keys() - {"name"}


@asynccontextmanager
async def open_cluster() -> AsyncIterator[KubernetesApi]:
    async with serve(ApiServer(OBJECTS)) as url:
        api = KubernetesApi(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="any")))
        yield api
        await api.close()


def build_object(name: str, labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "agents", "labels": labels or {}}, **fields}


OBJECTS = {
    "secrets/ours": build_object("ours", {"portside/workspace": str(WORKSPACE_ID)}),
    "secrets/everybodys": build_object("everybodys", {"portside/workspace": "any"}),
    "secrets/theirs": build_object("theirs", {"portside/workspace": str(UUID(int=8))}),
    "secrets/plain": build_object("plain"),
    "secrets/portside": build_object("portside"),
    "secrets/portside-listener": build_object("portside-listener"),
    "secrets/token": build_object("token", type="kubernetes.io/service-account-token"),
    "secrets/chart": build_object("chart", type="helm.sh/release.v1"),
    "secrets/hello-postgres": build_object(
        "hello-postgres",
        {
            "app.kubernetes.io/managed-by": "portside",
            "portside/deployment": str(DEPLOYMENT_ID),
            "portside/workspace": "any",
        },
    ),
    "secrets/of-a-listener": build_object(
        "of-a-listener", {"app.kubernetes.io/managed-by": "portside", "portside/workspace": "any"}
    ),
    "serviceaccounts/ours": build_object("ours", {"portside/workspace": str(WORKSPACE_ID)}),
    "configmaps/ours": build_object("ours", {"portside/workspace": str(WORKSPACE_ID)}),
    "persistentvolumeclaims/ours": build_object("ours", {"portside/workspace": str(WORKSPACE_ID)}),
}


async def find_refused(api: KubernetesApi, names: list[str], **changes: Any) -> set[str]:
    refused = set()
    for name in names:
        try:
            await check_named_objects(
                api, "agents", WORKSPACE_ID, [NamedObject("Secret", name, "the field")], settings(**changes)
            )
        except DeployFailed as exc:
            assert str(exc).startswith(f"the field: this workspace may not name the Secret {name} ")
            assert f"label secret {name} portside/workspace={WORKSPACE_ID}" in str(exc)
            refused.add(name)

    return refused


async def test_only_objects_with_the_label_of_the_workspace_may_be_named() -> None:
    names = [path.removeprefix("secrets/") for path in OBJECTS if path.startswith("secrets/")]
    async with open_cluster() as api:
        assert await find_refused(api, [*names, "missing"]) == {*names, "missing"} - {"ours", "everybodys"}
        for kind in ("ServiceAccount", "ConfigMap", "PersistentVolumeClaim"):
            await check_named_objects(api, "agents", WORKSPACE_ID, [NamedObject(kind, "ours", "f")], settings())


async def test_objects_of_others_may_never_be_named() -> None:
    names = [path.removeprefix("secrets/") for path in OBJECTS if path.startswith("secrets/")]
    async with open_cluster() as api:
        allowed = {"ours", "everybodys", "plain"}
        assert await find_refused(api, names, kubernetes_named_objects="all") == set(names) - allowed
