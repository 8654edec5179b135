"""From a release to all objects of its deployment on the cluster. Pure: the same release gives the same objects.

The objects are applied in two steps: the stores first, then the servers, which need them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.cloudnative_pg import build_cloudnative_pg
from portside.dataplane.compute.kubernetes.environment import (
    CUSTOM_POSTGRES,
    CUSTOM_REDIS,
    Passwords,
    PodEnvironment,
    build_container_environment,
    build_secret_environment,
    derive_core_api_key,
    encode_values,
    has_own,
    hash_values,
    postgres_url,
    read_grace,
    redis_url,
    without_stores,
)
from portside.dataplane.compute.kubernetes.objects import (
    API_PORT,
    CORE_API_PORT,
    REVISION,
    Address,
    Json,
    KubernetesScope,
    build_address,
    object_name,
)
from portside.dataplane.compute.kubernetes.resources import Resources, build_container_resources, read_resources
from portside.dataplane.compute.kubernetes.security import (
    ALIVE_PATH,
    TMP_MOUNT,
    TMP_VOLUME,
    build_container_security,
    build_probe,
)
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.compute.kubernetes.stores import build_postgres, build_redis, store_name
from portside.dataplane.compute.scaling import ServerTier
from portside.dataplane.failures import DeployFailed
from portside.dataplane.settings import ListenerSettings
from portside.listener_api import DesiredDeployment, DesiredRevision

CONTAINER = "api-server"
# Requests still arrive for a moment after a pod began to terminate, until every node knows.
_PRE_STOP_S = 5
_MARGIN_S = 30
_STARTUP_PERIOD_S = 2
# The documented targets of autoscaling: 75 % of the CPU, and 10 pending runs for each replica.
TARGET_UTILIZATION = 75
TARGET_PENDING = 10
_BEHAVIOR = {"scaleDown": {"stabilizationWindowSeconds": 1800}}
_KEDA_POLL_S = 15
_POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
# Another name than that of a volume that a user may have.
_SERVER_TMP_VOLUME = {**TMP_VOLUME, "name": "portside-tmp"}
_SERVER_TMP_MOUNT = {**TMP_MOUNT, "name": "portside-tmp"}
# An orchestrator takes as many runs as its executors have slots, so those are scaled by the runs that wait.
_SCALED_BY_RUNS = frozenset({"queue", "executor"})


@dataclass(frozen=True)
class ClusterSettings:
    """The settings that apply to deployments on a cluster."""

    listener: ListenerSettings
    kubernetes: KubernetesSettings

    @property
    def limits(self) -> Mapping[str, float]:
        """How many seconds the pods of each workload may take to become ready."""
        queue_limit_s = self.kubernetes.kubernetes_queue_timeout_s
        return {
            "api": self.listener.deployment_start_timeout_s,
            "queue": queue_limit_s,
            "orchestrator": queue_limit_s,
            "executor": queue_limit_s,
        }


@dataclass(frozen=True)
class Objects:
    """All objects of a deployment for one release."""

    scope: KubernetesScope
    address: Address
    # Not in the representation, because some of them are Secrets.
    stores: list[Json] = field(repr=False)
    servers: list[Json] = field(repr=False)

    @property
    def names(self) -> set[tuple[str, str]]:
        """Kind and name of each object."""
        return {(manifest["kind"], manifest["metadata"]["name"]) for manifest in (*self.stores, *self.servers)}

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """The minimum and the maximum number of replicas of each Deployment that an autoscaler scales, by its name."""
        scalers = {scaler["metadata"]["name"]: scaler["spec"] for scaler in self.of_kind("HorizontalPodAutoscaler")}
        scaled = {scaler["metadata"]["name"]: scaler["spec"] for scaler in self.of_kind("ScaledObject")}
        return {
            **{name: (spec["minReplicas"], spec["maxReplicas"]) for name, spec in scalers.items()},
            **{name: (spec["minReplicaCount"], spec["maxReplicaCount"]) for name, spec in scaled.items()},
        }

    def of_kind(self, kind: str) -> list[Json]:
        """Return the objects of a kind."""
        return [manifest for manifest in (*self.stores, *self.servers) if manifest["kind"] == kind]


def build_scope(deployment: DesiredDeployment, resources: Resources, settings: KubernetesSettings) -> KubernetesScope:
    """Return the names and labels of a deployment. Raises DeployFailed for a namespace that is not allowed."""
    namespace = deployment.k8s_namespace or settings.namespaces[0]
    if namespace not in settings.namespaces:
        raise DeployFailed(
            f"source_config.listener_config.k8s_namespace: this listener deploys to {', '.join(settings.namespaces)}, "
            f"not to {namespace}"
        )

    name = object_name(deployment.name, deployment.id)
    return KubernetesScope(deployment.id, name, namespace, resources.labels or {}, resources.annotations or {})


def build_objects(
    release: Release, cluster: ClusterSettings, passwords: Passwords, *, has_operator: bool = False
) -> Objects:
    """Return every object of the release's deployment. Raises DeployFailed for a release that cannot run.

    With `has_operator`, CloudNativePG runs the deployment's Postgres.
    """
    deployment = release.deployment
    revision = release.revision
    settings = cluster.kubernetes
    resources = read_resources(revision.resource_spec, deployment.scale)
    scope = build_scope(deployment, resources, settings)
    address = build_address(scope.name, scope.namespace, deployment.custom_url, settings)

    # None means that the user's own secret names the store.
    urls: dict[str, str | None] = {"postgres": None, "redis": None}
    stores: list[Json] = []
    if not has_own(revision, CUSTOM_POSTGRES):
        build_database = build_cloudnative_pg if has_operator else build_postgres
        stores += build_database(scope, resources, settings, passwords.postgres)
        urls["postgres"] = postgres_url(store_name(scope, "postgres"), passwords.postgres)

    if settings.kubernetes_redis and not has_own(revision, CUSTOM_REDIS):
        stores += build_redis(scope, resources, settings, passwords.redis)
        urls["redis"] = redis_url(store_name(scope, "redis"), passwords.redis)

    environment = PodEnvironment(
        address=address,
        database_url=urls["postgres"],
        redis_url=urls["redis"],
        platform_url=settings.kubernetes_platform_url or cluster.listener.control_plane_url,
        grace_s=read_grace(revision, cluster.listener.stop_grace_s),
        start_timeout_s=max(cluster.limits.values()),
        listen_address=settings.kubernetes_listen_address,
        proxies=settings.proxies,
    )

    values = build_secret_environment(deployment, revision, environment)
    if resources.has_executors:
        values["CORE_API_KEY"] = derive_core_api_key(passwords)

    secrets = [build_environment_secret(scope, values, passwords)]
    if resources.has_executors:
        # Executors run the project's code, which must not reach the stores.
        secrets.append(build_environment_secret(scope, without_stores(values), passwords, name="executor-env"))

    pods = PodContext(
        settings=settings,
        scope=scope,
        revision=revision,
        resources=resources,
        environment=environment,
        secret=secrets[0]["metadata"]["name"],
        executor_secret=secrets[-1]["metadata"]["name"],
    )

    servers = [
        *secrets,
        *build_entry_points(scope, address, settings),
        *(build_core_api(scope) if resources.has_executors else ()),
        *build_deployments(pods, cluster.limits),
        *build_scaling(scope, resources, address, settings),
    ]

    return Objects(scope=scope, address=address, stores=stores, servers=servers)


@dataclass(frozen=True)
class Workload:
    """One of the Deployments of servers."""

    component: str
    # The tier of its servers (PORTSIDE_TIER).
    tier: ServerTier
    # The minimum and the maximum number of its pods.
    scale: tuple[int, int]
    # The `resources` of the server's container.
    compute: Json


def list_workloads(resources: Resources) -> list[Workload]:
    """Return the API workload, and the queue workload when the queue has its own pods."""
    size = build_container_resources(resources.cpu, resources.cpu_limit, resources.memory_mb, resources.memory_limit_mb)
    scale = (resources.min_scale, max(resources.min_scale, resources.max_scale))
    if not resources.has_queue:
        return [Workload("api", ServerTier.ALL, scale, size)]

    api = Workload("api", ServerTier.API, scale, size)
    if resources.has_executors:
        return [api, *_list_executing_workloads(resources)]

    queue = build_container_resources(
        resources.queue_cpu, resources.queue_cpu_limit, resources.queue_memory_mb, resources.queue_memory_limit_mb
    )

    return [api, Workload("queue", ServerTier.QUEUE, resources.queue_replicas, queue)]


def _list_executing_workloads(resources: Resources) -> list[Workload]:
    """Return the workloads in place of the queue: orchestrators, which have no graphs, and their executors."""
    minimum = resources.orchestrator_min_scale or 1
    maximum = resources.orchestrator_max_scale or 1
    orchestrator = build_container_resources(
        resources.orchestrator_cpu,
        resources.orchestrator_cpu_limit,
        resources.orchestrator_memory_mb,
        resources.orchestrator_memory_limit_mb,
    )

    executor = build_container_resources(
        resources.executor_cpu,
        resources.executor_cpu_limit,
        resources.executor_memory_mb,
        resources.executor_memory_limit_mb,
    )

    return [
        Workload("orchestrator", ServerTier.QUEUE, (minimum, max(minimum, maximum)), orchestrator),
        Workload("executor", ServerTier.EXECUTOR, resources.queue_replicas, executor),
    ]


def workload_name(scope: KubernetesScope, component: str) -> str:
    """Return the name of a workload's Deployment; the API workload has the deployment's own name."""
    return scope.name if component == "api" else f"{scope.name}-{component}"


@dataclass(frozen=True)
class PodContext:
    """What the pods of all workloads share; `secret` and `executor_secret` name the Secrets with their variables."""

    settings: KubernetesSettings
    scope: KubernetesScope
    revision: DesiredRevision
    resources: Resources
    environment: PodEnvironment
    secret: str
    executor_secret: str

    @property
    def has_own_tmp(self) -> bool:
        """Whether the server's container gets a `/tmp` of its own, because it may write nowhere else."""
        mounts = self.resources.volume_mounts or []
        is_taken = any(str(mount.get("mountPath", "")).rstrip("/") == TMP_MOUNT["mountPath"] for mount in mounts)
        return self.settings.kubernetes_read_only_root and not is_taken


