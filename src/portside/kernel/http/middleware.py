"""The ASGI middleware in front of the routes.

`RequestMiddleware` is the outermost: it applies the CORS rules, gives the request an id, turns exceptions into error
responses, adds headers to responses, closes connections while the server drains, and counts, times and logs the
request. It is one class, not seven, because each layer of middleware costs every request (docs/why/requests.md). It
reads the headers once, and touches each outgoing message once.

Other middleware is optional: `hosts.py`, `prefixes.py` and `body_size.py`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect

from portside.kernel.errors import PortsideError
from portside.kernel.http.cors import Cors, PageNotAllowed
from portside.kernel.http.error_responses import ErrorFormat, build_error_response, refuse_websocket, to_error
from portside.kernel.http.forwarded_headers import HeaderRules, format_headers
from portside.kernel.http.headers import Header, get_first_headers, get_request_id
from portside.kernel.http.hosts import check_host
from portside.kernel.logs import get_logger, log_request
from portside.kernel.metrics import latency_histogram, request_counter
from portside.kernel.transient_errors import log_failure

log = get_logger(__name__)
QUIET_PATHS = frozenset({"/ok", "/metrics"})
# Browsers must not guess that something a user or a graph stored is a page or a script.
NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
CLOSE: Header = (b"connection", b"close")


class ResponseSender:
    """Sends one response: adds headers to it, and remembers its status (0 until it begins)."""

    __slots__ = ("_draining", "_headers", "_send", "status")

    def __init__(self, send: Any, headers: tuple[Header, ...] = (), draining: asyncio.Event | None = None) -> None:
        self.status = 0
        self._send = send
        self._headers = headers
        self._draining = draining

    def send(self, message: Any) -> Any:
        """Pass a message on; the caller awaits the result, which saves a coroutine for each message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            # Checked now, not when the request arrived: the response may begin long after it.
            is_draining = self._draining is not None and self._draining.is_set()
            headers = (*self._headers, CLOSE) if is_draining else self._headers
            message = {**message, "headers": _add_headers(message.get("headers", ()), headers)}

        return self._send(message)

    def send_whole(self, status: int, headers: list[Header], body: bytes) -> bool:
        """Send a response that is in memory at once; False if it must be sent as messages."""
        is_draining = self._draining is not None and self._draining.is_set()
        write = get_buffered_writer(self._send)
        if write is None or is_draining or not write(status, _add_headers(headers, self._headers), body):
            return False

        self.status = status
        return True


def get_buffered_writer(send: Any) -> Callable[[int, list[Header], bytes], bool] | None:
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

            response = build_error_response(to_error(exc, scope["path"]), self.form)
            await response(scope, receive, sender.send)


class Activity(msgspec.Struct):
    """The requests and WebSockets that a server answers now, and when the last one ended (of the monotonic clock).

    Requests for its health and its metrics do not count, because monitors never stop sending them. `on_use` is called
    at the beginning of each request that counts.
    """

    open: int = 0
    ended_at: float = msgspec.field(default_factory=time.monotonic)
    on_use: Callable[[], None] | None = None


class RequestMiddleware:
    """The outermost middleware of a server. Without CORS rules it adds no CORS headers and refuses no web page.

    It counts the requests in `activity`.
    """

    def __init__(  # noqa: PLR0913 - options, each with a default
        self,
        app: Any,
        form: ErrorFormat = ErrorFormat.PROBLEMS,
        *,
        draining: asyncio.Event | None = None,
        cors: Cors | None = None,
        logged_headers: HeaderRules | None = None,
        activity: Activity | None = None,
    ) -> None:
        self._app = app
        self._activity = activity or Activity()
        self._errors = ErrorResponses(app, form)
        self._draining = draining
        self._cors = cors
        self._logged_headers = logged_headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass HTTP requests through, and WebSockets that their web page may open; other scopes untouched."""
        is_counted = scope.get("path") not in QUIET_PATHS
        self._activity.open += is_counted

        if is_counted and self._activity.on_use is not None:
            self._activity.on_use()

        try:
            if scope["type"] == "http":
                await self._observe(scope, receive, send)
            elif scope["type"] == "websocket":
                await self._connect(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            if is_counted:
                self._activity.open -= 1
                self._activity.ended_at = time.monotonic()

    async def _connect(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a handshake on, or refuse one with an unclear host or from a page that may not connect."""
        headers = get_first_headers(scope)
        try:
            check_host(scope)
            if self._cors is not None and not self._cors.may_connect(headers):
                raise PageNotAllowed
        except PortsideError as exc:
            request_id = get_request_id(headers)
            scope.setdefault("state", {})["request_id"] = request_id
            await receive()
            await refuse_websocket(build_error_response(exc, self._errors.form), scope, send)
            log.info("websocket", path=scope["path"], status=exc.status, request_id=request_id)

            return

        await self._app(scope, receive, send)

    async def _observe(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, and record it."""
        headers = get_first_headers(scope)
        request_id = get_request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)

        refusal = None
        cors_headers: tuple[Header, ...] = ()
        if self._cors is not None:
            refusal = self._cors.refuse(scope["method"], headers)
            if refusal is None:
                # A preflight has CORS headers of its own, and the refusal of a page grants nothing.
                cors_headers = self._cors.response_headers(headers)

        response_headers = ((b"x-request-id", request_id.encode()), NO_SNIFF, *cors_headers)
        sender = ResponseSender(send, response_headers, self._draining)

        start = time.perf_counter()
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
            self._record(scope, sender.status, (time.perf_counter() - start) * 1000)
            structlog.contextvars.unbind_contextvars("request_id")

    def _record(self, scope: Any, status: int, millis: float) -> None:
        route = scope["state"].get("route", "unrouted")
        request_counter(scope["method"], route, status).inc()
        latency_histogram(scope["method"], route).observe(millis)

        if scope["path"] not in QUIET_PATHS:
            selected = {} if self._logged_headers is None else self._logged_headers.select(scope["headers"])
            more = {"headers": format_headers(selected)} if selected else {}
            request_id = scope["state"]["request_id"]
            log_request(scope["method"], scope["path"], status, ms=round(millis, 1), request_id=request_id, more=more)


def _add_headers(headers: Iterable[Header], more: tuple[Header, ...]) -> list[Header]:
    """Return the headers of a response with `more` of them.

    Those replace headers of the response, with two exceptions: `Vary` is extended, and the response may set its own
    `X-Content-Type-Options`.
    """
    headers = list(headers)
    names = {name for name, _ in headers}
    if names.isdisjoint([name for name, _ in more]):
        return headers + list(more)

    response_headers = MutableHeaders(raw=headers)
    for name, value in more:
        if name == b"vary":
            response_headers.add_vary_header(value.decode("latin-1"))
        elif name != NO_SNIFF[0] or name not in names:
            response_headers[name.decode("latin-1")] = value.decode("latin-1")

    return headers
