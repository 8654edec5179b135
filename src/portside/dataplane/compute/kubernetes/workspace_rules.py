"""What a workspace may name, and ask for, in a release on the cluster.

A member of a workspace writes the resource_spec and the references to Secrets, and the namespace has objects of others:
the databases' passwords of other deployments, for example. So a release names only what an operator labelled for its
workspace, and asks for no rights on the node, unless the settings of the listener allow more. What is not known here is
refused: a new field of Kubernetes may be another way to the same.

Only a new release is checked. What serves was accepted before, and is kept as it is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from re import compile as compile_pattern
from typing import Any, NamedTuple
from uuid import UUID

from portside.dataplane.compute.kubernetes.api import ClusterRefused, KubernetesApi
from portside.dataplane.compute.kubernetes.objects import DEPLOYMENT, MANAGED_BY, MANAGER, WORKSPACE, Json
from portside.dataplane.compute.kubernetes.resources import Resources
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.failures import DeployFailed
from portside.listener_api import DesiredRevision

# The value of the label `portside/workspace` of an object that every workspace may name.
EVERY_WORKSPACE = "any"
_MAX_REFERENCES = 200
_NAME = compile_pattern(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
# In the namespace of the platform these are its own.
_PLATFORM = "portside"
# Credentials of others: the tokens of service accounts, and the values of charts.
_FOREIGN_TYPES = frozenset({"kubernetes.io/service-account-token", "helm.sh/release.v1"})
_CONTAINER_FIELDS = frozenset(
    {
        "name",
        "image",
        "imagePullPolicy",
        "command",
        "args",
        "workingDir",
        "env",
        "envFrom",
        "resources",
        "volumeMounts",
        "securityContext",
        "restartPolicy",
        "ports",
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "lifecycle",
    }
)
_HANDLERS = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
_NODE_FIELDS = frozenset({"hostPort", "hostIP"})
_HARMLESS_CONTEXT = frozenset({"runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem"})
_HARMLESS_CAPABILITY = "NET_BIND_SERVICE"
_HARMLESS_PROFILES = frozenset({"RuntimeDefault", "Localhost"})
_HARMLESS_PROPAGATIONS = frozenset({None, "None", "HostToContainer"})
# Values of the pod itself, and of a file in one of its own volumes.
_HARMLESS_VALUE_SOURCES = frozenset({"fieldRef", "resourceFieldRef", "fileKeyRef"})
# The sources of variables, and the kinds of objects that they name.
_VALUE_SOURCES = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}
_GROUP_SOURCES = {"secretRef": "Secret", "configMapRef": "ConfigMap"}
_SPEC = "source_config.resource_spec"
_SHORT_NAMES = {"Secret": "secret", "ConfigMap": "configmap", "ServiceAccount": "serviceaccount"}


class NamedObject(NamedTuple):
    """An object of the namespace that a release names, and the field that does."""

    kind: str
    name: str
    field: str


def check_release(revision: DesiredRevision, resources: Resources, settings: KubernetesSettings) -> None:
    """Check what a release asks of the cluster, without asking the cluster. Raises DeployFailed."""
    _check_keys("labels", resources.labels, settings)
    _check_keys("annotations", resources.annotations, settings)

    for field, volume in _number("volumes", resources.volumes):
        _check_volume(field, volume, settings)

    _check_mounts("volume_mounts", resources.volume_mounts, settings)
    for field, container in _list_containers(resources):
        _check_container(field, container, settings)

    # What is named must have a form that is known, whether or not it exists.
    list_named_objects(revision, resources)


async def check_named_objects(
    api: KubernetesApi,
    namespace: str,
    workspace_id: UUID,
    named_objects: Iterable[NamedObject],
    settings: KubernetesSettings,
) -> None:
    """Check that an operator allows the workspace to name each of these objects.

    Raises DeployFailed and ClusterUnavailable.
    """
    checked: set[tuple[str, str]] = set()
    for kind, name, field in named_objects:
        if (kind, name) in checked:
            continue

        try:
            manifest = await api.get(kind, namespace, name)
        except ClusterRefused as exc:
            raise DeployFailed(
                f"{field}: the listener cannot read the {kind} {name}, so not tell whether the workspace may name "
                f"it: {exc}; apply the listener's Role of `portside manifests` again"
            ) from exc

        # One message for what does not exist and for what belongs to others: nobody learns which of both it is.
        if manifest is None or not _may_name(manifest, workspace_id, settings):
            short_name = _SHORT_NAMES.get(kind, "pvc")
            raise DeployFailed(
                f"{field}: this workspace may not name the {kind} {name} of the namespace {namespace}, or it does not "
                f"exist; an operator of the cluster allows it: kubectl -n {namespace} label {short_name} {name} "
                f"{WORKSPACE}={workspace_id}"
            )

        checked.add((kind, name))


def _may_name(manifest: Mapping[str, Any], workspace_id: UUID, settings: KubernetesSettings) -> bool:
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    if DEPLOYMENT in labels or labels.get(MANAGED_BY) == MANAGER:
        return False

    if WORKSPACE in labels:
        return labels[WORKSPACE] in {EVERY_WORKSPACE, str(workspace_id)}

    is_of_platform = metadata["name"] == _PLATFORM or metadata["name"].startswith(f"{_PLATFORM}-")
    is_foreign = is_of_platform or manifest.get("type") in _FOREIGN_TYPES
    return settings.kubernetes_named_objects == "all" and not is_foreign


def list_named_objects(revision: DesiredRevision, resources: Resources) -> list[NamedObject]:
    """Return every object of the namespace that a release names. Raises DeployFailed for a form that is not known."""
    named_objects = [*_list_named_objects(revision, resources)]
    for _kind, name, field in named_objects:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DeployFailed(f"{field} must be the name of an object of the namespace")

    if len(named_objects) > _MAX_REFERENCES:
        raise DeployFailed(f"{_SPEC} and secret_references name more than {_MAX_REFERENCES} objects of the namespace")

    return named_objects


def _list_named_objects(revision: DesiredRevision, resources: Resources) -> Iterator[NamedObject]:
    for index, reference in enumerate(revision.secret_references):
        yield NamedObject("Secret", reference["secret_name"], f"secret_references[{index}].secret_name")

    if resources.service_account_name is not None:
        yield NamedObject("ServiceAccount", resources.service_account_name, f"{_SPEC}.service_account_name")

    for field, secret in _number("image_pull_secrets", resources.image_pull_secrets):
        yield NamedObject("Secret", secret.get("name", ""), f"{field}.name")

    for field, volume in _number("volumes", resources.volumes):
        yield from _list_objects_of_volume(field, volume, has_account=resources.service_account_name is not None)

    for field, container in _list_containers(resources):
        yield from _list_objects_of_variables(field, container)


def _list_objects_of_volume(field: str, volume: Json, *, has_account: bool) -> Iterator[NamedObject]:
    for kind, source in _read_sources(field, volume, {"name"}):
        where = f"{field}.{kind}"
        if kind == "secret":
            yield NamedObject("Secret", source.get("secretName", ""), f"{where}.secretName")
        elif kind == "configMap":
            yield NamedObject("ConfigMap", source.get("name", ""), f"{where}.name")
        elif kind == "persistentVolumeClaim":
            yield NamedObject("PersistentVolumeClaim", source.get("claimName", ""), f"{where}.claimName")
        elif kind == "projected":
            for index, part in enumerate(_read_list(f"{where}.sources", source.get("sources"))):
                yield from _list_objects_of_projection(f"{where}.sources[{index}]", part, has_account=has_account)
        elif kind == "csi" and source.get("nodePublishSecretRef") is not None:
            reference = _read_object(f"{where}.nodePublishSecretRef", source["nodePublishSecretRef"])
            yield NamedObject("Secret", reference.get("name", ""), f"{where}.nodePublishSecretRef.name")


def _list_objects_of_projection(field: str, part: Json, *, has_account: bool) -> Iterator[NamedObject]:
    for kind, source in _read_sources(field, part, ()):
        where = f"{field}.{kind}"
        if kind == "secret":
            yield NamedObject("Secret", source.get("name", ""), f"{where}.name")
        elif kind == "configMap":
            yield NamedObject("ConfigMap", source.get("name", ""), f"{where}.name")
        elif kind == "serviceAccountToken":
            if not has_account:
                raise DeployFailed(f"{where} is the token of {_SPEC}.service_account_name; set it, too")
        elif kind != "downwardAPI":
            raise DeployFailed(f"{where} is not a source that a resource_spec may have")


def _list_objects_of_variables(field: str, container: Json) -> Iterator[NamedObject]:
    for index, variable in enumerate(_read_list(f"{field}.env", container.get("env"))):
        where = f"{field}.env[{index}].valueFrom"
        value_source = _read_object(where, variable.get("valueFrom") or {})
        yield from _list_objects_of_sources(where, value_source, _VALUE_SOURCES, _HARMLESS_VALUE_SOURCES)

    for index, group in enumerate(_read_list(f"{field}.envFrom", container.get("envFrom"))):
        where = f"{field}.envFrom[{index}]"
        yield from _list_objects_of_sources(where, group, _GROUP_SOURCES, frozenset({"prefix"}))


def _list_objects_of_sources(
    field: str, value: Json, kinds: Mapping[str, str], harmless: frozenset[str]
) -> Iterator[NamedObject]:
    for source_kind, source in _read_sources(field, value, harmless):
        where = f"{field}.{source_kind}"
        if source_kind not in kinds:
            raise DeployFailed(f"{where} is not a source that a resource_spec may have")

        yield NamedObject(kinds[source_kind], source.get("name", ""), f"{where}.name")


def _check_keys(kind: str, values: Mapping[str, str] | None, settings: KubernetesSettings) -> None:
    """Refuse labels and annotations by which controllers act: some name Secrets, others put containers into the pod."""
    for key in values or {}:
        is_allowed = any(fnmatchcase(key, pattern) for pattern in settings.annotation_patterns)
        if "/" in key and (key.startswith(f"{_PLATFORM}/") or not is_allowed):
            raise DeployFailed(
                f"{_SPEC}.{kind}: the key {key} is for a controller of the cluster; leave it out, or have an operator "
                "allow it by KUBERNETES_ANNOTATIONS of the listener"
            )


def _check_volume(field: str, volume: Json, settings: KubernetesSettings) -> None:
    for kind, _source in _read_sources(field, volume, {"name"}):
        if kind not in settings.volume_kinds:
            raise DeployFailed(
                f"{field}: {kind} is not a kind of volume that a resource_spec may have here; the kinds are "
                f"{', '.join(sorted(settings.volume_kinds))} (KUBERNETES_VOLUMES of the listener)"
            )


def _check_container(field: str, container: Json, settings: KubernetesSettings) -> None:
    for name in sorted(container.keys() - _CONTAINER_FIELDS):
        raise DeployFailed(f"{field}.{name} is not a field that a resource_spec may have")

    _check_mounts(f"{field}.volumeMounts", container.get("volumeMounts"), settings)
    if settings.kubernetes_privileged_containers:
        return

    context = _read_object(f"{field}.securityContext", container.get("securityContext") or {})
    for name, value in context.items():
        if value is not None and not _is_harmless(name, value):
            raise _build_privilege_error(f"{field}.securityContext.{name}")

    for index, port in enumerate(_read_list(f"{field}.ports", container.get("ports"))):
        for name in sorted(port.keys() & _NODE_FIELDS):
            if port[name]:
                raise _build_privilege_error(f"{field}.ports[{index}].{name}")

    for name in _HANDLERS:
        # The node itself sends the requests of probes and hooks.
        if _has_key(container.get(name), "host"):
            raise _build_privilege_error(f"{field}.{name}: the field host")


def _check_mounts(field: str, mounts: list[Json] | None, settings: KubernetesSettings) -> None:
    for index, mount in enumerate(_read_list(field, mounts)):
        is_harmless = mount.get("mountPropagation") in _HARMLESS_PROPAGATIONS
        if not is_harmless and not settings.kubernetes_privileged_containers:
            raise _build_privilege_error(f"{field}[{index}].mountPropagation")


def _is_harmless(name: str, value: Any) -> bool:
    """Whether a field of a security context gives a container nothing that it would not have without it."""
    if name in {"privileged", "allowPrivilegeEscalation"}:
        return value is False
    if name == "procMount":
        return bool(value == "Default")
    if name in {"seccompProfile", "appArmorProfile"}:
        return isinstance(value, dict) and value.get("type") in _HARMLESS_PROFILES
    if name == "capabilities":
        added = value.get("add") or [] if isinstance(value, dict) else None
        return isinstance(added, list) and all(item == _HARMLESS_CAPABILITY for item in added)

    return name in _HARMLESS_CONTEXT


def _build_privilege_error(field: str) -> DeployFailed:
    return DeployFailed(
        f"{field} gives a container rights on its node; leave it out, or have an operator allow it by "
        "KUBERNETES_PRIVILEGED_CONTAINERS of the listener"
    )


def _has_key(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return value.get(key) is not None or any(_has_key(item, key) for item in value.values())

    return isinstance(value, list) and any(_has_key(item, key) for item in value)


def _list_containers(resources: Resources) -> list[tuple[str, Json]]:
    return [*_number("init_containers", resources.init_containers), *_number("sidecars", resources.sidecars)]


def _number(name: str, items: list[Json] | None) -> list[tuple[str, Json]]:
    """Return the items of a list of the spec with the name of the field of each."""
    return [(f"{_SPEC}.{name}[{index}]", item) for index, item in enumerate(items or ())]


def _read_sources(field: str, value: Json, others: Collection[str]) -> Iterator[tuple[str, Json]]:
    """Return the sources in an object, which has no other fields than `others`."""
    for kind, source in value.items():
        if kind not in others and source is not None:
            yield kind, _read_object(f"{field}.{kind}", source)


def _read_object(field: str, value: Any) -> Json:
    if not isinstance(value, dict):
        raise DeployFailed(f"{field} must be an object")

    return value


def _read_list(field: str, value: Any) -> list[Json]:
    items = value or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DeployFailed(f"{field} must be a list of objects")

    return items
