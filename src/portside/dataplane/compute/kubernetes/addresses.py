"""The address of a deployment on its cluster: its service's, or that of an Ingress."""

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from portside.dataplane.compute.kubernetes.settings import KubernetesSettings

API_PORT = 8000


@dataclass(frozen=True)
class Address:
    """Where a deployment answers; `host` is None without an Ingress, `path` is "" or the prefix of all routes."""

    service: str
    host: str | None = None
    path: str = ""
    url: str = ""


def address_of(name: str, namespace: str, custom_url: str | None, settings: KubernetesSettings) -> Address:
    """Return the address of the deployment with this object name.

    A URL that the deployment has already stays its own. Without Ingresses others see to it that it leads here.
    """
    service = f"http://{name}.{namespace}.svc.{settings.kubernetes_cluster_domain}:{API_PORT}"
    has_own = custom_url is not None and not custom_url.startswith(f"http://{name}.{namespace}.svc.")
    if settings.kubernetes_ingress_url is None:
        own = _public(service, custom_url or "") if has_own else Address(service, url=service)
        return replace(own, host=None)
    if has_own:
        return _public(service, custom_url or "")
    pattern = settings.kubernetes_ingress_url.rstrip("/")
    url = pattern.replace("*", name, 1) if "//*." in pattern else f"{pattern}/{name}"
    return _public(service, url)


def _public(service: str, url: str) -> Address:
    parts = urlsplit(url)
    return Address(service, parts.hostname, parts.path.rstrip("/"), url.rstrip("/"))
