"""The environment variables of a deployment's pods.

The secret ones are in one immutable Secret. Changed values make a new Secret, so that the pods of the previous revision
keep theirs. Variables that a container sets itself override the Secret.
"""

import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import quote, urlsplit

from portside.dataplane.compute.kubernetes.objects import API_PORT, Address, Json
from portside.dataplane.compute.scaling import ServerTier
from portside.kernel.aliases import environment_names
from portside.kernel.local_addresses import is_loopback, is_wildcard
from portside.listener_api import DesiredDeployment, DesiredRevision

CUSTOM_POSTGRES = "POSTGRES_URI_CUSTOM"
CUSTOM_REDIS = "REDIS_URI_CUSTOM"
_DATABASE_NAMES = ("DATABASE_URI", "POSTGRES_URI")
_STORE_VARIABLES = frozenset(
    {
        *_DATABASE_NAMES,
        CUSTOM_POSTGRES,
        CUSTOM_REDIS,
        "DATABASE_URL",
        "REDIS_URI",
        *environment_names("GRAPH_AES_KEY"),
        *environment_names("GRAPH_AES_JSON_KEYS"),
    }
)
_GRACE = "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS"


@dataclass(frozen=True)
class Passwords:
    """The passwords of a deployment's own Postgres and Redis; generated once and kept in their Secrets."""

    postgres: str
    redis: str

    def __repr__(self) -> str:
        return "Passwords()"


@dataclass(frozen=True)
class PodEnvironment:
    """What pods need to know of the cluster. A URL of None means that the user's own secret names the store."""

    address: Address
    database_url: str | None
    redis_url: str | None
    platform_url: str
    grace_s: float
    start_timeout_s: float
    listen_address: str = "0.0.0.0"  # noqa: S104 - a pod's own address
    proxies: Mapping[str, str] = field(default_factory=dict)


def has_own(revision: DesiredRevision, name: str) -> bool:
    """Whether a secret, or a reference to one, names the user's own Postgres or Redis."""
    return name in {secret.name for secret in revision.secrets} | {ref["name"] for ref in revision.secret_references}


def postgres_url(host: str, password: str) -> str:
    """Return the URL of the Postgres that the listener creates for a deployment."""
    return f"postgresql://portside:{quote(password, safe='')}@{host}:5432/portside"


def redis_url(host: str, password: str) -> str:
    """Return the URL of the Redis that the listener creates for a deployment."""
    return f"redis://:{quote(password, safe='')}@{host}:6379/0"


def read_grace(revision: DesiredRevision, default_s: float) -> float:
    """Return how many seconds the revision's runs may continue after their server was asked to stop."""
    for secret in revision.secrets:
        if secret.name == _GRACE:
            try:
                return min(max(float(secret.value), 0), 3600)
            except ValueError:
                break

    return default_s


def build_secret_environment(
    deployment: DesiredDeployment, revision: DesiredRevision, environment: PodEnvironment
) -> dict[str, str]:
    """Return the variables of the Secret. Later ones win: proxies, the platform's, the user's, the stores' URLs."""
    platform = dict(deployment.environment)
    address = platform.get("LANGSMITH_ENDPOINT", "")
    host = urlsplit(address).hostname
    if is_loopback(host) or is_wildcard(host):
        # Such an address of the platform's machine would lead a pod to itself.
        for name in {"LANGSMITH_ENDPOINT", "LANGSMITH_AUTH_ENDPOINT"} & platform.keys():
            platform[name] = environment.platform_url.rstrip("/") + platform[name].removeprefix(address)

    secrets = revision.secret_values
    values = {**environment.proxies, **platform, **secrets}
    database = environment.database_url or secrets.get(CUSTOM_POSTGRES)
    if database is not None:
        values.update(dict.fromkeys(_DATABASE_NAMES, database))

    redis = environment.redis_url or secrets.get(CUSTOM_REDIS)
    if redis is not None:
        values["REDIS_URI"] = redis

    return values


def derive_core_api_key(passwords: Passwords) -> str:
    """Return the key that executors and their orchestrators share."""
    return hmac.digest(f"{passwords.postgres}{passwords.redis}".encode(), b"core api", "sha256").hex()


def without_stores(values: dict[str, str]) -> dict[str, str]:
    """Return the variables of executors: not the stores' addresses, nor the keys of what is in them."""
    return {name: value for name, value in values.items() if name not in _STORE_VARIABLES}


def build_container_environment(
    revision: DesiredRevision,
    environment: PodEnvironment,
    tier: ServerTier,
    more: Mapping[str, str] = MappingProxyType({}),
) -> list[Json]:
    """Return the variables that are not secret, and those that refer to the user's secrets on the cluster."""
    plain = {
        "PORT": str(API_PORT),
        "GRAPH_SERVER_PORT": str(API_PORT),
        "GRAPH_SERVER_HOST": environment.listen_address,
        "PORTSIDE_TIER": tier.value,
        "LOG_JSON": "true",
        "PYTHONUNBUFFERED": "1",
        "LANGSMITH_HOST_REVISION_ID": str(revision.id),
        _GRACE: f"{environment.grace_s:g}",
        **more,
    }

    if environment.address.path:
        plain["MOUNT_PREFIX"] = environment.address.path

    variables: list[Json] = [{"name": name, "value": value} for name, value in plain.items()]
    for reference in revision.secret_references:
        if tier is ServerTier.EXECUTOR and reference["name"] in _STORE_VARIABLES:
            continue

        source = {"secretKeyRef": {"name": reference["secret_name"], "key": reference["secret_key"]}}
        variables += [{"name": name, "valueFrom": source} for name in _list_referring_names(reference["name"], plain)]

    return variables


def hash_values(values: dict[str, str], passwords: Passwords) -> str:
    """Return a short name for these values, keyed with the passwords so that nobody can guess the values from it."""
    text = json.dumps(values, sort_keys=True).encode()
    return hmac.digest(f"{passwords.postgres}{passwords.redis}".encode(), text, "sha256").hex()[:12]


def encode_values(values: dict[str, str]) -> dict[str, str]:
    """Return values in the form of a Secret's `data`."""
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def _list_referring_names(name: str, taken: dict[str, str]) -> list[str]:
    """Return the variables that a reference sets: its own name, and those that a custom store replaces."""
    if name in taken or name in _DATABASE_NAMES:
        return []
    if name == CUSTOM_POSTGRES:
        return [name, *_DATABASE_NAMES]

    return [name, "REDIS_URI"] if name == CUSTOM_REDIS else [name]
