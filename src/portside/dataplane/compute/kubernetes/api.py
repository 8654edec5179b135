"""The client of a cluster's API server. No other module imports the client library (extra `portside[kubernetes]`).

Objects are plain dictionaries in both directions, so that no field of a user's spec is dropped: the cluster itself
refuses the fields that it does not know. Calls raise `ClusterUnavailable` when the same call may succeed later, and
`ClusterRefused` when it would not. A lack of rights is `ClusterDenied`, which may end by itself: an API server that has
just started knows no roles yet.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx2
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import ApiInfo, NamespacedSubResource, ResourceDef
from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info
from lightkube.resources.core_v1 import PodLog
from lightkube.types import CascadeType, PatchType

from portside.dataplane.compute.kubernetes.objects import ALL_KINDS, API_PORT, MANAGER, Json
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.failures import ComputeFailed
from portside.kernel.errors import UserMistake

# Objects that the listener reads and that no deployment has; it makes the Lease alone.
_READ = {
    "Pod": ("", "v1", "pods"),
    "Event": ("", "v1", "events"),
    "ConfigMap": ("", "v1", "configmaps"),
    "ServiceAccount": ("", "v1", "serviceaccounts"),
    "Lease": ("coordination.k8s.io", "v1", "leases"),
}
_RETRYABLE = frozenset({408, 409, 425, 429})
# What a role lacks. Quotas and admission answer 403 as well, and name no verb.
_LACKS_RIGHT = re.compile(r'User ".*" cannot ')
# What gives the right to the objects of an operator, which a Role has only if that is asked for; by API group.
_OPERATORS = {
    "postgresql.cnpg.io": "CloudNativePG (portside manifests --cloudnative-pg)",
    "keda.sh": "KEDA (portside manifests --keda)",
    "gateway.networking.k8s.io": "the Gateway API (portside manifests with the value agents.parentRefs)",
}
_TIMEOUT_S = 30.0


class ClusterUnavailable(ComputeFailed):
    """The API server does not answer, or not now; the same call may succeed later."""


class ClusterDenied(ClusterUnavailable):
    """The listener has no right to make the call, or the cluster does not know the listener."""


class ClusterRefused(ComputeFailed):
    """The API server refused a call; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubernetesApi:
    """The API server that the service account or the kubeconfig file names."""

    def __init__(self, config: KubeConfig, context: str | None = None) -> None:
        self._client = AsyncClient(
            config=config.get(context), timeout=httpx2.Timeout(_TIMEOUT_S), field_manager=MANAGER
        )
        # The library's types know only its own kinds of resources.
        self._create: Any = self._client.create
        self._replace: Any = self._client.replace

    @classmethod
    def from_environment(cls, settings: KubernetesSettings) -> "KubernetesApi":
        """Find the cluster: the one this runs in, else the one of KUBECONFIG or ~/.kube/config. Raises UserMistake."""
        try:
            return cls(KubeConfig.from_env(), settings.kubernetes_context)
        except (ConfigError, OSError, KeyError) as exc:
            raise UserMistake(
                f"there is no cluster to deploy to: {exc}; run the listener in a cluster, or set KUBECONFIG"
            ) from exc

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def apply(self, manifest: Json) -> Json:
        """Create or change an object (server-side apply). It takes over fields that others have set."""
        kind = manifest["kind"]
        metadata = manifest["metadata"]
        resource = _RESOURCES[kind](manifest)
        with _translated(f"{kind} {metadata['name']}"):
            return dict(
                await self._client.apply(resource, metadata["name"], namespace=metadata["namespace"], force=True)
            )

    async def overwrite(self, manifest: Json) -> Json:
        """Set the fields of an existing object whoever set them; a list becomes the given one, with no other item."""
        return await self._patch(manifest, manifest, PatchType.MERGE)

    async def merge(self, manifest: Json, patch: Json) -> Json:
        """Change an object by a strategic merge: list items are found by their names, a null removes a field."""
        return await self._patch(manifest, patch, PatchType.STRATEGIC)

    async def _patch(self, manifest: Json, patch: Json, patch_type: PatchType) -> Json:
        kind = manifest["kind"]
        metadata = manifest["metadata"]
        with _translated(f"{kind} {metadata['name']}"):
            return dict(
                await self._client.patch(
                    _RESOURCES[kind], metadata["name"], patch, namespace=metadata["namespace"], patch_type=patch_type
                )
            )

    async def check(self, manifest: Json) -> None:
        """Ask whether the cluster would create an object; creates nothing. Raises ClusterRefused when it would not."""
        kind = manifest["kind"]
        metadata = manifest["metadata"]
        with _translated(f"{kind} {metadata['name']}"):
            await self._create(_RESOURCES[kind](manifest), namespace=metadata["namespace"], dry_run=True)

    async def create(self, manifest: Json) -> Json:
        """Create an object. Raises ClusterUnavailable when it exists."""
        kind = manifest["kind"]
        metadata = manifest["metadata"]
        with _translated(f"{kind} {metadata['name']}"):
            return dict(await self._create(_RESOURCES[kind](manifest), namespace=metadata["namespace"]))

    async def replace(self, manifest: Json) -> Json:
        """Replace an object. Raises ClusterUnavailable when its resourceVersion is not the one in the manifest."""
        kind = manifest["kind"]
        metadata = manifest["metadata"]
        with _translated(f"{kind} {metadata['name']}"):
            return dict(await self._replace(_RESOURCES[kind](manifest), namespace=metadata["namespace"]))

    async def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """Return an object, or None when it does not exist."""
        try:
            with _translated(f"{kind} {name}"):
                return dict(await self._client.get(_RESOURCES[kind], name, namespace=namespace))
        except ClusterRefused as exc:
            if exc.status == 404:
                return None
            raise

    async def list_nodes(self) -> list[Json]:
        """Return the nodes of the cluster, for which a listener seldom has the right."""
        with _translated("the list of nodes"):
            return [dict(node) async for node in self._client.list(_Node)]

    async def list(
        self, kind: str, namespace: str, labels: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> list[Json]:
        """Return the objects of a kind with these labels and fields."""
        _group, _version, plural = ALL_KINDS.get(kind) or _READ.get(kind) or ("", "", kind)
        with _translated(f"the list of {plural} in {namespace}"):
            items = self._client.list(
                _RESOURCES[kind], namespace=namespace, labels=dict(labels) or None, fields=dict(fields or {}) or None
            )
            return [{"kind": kind, **item} async for item in items]

    async def delete(self, kind: str, namespace: str, name: str, *, keep_owned: bool = False) -> None:
        """Delete an object and those that it owns, or leave these. Succeeds when the object does not exist."""
        cascade = CascadeType.ORPHAN if keep_owned else CascadeType.BACKGROUND
        try:
            with _translated(f"{kind} {name}"):
                await self._client.delete(_RESOURCES[kind], name, namespace=namespace, cascade=cascade)
        except ClusterRefused as exc:
            if exc.status != 404:
                raise

    async def read_metrics(self, pod: Json) -> bytes:
        """Return what the server in a pod answers to `GET /metrics?format=json`; the API server passes it on."""
        metadata = pod["metadata"]
        name = f"{metadata['name']}:{API_PORT}"
        inner: Any = self._client._client  # noqa: SLF001 - the library decodes every answer as an object
        request = inner.prepare_request(
            "get", _PodMetrics, name=name, namespace=metadata["namespace"], params={"format": "json"}
        )

        with _translated(f"the metrics of pod {metadata['name']}"):
            response = await inner.send(inner.build_adapter_request(request))
            inner.raise_for_status(response)
            return bytes(response.content)

    async def follow_log(
        self, pod: Json, container: str, *, since_s: int | None = None, tail: int | None = None, follow: bool = True
    ) -> AsyncIterator[str]:
        """Yield the lines of a container's log; with `follow` until the container ends."""
        metadata = pod["metadata"]
        parameters = {"container": container, "follow": follow, "sinceSeconds": since_s, "tailLines": tail}

        # The library's own `log` cannot read an error response while it follows, and never closes the response.
        inner: Any = self._client._client  # noqa: SLF001
        request = inner.prepare_request(
            "get", PodLog, name=metadata["name"], namespace=metadata["namespace"], params=parameters
        )
        request.timeout = httpx2.Timeout(_TIMEOUT_S, read=None if follow else _TIMEOUT_S)

        with _translated(f"the log of pod {metadata['name']}"):
            response = await inner.send(inner.build_adapter_request(request), stream=True)
            try:
                if response.is_error:
                    await response.aread()

                inner.raise_for_status(response)
                async for line in response.aiter_lines():
                    yield line
            finally:
                await response.aclose()


def _resource(kind: str, group: str, version: str, plural: str) -> Any:
    return type(kind, (GenericNamespacedResource,), {"_api_info": create_api_info(group, version, kind, plural)})


class _Node(GenericGlobalResource):
    """A node; nodes are in no namespace."""

    _api_info = create_api_info("", "v1", "Node", "nodes")


class _PodMetrics(NamespacedSubResource):
    """The server in a pod, by the API server's proxy; the name has its port."""

    _api_info = ApiInfo(
        resource=ResourceDef("", "v1", "Pod"),
        parent=ResourceDef("", "v1", "Pod"),
        plural="pods",
        verbs=["get"],
        action="proxy/metrics",
    )


_RESOURCES: dict[str, Any] = {kind: _resource(kind, *where) for kind, where in {**ALL_KINDS, **_READ}.items()}


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise errors of the client library as ClusterUnavailable or ClusterRefused; `what` begins their messages."""
    try:
        yield
    except ApiError as exc:
        code = exc.response.status_code
        message = f"{what}: {exc.status.message or exc.status.reason}"
        if code == 401 or (code == 403 and _LACKS_RIGHT.search(message)):
            raise ClusterDenied(f"{code}: {message}{_describe_missing_right(message)}") from exc

        if code in _RETRYABLE or code >= 500:
            raise ClusterUnavailable(f"{code}: {message}") from exc

        raise ClusterRefused(code, message) from exc
    except httpx2.HTTPStatusError as exc:
        raise ClusterUnavailable(f"{what}: {exc.response.status_code}") from exc
    except httpx2.HTTPError as exc:
        raise ClusterUnavailable(f"{what}: {type(exc).__name__}: {exc}") from exc


def _describe_missing_right(message: str) -> str:
    """Return what to do about a refusal by the API server, if the objects of an operator are concerned."""
    for group, operator in _OPERATORS.items():
        if f'"{group}"' in message:
            return f". The listener's Role lacks the right to objects of {operator}: apply the manifests again with it"

    return ""