def build_environment_secret(
    scope: KubernetesScope, values: dict[str, str], passwords: Passwords, name: str = "env"
) -> Json:
    """Return the Secret with the variables of a revision's pods."""
    body = {"type": "Opaque", "immutable": True, "data": encode_values(values)}
    return scope.manifest("Secret", f"{scope.name}-{name}-{hash_values(values, passwords)}", "environment", body)


def build_core_api(scope: KubernetesScope) -> list[Json]:
    """Return the Service by which executors find every orchestrator, and the policy that admits nobody else to it."""
    port = {"name": "grpc", "port": CORE_API_PORT, "targetPort": "grpc", "protocol": "TCP"}
    name = workload_name(scope, "orchestrator")
    selector = scope.build_selector("orchestrator")

    # Without an address of its own, its name stands for the addresses of all pods, among which executors spread.
    service = {"clusterIP": "None", "selector": selector, "ports": [port]}
    executors = {"podSelector": {"matchLabels": scope.build_selector("executor")}}
    policy = {
        "podSelector": {"matchLabels": selector},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [executors], "ports": [{"protocol": "TCP", "port": CORE_API_PORT}]},
            {"ports": [{"protocol": "TCP", "port": API_PORT}]},
        ],
    }

    return [
        scope.manifest("Service", name, "orchestrator", {"spec": service}),
        scope.manifest("NetworkPolicy", name, "orchestrator", {"spec": policy}),
    ]


