"""The Postgres of a deployment by CloudNativePG, where the operator of the cluster has it: replicas, failover, backups.

The Service has the name and the address of the Postgres that the listener makes otherwise. A database stays with what
made it: its data is not moved when the setting changes. The marker is a label of the Secret with its password.
"""

from collections.abc import Iterable

from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.environment import encode_values
from portside.dataplane.compute.kubernetes.objects import COMPONENT, DEPLOYMENT, Json, KubernetesScope
from portside.dataplane.compute.kubernetes.resources import Resources, build_container_resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.compute.kubernetes.stores import (
    PASSWORD,
    POSTGRES_PORT,
    build_store_policy,
    build_store_service,
    store_name,
)

# The label of the pods of a database.
CLUSTER = "cnpg.io/cluster"
_MADE_BY = "portside/postgres"
_OPERATOR = "cloudnative-pg"
_PLUGIN = "barman-cloud.cloudnative-pg.io"
# The instance manager, by which the operator knows and changes the state of an instance.
_STATUS_PORT = 8000


async def has_operator(api: KubernetesApi, scope: KubernetesScope, settings: KubernetesSettings) -> bool:
    """Whether CloudNativePG has the database of a deployment, or is to have a new one.

    Raises ClusterUnavailable and ClusterRefused.
    """
    name = store_name(scope, "postgres")
    secret = await api.get("Secret", scope.namespace, name)
    if secret is not None:
        return (secret["metadata"].get("labels") or {}).get(_MADE_BY) == _OPERATOR

    claim = await api.get("PersistentVolumeClaim", scope.namespace, name)
    return claim is None and settings.kubernetes_postgres_operator == _OPERATOR


def build_cloudnative_pg(
    scope: KubernetesScope, resources: Resources, settings: KubernetesSettings, password: str
) -> list[Json]:
    """Return the objects of the deployment's Postgres."""
    name = store_name(scope, "postgres")
    values = encode_values({"username": "portside", PASSWORD: password})
    secret = scope.manifest("Secret", name, "postgres", {"type": "kubernetes.io/basic-auth", "data": values})
    secret["metadata"]["labels"][_MADE_BY] = _OPERATOR

    primary = {CLUSTER: name, "cnpg.io/instanceRole": "primary"}
    objects = [
        secret,
        build_store_service(scope, "postgres", POSTGRES_PORT, primary),
        _build_policy(scope),
        scope.manifest("Cluster", name, "postgres", {"spec": _build_cluster(scope, resources, settings)}),
    ]

    if settings.kubernetes_postgres_object_store:
        backup = {
            "schedule": settings.kubernetes_postgres_backup_schedule,
            "cluster": {"name": name},
            "method": "plugin",
            "pluginConfiguration": {"name": _PLUGIN},
            "immediate": True,
            "backupOwnerReference": "cluster",
        }
        objects.append(scope.manifest("ScheduledBackup", name, "postgres", {"spec": backup}))

    return objects


def describe_backups(stores: Iterable[Json]) -> str | None:
    """Say what backs up the database among these stores; None when it is the user's own."""
    names = {(manifest["kind"], manifest["metadata"]["labels"][COMPONENT]) for manifest in stores}
    if ("ScheduledBackup", "postgres") in names:
        return "Postgres: CloudNativePG backs this database up; the platform's backups do not hold it"
    if ("Cluster", "postgres") in names:
        return "Postgres: nothing backs this database up, because KUBERNETES_POSTGRES_OBJECT_STORE is not set"
    if ("StatefulSet", "postgres") in names:
        return "Postgres: the platform's backups do not hold this database: back up its claim on the cluster"

    return None


def _build_cluster(scope: KubernetesScope, resources: Resources, settings: KubernetesSettings) -> Json:
    storage: Json = {"size": f"{resources.db_storage_gi or 10}Gi"}
    if settings.kubernetes_storage_class:
        storage["storageClass"] = settings.kubernetes_storage_class

    name = store_name(scope, "postgres")
    instances = settings.kubernetes_postgres_instances

    # Its other objects belong to the deployment as well, and no workspace may name them. The operator sets the standard
    # labels of an application itself.
    metadata: Json = {"labels": {**scope.labels, DEPLOYMENT: str(scope.deployment_id)}}
    if scope.annotations:
        metadata["annotations"] = dict(scope.annotations)

    spec: Json = {
        "instances": instances,
        "inheritedMetadata": metadata,
        "bootstrap": {"initdb": {"database": "portside", "owner": "portside", "secret": {"name": name}}},
        "enableSuperuserAccess": False,
        # With one instance, a budget would keep its node from being drained for ever.
        "enablePDB": instances > 1,
        "postgresql": {"parameters": {"max_connections": str(resources.db_max_connections or 100)}},
        "storage": storage,
    }

    compute = build_container_resources(
        resources.db_cpu, resources.db_cpu_limit, resources.db_memory_mb, resources.db_memory_limit_mb
    )
    if compute:
        spec["resources"] = compute

    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret_name} for secret_name in settings.image_pull_secrets]

    scheduling = dict(settings.scheduling)
    priority_class = scheduling.pop("priorityClassName", None)
    if scheduling:
        spec["affinity"] = scheduling

    if priority_class:
        spec["priorityClassName"] = priority_class

    if settings.kubernetes_postgres_object_store:
        parameters = {"barmanObjectName": settings.kubernetes_postgres_object_store}
        spec["plugins"] = [{"name": _PLUGIN, "isWALArchiver": True, "parameters": parameters}]

    return spec


def _build_policy(scope: KubernetesScope) -> Json:
    """Return the policy that admits the deployment's servers, the other instances, and the operator."""
    policy = build_store_policy(scope, "postgres", POSTGRES_PORT)
    policy["spec"]["podSelector"] = {"matchLabels": {CLUSTER: store_name(scope, "postgres")}}
    instances = {"podSelector": policy["spec"]["podSelector"]}
    operator = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": _OPERATOR}}, "namespaceSelector": {}}
    policy["spec"]["ingress"] += [
        {"from": [instances], "ports": _list_ports(POSTGRES_PORT, _STATUS_PORT)},
        {"from": [operator], "ports": _list_ports(POSTGRES_PORT, _STATUS_PORT)},
    ]

    return policy


def _list_ports(*numbers: int) -> list[Json]:
    return [{"protocol": "TCP", "port": number} for number in numbers]
