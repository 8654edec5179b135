"""Which web pages may call the server from a browser (contract: CORS default).

Preflights are answered here, and every other answer is marked, errors too (`front`). WebSockets of other pages are
turned away, because browsers ask no server before they open one, and so is what other pages send to change something:
browsers send forms without asking. It is our own because the web framework's sends no `Vary` on answers that any page
may read.
"""

import re
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from portside.kernel.errors import Forbidden
from portside.kernel.http.headers import Header
from portside.kernel.http.refusals import error_response

METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY"]
EXPOSED = ["x-pagination-total", "x-pagination-next", "content-location"]
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
VARIES: Header = (b"vary", b"Origin")


class PageNotAllowed(Forbidden):
    """The web page that sent the request is not among those that may change something here (CORS_ALLOW_ORIGINS)."""

    code = "page_not_allowed"


class CorsRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may call from a browser, and how. Credentials are for pages that are named: never for `*`."""

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
                raise ValueError(f"allow_origin_regex is no regular expression: {exc}") from exc

    @classmethod
    def of(cls, origins: str) -> "CorsRules":
        """Make rules of origins separated by commas; `*` is any page, `none` is no page."""
        named = [origin.strip() for origin in origins.split(",") if origin.strip()]
        return cls(allow_origins=[] if named == ["none"] else named)

    def allows(self, origin: str) -> bool:
        """Whether a page of this origin may call."""
        is_named = "*" in self.allow_origins or origin in self.allow_origins
        return is_named or bool(self.allow_origin_regex and re.fullmatch(self.allow_origin_regex, origin))


class Cors:
    """The rules at work: what other web pages are answered, and how every answer is marked for them."""

    def __init__(self, rules: CorsRules) -> None:
        self.rules = rules
        self._is_for_all = "*" in rules.allow_origins
        self._methods = METHODS if "*" in rules.allow_methods else [method.upper() for method in rules.allow_methods]

    def answer(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        """Return the answer to a preflight, or to what a page may not send; None for what is to be answered as ever."""
        if (origin := _text(headers, b"origin")) is None:
            return None
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            return self._preflight(origin, headers)
        if method not in SAFE and not self._may_change(origin, headers):
            return error_response(PageNotAllowed())
        return None

    def may_connect(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a page may open a WebSocket: browsers let any page open one, so the server has to look."""
        origin = _text(headers, b"origin")
        return origin is None or _is_at(origin, _text(headers, b"host")) or self.rules.allows(origin)

    def marks(self, headers: dict[bytes, bytes]) -> tuple[Header, ...]:
        """Return the headers of the answer: what the page that asked is granted, and that another one may not be."""
        if (origin := _text(headers, b"origin")) is None:
            return (VARIES,)
        return (VARIES, *((name.encode(), value.encode("latin-1")) for name, value in self._granted(origin).items()))

    def _may_change(self, origin: str, headers: dict[bytes, bytes]) -> bool:
        """Whether a page may send what changes something: an allowed one, or one of this server's own address.

        Where a proxy has another address than this server, the browser says in a header that only it can set whether
        the page is from there.
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
            for name, is_fine in {
                "origin": self.rules.allows(origin),
                "method": _text(headers, b"access-control-request-method") in self._methods,
                "headers": self._takes(names),
            }.items()
            if not is_fine
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

    def _takes(self, names: str) -> bool:
        allowed = {name.lower() for name in self.rules.allow_headers}
        wanted = {name.strip().lower() for name in names.split(",")} - {"", "accept", "content-type"}
        return "*" in allowed or wanted <= allowed


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _is_at(origin: str, host: str | None) -> bool:
    return origin.rpartition("://")[2] == host


async def turn_away(_scope: Any, receive: Any, send: Any) -> None:
    """Close a WebSocket before it is accepted, which the client sees as 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})