def build_deployments(pods: PodContext, limits: Mapping[str, float]) -> list[Json]:
    """Return the Deployment of each workload. `limits` is how many seconds each may take to become ready."""
    scope = pods.scope
    manifests = []
    for workload in list_workloads(pods.resources):
        component = workload.component
        spec = {
            "replicas": workload.scale[0],
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": round(limits[component]),
            "selector": {"matchLabels": scope.build_selector(component)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": build_pod_template(pods, workload),
        }

        manifest = scope.manifest("Deployment", workload_name(scope, component), component, {"spec": spec})
        manifest["metadata"]["labels"][REVISION] = str(pods.revision.id)
        manifests.append(manifest)

    return manifests


def build_pod_template(pods: PodContext, workload: Workload) -> Json:
    """Return the template of a workload's pods. Raises DeployFailed for a resource spec that no pod can have."""
    scope = pods.scope
    revision = pods.revision
    resources = pods.resources
    environment = pods.environment

    metadata: Json = {"labels": scope.build_labels(workload.component, revision.id)}
    if scope.annotations:
        metadata["annotations"] = dict(scope.annotations)

    is_restricted = pods.settings.kubernetes_pod_security == "restricted"
    sidecars = [_build_user_container(sidecar, is_restricted=is_restricted) for sidecar in resources.sidecars or []]
    init_containers = [
        _build_user_container(container, is_restricted=is_restricted) for container in resources.init_containers or []
    ]
    pull_secrets = [{"name": name} for name in pods.settings.image_pull_secrets]

    spec: Json = {
        # Kubernetes starts an init container with restartPolicy Always before the server and stops it after the server.
        "initContainers": [
            *(sidecar for sidecar in sidecars if sidecar.get("restartPolicy") == "Always"),
            *init_containers,
        ],
        "containers": [
            _build_server_container(pods, workload),
            *(sidecar for sidecar in sidecars if sidecar.get("restartPolicy") != "Always"),
        ],
        "volumes": [*(resources.volumes or []), *([_SERVER_TMP_VOLUME] if pods.has_own_tmp else [])],
        "imagePullSecrets": [*(resources.image_pull_secrets or []), *pull_secrets],
        # A container's own context comes first, so a sidecar may say otherwise where the namespace allows it.
        "securityContext": _POD_SECURITY if is_restricted else None,
        "serviceAccountName": resources.service_account_name,
        # Agents need no access to the API server, unless they were given a service account for it.
        "automountServiceAccountToken": resources.service_account_name is not None,
        "enableServiceLinks": False,
        **pods.settings.scheduling,
        "terminationGracePeriodSeconds": round(environment.grace_s + _PRE_STOP_S + _MARGIN_S),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": scope.build_selector(workload.component)},
            }
        ],
    }

    return {"metadata": metadata, "spec": {name: value for name, value in spec.items() if value not in (None, [])}}


