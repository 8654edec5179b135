"""Headers of requests: reading single ones, and selecting those that a server passes on to runs and into its log.

Patterns select headers by name; `*` matches any characters, and excludes win over includes. Headers that carry secrets
are never passed on. Neither are names with an underscore: proxies treat them as the same name with a hyphen, and in a
run's configuration they could collide with keys of ours.
"""

import contextvars
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any

import msgspec
from starlette.requests import HTTPConnection

from portside.kernel.errors import Invalid
from portside.kernel.ids import random_id

SECRET = frozenset({"x-api-key", "x-tenant-id", "x-service-key"})
SECRET_PARTS = ("authorization", "cookie", "_")
VALUE_LIMIT = 4096
LOGGED_LIMIT = 200

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Patterns = Annotated[list[Pattern], msgspec.Meta(max_length=200)]
_forwarded: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("forwarded_headers", default=None)


class HeaderRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Patterns of the names that are passed on, and of those that are not. Each key has two accepted names."""

    includes: Patterns = []
    excludes: Patterns = []
    include: Patterns = []
    exclude: Patterns = []

    @cached_property
    def _wanted(self) -> re.Pattern[str]:
        return _any_of([*self.includes, *self.include])

    @cached_property
    def _unwanted(self) -> re.Pattern[str]:
        return _any_of([*self.excludes, *self.exclude])

    @property
    def ignored(self) -> list[str]:
        """The included names that are not passed on, because they carry secrets."""
        return [name for name in (*self.includes, *self.include) if "*" not in name and _is_secret(name.lower())]

    def select(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return the headers to pass on, by lower-case name; repeated headers are joined by commas."""
        selected: dict[str, str] = {}
        for raw_name, value in headers:
            name = raw_name.decode("latin-1").lower()
            if self._wanted.fullmatch(name) and not self._unwanted.fullmatch(name) and not _is_secret(name):
                text = value.decode("latin-1")
                selected[name] = f"{selected[name]}, {text}" if name in selected else text

        return selected


class ForwardHeaders:
    """Makes the selected headers of a request available to the run that it starts (`forwarded_headers`)."""

    def __init__(self, app: Any, rules: HeaderRules) -> None:
        self.app = app
        self.rules = rules

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on. Tasks that it starts inherit the context variable."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return

        token = _forwarded.set(self.rules.select(scope["headers"]))
        try:
            await self.app(scope, receive, send)
        finally:
            _forwarded.reset(token)


def forwarded_headers() -> dict[str, str]:
    """Return the selected headers of the current request. Raises Invalid if a value is too long."""
    selected = _forwarded.get() or {}
    for name, value in selected.items():
        if len(value) > VALUE_LIMIT:
            raise Invalid.field(["header", name], f"Expected at most {VALUE_LIMIT} characters")

    return selected


def headers_for_log(selected: dict[str, str]) -> dict[str, str]:
    """Return headers as the log shows them: shortened, and without control characters."""
    return {name: value[:LOGGED_LIMIT].encode("ascii", "backslashreplace").decode() for name, value in selected.items()}


def _is_secret(name: str) -> bool:
    return name in SECRET or any(part in name for part in SECRET_PARTS)


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    """Return one regular expression for all patterns. Without patterns it matches nothing."""
    # Several stars in a row mean the same as one, and would backtrack slowly.
    named = [".*".join(map(re.escape, re.split(r"\*+", pattern.lower()))) for pattern in patterns]
    return re.compile("|".join(named) if named else r"(?!)")


Header = tuple[bytes, bytes]
_BLANKS = " \t"
# Characters that a request id may not hold: it is written to the log, which terminals show.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")


def header_of(scope: Any, name: bytes) -> str | None:
    """Return the first header with this lower-case name, or None."""
    for given, value in scope["headers"]:
        if given == name:
            text: str = value.decode("latin-1")
            return text

    return None


def first_headers(scope: Any) -> dict[bytes, bytes]:
    """Return the headers by lower-case name; of repeated headers, the first."""
    return dict(reversed(scope["headers"]))


def cookies_of(header: str | None, name: str) -> list[str]:
    """Return the values of all cookies with a name in a Cookie header.

    Only spaces and tabs are no part of a name. Browsers do not protect the prefix `__Host-` behind another character,
    so a page of another host could set a cookie with one.
    """
    pairs = (part.partition("=") for part in (header or "").split(";"))
    return [value.strip(_BLANKS).strip('"') for given, _, value in pairs if given.strip(_BLANKS) == name]


def bearer_of(authorization: str | None) -> str | None:
    """Return the bearer token of an Authorization header, or None."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def is_tls(request: HTTPConnection) -> bool:
    """Whether the client reaches this server over TLS, maybe through a proxy."""
    forwarded = request.headers.get("x-forwarded-proto", "").split(",")[0].strip()
    return (forwarded if forwarded in {"http", "https"} else request.scope["scheme"]) in {"https", "wss"}


def origin_of(request: HTTPConnection) -> str:
    """Return scheme, host and port of the server as this client used them."""
    return f"{'https' if is_tls(request) else 'http'}://{request.url.netloc}"


def base_url_of(request: HTTPConnection) -> str:
    """Return the server's base URL as this client used it, which works through the same proxies again."""
    requested_path = request.scope["raw_path"].decode("latin-1").split("?")[0]
    return f"{origin_of(request)}{requested_path.removesuffix(request.scope['path'])}"


def request_id_of(headers: dict[bytes, bytes]) -> str:
    """Return the X-Request-Id that the client sent, without unsafe characters, or a new id."""
    given = headers.get(b"x-request-id")
    safe = given and _UNSAFE.sub("", given.decode("latin-1"))[:200]
    return safe or random_id()
