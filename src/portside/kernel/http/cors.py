"""Which web pages may call the server from a browser (contract: CORS default).

Answers preflights itself and marks every other answer, errors too, so it stands outside of what turns errors into
answers. WebSockets of other pages are turned away, because browsers ask no server before they open one, and so
is what other pages send to change something: browsers send forms without asking. It is our own because the web
framework's sends no `Vary` on answers that any page may read.
"""

import re
from typing import Annotated, Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from portside.kernel.errors import Forbidden
from portside.kernel.http.headers import header_of
from portside.kernel.http.refusals import error_response

METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY"]
EXPOSED = ["x-pagination-total", "x-pagination-next", "content-location"]
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


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
    """Applies the rules to every HTTP request."""

    def __init__(self, app: Any, rules: CorsRules) -> None:
        self.app = app
        self.rules = rules
        self._is_for_all = "*" in rules.allow_origins
        self._methods = METHODS if "*" in rules.allow_methods else [method.upper() for method in rules.allow_methods]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a preflight; pass everything else on and mark its answer."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        origin = header_of(scope, b"origin")
        if scope["type"] == "websocket":
            await self._connect(origin, header_of(scope, b"host"))(scope, receive, send)
            return
        if origin is not None:
            headers = Headers(scope=scope)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await self._preflight(origin, headers)(scope, receive, send)
                return
            if scope["method"] not in SAFE and not self._may_change(origin, headers):
                await error_response(PageNotAllowed())(scope, receive, send)
                return

        async def mark(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.add_vary_header("Origin")
                answer.update(self._granted(origin))
            await send(message)

        await self.app(scope, receive, mark)

    def _connect(self, origin: str | None, host: str | None) -> Any:
        """Choose who answers a WebSocket: browsers let any page open one, so the server has to look."""
        is_let_in = origin is None or _is_at(origin, host) or self.rules.allows(origin)
        return self.app if is_let_in else _turn_away

    def _may_change(self, origin: str, headers: Headers) -> bool:
        """Whether a page may send what changes something: an allowed one, or one of this server's own address.

        Where a proxy has another address than this server, the browser says in a header that only it can set whether
        the page is from there.
        """
        is_own = headers.get("sec-fetch-site") in {"same-origin", "none"} or _is_at(origin, headers.get("host"))
        return is_own or self.rules.allows(origin)

    def _granted(self, origin: str | None) -> dict[str, str]:
        if origin is None or not self.rules.allows(origin):
            return {}
        granted = {"access-control-allow-origin": "*" if self._is_for_all else origin}
        if self.rules.allow_credentials and not self._is_for_all:
            granted["access-control-allow-credentials"] = "true"
        if self.rules.expose_headers:
            granted["access-control-expose-headers"] = ", ".join(self.rules.expose_headers)
        return granted

    def _preflight(self, origin: str, asked: Headers) -> Response:
        refused = [
            name
            for name, is_fine in {
                "origin": self.rules.allows(origin),
                "method": asked["access-control-request-method"] in self._methods,
                "headers": self._takes(asked.get("access-control-request-headers", "")),
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
        if names := asked.get("access-control-request-headers"):
            granted["access-control-allow-headers"] = names
        return Response("OK", 200, granted, "text/plain")

    def _takes(self, names: str) -> bool:
        allowed = {name.lower() for name in self.rules.allow_headers}
        wanted = {name.strip().lower() for name in names.split(",")} - {"", "accept", "content-type"}
        return "*" in allowed or wanted <= allowed


def _is_at(origin: str, host: str | None) -> bool:
    return origin.rpartition("://")[2] == host


async def _turn_away(_scope: Any, receive: Any, send: Any) -> None:
    """Close a WebSocket before it is accepted, which the client sees as 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})