def _build_server_container(pods: PodContext, workload: Workload) -> Json:
    if not pods.revision.image_uri:
        raise DeployFailed("the revision names no image; set source_revision_config.image_uri")

    is_executor = workload.component == "executor"
    # A server that lost its database is not ready, but a restart would not help it; nor one without an orchestrator.
    is_alive = build_probe("/info" if is_executor else ALIVE_PATH)

    ports = [{"name": "http", "containerPort": API_PORT, "protocol": "TCP"}]
    if workload.component == "orchestrator":
        ports.append({"name": "grpc", "containerPort": CORE_API_PORT, "protocol": "TCP"})

    container: Json = {
        "name": CONTAINER,
        "image": pods.revision.image_uri,
        "ports": ports,
        "envFrom": [{"secretRef": {"name": pods.executor_secret if is_executor else pods.secret}}],
        "env": build_container_environment(
            pods.revision, pods.environment, workload.tier, _core_api_variables(pods, workload)
        ),
        "resources": workload.compute,
        "volumeMounts": [*(pods.resources.volume_mounts or []), *([_SERVER_TMP_MOUNT] if pods.has_own_tmp else [])],
        "livenessProbe": is_alive,
        "readinessProbe": build_probe("/ok"),
        # The other probes begin only after this one succeeded. It gives a slow start the time that it needs, and its
        # short period makes a fast start ready soon.
        "startupProbe": {
            **is_alive,
            "periodSeconds": _STARTUP_PERIOD_S,
            "failureThreshold": math.ceil(pods.environment.start_timeout_s / _STARTUP_PERIOD_S),
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_PRE_STOP_S)]}}},
        "securityContext": _build_server_security(pods.settings),
    }

    return {name: value for name, value in container.items() if value not in (None, [], {})}


