"""Who asks, and what of a resource they may see (contract: section 15)."""

import hashlib
from typing import Any, NamedTuple, NewType
from uuid import UUID

import msgspec

Filter = NewType("Filter", dict[str, Any])
"""What the metadata of a resource has to be like, checked and in the form that the database function `fits` reads."""


class User(dict[str, Any]):
    """A user: the fields that authentication returned, by name and as attributes; and what else the original has."""

    __slots__ = ("_original",)

    def __init__(self, fields: dict[str, Any], original: Any = None) -> None:
        super().__init__(fields)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        """Return a field, or an attribute of what authentication returned."""
        if name in self:
            return self[name]
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._original, name)

    def __reduce__(self) -> Any:
        """Copy the fields alone: a copy may go where the original means nothing."""
        return (User, (dict(self),))


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `user` is what authentication returned, with an `identity`; None where nobody is asked who they are.

    `is_inside` is this process, which may do everything. `address` is where a request comes from, where that is all
    that is known.
    """

    identity: str = ""
    display_name: str = ""
    permissions: tuple[str, ...] = ()
    user: Any = None
    is_inside: bool = False
    address: str = ""

    def may(self, permission: str) -> bool:
        """Whether authentication gave them `resource:verb`, as it is or by `resource:*` or `*`."""
        return not {permission, f"{permission.partition(':')[0]}:*", "*"}.isdisjoint(self.permissions)

    @property
    def counted_as(self) -> str | None:
        """A short name under which limits count what a caller takes up; None for who is not limited."""
        if not (self.identity or self.address):
            return None
        kind, name = ("user", self.identity) if self.identity else ("address", self.address)
        return hashlib.sha256(f"{kind} {name}".encode("utf-8", "replace")).hexdigest()[:32]


def told_of(caller: Caller) -> dict[str, Any]:
    """Return where a graph that is looked at finds who looks: nothing where nobody is asked who they are."""
    user = caller.user
    return {} if user is None else {"langgraph_auth_user": user, "langgraph_auth_user_id": caller.identity}


ANYONE = Caller()
INSIDE = Caller(is_inside=True)


class Grant(NamedTuple):
    """What a caller may make a run of: on a thread that fits the filter, or on one that is made with this metadata.

    `creates` tells that a thread that is not there may be made without a look, `run_id` how the run is to be named, and
    `key` how the client names what it asks for.
    """

    caller: Caller = ANYONE
    run_id: UUID | None = None
    thread: Filter | None = None
    new_thread: dict[str, Any] | None = None
    creates: bool = True
    key: str | None = None


FREE = Grant()


class CronGrant(NamedTuple):
    """Whose a cron is, how it is to be named, and what the thread that it runs on has to be like whenever it fires."""

    caller: Caller = ANYONE
    cron_id: UUID | None = None
    thread: Filter | None = None


class CronFilters(NamedTuple):
    """Which crons a caller sees: by their own metadata, and where they have a thread by that of the thread."""

    access: Filter | None = None
    thread_access: Filter | None = None


class AuthCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long it is remembered who a caller is, by the values of which headers, and for how many callers."""

    cache_keys: list[str] = msgspec.field(default_factory=lambda: ["authorization", "x-api-key", "cookie"])
    ttl_seconds: float = 60.0
    max_size: int = 1000


class AuthOpenApi(msgspec.Struct, frozen=True):
    """What the description of the API says of authentication."""

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
