"""The passwords of a deployment's Postgres and Redis: read from their Secrets, recovered, or made for a new store.

A store that has data keeps its password. If its Secret is gone, the password is in the variables of the servers; and
where it is not, the listener says so and invents none, because the database would refuse a new one.
"""

import base64
import binascii
import hmac
import secrets
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from portside.dataplane.compute.interface import Release
from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.environment import CUSTOM_POSTGRES, CUSTOM_REDIS, Passwords, has_own
from portside.dataplane.compute.kubernetes.objects import COMPONENT, Json, KubernetesScope, owned_by
from portside.dataplane.compute.kubernetes.repairs import OnNote
from portside.dataplane.compute.kubernetes.stores import PASSWORD, store_name
from portside.dataplane.failures import DeployFailed

# The variable with the store's address, and the user's own store in its place.
_ADDRESSES = {"postgres": "DATABASE_URI", "redis": "REDIS_URI"}
_CUSTOM = {"postgres": CUSTOM_POSTGRES, "redis": CUSTOM_REDIS}
_ENVIRONMENT = "environment"


async def find_passwords(
    api: KubernetesApi, scope: KubernetesScope, release: Release, on_note: OnNote, *, has_redis: bool
) -> Passwords:
    """Return the passwords of a release's stores. Raises DeployFailed, ClusterUnavailable and ClusterRefused.

    Without `has_redis` deployments have no Redis of the listener's.
    """
    postgres = await _find_password(api, scope, release, "postgres", on_note)
    redis = await _find_password(api, scope, release, "redis", on_note) if has_redis else _derive_key(release, "redis")
    return Passwords(postgres=postgres, redis=redis)


async def _find_password(
    api: KubernetesApi, scope: KubernetesScope, release: Release, component: str, on_note: OnNote
) -> str:
    name = store_name(scope, component)
    secret = await api.get("Secret", scope.namespace, name)
    password = _read_value(secret, PASSWORD)
    if password is not None:
        return password

    if has_own(release.revision, _CUSTOM[component]):
        return _derive_key(release, component)

    variables = await api.list("Secret", scope.namespace, {**owned_by(scope.deployment_id), COMPONENT: _ENVIRONMENT})
    password = recover_password(variables, _ADDRESSES[component], host=name)
    if password is not None:
        on_note(f"The Secret {name} was missing; its password was recovered from the variables of the servers.")
        return password

    if component == "postgres" and await api.get("PersistentVolumeClaim", scope.namespace, name) is not None:
        raise DeployFailed(
            f"the Secret {name} with the password of the database is missing, and no Secret of the servers' variables "
            f"has it. The claim {name} has data, so no new password is made. Create the Secret again with the key "
            f"{PASSWORD}: from a backup, or with a password that you set in the database (alter role portside)"
        )

    if component == "redis":
        # One that runs keeps its earlier password until it starts again; nothing in it has to last.
        await api.delete("StatefulSet", scope.namespace, name)

    return secrets.token_urlsafe(24)


def recover_password(variables: Iterable[Json], address: str, *, host: str) -> str | None:
    """Return the password in the newest Secret of variables that has the address of a store at this host."""
    newest_first = sorted(variables, key=lambda secret: secret["metadata"].get("creationTimestamp", ""), reverse=True)
    for secret in newest_first:
        url = urlsplit(_read_value(secret, address) or "")
        if url.hostname == host and url.password:
            return unquote(url.password)

    return None


def _derive_key(release: Release, component: str) -> str:
    """Return what stands for the password of a store that the listener does not make: secret, and always the same.

    The names of Secrets are derived from it, and a name that changed would start all servers again.
    """
    key = release.deployment.environment.get("LANGSMITH_API_KEY", "")
    return hmac.digest(key.encode(), f"{release.deployment.id} {component}".encode(), "sha256").hex()


def _read_value(secret: Json | None, name: str) -> str | None:
    data = (secret or {}).get("data") or {}
    try:
        return base64.b64decode(data.get(name, ""), validate=True).decode() or None
    except (binascii.Error, UnicodeDecodeError):
        return None