def _core_api_variables(pods: PodContext, workload: Workload) -> dict[str, str]:
    """Return the variables by which orchestrators and executors find each other."""
    if workload.component == "orchestrator":
        address = {"CORE_API_HOST": pods.settings.kubernetes_listen_address, "CORE_API_PORT": str(CORE_API_PORT)}
        # Its image may ask for executors, which are in pods of their own here.
        return {"FF_USE_CORE_API": "true", "EXECUTORS": "0", **address}

    if workload.component == "executor":
        return {"CORE_API": f"{workload_name(pods.scope, 'orchestrator')}:{CORE_API_PORT}"}

    return {}


def _build_server_security(settings: KubernetesSettings) -> Json:
    context = build_container_security(is_root_read_only=settings.kubernetes_read_only_root)
    return {**context, "seccompProfile": {"type": "RuntimeDefault"}}


def _build_user_container(container: Json, *, is_restricted: bool) -> Json:
    """Return a container of the user's; what Pod Security asks of it is added where the user said nothing.

    Raises DeployFailed when it has the name of the server's container.
    """
    if container.get("name") == CONTAINER:
        raise DeployFailed(
            f"source_config.resource_spec: the name {CONTAINER} is taken by the server; rename the other container"
        )

    if not is_restricted:
        return container

    context = {**build_container_security(is_root_read_only=False), **(container.get("securityContext") or {})}
    return {**container, "securityContext": context}


def build_entry_points(scope: KubernetesScope, address: Address, settings: KubernetesSettings) -> list[Json]:
    """Return the Service of the API, and its Ingress or its route when the deployment has a public address."""
    port = {"name": "http", "port": API_PORT, "targetPort": "http", "protocol": "TCP"}
    service = {"type": "ClusterIP", "selector": scope.build_selector("api"), "ports": [port]}

    manifests = [scope.manifest("Service", scope.name, "api", {"spec": service})]
    if address.host is not None and settings.gateways:
        manifests.append(_build_route(scope, address, settings))
    elif address.host is not None:
        backend = {"service": {"name": scope.name, "port": {"name": "http"}}}
        path = {"path": address.path or "/", "pathType": "Prefix", "backend": backend}

        spec: Json = {"rules": [{"host": address.host, "http": {"paths": [path]}}]}
        if settings.kubernetes_ingress_class:
            spec["ingressClassName"] = settings.kubernetes_ingress_class

        if settings.kubernetes_ingress_tls_secret:
            spec["tls"] = [{"hosts": [address.host], "secretName": settings.kubernetes_ingress_tls_secret}]

        manifests.append(scope.manifest("Ingress", scope.name, "api", {"spec": spec}))

    return manifests


