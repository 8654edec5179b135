"""Callers, and the access that they have to resources."""

import hashlib
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from portside.executor.requests import Filter as Filter  # noqa: PLC0414 - imported from here, like the types below


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request. `user` is what authentication returned, with an `identity`; None without authentication.

    `is_in_process` marks calls from the server's own process, which may do everything. `address` is the client's
    address, if nothing else is known of the client.
    """

    identity: str = ""
    display_name: str = ""
    permissions: tuple[str, ...] = ()
    user: Any = None
    is_in_process: bool = False
    address: str = ""

    def has_permission(self, permission: str) -> bool:
        """Whether the caller has the permission `resource:verb`, also by `resource:*` or `*`."""
        return not {permission, f"{permission.partition(':')[0]}:*", "*"}.isdisjoint(self.permissions)

    @property
    def limit_key(self) -> str | None:
        """The key under which limits count the caller; None for a caller without limits."""
        if not (self.identity or self.address):
            return None

        kind, name = ("user", self.identity) if self.identity else ("address", self.address)
        return _limit_key(kind, name)


@lru_cache(maxsize=1024)
def _limit_key(kind: str, name: str) -> str:
    return hashlib.sha256(f"{kind} {name}".encode("utf-8", "replace")).hexdigest()[:32]


def auth_configurable(caller: Caller) -> dict[str, Any]:
    """Return the part of a config that names the caller to a graph; empty without authentication."""
    user = caller.user
    return {} if user is None else {"langgraph_auth_user": user, "langgraph_auth_user_id": caller.identity}


ANYONE = Caller()
IN_PROCESS = Caller(is_in_process=True)


class Grant(NamedTuple):
    """The right to start a run: on a thread that matches the filter, or on a new thread with this metadata.

    `creates` allows creating a missing thread without a further check. `run_id` is the id that the handler was given,
    and `key` the client's idempotency key.
    """

    caller: Caller = ANYONE
    run_id: UUID | None = None
    thread: Filter | None = None
    new_thread: dict[str, Any] | None = None
    creates: bool = True
    key: str | None = None


UNRESTRICTED = Grant()


class CronGrant(NamedTuple):
    """The owner of a cron, its id, and the filter that its thread has to match whenever it fires."""

    caller: Caller = ANYONE
    cron_id: UUID | None = None
    thread: Filter | None = None


class CronFilters(NamedTuple):
    """The crons that a caller may see: by their own metadata and, if they have a thread, by that of the thread."""

    access: Filter | None = None
    thread_access: Filter | None = None


class AuthCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cache of authenticated callers, keyed by the values of the headers `cache_keys`; 0 callers turn it off."""

    cache_keys: list[str] = msgspec.field(default_factory=lambda: ["authorization", "x-api-key", "cookie"])
    ttl_seconds: float = 60.0
    max_size: int = 1000


class AuthOpenApi(msgspec.Struct, frozen=True):
    """The authentication in the OpenAPI document."""

    securitySchemes: dict[str, Any] = {}  # noqa: N815 - the names of OpenAPI
    security: list[dict[str, list[str]]] = []
    paths: dict[str, dict[str, list[dict[str, list[str]]]]] = {}


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `auth` of the configuration file."""

    path: str | None = None
    disable: bool = False
    disable_studio_auth: bool = False
    openapi: AuthOpenApi | None = None
    cache: AuthCache | None = None
    allow_langsmith_api_keys: bool = False
