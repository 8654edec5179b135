"""Who asks, and what of a resource they may see (contract: section 15)."""

from typing import Any, NamedTuple, NewType
from uuid import UUID

import msgspec

Filter = NewType("Filter", dict[str, Any])
"""What the metadata of a resource has to be like, checked and in the form that the database function `fits` reads."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `user` is what authentication returned, with an `identity`; None where nobody is asked who they are."""

    identity: str = ""
    display_name: str = ""
    permissions: tuple[str, ...] = ()
    user: Any = None


ANYONE = Caller()


class Grant(NamedTuple):
    """What a caller may make a run of: on a thread that fits the filter, or on one that is made with this metadata.

    `creates` tells that a thread that is not there may be made without a look, `run_id` how the run is to be named.
    """

    caller: Caller = ANYONE
    run_id: UUID | None = None
    thread: Filter | None = None
    new_thread: dict[str, Any] | None = None
    creates: bool = True


FREE = Grant()


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
    disable_studio_auth: bool = False
    openapi: AuthOpenApi | None = None
    cache: AuthCache | None = None
    allow_langsmith_api_keys: bool = False
