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
from portside.kernel.http.error_responses import build_error_response
from portside.kernel.http.headers import Header
from portside.kernel.settings import split_names

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
        if self.allow_origin_regex is None:
            return

        try:
            re.compile(self.allow_origin_regex)
        except re.error as exc:
            raise ValueError(f"allow_origin_regex is not a regular expression: {exc}") from exc

    @classmethod
    def of(cls, origins: str) -> "CorsRules":
        """Make rules of a comma-separated list of origins; `*` allows all pages, `none` allows none."""
        names = split_names(origins)
        return cls(allow_origins=[] if names == ["none"] else names)

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

    def refuse(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        """Return the response to a preflight, or the refusal of a page; None if the application should answer."""
        origin = _get_text(headers, b"origin")
        if origin is None:
            return None

        if method == "OPTIONS" and b"access-control-request-method" in headers:
            return self._answer_preflight(origin, headers)
        if method not in SAFE and not self._may_change(origin, headers):
            return build_error_response(PageNotAllowed())

        return None

    def may_connect(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a page may open a WebSocket. Browsers let any page open one, so the server must check."""
        origin = _get_text(headers, b"origin")
        return origin is None or _is_at(origin, _get_text(headers, b"host")) or self.rules.allows(origin)

    def response_headers(self, headers: dict[bytes, bytes]) -> tuple[Header, ...]:
        """Return the CORS headers of a response: what its page may do, if anything, and a `Vary` in any case."""
        origin = _get_text(headers, b"origin")
        if origin is None:
            return (VARIES,)

        grants = self._build_grants(origin)
        return (VARIES, *((name.encode(), value.encode("latin-1")) for name, value in grants.items()))

    def _may_change(self, origin: str, headers: dict[bytes, bytes]) -> bool:
        """Whether a page may change something: it is allowed, or comes from this server's own address.

        Behind a proxy the server does not know its public address. Then it relies on Sec-Fetch-Site, which browsers set
        and pages cannot change.
        """
        is_same_site = headers.get(b"sec-fetch-site") in {b"same-origin", b"none"}
        is_own = is_same_site or _is_at(origin, _get_text(headers, b"host"))
        return is_own or self.rules.allows(origin)

    def _build_grants(self, origin: str) -> dict[str, str]:
        """Return the headers that say what a page may do; none for a page that may not call."""
        if not self.rules.allows(origin):
            return {}

        grants = {"access-control-allow-origin": "*" if self._is_for_all else origin}
        if self.rules.allow_credentials and not self._is_for_all:
            grants["access-control-allow-credentials"] = "true"

        if self.rules.expose_headers:
            grants["access-control-expose-headers"] = ", ".join(self.rules.expose_headers)

        return grants

    def _answer_preflight(self, origin: str, request_headers: dict[bytes, bytes]) -> Response:
        names = _get_text(request_headers, b"access-control-request-headers") or ""
        headers = {"vary": "Origin, Access-Control-Request-Headers", **self._build_grants(origin)}
        headers.pop("access-control-expose-headers", None)

        refused_parts: list[str] = []
        if not self.rules.allows(origin):
            refused_parts.append("origin")
        if _get_text(request_headers, b"access-control-request-method") not in self._methods:
            refused_parts.append("method")
        if not self._allows_headers(names):
            refused_parts.append("headers")

        if refused_parts:
            text = f"Disallowed CORS {', '.join(refused_parts)}"
            return Response(text, status_code=400, headers=headers, media_type="text/plain")

        headers["access-control-allow-methods"] = ", ".join(self._methods)
        headers["access-control-max-age"] = str(self.rules.max_age)
        headers["access-control-allow-private-network"] = "true"
        if names:
            headers["access-control-allow-headers"] = names

        return Response("OK", headers=headers, media_type="text/plain")

    def _allows_headers(self, names: str) -> bool:
        allow_names = {name.lower() for name in self.rules.allow_headers}
        request_names = {name.strip().lower() for name in names.split(",")} - {"", "accept", "content-type"}
        return "*" in allow_names or request_names <= allow_names


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


def _get_text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _is_at(origin: str, host: str | None) -> bool:
    return origin.rpartition("://")[2] == host
