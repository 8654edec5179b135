"""What every request meets first and every answer passes last, in one piece: `Front`.

It judges what other web pages ask for (`cors`), gives the request an id, has what is raised told as an answer, marks
the answer's head, has connections closed while the server drains, and counts, times and logs the request once. All of
it takes one look at the headers and one stop of each message on its way out (docs/why/requests.md).
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect

from portside.kernel.http.cors import Cors, turn_away
from portside.kernel.http.header_rules import HeaderRules, shown
from portside.kernel.http.headers import Header, first_headers, request_id_of
from portside.kernel.http.hosts import check_host
from portside.kernel.http.refusals import ErrorForm, error_of, error_response
from portside.kernel.logs import get_logger
from portside.kernel.metrics import latency_of, requests_of

log = get_logger(__name__)
QUIET_PATHS = frozenset({"/ok", "/metrics"})
# What a user or a graph stored is never a page or a script, whatever it looks like.
NO_GUESSING: Header = (b"x-content-type-options", b"nosniff")
CLOSE: Header = (b"connection", b"close")


class Exchange:
    """One answer on its way out: whether it has begun and with which status, and what its head is marked with."""

    __slots__ = ("_draining", "_marks", "_send", "status")

    def __init__(self, send: Any, marks: tuple[Header, ...] = (), draining: asyncio.Event | None = None) -> None:
        self.status = 0
        self._send = send
        self._marks = marks
        self._draining = draining

    def send(self, message: Any) -> Any:
        """Pass a message on, the head with its marks; await what is returned."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            # Whether to close is known no earlier: an answer may begin long after its request.
            is_last = self._draining is not None and self._draining.is_set()
            marks = (*self._marks, CLOSE) if is_last else self._marks
            message = {**message, "headers": _marked(message.get("headers", ()), marks)}
        return self._send(message)


class AnswerErrors:
    """Turns what an application raises into an answer, as long as none has begun."""

    def __init__(self, app: Any, form: ErrorForm = ErrorForm.PROBLEMS) -> None:
        self.app = app
        self.form = form

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass HTTP requests through; other scopes untouched. Raises what came after the answer had begun."""
        if scope["type"] == "http":
            await self.answer(scope, receive, Exchange(send))
        else:
            await self.app(scope, receive, send)

    async def answer(self, scope: Any, receive: Any, exchange: Exchange) -> None:
        """Have one request answered. Raises ClientDisconnect, and what came after the answer had begun."""
        try:
            check_host(scope)
            await self.app(scope, receive, exchange.send)
        except ClientDisconnect:
            raise
        except Exception as exc:
            if exchange.status:
                raise
            await error_response(error_of(exc, scope["path"]), self.form)(scope, receive, exchange.send)


class Front:
    """Stands before an application: see the module. Without CORS rules it is silent about other web pages."""

    def __init__(
        self,
        app: Any,
        form: ErrorForm = ErrorForm.PROBLEMS,
        *,
        draining: asyncio.Event | None = None,
        cors: Cors | None = None,
        logged_headers: HeaderRules | None = None,
    ) -> None:
        self._app = app
        self._errors = AnswerErrors(app, form)
        self._draining = draining
        self._cors = cors
        self._logged_headers = logged_headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass an HTTP request through, or a WebSocket that its web page may open; other scopes untouched."""
        if scope["type"] == "http":
            headers = first_headers(scope)
            refusal = None if self._cors is None else self._cors.answer(scope["method"], headers)
            await (self._observe(scope, receive, send, headers) if refusal is None else refusal(scope, receive, send))
        elif scope["type"] == "websocket" and self._cors is not None:
            is_let_in = self._cors.may_connect(first_headers(scope))
            await (self._app if is_let_in else turn_away)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _observe(self, scope: Any, receive: Any, send: Any, headers: dict[bytes, bytes]) -> None:
        """Have a request answered, and tell of it."""
        request_id = request_id_of(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        granted = () if self._cors is None else self._cors.marks(headers)
        marks = ((b"x-request-id", request_id.encode()), NO_GUESSING, *granted)
        exchange = Exchange(send, marks, self._draining)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        began = time.perf_counter()
        try:
            await self._errors.answer(scope, receive, exchange)
        except ClientDisconnect:
            log.info("the client went before its request was whole", path=scope["path"])
        except Exception:
            log.exception("failed after the answer began", path=scope["path"])
            raise
        finally:
            self._record(scope, exchange.status, (time.perf_counter() - began) * 1000)
            structlog.contextvars.unbind_contextvars("request_id")

    def _record(self, scope: Any, status: int, millis: float) -> None:
        route = scope["state"].get("route", "unrouted")
        requests_of(scope["method"], route, status).inc()
        latency_of(scope["method"], route).observe(millis)
        if scope["path"] not in QUIET_PATHS:
            chosen = {} if self._logged_headers is None else self._logged_headers.choose(scope["headers"])
            more = {"headers": shown(chosen)} if chosen else {}
            log.info("request", method=scope["method"], path=scope["path"], status=status, ms=round(millis, 1), **more)


def _marked(given: Iterable[Header], marks: tuple[Header, ...]) -> list[Header]:
    """Add marks to the headers of an answer. They go before what it says itself, but for types that it wants guessed
    otherwise, and what it varies by goes on counting.
    """
    headers = list(given)
    names = {name for name, _ in headers}
    if names.isdisjoint([name for name, _ in marks]):
        return headers + list(marks)
    answer = MutableHeaders(raw=headers)
    for name, value in marks:
        if name == b"vary":
            answer.add_vary_header(value.decode("latin-1"))
        elif name != NO_GUESSING[0] or name not in names:
            answer[name.decode("latin-1")] = value.decode("latin-1")
    return headers
