"""The client of a cluster's API server. No other module imports the client library (extra `portside[kubernetes]`).

Objects are plain dictionaries in both directions, so that no field of a user's spec is dropped: the cluster itself
refuses the fields that it does not know. Calls raise `ClusterUnavailable` when the same call may succeed later, and
`ClusterRefused` when it would not.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx2
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import ApiInfo, NamespacedSubResource, ResourceDef
from lightkube.generic_resource import GenericNamespacedResource, create_api_info
from lightkube.resources.core_v1 import PodLog
from lightkube.types import CascadeType

from portside.dataplane.compute.kubernetes.objects import API_PORT, KINDS, MANAGER, Json
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.kernel.errors import UserMistake

# Objects that the listener reads, and never makes.
_READ = {
    "Pod": ("", "v1", "pods"),
    "Event": ("", "v1", "events"),
    "ConfigMap": ("", "v1", "configmaps"),
    "ServiceAccount": ("", "v1", "serviceaccounts"),
}
_RETRYABLE = frozenset({408, 409, 425, 429})
_TIMEOUT_S = 30.0


class ClusterUnavailable(Exception):
    """The API server does not answer, or not now; the same call may succeed later."""


class ClusterRefused(Exception):
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

    async def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """Return an object, or None when it does not exist."""
        try:
            with _translated(f"{kind} {name}"):
                return dict(await self._client.get(_RESOURCES[kind], name, namespace=namespace))
        except ClusterRefused as exc:
            if exc.status == 404:
                return None
            raise

    async def list(
        self, kind: str, namespace: str, labels: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> list[Json]:
        """Return the objects of a kind with these labels and fields."""
        _group, _version, plural = KINDS.get(kind) or _READ.get(kind) or ("", "", kind)
        with _translated(f"the list of {plural} in {namespace}"):
            items = self._client.list(
                _RESOURCES[kind], namespace=namespace, labels=dict(labels) or None, fields=dict(fields or {}) or None
            )
            return [{"kind": kind, **item} async for item in items]

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object and those that it owns. Succeeds when the object does not exist."""
        try:
            with _translated(f"{kind} {name}"):
                await self._client.delete(_RESOURCES[kind], name, namespace=namespace, cascade=CascadeType.BACKGROUND)
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


class _PodMetrics(NamespacedSubResource):
    """The server in a pod, by the API server's proxy; the name has its port."""

    _api_info = ApiInfo(
        resource=ResourceDef("", "v1", "Pod"),
        parent=ResourceDef("", "v1", "Pod"),
        plural="pods",
        verbs=["get"],
        action="proxy/metrics",
    )


_RESOURCES: dict[str, Any] = {kind: _resource(kind, *where) for kind, where in {**KINDS, **_READ}.items()}


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise errors of the client library as ClusterUnavailable or ClusterRefused; `what` begins their messages."""
    try:
        yield
    except ApiError as exc:
        code = exc.response.status_code
        message = f"{what}: {exc.status.message or exc.status.reason}"
        if code in _RETRYABLE or code >= 500:
            raise ClusterUnavailable(f"{code}: {message}") from exc

        raise ClusterRefused(code, message) from exc
    except httpx2.HTTPStatusError as exc:
        raise ClusterUnavailable(f"{what}: {exc.response.status_code}") from exc
    except httpx2.HTTPError as exc:
        raise ClusterUnavailable(f"{what}: {type(exc).__name__}: {exc}") from exc
