"""From a release to the objects of its cluster: every field is applied, and the objects match the published schemas."""

import base64
import dataclasses
import json
from typing import Any

import jsonschema
import msgspec
import pytest

from portside.control.resources import with_defaults
from portside.control.types import (
    Container,
    ContainerPort,
    EnvVar,
    LocalObjectReference,
    ResourceRequirements,
    ResourceSpec,
    Volume,
    VolumeMount,
)
from portside.dataplane.compute.kubernetes.environment import Passwords, hash_values
from portside.dataplane.compute.kubernetes.objects import COMPONENT, is_data, object_name
from portside.dataplane.compute.kubernetes.resources import Resources
from portside.dataplane.failures import DeployFailed
from portside.kernel.errors import UserMistake
from portside.listener_api import Scale, Secret
from tests.kubernetes import (
    DEPLOYMENT_ID,
    FULL_SPEC,
    PASSWORDS,
    assert_restricted,
    deployment,
    every,
    find_object,
    get_pod_spec,
    get_server,
    objects,
    revision,
    settings,
    validate,
    variables,
)

OLDEST = "1.30"
NEWEST = "1.37"

MOUNT = VolumeMount("cache", "/cache", "part", "None", read_only=True)
CONTAINER = Container(
    name="warm-up",
    image="busybox:1",
    image_pull_policy="IfNotPresent",
    command=["sh"],
    args=["-c", "true"],
    working_dir="/tmp",
    env=[EnvVar("A", "1"), EnvVar("B", value_from={"fieldRef": {"fieldPath": "metadata.name"}})],
    env_from=[{"configMapRef": {"name": "settings"}}],
    resources=ResourceRequirements({"cpu": "1"}, {"memory": "64Mi"}),
    volume_mounts=[MOUNT, VolumeMount("files", "/files", sub_path_expr="$(A)")],
    security_context={"runAsUser": 1000, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    restart_policy="Always",
    ports=[ContainerPort(9000, "metrics", "TCP", 9001, "127.0.0.1")],
    startup_probe={"httpGet": {"path": "/", "port": "metrics"}},
    readiness_probe={"tcpSocket": {"port": 9000}},
    liveness_probe={"exec": {"command": ["true"]}},
    lifecycle={"preStop": {"exec": {"command": ["true"]}}},
)
VOLUMES = [
    Volume("files", config_map={"name": "files"}),
    Volume("certificates", secret={"secretName": "certificates"}),
    Volume("cache", empty_dir={"sizeLimit": "1Gi"}),
    Volume("claim", persistent_volume_claim={"claimName": "claim"}),
    Volume("share", nfs={"server": "files.example", "path": "/"}),
    Volume("all", projected={"sources": [{"secret": {"name": "one"}}]}),
    Volume("about", downward_api={"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}),
    Volume("driver", csi={"driver": "csi.example"}),
]


def drop_nones(value: Any) -> Any:
    """A struct as the control plane sends it: without fields that are None."""
    if isinstance(value, dict):
        return {name: drop_nones(item) for name, item in value.items() if item is not None}
    return [drop_nones(item) for item in value] if isinstance(value, list) else value


def as_json(value: Any) -> Any:
    return drop_nones(msgspec.to_builtins(value))


def test_samples_fill_every_field_of_nested_types() -> None:
    filled = {kind: set() for kind in (Container, ContainerPort, EnvVar, ResourceRequirements, Volume, VolumeMount)}
    samples = [CONTAINER, *CONTAINER.env, CONTAINER.resources, *CONTAINER.ports, *VOLUMES, *CONTAINER.volume_mounts]
    for sample in samples:
        filled[type(sample)] |= {name for name in sample.__struct_fields__ if getattr(sample, name)}

    for kind, names in filled.items():
        assert names == set(kind.__struct_fields__), kind


# Field -> a value, where it must appear, and what must be there.
SCALARS: dict[str, tuple[Any, Any, Any]] = {
    "cpu": (0.3, lambda o: get_server(o)["resources"]["requests"]["cpu"], "300m"),
    "cpu_limit": (2.5, lambda o: get_server(o)["resources"]["limits"]["cpu"], "2500m"),
    "memory_mb": (300, lambda o: get_server(o)["resources"]["requests"]["memory"], "300Mi"),
    "memory_limit_mb": (700, lambda o: get_server(o)["resources"]["limits"]["memory"], "700Mi"),
    "queue_cpu": (3, lambda o: get_server(o, "-queue")["resources"]["requests"]["cpu"], "3000m"),
    "queue_cpu_limit": (5, lambda o: get_server(o, "-queue")["resources"]["limits"]["cpu"], "5000m"),
    "queue_memory_mb": (301, lambda o: get_server(o, "-queue")["resources"]["requests"]["memory"], "301Mi"),
    "queue_memory_limit_mb": (701, lambda o: get_server(o, "-queue")["resources"]["limits"]["memory"], "701Mi"),
    "min_scale": (3, lambda o: find_object(o, "Deployment")["spec"]["replicas"], 3),
    "max_scale": (7, lambda o: find_object(o, "HorizontalPodAutoscaler")["spec"]["maxReplicas"], 7),
    "queue_min_scale": (2, lambda o: find_object(o, "Deployment", "-queue")["spec"]["replicas"], 2),
    "queue_max_scale": (9, lambda o: find_object(o, "HorizontalPodAutoscaler", "-queue")["spec"]["maxReplicas"], 9),
    "orchestrator_cpu": (4, lambda o: get_server(o, "-orchestrator")["resources"]["requests"]["cpu"], "4000m"),
    "orchestrator_cpu_limit": (6, lambda o: get_server(o, "-orchestrator")["resources"]["limits"]["cpu"], "6000m"),
    "orchestrator_memory_mb": (
        302,
        lambda o: get_server(o, "-orchestrator")["resources"]["requests"]["memory"],
        "302Mi",
    ),
    "orchestrator_memory_limit_mb": (
        9000,
        lambda o: get_server(o, "-orchestrator")["resources"]["limits"]["memory"],
        "9000Mi",
    ),
    "orchestrator_min_scale": (2, lambda o: find_object(o, "Deployment", "-orchestrator")["spec"]["replicas"], 2),
    "orchestrator_max_scale": (
        3,
        lambda o: find_object(o, "HorizontalPodAutoscaler", "-orchestrator")["spec"]["maxReplicas"],
        3,
    ),
    "executor_cpu": (5, lambda o: get_server(o, "-executor")["resources"]["requests"]["cpu"], "5000m"),
    "executor_cpu_limit": (7, lambda o: get_server(o, "-executor")["resources"]["limits"]["cpu"], "7000m"),
    "executor_memory_mb": (303, lambda o: get_server(o, "-executor")["resources"]["requests"]["memory"], "303Mi"),
    "executor_memory_limit_mb": (9001, lambda o: get_server(o, "-executor")["resources"]["limits"]["memory"], "9001Mi"),
    "redis_cpu": (0.5, lambda o: store(o, "redis")["resources"]["requests"]["cpu"], "500m"),
    "redis_cpu_limit": (0.7, lambda o: store(o, "redis")["resources"]["limits"]["cpu"], "700m"),
    "redis_memory_mb": (128, lambda o: store(o, "redis")["resources"]["requests"]["memory"], "128Mi"),
    "redis_memory_limit_mb": (256, lambda o: store(o, "redis")["resources"]["limits"]["memory"], "256Mi"),
    "db_cpu": (1.5, lambda o: store(o, "postgres")["resources"]["requests"]["cpu"], "1500m"),
    "db_cpu_limit": (2.5, lambda o: store(o, "postgres")["resources"]["limits"]["cpu"], "2500m"),
    "db_memory_mb": (512, lambda o: store(o, "postgres")["resources"]["requests"]["memory"], "512Mi"),
    "db_memory_limit_mb": (513, lambda o: store(o, "postgres")["resources"]["limits"]["memory"], "513Mi"),
    "db_storage_gi": (33, lambda o: claim(o)["resources"]["requests"]["storage"], "33Gi"),
    "db_max_connections": (250, lambda o: store(o, "postgres")["args"][-1], "max_connections=250"),
    "service_account_name": ("agent", lambda o: get_pod_spec(o)["serviceAccountName"], "agent"),
    "image_pull_secrets": (
        as_json([LocalObjectReference("pull")]),
        lambda o: get_pod_spec(o)["imagePullSecrets"],
        [{"name": "pull"}],
    ),
    "volumes": (as_json(VOLUMES), lambda o: get_pod_spec(o)["volumes"], as_json(VOLUMES)),
    "volume_mounts": (as_json([MOUNT]), lambda o: get_server(o)["volumeMounts"], as_json([MOUNT])),
    "init_containers": (
        as_json([CONTAINER]),
        lambda o: get_pod_spec(o, "-queue")["initContainers"],
        as_json([CONTAINER]),
    ),
    "sidecars": (as_json([CONTAINER]), lambda o: get_pod_spec(o)["initContainers"], as_json([CONTAINER])),
    "labels": ({"team": "blue"}, lambda o: {one["metadata"]["labels"]["team"] for one in every(o)}, {"blue"}),
    "annotations": ({"note": "x"}, lambda o: {one["metadata"]["annotations"]["note"] for one in every(o)}, {"x"}),
}


def store(found: Any, component: str) -> dict[str, Any]:
    (container,) = find_object(found, "StatefulSet", f"-{component}")["spec"]["template"]["spec"]["containers"]
    return container


def claim(found: Any) -> dict[str, Any]:
    return find_object(found, "PersistentVolumeClaim", "-postgres")["spec"]


def validate_all(found: Any, *versions: str) -> None:
    for manifest in every(found):
        for version in versions or (NEWEST,):
            validate(manifest, version)


def test_every_resource_spec_field_is_applied() -> None:
    assert set(ResourceSpec.__struct_fields__) == set(SCALARS)
    assert set(Resources.__struct_fields__) == set(SCALARS)


@pytest.mark.parametrize("field", SCALARS)
def test_resource_spec_field_appears_in_valid_manifest(field: str) -> None:
    value, look, expected = SCALARS[field]
    extra = {"min_scale": {"max_scale": 5}}.get(field, {})
    complete = with_defaults({"executor_cpu": 1}) if field.startswith(("orchestrator_", "executor_")) else FULL_SPEC
    found = objects(revision(resource_spec={**complete, **extra, field: value}))
    assert look(found) == expected
    validate_all(found)


@pytest.mark.parametrize("has_executors", [False, True])
def test_full_spec_is_valid_on_oldest_and_newest_cluster(*, has_executors: bool) -> None:
    spec: dict[str, Any] = {**FULL_SPEC, **{name: value for name, (value, _, _) in SCALARS.items()}}
    if not has_executors:
        spec = {name: value for name, value in spec.items() if not name.startswith(("orchestrator_", "executor_"))}

    spec["sidecars"] = as_json([msgspec.structs.replace(CONTAINER, name="proxy", restart_policy=None)])
    everything = settings(
        kubernetes_ingress_url="https://*.agents.example.com",
        kubernetes_ingress_class="nginx",
        kubernetes_ingress_tls_secret="tls",
        kubernetes_storage_class="fast",
        kubernetes_pending_runs_metric="portside_pending_runs",
    )

    references = [{"name": "KEY", "secret_name": "keys", "secret_key": "openai"}]
    found = objects(revision(resource_spec=spec, secret_references=references), everything)
    assert {manifest["kind"] for manifest in every(found)} == {
        "Secret",
        "PersistentVolumeClaim",
        "Service",
        "NetworkPolicy",
        "StatefulSet",
        "Deployment",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "Ingress",
    }

    validate_all(found, OLDEST, NEWEST)


def test_schemas_refuse_invalid_manifest() -> None:
    found = objects(revision(resource_spec={**FULL_SPEC, "volumes": [{"name": "x", "emptyDirectory": {}}]}))
    with pytest.raises(jsonschema.ValidationError):
        validate_all(found)


def test_pod_matches_contract() -> None:
    server = get_server(objects())
    api = find_object(objects(), "Deployment")
    assert [port["containerPort"] for port in server["ports"]] == [8000]

    # A restart does not bring a lost database back, so only readiness asks for it.
    probes = {"livenessProbe": "/ok?check_db=0", "startupProbe": "/ok?check_db=0", "readinessProbe": "/ok"}
    for probe, path in probes.items():
        assert server[probe]["httpGet"] == {"path": path, "port": "http"}

    for probe in ("livenessProbe", "readinessProbe"):
        found = server[probe]
        assert (found["periodSeconds"], found["timeoutSeconds"], found["failureThreshold"]) == (15, 5, 6)

    assert api["spec"]["revisionHistoryLimit"] == 10
    assert api["spec"]["progressDeadlineSeconds"] == 300
    assert find_object(objects(), "Deployment", "-queue")["spec"]["progressDeadlineSeconds"] == 600

    # An old replica terminates only after a new one serves, and has a grace period.
    assert api["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = get_pod_spec(objects())
    assert pod["terminationGracePeriodSeconds"] > 180
    assert server["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"], "requests still arrive for a moment"

    # A slow start has as much time as the queue's pods may take, and pods are spread where that is possible.
    assert (server["startupProbe"]["periodSeconds"], server["startupProbe"]["failureThreshold"]) == (2, 300)
    assert pod["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"

    # What the namespace has else is no variable of agents, and running pods keep the variables of their start.
    assert pod["enableServiceLinks"] is False
    name = server["envFrom"][0]["secretRef"]["name"]
    (secret,) = [one for one in objects().of_kind("Secret") if one["metadata"]["name"] == name]
    assert secret["immutable"] is True


SIDECARS = {
    **FULL_SPEC,
    "sidecars": [{"name": "cache", "image": "cache:1", "securityContext": {"runAsUser": 5}}],
    "init_containers": [{"name": "prepare", "image": "prepare:1"}],
}


def test_every_pod_keeps_to_pod_security_restricted() -> None:
    found = objects(revision(resource_spec=SIDECARS))
    for manifest in (*found.of_kind("Deployment"), *found.of_kind("StatefulSet")):
        assert_restricted(manifest["spec"]["template"]["spec"])

    # What the user said of a container is kept.
    (sidecar,) = [one for one in get_pod_spec(found)["containers"] if one["name"] == "cache"]
    assert sidecar["securityContext"]["runAsUser"] == 5


def test_stores_may_not_write_to_their_images() -> None:
    found = objects()
    for name_end, places in (("-postgres", {"/tmp", "/var/run/postgresql"}), ("-redis", {"/tmp"})):
        (container,) = find_object(found, "StatefulSet", name_end)["spec"]["template"]["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        # A busy node does not take the only pod away from behind its Service.
        assert container["readinessProbe"]["failureThreshold"] == 6
        assert places <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_pods_reach_the_api_server_only_with_a_service_account_of_their_own() -> None:
    for account in (None, "agent"):
        found = objects(revision(resource_spec={**FULL_SPEC, "service_account_name": account}))
        for manifest in (*found.of_kind("Deployment"), *found.of_kind("StatefulSet")):
            has_account = account is not None and manifest["kind"] == "Deployment"
            pod = manifest["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is has_account, manifest["metadata"]["name"]


@pytest.mark.parametrize(("component", "port"), [("postgres", 5432), ("redis", 6379)])
def test_only_the_servers_of_a_deployment_reach_its_stores(component: str, port: int) -> None:
    found = objects(revision(resource_spec=with_defaults({"executor_cpu": 1})))
    policy = find_object(found, "NetworkPolicy", f"-{component}")["spec"]
    pods = find_object(found, "StatefulSet", f"-{component}")["spec"]["template"]["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["podSelector"]["matchLabels"].items() <= pods.items()

    # Neither other deployments of the namespace, nor executors, which run the project's code.
    (admitted,) = policy["ingress"]
    (source,) = admitted["from"]
    assert admitted["ports"] == [{"protocol": "TCP", "port": port}]
    assert source == {
        "podSelector": {
            "matchLabels": {"portside/deployment": str(DEPLOYMENT_ID)},
            "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": ["api", "queue", "orchestrator"]}],
        }
    }


def test_only_executors_of_a_deployment_reach_its_orchestrators() -> None:
    found = objects(revision(resource_spec=with_defaults({"executor_cpu": 1})))
    policy = find_object(found, "NetworkPolicy", "-orchestrator")["spec"]
    executors = find_object(found, "Deployment", "-executor")["spec"]["selector"]
    assert executors["matchLabels"]["portside/deployment"] == str(DEPLOYMENT_ID)
    assert policy["podSelector"] == find_object(found, "Deployment", "-orchestrator")["spec"]["selector"]

    of_executors, of_everybody = policy["ingress"]
    assert of_executors["from"] == [{"podSelector": executors}]
    assert [port["port"] for port in of_executors["ports"]] == [50054]
    assert [port["port"] for port in of_everybody["ports"]] == [8000]


def test_one_of_several_replicas_stays_during_maintenance() -> None:
    """A budget for a single replica would keep its node from being drained for ever."""
    spec = with_defaults({"min_scale": 1, "max_scale": 5, "queue_min_scale": 2, "queue_max_scale": 5})
    found = objects(revision(resource_spec=spec))
    (budget,) = found.of_kind("PodDisruptionBudget")
    assert budget["metadata"]["name"] == f"{found.scope.name}-queue"
    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"] == find_object(found, "Deployment", "-queue")["spec"]["selector"]


def test_what_a_user_says_of_the_security_of_a_container_is_kept() -> None:
    """Which rights a container may have is asked before (`workspace_rules.py`), and by the namespace."""
    own = {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}
    sidecar = {"name": "web", "image": "web:1", "securityContext": own}
    (container,) = get_pod_spec(objects(revision(resource_spec={**FULL_SPEC, "sidecars": [sidecar]})))["containers"][1:]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, **own}


def test_baseline_allows_images_that_run_as_root() -> None:
    found = objects(revision(resource_spec=SIDECARS), settings(kubernetes_pod_security="baseline"))
    pod = get_pod_spec(found)
    assert "securityContext" not in pod
    assert "securityContext" not in pod["initContainers"][0]
    assert get_server(found)["securityContext"]["allowPrivilegeEscalation"] is False


def test_cluster_with_users_of_its_own_is_told_none() -> None:
    found = objects(kubernetes=settings(kubernetes_arbitrary_uids=True))
    for manifest in found.of_kind("StatefulSet"):
        pod = manifest["spec"]["template"]["spec"]
        assert_restricted(pod)
        assert pod["securityContext"].keys().isdisjoint({"runAsUser", "runAsGroup", "fsGroup"})


def test_server_with_read_only_root_has_tmp_of_its_own() -> None:
    read_only = settings(kubernetes_read_only_root=True)
    mount = {"name": "portside-tmp", "mountPath": "/tmp"}
    found = objects(kubernetes=read_only)
    validate_all(found)
    assert get_server(found)["securityContext"]["readOnlyRootFilesystem"] is True
    assert mount in get_server(found)["volumeMounts"]
    assert {"name": "portside-tmp", "emptyDir": {}} in get_pod_spec(found)["volumes"]

    users = {**FULL_SPEC, "volumes": [{"name": "x", "emptyDir": {}}]}
    users["volume_mounts"] = [{"name": "x", "mountPath": "/tmp/"}]
    assert get_server(objects(revision(resource_spec=users), read_only))["volumeMounts"] == users["volume_mounts"]


def test_images_are_pulled_with_secrets_of_listener() -> None:
    spec = {**FULL_SPEC, "image_pull_secrets": [{"name": "mine"}]}
    found = objects(revision(resource_spec=spec), settings(kubernetes_image_pull_secrets="one, two"))
    both = [{"name": "one"}, {"name": "two"}]
    assert get_pod_spec(found)["imagePullSecrets"] == [{"name": "mine"}, *both]
    for manifest in found.of_kind("StatefulSet"):
        assert manifest["spec"]["template"]["spec"]["imagePullSecrets"] == both


def test_proxies_never_stand_before_services_of_cluster() -> None:
    through = settings(kubernetes_https_proxy="http://proxy.example:3128", kubernetes_no_proxy=".example.com")
    found = variables(objects(kubernetes=through))
    assert found["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert "HTTP_PROXY" not in found
    assert found["NO_PROXY"] == "localhost,127.0.0.1,::1,.svc,.cluster.local,.example.com"

    own = revision(secrets=[Secret("HTTPS_PROXY", "http://mine.example:1")])
    assert variables(objects(own, through))["HTTPS_PROXY"] == "http://mine.example:1"
    assert "NO_PROXY" not in variables(objects())


def test_servers_listen_on_every_address_of_cluster_with_ipv6() -> None:
    spec = {**FULL_SPEC, "orchestrator_min_scale": 1, "orchestrator_max_scale": 1}
    found = objects(revision(resource_spec=spec), settings(kubernetes_listen_address="::"))
    assert variables(found)["GRAPH_SERVER_HOST"] == "::"
    assert variables(found, "-orchestrator")["CORE_API_HOST"] == "::"


def test_server_environment_is_complete() -> None:
    found = objects()
    api = variables(found)
    queue = variables(found, "-queue")
    assert (api["PORTSIDE_TIER"], queue["PORTSIDE_TIER"]) == ("api", "queue")
    assert api["PORT"] == "8000"
    assert api["TOKEN"] == "s3cr3t"
    assert api["DATABASE_URI"] == api["POSTGRES_URI"]

    assert api["DATABASE_URI"] == f"postgresql://portside:postgres-password@{found.scope.name}-postgres:5432/portside"
    assert api["REDIS_URI"] == f"redis://:redis-password@{found.scope.name}-redis:6379/0"
    assert api["LANGSMITH_PROJECT"] == "Hello World"

    # A loopback address of the platform's machine would lead a pod to itself.
    assert api["LANGSMITH_ENDPOINT"] == "http://platform.example:8700"
    assert api["LANGSMITH_AUTH_ENDPOINT"] == "http://platform.example:8700/v2/deployments/1"


def test_secret_values_appear_only_in_secrets() -> None:
    found = objects()
    for manifest in every(found):
        if manifest["kind"] != "Secret":
            text = msgspec.json.encode(manifest).decode()
            assert not [secret for secret in ("s3cr3t", PASSWORDS.postgres, PASSWORDS.redis) if secret in text]

    assert "password" not in repr(PASSWORDS)


def test_changed_values_make_another_secret() -> None:
    def name(value: str) -> str:
        return get_server(objects(revision(secrets=[Secret("TOKEN", value)])))["envFrom"][0]["secretRef"]["name"]

    assert name("one") == name("one")
    assert name("one") != name("two")


@pytest.mark.parametrize("name", ["DATABASE_URI", "POSTGRES_URI", "PORTSIDE_TIER"])
def test_a_reference_replaces_no_variable_of_the_listener(name: str) -> None:
    reference = {"name": name, "secret_name": "keys", "secret_key": "mine"}
    assert variables(objects(revision(secret_references=[reference])))[name] == variables(objects())[name]


def test_names_of_secrets_say_nothing_of_their_values() -> None:
    """Whoever may list Secrets could try values otherwise until the name is the same."""
    values = {"TOKEN": "1234"}
    assert hash_values(values, PASSWORDS) == hash_values(dict(values), PASSWORDS)
    assert hash_values(values, PASSWORDS) != hash_values(values, Passwords("another", PASSWORDS.redis))


@pytest.mark.parametrize(("asked", "given"), [("20", "20"), ("-5", "0"), ("86400", "3600"), ("soon", "180")])
def test_the_time_that_runs_have_at_the_end_of_their_pod_is_bounded(asked: str, given: str) -> None:
    found = objects(revision(secrets=[Secret("BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS", asked)]))
    assert variables(found)["BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS"] == given
    assert get_pod_spec(found)["terminationGracePeriodSeconds"] == int(given) + 35


def test_redis_keeps_a_quarter_of_its_memory_for_what_it_does_not_count() -> None:
    for limit_mb, counted_mb in ((None, 96), (256, 192)):
        found = objects(
            revision(resource_spec={**FULL_SPEC, "redis_memory_mb": 128, "redis_memory_limit_mb": limit_mb})
        )
        configuration = base64.b64decode(find_object(found, "Secret", "-redis")["data"]["redis.conf"]).decode()
        assert f"maxmemory {counted_mb * 2**20}\n" in configuration
        assert f"requirepass {PASSWORDS.redis}\n" in configuration


def test_secret_references_become_variables() -> None:
    references = [
        {"name": "KEY", "secret_name": "keys", "secret_key": "openai"},
        {"name": "POSTGRES_URI_CUSTOM", "secret_name": "stores", "secret_key": "postgres"},
        {"name": "PORT", "secret_name": "keys", "secret_key": "port"},
    ]

    found = objects(revision(secret_references=references))
    api = variables(found)
    assert api["KEY"] == {"secretKeyRef": {"name": "keys", "key": "openai"}}
    assert api["DATABASE_URI"] == {"secretKeyRef": {"name": "stores", "key": "postgres"}}
    assert api["PORT"] == "8000"
    assert not [one for one in found.stores if one["metadata"]["name"].endswith("-postgres")]
    validate_all(found)


def test_custom_stores_replace_own_ones() -> None:
    secrets = [
        Secret("POSTGRES_URI_CUSTOM", "postgresql://elsewhere/db"),
        Secret("REDIS_URI_CUSTOM", "redis://elsewhere"),
    ]

    found = objects(revision(secrets=secrets))
    assert found.stores == []
    assert variables(found)["DATABASE_URI"] == "postgresql://elsewhere/db"
    assert variables(found)["REDIS_URI"] == "redis://elsewhere"


def test_without_redis_pods_have_no_redis_url() -> None:
    found = objects(kubernetes=settings(kubernetes_redis=False))
    assert "REDIS_URI" not in variables(found)
    assert {one["metadata"]["name"] for one in found.of_kind("StatefulSet")} == {f"{found.scope.name}-postgres"}


def test_owner_scale_overrides_revision() -> None:
    found = objects(scale=Scale(min_scale=2, queue_max_scale=0, queue_min_scale=0))
    assert find_object(found, "Deployment")["spec"]["replicas"] == 2
    assert len(found.of_kind("Deployment")) == 1


def test_queue_without_replicas_runs_in_api() -> None:
    found = objects(revision(resource_spec={**FULL_SPEC, "queue_min_scale": 0, "queue_max_scale": 0}))
    assert len(found.of_kind("Deployment")) == 1
    assert variables(found)["PORTSIDE_TIER"] == "all"


def test_executors_find_their_orchestrators_and_have_no_database() -> None:
    secrets = [Secret("TOKEN", "s3cr3t"), Secret("LANGGRAPH_AES_KEY", "k" * 16), Secret("EXECUTORS", "2")]
    references = [
        {"name": "KEY", "secret_name": "keys", "secret_key": "openai"},
        {"name": "LANGGRAPH_AES_JSON_KEYS", "secret_name": "keys", "secret_key": "names"},
    ]

    spec = with_defaults({"executor_cpu": 2, "queue_max_scale": 5})
    given = revision(resource_spec=spec, secrets=secrets, secret_references=references)
    found = objects(given, settings(kubernetes_pending_runs_metric="pending"))
    names = {one["metadata"]["name"].removeprefix(found.scope.name) for one in found.of_kind("Deployment")}
    assert names == {"", "-orchestrator", "-executor"}
    orchestrator = variables(found, "-orchestrator")
    executor = variables(found, "-executor")

    assert (orchestrator["PORTSIDE_TIER"], orchestrator["FF_USE_CORE_API"]) == ("queue", "true")
    assert (orchestrator["EXECUTORS"], executor["EXECUTORS"]) == ("0", "2")
    assert (executor["PORTSIDE_TIER"], executor["TOKEN"]) == ("executor", "s3cr3t")
    assert executor["CORE_API"] == f"{found.scope.name}-orchestrator:{orchestrator['CORE_API_PORT']}"
    assert executor["CORE_API_KEY"] == orchestrator["CORE_API_KEY"]
    assert len(executor["CORE_API_KEY"]) >= 32
    of_stores = {"DATABASE_URI", "POSTGRES_URI", "REDIS_URI", "LANGGRAPH_AES_KEY", "LANGGRAPH_AES_JSON_KEYS"}
    assert of_stores <= orchestrator.keys()

    assert not of_stores & executor.keys()
    service = find_object(found, "Service", "-orchestrator")["spec"]
    assert (service["clusterIP"], service["ports"][0]["port"]) == ("None", int(orchestrator["CORE_API_PORT"]))
    assert {"name": "grpc", "containerPort": 50054, "protocol": "TCP"} in get_server(found, "-orchestrator")["ports"]

    # The runs that wait ask for executors: an orchestrator takes as many as they have slots.
    scaler = find_object(found, "HorizontalPodAutoscaler", "-executor")["spec"]
    assert (scaler["maxReplicas"], [one["type"] for one in scaler["metrics"]][-1]) == (5, "External")
    assert get_server(found, "-executor")["livenessProbe"]["httpGet"]["path"] == "/info"
    validate_all(found, OLDEST, NEWEST)


def test_autoscaling_targets_match_contract() -> None:
    found = objects(
        revision(resource_spec=with_defaults({"max_scale": 10})), settings(kubernetes_pending_runs_metric="pending")
    )
    queue = find_object(found, "HorizontalPodAutoscaler", "-queue")["spec"]["metrics"]
    # A sidecar without requests must not stop the scaling, so only the server's container is measured.
    measured = [one["containerResource"] for one in queue if one["type"] == "ContainerResource"]
    assert {one["container"] for one in measured} == {"api-server"}
    assert {one["name"]: one["target"]["averageUtilization"] for one in measured} == {"cpu": 75, "memory": 75}
    (pending,) = [one["external"] for one in queue if one["type"] == "External"]
    assert pending["target"] == {"type": "AverageValue", "averageValue": "10"}

    api = find_object(found, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert {one["type"] for one in api} == {"ContainerResource"}


def test_cloudnative_pg_runs_the_database_behind_the_same_address() -> None:
    plain = objects()
    found = objects(kubernetes=settings(kubernetes_postgres_object_store="backups"), has_operator=True)
    name = f"{found.scope.name}-postgres"
    assert variables(found)["DATABASE_URI"] == variables(plain)["DATABASE_URI"]
    assert {one["metadata"]["name"] for one in found.of_kind("StatefulSet")} == {f"{found.scope.name}-redis"}
    assert found.of_kind("PersistentVolumeClaim") == []

    (cluster,) = found.of_kind("Cluster")
    assert cluster["spec"]["bootstrap"]["initdb"]["secret"] == {"name": name}
    assert cluster["spec"]["storage"]["size"] == "10Gi"
    assert cluster["spec"]["enableSuperuserAccess"] is False
    assert cluster["spec"]["enablePDB"] is False, "one instance alone would keep its node from being drained"
    several = objects(kubernetes=settings(kubernetes_postgres_instances=3), has_operator=True)
    assert several.of_kind("Cluster")[0]["spec"]["enablePDB"] is True
    assert cluster["spec"]["plugins"][0]["parameters"] == {"barmanObjectName": "backups"}
    assert found.of_kind("ScheduledBackup")[0]["spec"]["cluster"] == {"name": name}

    # A deployment's data is only deleted with the deployment.
    assert is_data(cluster)
    assert find_object(found, "Service", "-postgres")["spec"]["selector"]["cnpg.io/cluster"] == name
    secret = find_object(found, "Secret", "-postgres")
    assert (secret["type"], sorted(secret["data"])) == ("kubernetes.io/basic-auth", ["password", "username"])

    # The operator and the other instances reach the instance manager; servers of the deployment only the database.
    servers, instances, operator = find_object(found, "NetworkPolicy", "-postgres")["spec"]["ingress"]
    assert [port["port"] for port in servers["ports"]] == [5432]
    assert [port["port"] for port in operator["ports"]] == [port["port"] for port in instances["ports"]] == [5432, 8000]


def test_keda_scales_what_executes_runs_in_place_of_the_autoscaler() -> None:
    spec = with_defaults({"min_scale": 2, "max_scale": 10})
    found = objects(revision(resource_spec=spec), settings(kubernetes_keda=True, kubernetes_pending_runs_metric="m"))
    (scaled,) = found.of_kind("ScaledObject")
    assert scaled["metadata"]["name"] == f"{found.scope.name}-queue"
    runs, *measured = scaled["spec"]["triggers"]
    assert runs == {
        "type": "metrics-api",
        "metricType": "AverageValue",
        "metadata": {
            "url": f"{found.address.service}/metrics?format=json",
            "format": "json",
            "valueLocation": "queue.n_pending",
            "targetValue": "10",
        },
    }

    assert [(one["type"], one["metadata"]["containerName"]) for one in measured] == [
        ("cpu", "api-server"),
        ("memory", "api-server"),
    ]

    # Two autoscalers of one Deployment would work against each other.
    assert [one["metadata"]["name"] for one in found.of_kind("HorizontalPodAutoscaler")] == [found.scope.name]
    assert found.bounds == {found.scope.name: (2, 10), f"{found.scope.name}-queue": (2, 10)}


@pytest.mark.parametrize(
    ("pattern", "url", "path"),
    [
        ("https://*.agents.example.com", "https://hello-world-00000000abcd.agents.example.com", ""),
        (
            "https://example.com/agents/",
            "https://example.com/agents/hello-world-00000000abcd",
            "/agents/hello-world-00000000abcd",
        ),
    ],
)
def test_ingress_url_pattern_gives_each_deployment_an_address(pattern: str, url: str, path: str) -> None:
    found = objects(kubernetes=settings(kubernetes_ingress_url=pattern))
    (rule,) = find_object(found, "Ingress")["spec"]["rules"]
    assert found.address.url == url
    assert url.removeprefix("https://").split("/")[0] == rule["host"]
    assert rule["http"]["paths"][0]["path"] == (path or "/")
    assert variables(found).get("MOUNT_PREFIX", "") == path
    validate_all(found)


def test_custom_url_is_kept() -> None:
    found = objects(
        kubernetes=settings(kubernetes_ingress_url="https://*.agents.example.com"),
        custom_url="https://chat.example.com/v1",
    )

    (rule,) = find_object(found, "Ingress")["spec"]["rules"]
    assert (rule["host"], found.address.url) == ("chat.example.com", "https://chat.example.com/v1")
    assert variables(found)["MOUNT_PREFIX"] == "/v1"


def test_address_at_a_gateway_is_a_route_and_no_ingress() -> None:
    gateways = '[{"name": "public", "namespace": "gateways"}]'
    found = objects(
        kubernetes=settings(kubernetes_ingress_url="https://example.com/agents", kubernetes_gateways=gateways)
    )
    (route,) = found.of_kind("HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert route["spec"]["parentRefs"] == [{"name": "public", "namespace": "gateways"}]
    assert route["spec"]["hostnames"] == ["example.com"]
    assert rule["matches"][0]["path"] == {"type": "PathPrefix", "value": variables(found)["MOUNT_PREFIX"]}
    assert rule["backendRefs"] == [{"name": found.scope.name, "port": 8000}]
    assert found.of_kind("Ingress") == []


def test_operator_chooses_nodes_and_priority_of_every_pod() -> None:
    tolerations = [{"key": "pool", "operator": "Equal", "value": "agents", "effect": "NoSchedule"}]
    pool = settings(
        kubernetes_node_selector='{"pool": "agents"}',
        kubernetes_tolerations=json.dumps(tolerations),
        kubernetes_priority_class="low",
    )
    found = objects(kubernetes=pool)
    validate_all(found)
    workloads = [*found.of_kind("Deployment"), *found.of_kind("StatefulSet")]
    assert {manifest["metadata"]["labels"][COMPONENT] for manifest in workloads} >= {"api", "postgres", "redis"}
    for manifest in workloads:
        pod = manifest["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == {"pool": "agents"}, manifest["metadata"]["name"]
        assert (pod["tolerations"], pod["priorityClassName"]) == (tolerations, "low")

    (cluster,) = objects(kubernetes=pool, has_operator=True).of_kind("Cluster")
    assert cluster["spec"]["affinity"] == {"nodeSelector": {"pool": "agents"}, "tolerations": tolerations}
    assert cluster["spec"]["priorityClassName"] == "low"


@pytest.mark.parametrize("text", ["pool=agents", '["pool"]', '{"pool": 1}'])
def test_setting_that_is_not_the_json_it_should_be_is_named(text: str) -> None:
    with pytest.raises(UserMistake, match="KUBERNETES_NODE_SELECTOR"):
        _ = settings(kubernetes_node_selector=text).scheduling


def test_deployment_gets_a_public_address_once_there_are_ingresses() -> None:
    """The address in the cluster, which it had until then, is none of its own."""
    found = objects(
        kubernetes=settings(kubernetes_ingress_url="https://*.agents.example.com"), custom_url=objects().address.url
    )
    assert found.address.url == "https://hello-world-00000000abcd.agents.example.com"


def test_service_is_the_address_without_ingress() -> None:
    found = objects(custom_url="http://hello-world-00000000abcd.agents.svc.cluster.local:8000")
    assert found.of_kind("Ingress") == []
    assert found.address.url == "http://hello-world-00000000abcd.agents.svc.cluster.local:8000"


def test_restarting_sidecar_is_an_init_container() -> None:
    native, plain = (
        as_json(msgspec.structs.replace(CONTAINER, name=name, restart_policy=policy))
        for name, policy in (("proxy", "Always"), ("shipper", None))
    )

    first = as_json(msgspec.structs.replace(CONTAINER, name="first", restart_policy=None))
    pod = get_pod_spec(
        objects(revision(resource_spec={**FULL_SPEC, "sidecars": [native, plain], "init_containers": [first]}))
    )
    assert [one["name"] for one in pod["initContainers"]] == ["proxy", "first"]
    assert [one["name"] for one in pod["containers"]] == ["api-server", "shipper"]


def test_user_labels_never_replace_owner_labels() -> None:
    spec = {**FULL_SPEC, "labels": {"portside/deployment": "another", "app.kubernetes.io/managed-by": "me"}}
    for manifest in every(objects(revision(resource_spec=spec))):
        assert manifest["metadata"]["labels"]["portside/deployment"] == str(DEPLOYMENT_ID)
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "portside"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"image_uri": None}, "names no image"),
        ({"resource_spec": {**FULL_SPEC, "sidecars": [{"name": "api-server", "image": "x"}]}}, "taken by the server"),
        ({"resource_spec": {**FULL_SPEC, "cpu": "much"}}, "resource_spec"),
    ],
)
def test_invalid_release_fails_with_reason(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(DeployFailed, match=expected):
        objects(revision(**changes))


def test_unlisted_namespace_is_refused() -> None:
    assert objects(k8s_namespace="more-agents").scope.namespace == "more-agents"
    assert objects().scope.namespace == "agents"
    with pytest.raises(DeployFailed, match="agents, more-agents, not to kube-system"):
        objects(k8s_namespace="kube-system")


@pytest.mark.parametrize("name", ["Hello World", "42", "---", "Ünïcode ✓", "a" * 200, "x" * 23 + "--y"])
def test_names_are_dns_labels_with_room_for_suffixes(name: str) -> None:
    found = object_name(name, DEPLOYMENT_ID)
    assert len(found) <= 37

    for manifest in every(objects(revision(), name=name)):
        # The label that a StatefulSet gives its pods is its name and eleven characters.
        assert len(manifest["metadata"]["name"]) <= (52 if manifest["kind"] == "StatefulSet" else 63)

    assert found[0].isalpha()
    assert found.replace("-", "").isalnum()
    assert found.isascii()
    assert "--" not in found


def test_same_release_gives_same_objects() -> None:
    assert dataclasses.asdict(objects()) == dataclasses.asdict(objects())
    assert deployment(revision()) == deployment(revision())
