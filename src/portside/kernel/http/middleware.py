"""Pure ASGI middleware, outermost first: request id and access log, errors, body-size limit, drain."""

import re
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect

from portside.kernel.errors import BodyTooLarge
from portside.kernel.http.header_rules import HeaderRules, shown
from portside.kernel.http.headers import header_of
from portside.kernel.http.hosts import check_host
from portside.kernel.http.refusals import ErrorForm, error_of, error_response
from portside.kernel.logs import get_logger
from portside.kernel.metrics import LATENCY, REQUESTS

log = get_logger(__name__)
QUIET_PATHS = frozenset({"/ok", "/metrics"})
# What a request id may not hold: it is written into logs, and terminals show those.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")
_DISCARD_AT_MOST = 128 * 1024 * 1024


class AnswerErrors:
    """Turns what is raised into an answer, as long as none has begun."""

    def __init__(self, app: Any, form: ErrorForm = ErrorForm.PROBLEMS) -> None:
        self.app = app
        self.form = form

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass HTTP requests through; other scopes untouched. Raises what came after the answer had begun."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def notice(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            check_host(scope)
            await self.app(scope, receive, notice)
        except ClientDisconnect:
            raise
        except Exception as exc:
            if has_begun:
                raise
            await error_response(error_of(exc, scope["path"]), self.form)(scope, receive, send)


class Observe:
    """Gives each request an id, counts and times it, logs it once, and turns what it raises into an answer.

    Every answer says of which type it is, and that nothing else is to be guessed.
    """

    def __init__(
        self, app: Any, form: ErrorForm = ErrorForm.PROBLEMS, logged_headers: HeaderRules | None = None
    ) -> None:
        self.app = AnswerErrors(app, form)
        self.logged_headers = logged_headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass HTTP requests through; other scopes untouched."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _UNSAFE.sub("", header_of(scope, b"x-request-id") or "")[:200] or str(uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)
        began, status = time.perf_counter(), 0

        async def observe(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                # What a user or a graph stored is never a page or a script, whatever it looks like.
                headers.setdefault("x-content-type-options", "nosniff")
            await send(message)

        try:
            await self.app(scope, receive, observe)
        except ClientDisconnect:
            log.info("the client went before its request was whole", path=scope["path"])
        except Exception:
            log.exception("failed after the answer began", path=scope["path"])
            raise
        finally:
            self._record(scope, status, (time.perf_counter() - began) * 1000)
            structlog.contextvars.unbind_contextvars("request_id")

    def _record(self, scope: Any, status: int, millis: float) -> None:
        path = scope["state"].get("route", "unrouted")
        REQUESTS.labels(scope["method"], path, status).inc()
        LATENCY.labels(scope["method"], path).observe(millis)
        if scope["path"] not in QUIET_PATHS:
            chosen = {} if self.logged_headers is None else self.logged_headers.choose(scope["headers"])
            more = {"headers": shown(chosen)} if chosen else {}
            log.info("request", method=scope["method"], path=scope["path"], status=status, ms=round(millis, 1), **more)


class LimitBody:
    """Refuses bodies over the limit, by their declared length or while they arrive (413).

    Routes with a limit of their own are told apart by what their paths begin with.
    """

    def __init__(self, app: Any, max_bytes: int, special: Mapping[str, int] | None = None) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.special = special or {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Count the body of an HTTP request as it is read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = header_of(scope, b"content-length") or "0"
        max_bytes = self._limit_of(scope["path"])
        if declared.isdigit() and int(declared) > max_bytes:
            await _read_away(receive)
            raise self._too_large(max_bytes)
        seen = 0

        async def count() -> Any:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > max_bytes:
                    if message.get("more_body"):
                        await _read_away(receive)
                    raise self._too_large(max_bytes)
            return message

        await self.app(scope, count, send)

    def _limit_of(self, path: str) -> int:
        return next((limit for start, limit in self.special.items() if path.startswith(start)), self.max_bytes)

    def _too_large(self, max_bytes: int) -> BodyTooLarge:
        setting = " of this server (setting HTTP_MAX_REQUEST_BODY_BYTES)" if max_bytes == self.max_bytes else ""
        return BodyTooLarge(
            f"The request body is larger than {max_bytes} bytes, the limit{setting}.",
            headers={"Connection": "close"},
        )


async def _read_away(receive: Any) -> None:
    """Read the rest of a body, within bounds, so that the client gets to read the answer."""
    dropped = 0
    while dropped < _DISCARD_AT_MOST:
        message = await receive()
        dropped += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break


class CloseWhileDraining:
    """While the server drains, tells clients to come back on a new connection, which the successor accepts."""

    def __init__(self, app: Any, draining: Any) -> None:
        self.app = app
        self.draining = draining

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Add `Connection: close` to answers while draining."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def close(message: Any) -> None:
            if message["type"] == "http.response.start" and self.draining.is_set():
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self.app(scope, receive, close)
