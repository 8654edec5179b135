"""The ASGI middleware in front of the routes.

`RequestMiddleware` is the outermost: it applies the CORS rules, gives the request an id, turns exceptions into error
responses, adds headers to responses, closes connections while the server drains, and counts, times and logs the
request. It is one class, not seven, because each layer of middleware costs every request (docs/why/requests.md). It
reads the headers once, and touches each outgoing message once.

The others are optional: `AllowedHosts`, `StripPrefix` and `MountBelow`, `LimitBody`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect

from portside.kernel.errors import BadRequest, BodyTooLarge, NotFound, PortsideError
from portside.kernel.http.cors import Cors, PageNotAllowed
from portside.kernel.http.error_responses import ErrorFormat, error_for, error_response, refuse_websocket
from portside.kernel.http.forwarded_headers import HeaderRules, headers_for_log
from portside.kernel.http.headers import Header, first_headers, get_header, get_request_id
from portside.kernel.http.json_validation import MAX_VALUES, value_limit
from portside.kernel.http.proxies import add_prefix, with_prefix
from portside.kernel.logs import get_logger, log_request
from portside.kernel.metrics import latency_of, requests_of
from portside.kernel.transient_errors import log_failure

ANY = "*"
# Load balancers and orchestrators request these paths by IP address.
PATHS_FOR_ANY_HOST = frozenset({"/ok", "/metrics"})


class HostNotAllowed(BadRequest):
    """The server does not accept this host name; use one that the setting ALLOWED_HOSTS lists, or add it there."""

    code = "host_not_allowed"


class HostUnclear(BadRequest):
    """A request must have exactly one Host header."""

    code = "host_unclear"


def check_host(scope: Any) -> None:
    """Raise HostUnclear unless a request or a handshake has one Host header.

    If there are two, a proxy may have routed the request by the first, while this server would act on the second.
    """
    named = [name for name, _ in scope["headers"]].count(b"host")
    if named > 1 or (named == 0 and scope.get("http_version") == "1.1"):
        raise HostUnclear


class AllowedHosts:
    """Refuses requests for host names that are not allowed; `*.example.org` allows every subdomain.

    This stops DNS rebinding: a web page can point its own name at an address in its visitor's network, and browsers
    then treat the server at that address as part of the page. The Host header still shows the page's name.
    """

    def __init__(self, app: Any, names: list[str]) -> None:
        self.app = app
        self._names = frozenset(name.lower() for name in names)
        self._endings = tuple(name[1:].lower() for name in names if name.startswith("*."))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. Raises HostNotAllowed; a WebSocket is closed before it is accepted."""
        if scope["type"] not in {"http", "websocket"} or scope["path"] in PATHS_FOR_ANY_HOST or self._knows(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            raise HostNotAllowed

    def _knows(self, scope: Any) -> bool:
        name = _strip_port(Headers(scope=scope).get("host", "").lower())
        return name in self._names or name.endswith(self._endings)


def _strip_port(host: str) -> str:
    """Return the name in a Host header without the port; an IPv6 address keeps its brackets."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


PATH_PREFIX = msgspec.Meta(pattern=r"^(/[A-Za-z0-9_.~-]+)*$", max_length=200)


class StripPrefix:
    """Takes the first matching prefix off the path, so that `/api/v1/X` and `/X` are one route."""

    def __init__(self, app: Any, prefixes: tuple[str, ...]) -> None:
        self.app = app
        self.prefixes = prefixes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on without the prefix."""
        if scope["type"] in {"http", "websocket"}:
            for prefix in self.prefixes:
                if scope["path"].startswith(prefix + "/"):
                    scope = {**scope, "path": scope["path"][len(prefix) :]}
                    break

        await self.app(scope, receive, send)


class MountBelow:
    """Serves an application below a prefix; the paths in `at_root` are served at the root too.

    The application does not know the prefix, so its redirects get it.
    """

    def __init__(self, app: Any, prefix: str, at_root: frozenset[str]) -> None:
        self.app = app
        self.prefix = prefix
        self.at_root = at_root

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on with the path below the prefix. Raises NotFound."""
        if scope["type"] == "websocket" and not scope["path"].startswith(self.prefix + "/"):
            await send({"type": "websocket.close", "code": 1000})
            return

        if scope["type"] in {"http", "websocket"} and scope["path"] not in self.at_root:
            path = scope["path"].removeprefix(self.prefix) or "/"
            if path == scope["path"] or not path.startswith("/"):
                raise NotFound

            scope = {**scope, "path": path}
            add_prefix(scope, self.prefix)
            send = partial(self._send, get_header(scope, b"host") or "", send)

        await self.app(scope, receive, send)

    def _send(self, host: str, send: Any, message: Any) -> Any:
        if message["type"] == "http.response.start" and leads_elsewhere(message["status"]):
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            if location := headers.get("location"):
                headers["location"] = with_prefix(location, self.prefix, host)

            message = {**message, "headers": headers.raw}

        return send(message)


def leads_elsewhere(status: int) -> bool:
    """Whether the Location of a response is that of a redirect or of something new.

    Other responses of agent servers have one that their clients read relative to the server's own address.
    """
    return status == 201 or 300 <= status < 400


# A client that sends more than this after a refusal is disconnected before it has read the refusal.
_MAX_DRAINED_BYTES = 128 * 1024 * 1024


class LimitBody:
    """Refuses bodies over the limit with 413, by their declared length or while they arrive.

    `special` maps prefixes of paths to limits of their own. Whoever decodes a body as JSON refuses more than
    `max_values` values in it.
    """

    def __init__(
        self, app: Any, max_bytes: int, special: Mapping[str, int] | None = None, *, max_values: int = MAX_VALUES
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._max_values = max_values
        self._special = tuple((special or {}).items())

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Pass a request on; count the body of one that does not declare an accepted length as it is read."""
        value_limit.set(self._max_values)
        if scope["type"] == "http" and not self._is_short(scope):
            return self._count(scope, receive, send)

        passed: Awaitable[None] = self.app(scope, receive, send)
        return passed

    def _is_short(self, scope: Any) -> bool:
        """Whether a request declares a length within the limit; the HTTP server reads no more than that."""
        length = b"0"

        for name, value in scope["headers"]:
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                return False

        return length.isdigit() and int(length) <= self._get_limit(scope["path"])

    async def _count(self, scope: Any, receive: Any, send: Any) -> None:
        declared = get_header(scope, b"content-length") or "0"
        max_bytes = self._get_limit(scope["path"])
        if declared.isdigit() and int(declared) > max_bytes:
            await drain_body(receive)
            raise self._too_large(max_bytes)

        seen = 0

        async def count() -> Any:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > max_bytes:
                    if message.get("more_body"):
                        await drain_body(receive)
                    raise self._too_large(max_bytes)

            return message

        await self.app(scope, count, send)

    def _get_limit(self, path: str) -> int:
        for start, limit in self._special:
            if path.startswith(start):
                return limit

        return self.max_bytes

    def _too_large(self, max_bytes: int) -> BodyTooLarge:
        setting = " of this server (setting HTTP_MAX_REQUEST_BODY_BYTES)" if max_bytes == self.max_bytes else ""
        return BodyTooLarge(
            f"The request body is larger than {max_bytes} bytes, the limit{setting}.",
            headers={"Connection": "close"},
        )


async def drain_body(receive: Any) -> None:
    """Read and drop the rest of a body, up to a limit.

    Many clients read the response only after they have sent their body.
    """
    dropped = 0
    while dropped < _MAX_DRAINED_BYTES:
        message = await receive()
        dropped += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break


log = get_logger(__name__)
QUIET_PATHS = frozenset({"/ok", "/metrics"})
# Browsers must not guess that something a user or a graph stored is a page or a script.
NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
CLOSE: Header = (b"connection", b"close")


class ResponseSender:
    """Sends one response: adds headers to it, and remembers its status (0 until it begins)."""

    __slots__ = ("_added", "_draining", "_send", "status")

    def __init__(self, send: Any, added: tuple[Header, ...] = (), draining: asyncio.Event | None = None) -> None:
        self.status = 0
        self._send = send
        self._added = added
        self._draining = draining

    def send(self, message: Any) -> Any:
        """Pass a message on; the caller awaits the result, which saves a coroutine for each message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            # Checked now, not when the request arrived: the response may begin long after it.
            is_draining = self._draining is not None and self._draining.is_set()
            added = (*self._added, CLOSE) if is_draining else self._added
            message = {**message, "headers": _with_added(message.get("headers", ()), added)}

        return self._send(message)

    def send_whole(self, status: int, headers: list[Header], body: bytes) -> bool:
        """Send a response that is in memory at once; False if it must be sent as messages."""
        is_draining = self._draining is not None and self._draining.is_set()
        write = buffered_writer(self._send)
        if write is None or is_draining or not write(status, _with_added(headers, self._added), body):
            return False

        self.status = status
        return True


def buffered_writer(send: Any) -> Callable[[int, list[Header], bytes], bool] | None:
    """Return the function that sends a whole response; None if middleware wants to see its messages."""
    return getattr(getattr(send, "__self__", None), "send_whole", None)


class ErrorResponses:
    """Turns the exceptions of an application into error responses, unless a response has begun."""

    def __init__(self, app: Any, form: ErrorFormat = ErrorFormat.PROBLEMS) -> None:
        self.app = app
        self.form = form

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass HTTP requests through; other scopes untouched. Exceptions after the response began are raised."""
        if scope["type"] == "http":
            await self.respond(scope, receive, ResponseSender(send))
        else:
            await self.app(scope, receive, send)

    async def respond(self, scope: Any, receive: Any, sender: ResponseSender) -> None:
        """Respond to one request. Raises ClientDisconnect, and any exception after the response began."""
        try:
            check_host(scope)
            await self.app(scope, receive, sender.send)
        except ClientDisconnect:
            raise
        except Exception as exc:
            if sender.status:
                raise
            await error_response(error_for(exc, scope["path"]), self.form)(scope, receive, sender.send)


class Activity(msgspec.Struct):
    """The requests and WebSockets that a server answers now, and when the last one ended (of the monotonic clock).

    Requests for its health and its metrics do not count, because monitors never stop sending them. `on_use` is called
    at the beginning of each request that counts.
    """

    open: int = 0
    ended_at: float = msgspec.field(default_factory=time.monotonic)
    on_use: Callable[[], None] | None = None


class RequestMiddleware:
    """The outermost middleware of a server. Without CORS rules it adds no CORS headers and refuses no web page."""

    def __init__(
        self,
        app: Any,
        form: ErrorFormat = ErrorFormat.PROBLEMS,
        *,
        draining: asyncio.Event | None = None,
        cors: Cors | None = None,
        logged_headers: HeaderRules | None = None,
    ) -> None:
        self._app = app
        self.activity = Activity()
        self._errors = ErrorResponses(app, form)
        self._draining = draining
        self._cors = cors
        self._logged_headers = logged_headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass HTTP requests through, and WebSockets that their web page may open; other scopes untouched."""
        is_counted = scope.get("path") not in QUIET_PATHS
        self.activity.open += is_counted

        if is_counted and self.activity.on_use is not None:
            self.activity.on_use()

        try:
            if scope["type"] == "http":
                await self._observe(scope, receive, send)
            elif scope["type"] == "websocket":
                await self._connect(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            if is_counted:
                self.activity.open -= 1
                self.activity.ended_at = time.monotonic()

    async def _connect(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a handshake on, or refuse one with an unclear host or from a page that may not connect."""
        headers = first_headers(scope)
        try:
            check_host(scope)
            if self._cors is not None and not self._cors.may_connect(headers):
                raise PageNotAllowed
        except PortsideError as exc:
            request_id = get_request_id(headers)
            scope.setdefault("state", {})["request_id"] = request_id
            await receive()
            await refuse_websocket(error_response(exc, self._errors.form), scope, send)
            log.info("websocket", path=scope["path"], status=exc.status, request_id=request_id)

            return

        await self._app(scope, receive, send)

    async def _observe(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, and record it."""
        headers = first_headers(scope)
        request_id = get_request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        refusal = None if self._cors is None else self._cors.refusal(scope["method"], headers)

        # A preflight has CORS headers of its own, and the refusal of a page grants nothing.
        granted = () if self._cors is None or refusal is not None else self._cors.response_headers(headers)
        added = ((b"x-request-id", request_id.encode()), NO_SNIFF, *granted)
        sender = ResponseSender(send, added, self._draining)
        structlog.contextvars.bind_contextvars(request_id=request_id)

        began = time.perf_counter()
        try:
            if refusal is None:
                await self._errors.respond(scope, receive, sender)
            else:
                await refusal(scope, receive, sender.send)
        except ClientDisconnect:
            log.info("the client disconnected, or read its response too slowly", path=scope["path"])
        except Exception as exc:
            log_failure("a request failed after its response had begun", exc, path=scope["path"])
            raise
        finally:
            self._record(scope, sender.status, (time.perf_counter() - began) * 1000)
            structlog.contextvars.unbind_contextvars("request_id")

    def _record(self, scope: Any, status: int, millis: float) -> None:
        route = scope["state"].get("route", "unrouted")
        requests_of(scope["method"], route, status).inc()
        latency_of(scope["method"], route).observe(millis)

        if scope["path"] not in QUIET_PATHS:
            selected = {} if self._logged_headers is None else self._logged_headers.select(scope["headers"])
            more = {"headers": headers_for_log(selected)} if selected else {}
            request_id = scope["state"]["request_id"]
            log_request(scope["method"], scope["path"], status, ms=round(millis, 1), request_id=request_id, more=more)


def _with_added(given: Iterable[Header], added: tuple[Header, ...]) -> list[Header]:
    """Return the headers of a response with those to add.

    Added headers replace those of the response, with two exceptions: `Vary` is extended, and the response may set its
    own `X-Content-Type-Options`.
    """
    headers = list(given)
    names = {name for name, _ in headers}
    if names.isdisjoint([name for name, _ in added]):
        return headers + list(added)

    response_headers = MutableHeaders(raw=headers)
    for name, value in added:
        if name == b"vary":
            response_headers.add_vary_header(value.decode("latin-1"))
        elif name != NO_SNIFF[0] or name not in names:
            response_headers[name.decode("latin-1")] = value.decode("latin-1")

    return headers
