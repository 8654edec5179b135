"""Helpers for the tests of compute kubernetes: a release and its objects."""

import base64
import functools
import re
from typing import Any
from uuid import UUID

import msgspec
from jsonschema.validators import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from portside.control.resources import with_defaults
from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.environment import Passwords
from portside.dataplane.compute.kubernetes.manifests import ClusterSettings, Objects, build_objects
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.settings import ListenerSettings
from portside.listener_api import DesiredDeployment, DesiredRevision, Secret
from tests.desired import build_desired_deployment, build_desired_revision

DEPLOYMENT_ID = UUID("01930000-0000-7000-8000-00000000abcd")
REVISION_ID = UUID("01930000-0000-7000-8000-00000000beef")
PASSWORDS = Passwords("postgres-password", "redis-password")
FULL_SPEC = with_defaults({})

LISTENER = ListenerSettings(
    control_plane_url="http://platform.example:8700", control_plane_api_key="key", portside_home="/nowhere"
)


def settings(**changes: Any) -> KubernetesSettings:
    return KubernetesSettings(**{"kubernetes_namespaces": "agents, more-agents", **changes})


def revision(**changes: Any) -> DesiredRevision:
    given = {
        "id": REVISION_ID,
        "number": 1,
        "status": "DEPLOYING",
        "source": "external_image",
        "image_uri": "agents/hello:1",
        "secrets": [Secret("TOKEN", "s3cr3t")],
        "resource_spec": FULL_SPEC,
    }

    return build_desired_revision(**{**given, **changes})


def deployment(*revisions: DesiredRevision, **changes: Any) -> DesiredDeployment:
    given = {
        "id": DEPLOYMENT_ID,
        "name": "Hello World",
        "status": "READY",
        "environment": {
            "LANGSMITH_ENDPOINT": "http://127.0.0.1:8700",
            "LANGSMITH_PROJECT": "Hello World",
            "LANGSMITH_AUTH_ENDPOINT": "http://127.0.0.1:8700/v2/deployments/1",
        },
        "revisions": list(revisions),
    }

    return build_desired_deployment(**{**given, **changes})


def objects(
    of: DesiredRevision | None = None,
    kubernetes: KubernetesSettings | None = None,
    *,
    has_operator: bool = False,
    **changes: Any,
) -> Objects:
    one = of or revision()
    release = Release(deployment(one, **changes), one, None)
    cluster = ClusterSettings(LISTENER, kubernetes or settings())
    return build_objects(release, cluster, PASSWORDS, has_operator=has_operator)


def validate(manifest: dict[str, Any], version: str) -> None:
    """Check an object against the schema that Kubernetes publishes; unknown fields are errors."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", manifest["apiVersion"])
    _validator(f"{manifest['kind'].lower()}-{group}.json", version).validate(manifest)


def assert_restricted(pod: dict[str, Any]) -> None:
    """Check a pod against Pod Security `restricted`, as a namespace that enforces it does."""
    context = pod.get("securityContext") or {}
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all("hostPath" not in volume for volume in pod.get("volumes") or [])
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        own = {**context, **(container.get("securityContext") or {})}
        assert own.get("runAsNonRoot") is True, container["name"]
        assert own.get("runAsUser") != 0, container["name"]
        assert own["seccompProfile"]["type"] == "RuntimeDefault", container["name"]
        assert own["allowPrivilegeEscalation"] is False, container["name"]
        assert own["capabilities"] == {"drop": ["ALL"]}, container["name"]


@functools.cache
def _validator(name: str, version: str) -> Draft202012Validator:
    schema = schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{name}", version)
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(version))


@functools.cache
def _definitions(version: str) -> Registry:
    contents = schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json", version)
    return Resource.from_contents(contents) @ Registry()


def every(found: Objects) -> list[dict[str, Any]]:
    return [*found.stores, *found.servers]


def find_object(found: Objects, kind: str, name_end: str = "") -> dict[str, Any]:
    """The object of this kind whose name is the deployment's own with this suffix."""
    name = f"{found.scope.name}{name_end}"
    (match,) = [manifest for manifest in found.of_kind(kind) if manifest["metadata"]["name"] == name]
    return match


def get_pod_spec(found: Objects, name_end: str = "") -> dict[str, Any]:
    return find_object(found, "Deployment", name_end)["spec"]["template"]["spec"]


def get_server(found: Objects, name_end: str = "") -> dict[str, Any]:
    (server,) = [one for one in get_pod_spec(found, name_end)["containers"] if one["name"] == "api-server"]
    return server


def variables(found: Objects, name_end: str = "") -> dict[str, Any]:
    """The environment of a server as Kubernetes resolves it; references stay unresolved."""
    server = get_server(found, name_end)
    (source,) = server["envFrom"]
    (secret,) = [one for one in found.of_kind("Secret") if one["metadata"]["name"] == source["secretRef"]["name"]]
    values: dict[str, Any] = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    return {**values, **{one["name"]: one.get("value", one.get("valueFrom")) for one in server["env"]}}


class ApiServer:
    """The part of an API server that shows objects of a namespace, by their paths below it."""

    def __init__(self, manifests: dict[str, dict[str, Any]]) -> None:
        self.manifests = manifests

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        manifest = self.manifests.get(scope["path"].partition("/namespaces/agents/")[2])
        body = msgspec.json.encode(manifest or {"kind": "Status", "code": 404, "message": "not found"})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 404 if manifest is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