def _build_route(scope: KubernetesScope, address: Address, settings: KubernetesSettings) -> Json:
    """Return the route of a public address at the operator's gateways, which end TLS."""
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": address.path or "/"}}],
        "backendRefs": [{"name": scope.name, "port": API_PORT}],
    }
    spec = {"parentRefs": settings.gateways, "hostnames": [address.host], "rules": [rule]}
    return scope.manifest("HTTPRoute", scope.name, "api", {"spec": spec})


def build_scaling(
    scope: KubernetesScope, resources: Resources, address: Address, settings: KubernetesSettings
) -> list[Json]:
    """Return the autoscalers, and the budgets that keep one of several replicas up during maintenance."""
    manifests = []
    for workload in list_workloads(resources):
        minimum, maximum = workload.scale
        if maximum > max(minimum, 1):
            has_keda = settings.kubernetes_keda and _executes_runs(workload)
            manifests.append(
                _build_scaled_object(scope, workload, address)
                if has_keda
                else _build_autoscaler(scope, workload, settings)
            )

        if minimum > 1:
            spec = {"minAvailable": 1, "selector": {"matchLabels": scope.build_selector(workload.component)}}
            name = workload_name(scope, workload.component)
            manifests.append(scope.manifest("PodDisruptionBudget", name, workload.component, {"spec": spec}))

    return manifests


def _executes_runs(workload: Workload) -> bool:
    return workload.tier is ServerTier.ALL or workload.component in _SCALED_BY_RUNS


def _list_measured_resources(workload: Workload) -> list[str]:
    """Return the resources whose use the autoscaler compares with what the server's container requests."""
    return [kind for kind in ("cpu", "memory") if kind in workload.compute.get("requests", {})]


def _build_autoscaler(scope: KubernetesScope, workload: Workload, settings: KubernetesSettings) -> Json:
    name = workload_name(scope, workload.component)
    utilization = {"type": "Utilization", "averageUtilization": TARGET_UTILIZATION}

    # Of the server's container alone: without requests, another one would stop the scaling by the sum of all.
    metrics: list[Json] = [
        {
            "type": "ContainerResource",
            "containerResource": {"container": CONTAINER, "name": kind, "target": utilization},
        }
        for kind in _list_measured_resources(workload)
    ]

    metric_name = settings.kubernetes_pending_runs_metric
    if _executes_runs(workload) and metric_name:
        selector = {"matchLabels": {"portside_deployment": str(scope.deployment_id)}}
        metric = {"name": metric_name, "selector": selector}
        target = {"type": "AverageValue", "averageValue": str(TARGET_PENDING)}
        metrics.append({"type": "External", "external": {"metric": metric, "target": target}})

    minimum, maximum = workload.scale
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": max(minimum, 1),
        "maxReplicas": maximum,
        **({"metrics": metrics} if metrics else {}),
        "behavior": _BEHAVIOR,
    }

    return scope.manifest("HorizontalPodAutoscaler", name, workload.component, {"spec": spec})


def _build_scaled_object(scope: KubernetesScope, workload: Workload, address: Address) -> Json:
    """Return what KEDA scales by: the pending runs, which it reads from the servers, CPU and memory."""
    name = workload_name(scope, workload.component)
    runs = {
        "url": f"{address.service}/metrics?format=json",
        "format": "json",
        "valueLocation": "queue.n_pending",
        "targetValue": str(TARGET_PENDING),
    }

    measured = {"value": str(TARGET_UTILIZATION), "containerName": CONTAINER}
    triggers: list[Json] = [
        {"type": "metrics-api", "metricType": "AverageValue", "metadata": runs},
        *(
            {"type": kind, "metricType": "Utilization", "metadata": measured}
            for kind in _list_measured_resources(workload)
        ),
    ]

    minimum, maximum = workload.scale
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "pollingInterval": _KEDA_POLL_S,
        "minReplicaCount": max(minimum, 1),
        "maxReplicaCount": maximum,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _BEHAVIOR}},
        "triggers": triggers,
    }

    return scope.manifest("ScaledObject", name, workload.component, {"spec": spec})
