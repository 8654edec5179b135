"""The environment of a deployment's pods (contract: names that secrets may not set).

What is secret is in one Secret that never changes: other values make another one, so that the pods of the revision
before keep theirs. What a container is told beside it wins over the Secret.
"""

import base64
import hmac
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from portside.dataplane.compute.kubernetes.addresses import API_PORT, Address
from portside.dataplane.types import DesiredDeployment, DesiredRevision

Json = dict[str, Any]

CUSTOM_POSTGRES, CUSTOM_REDIS = "POSTGRES_URI_CUSTOM", "REDIS_URI_CUSTOM"
_DATABASE_NAMES = ("DATABASE_URI", "POSTGRES_URI")
_GRACE = "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True)
class Passwords:
    """Those of a deployment's own Postgres and Redis; made once, kept in their Secrets."""

    postgres: str
    redis: str

    def __repr__(self) -> str:
        return "Passwords()"


@dataclass(frozen=True)
class Surroundings:
    """What a deployment's pods are told of the cluster. An URL of None is one that the user's own secret names."""

    address: Address
    database_url: str | None
    redis_url: str | None
    platform_url: str
    grace_s: float
    starting_s: float


def has_own(revision: DesiredRevision, name: str) -> bool:
    """Whether a secret or a reference to one names the user's own Postgres or Redis."""
    return name in {secret.name for secret in revision.secrets} | {ref["name"] for ref in revision.secret_references}


def postgres_url(host: str, password: str) -> str:
    """Return the URL of a deployment's own Postgres."""
    return f"postgresql://portside:{quote(password, safe='')}@{host}:5432/portside"


def redis_url(host: str, password: str) -> str:
    """Return the URL of a deployment's own Redis."""
    return f"redis://:{quote(password, safe='')}@{host}:6379/0"


def grace_of(revision: DesiredRevision, default_s: float) -> float:
    """Return how long the revision's runs may go on after a stop was asked for, in seconds."""
    for secret in revision.secrets:
        if secret.name == _GRACE:
            try:
                return min(max(float(secret.value), 0), 3600)
            except ValueError:
                break
    return default_s


def secret_environment(
    deployment: DesiredDeployment, revision: DesiredRevision, surroundings: Surroundings
) -> dict[str, str]:
    """Return what is secret, or merely the platform's or the user's: the platform's first, what must be true last."""
    secrets = {secret.name: secret.value for secret in revision.secrets}
    values = {**_platform(deployment, surroundings), **secrets}
    database = surroundings.database_url or secrets.get(CUSTOM_POSTGRES)
    if database is not None:
        values.update(dict.fromkeys(_DATABASE_NAMES, database))
    redis = surroundings.redis_url or secrets.get(CUSTOM_REDIS)
    if redis is not None:
        values["REDIS_URI"] = redis
    return values


def container_environment(revision: DesiredRevision, surroundings: Surroundings, tier: str) -> list[Json]:
    """Return the variables of a container that are nobody's secret, and those that refer to secrets of the cluster."""
    plain = {
        "PORT": str(API_PORT),
        "GRAPH_SERVER_PORT": str(API_PORT),
        "GRAPH_SERVER_HOST": "0.0.0.0",  # noqa: S104 - a pod's own address
        "PORTSIDE_TIER": tier,
        "LOG_JSON": "true",
        "PYTHONUNBUFFERED": "1",
        "LANGSMITH_HOST_REVISION_ID": str(revision.id),
        _GRACE: f"{surroundings.grace_s:g}",
    }
    if surroundings.address.path:
        plain["MOUNT_PREFIX"] = surroundings.address.path
    variables: list[Json] = [{"name": name, "value": value} for name, value in plain.items()]
    for reference in revision.secret_references:
        source = {"secretKeyRef": {"name": reference["secret_name"], "key": reference["secret_key"]}}
        variables += [{"name": name, "valueFrom": source} for name in _names_of(reference["name"], plain)]
    return variables


def digest_of(values: dict[str, str], passwords: Passwords) -> str:
    """Return a short name of these values, from which nobody can guess them."""
    text = json.dumps(values, sort_keys=True).encode()
    return hmac.digest(f"{passwords.postgres}{passwords.redis}".encode(), text, "sha256").hex()[:12]


def encoded(values: dict[str, str]) -> dict[str, str]:
    """Return values as the `data` of a Secret has them."""
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def _platform(deployment: DesiredDeployment, surroundings: Surroundings) -> dict[str, str]:
    """Return what the platform tells its deployments; its address on its own machine leads nowhere from a pod."""
    told = dict(deployment.environment)
    for name in ("LANGSMITH_ENDPOINT", "LANGSMITH_AUTH_ENDPOINT"):
        if urlsplit(told.get(name, "")).hostname in _LOOPBACK:
            told[name] = surroundings.platform_url
    return told


def _names_of(name: str, taken: dict[str, str]) -> list[str]:
    """Return the variables that a reference of this name becomes: its own, and ours that it stands for."""
    if name in taken or name in _DATABASE_NAMES:
        return []
    return [name, *{CUSTOM_POSTGRES: _DATABASE_NAMES, CUSTOM_REDIS: ("REDIS_URI",)}.get(name, ())]
