"""Which web pages may call the server from a browser; by default all may.

Preflights are answered here; `RequestMiddleware` adds the headers to all other responses, errors too. Two kinds of
requests from pages that are not allowed are refused, because browsers send them without a preflight: WebSocket
handshakes, and forms that change something. The web framework's own middleware is not used because it sends no `Vary`
on responses that any page may read.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from starlette.responses import Response

from portside.kernel.errors import Forbidden
from portside.kernel.http.error_responses import error_response
from portside.kernel.http.headers import Header

METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY"]
EXPOSED = ["x-pagination-total", "x-pagination-next", "content-location"]
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
VARIES: Header = (b"vary", b"Origin")


class PageNotAllowed(Forbidden):
    """Web pages of this origin may not change anything here; add the origin to CORS_ALLOW_ORIGINS if they should."""

    code = "page_not_allowed"


class CorsRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pages that may call from a browser, and how. Credentials are only for pages listed by name, never for `*`."""

    allow_origins: list[str] = msgspec.field(default_factory=lambda: ["*"])
    allow_methods: list[str] = msgspec.field(default_factory=lambda: list(METHODS))
    allow_headers: list[str] = msgspec.field(default_factory=lambda: ["*"])
    allow_credentials: bool = False
    allow_origin_regex: str | None = None
    expose_headers: list[str] = msgspec.field(default_factory=lambda: list(EXPOSED))
    max_age: Annotated[int, msgspec.Meta(ge=0)] = 600

    def __post_init__(self) -> None:
        if self.allow_origin_regex is not None:
            try:
                re.compile(self.allow_origin_regex)
            except re.error as exc:
                raise ValueError(f"allow_origin_regex is not a regular expression: {exc}") from exc

    @classmethod
    def of(cls, origins: str) -> "CorsRules":
        """Make rules of a comma-separated list of origins; `*` allows all pages, `none` allows none."""
        named = [origin.strip() for origin in origins.split(",") if origin.strip()]
        return cls(allow_origins=[] if named == ["none"] else named)

    def allows(self, origin: str) -> bool:
        """Whether a page of this origin may call."""
        is_named = "*" in self.allow_origins or origin in self.allow_origins
        return is_named or bool(self.allow_origin_regex and re.fullmatch(self.allow_origin_regex, origin))


class Cors:
    """Applies the rules: answers preflights, refuses pages, and returns the headers of other responses."""

    def __init__(self, rules: CorsRules) -> None:
        self.rules = rules
        self._is_for_all = "*" in rules.allow_origins
        self._methods = METHODS if "*" in rules.allow_methods else [method.upper() for method in rules.allow_methods]

    def refusal(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        """Return the response to a preflight, or the refusal of a page; None if the application should answer."""
        if (origin := _text(headers, b"origin")) is None:
            return None
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            return self._preflight(origin, headers)
        if method not in SAFE and not self._may_change(origin, headers):
            return error_response(PageNotAllowed())

        return None

    def may_connect(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a page may open a WebSocket. Browsers let any page open one, so the server must check."""
        origin = _text(headers, b"origin")
        return origin is None or _is_at(origin, _text(headers, b"host")) or self.rules.allows(origin)

    def response_headers(self, headers: dict[bytes, bytes]) -> tuple[Header, ...]:
        """Return the CORS headers of a response: what its page may do, if anything, and a `Vary` in any case."""
        if (origin := _text(headers, b"origin")) is None:
            return (VARIES,)
        return (VARIES, *((name.encode(), value.encode("latin-1")) for name, value in self._granted(origin).items()))

    def _may_change(self, origin: str, headers: dict[bytes, bytes]) -> bool:
        """Whether a page may change something: it is allowed, or comes from this server's own address.

        Behind a proxy the server does not know its public address. Then it relies on Sec-Fetch-Site, which browsers set
        and pages cannot change.
        """
        is_own = headers.get(b"sec-fetch-site") in {b"same-origin", b"none"} or _is_at(origin, _text(headers, b"host"))
        return is_own or self.rules.allows(origin)

    def _granted(self, origin: str) -> dict[str, str]:
        if not self.rules.allows(origin):
            return {}

        granted = {"access-control-allow-origin": "*" if self._is_for_all else origin}
        if self.rules.allow_credentials and not self._is_for_all:
            granted["access-control-allow-credentials"] = "true"

        if self.rules.expose_headers:
            granted["access-control-expose-headers"] = ", ".join(self.rules.expose_headers)

        return granted

    def _preflight(self, origin: str, headers: dict[bytes, bytes]) -> Response:
        names = _text(headers, b"access-control-request-headers") or ""
        refused = [
            name
            for name, is_allowed in {
                "origin": self.rules.allows(origin),
                "method": _text(headers, b"access-control-request-method") in self._methods,
                "headers": self._allows_headers(names),
            }.items()
            if not is_allowed
        ]

        granted = {"vary": "Origin, Access-Control-Request-Headers", **self._granted(origin)}
        granted.pop("access-control-expose-headers", None)

        if refused:
            return Response(f"Disallowed CORS {', '.join(refused)}", 400, granted, "text/plain")

        granted["access-control-allow-methods"] = ", ".join(self._methods)
        granted["access-control-max-age"] = str(self.rules.max_age)
        granted["access-control-allow-private-network"] = "true"

        if names:
            granted["access-control-allow-headers"] = names

        return Response("OK", 200, granted, "text/plain")

    def _allows_headers(self, names: str) -> bool:
        allowed = {name.lower() for name in self.rules.allow_headers}
        wanted = {name.strip().lower() for name in names.split(",")} - {"", "accept", "content-type"}
        return "*" in allowed or wanted <= allowed


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request from a page of this server. False without evidence.

    Sandboxed pages have the origin `null`, also those of this server.
    """
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site")

    if origin == "null":
        return False
    if site is not None:
        return site == "same-origin"

    return origin is not None and _is_at(origin, headers.get("host"))


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _is_at(origin: str, host: str | None) -> bool:
    return origin.rpartition("://")[2] == host
