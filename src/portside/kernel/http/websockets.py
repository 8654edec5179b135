"""WebSockets: typed routes beside the HTTP ones, behind the same guard.

    sockets = Routes[SocketContext[AgentServices]]("threads")

    @sockets.add(WEBSOCKET, "/threads/{thread_id}/stream/events")
    async def converse(ctx: SocketContext[AgentServices], thread_id: UUID) -> None:
        \"\"\"Speak with one client until it leaves.\"\"\"

A connection to an unknown path, with a bad path parameter, or refused by the guard gets the HTTP status that a request
would get, before it is accepted. When the server drains, it closes accepted connections with 1012 (reconnect). `cors`
decides which web pages may connect; `server` limits the size of frames.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Any

import structlog

from portside.kernel.errors import NotFound, PortsideError
from portside.kernel.http.decode import decode_path
from portside.kernel.http.error_responses import ErrorFormat, build_error_response, refuse_websocket, to_error
from portside.kernel.http.headers import get_first_headers, get_request_id
from portside.kernel.http.routes import Api, BoundRoute, Context, Guard, Route, S, S_co
from portside.kernel.logs import get_logger
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.transient_errors import log_failure

log = get_logger(__name__)
WEBSOCKET = "WEBSOCKET"
# Close codes (RFC 6455, and the registry of IANA): normal closure, internal error, service restart.
NORMAL = 1000
BROKEN = 1011
COME_BACK = 1012


class Disconnected(Exception):
    """The client disconnected."""


class SocketContext(Context[S_co]):
    """One connection: the context of its handshake, and frames in both directions."""

    __slots__ = ("request_id",)

    def __init__(self, scope: Any, receive: Any, send: Any, services: S_co) -> None:
        # The handshake is a GET request, and the guard reads it like any other.
        super().__init__({**scope, "type": "http", "method": "GET"}, receive, send, services)
        self.request_id: str = scope["state"]["request_id"]

    async def frames(self) -> AsyncIterator[str]:
        """Yield the frames of the client until it disconnects. Binary frames are decoded as UTF-8."""
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text: str | None = message.get("text")
            if text is None:
                text = (message.get("bytes") or b"").decode("utf-8", "replace")

            yield text

    async def send(self, frame: bytes) -> None:
        """Send one text frame, waiting while the client reads slowly. Raises Disconnected."""
        try:
            await self._send({"type": "websocket.send", "text": frame.decode()})
        except (OSError, RuntimeError) as exc:
            raise Disconnected from exc

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Close the connection, unless the client did."""
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError):
            log.debug("the connection was closed already")


def bind_sockets(routes: Iterable[Route[SocketContext[S]]], services: S) -> list[BoundRoute]:
    """Return the routes of WebSockets with the services that their handlers get."""
    return [BoundRoute(route, services) for route in routes if route.method == WEBSOCKET]


class SocketApi:
    """An ASGI application that serves WebSockets and passes everything else to the HTTP application."""

    def __init__(
        self,
        http: Api,
        routes: Sequence[BoundRoute],
        guard: Guard[Any],
        *,
        draining: asyncio.Event,
        form: ErrorFormat = ErrorFormat.PROBLEMS,
    ) -> None:
        self.http = http
        self._routes = routes
        self._guard = guard
        self._draining = draining
        self._form = form

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Serve one WebSocket, or pass an HTTP request on."""
        if scope["type"] == "websocket":
            return self._serve_socket(scope, receive, send)

        return self.http(scope, receive, send)

    async def _serve_socket(self, scope: Any, receive: Any, send: Any) -> None:
        request_id = get_request_id(get_first_headers(scope))
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)

        start = time.monotonic()
        try:
            status = await self._serve(scope, receive, send)
            log.info("websocket", path=scope["path"], status=status, s=round(time.monotonic() - start, 1))
        finally:
            structlog.contextvars.unbind_contextvars("request_id")

    def find(self, scope: Any) -> Route[Any] | None:
        """Return the route that answers a request or a WebSocket; None where there is none."""
        if scope["type"] != "websocket":
            return self.http.find(scope)

        try:
            bound, _arguments = _match(self._routes, scope["path"])
        except PortsideError:
            return None

        return bound.route

    async def _serve(self, scope: Any, receive: Any, send: Any) -> int:
        """Accept a connection and serve it, or refuse it. Returns the HTTP status of the handshake."""
        await receive()
        try:
            (route, services), arguments = _match(self._routes, scope["path"])
        except PortsideError as exc:
            return await self._refuse(exc, scope, send)

        ctx = SocketContext(scope, receive, send, services)
        try:
            ctx.actor = await self._guard(ctx, route)
        except Exception as exc:  # noqa: BLE001 - fail closed: any error refuses the connection
            ctx.finish()
            return await self._refuse(to_error(exc, scope["path"]), scope, send)

        try:
            await send({"type": "websocket.accept", "headers": [(b"x-request-id", ctx.request_id.encode())]})
            await self._converse(ctx, route.handler(ctx, **arguments))
        finally:
            ctx.finish()

        return 101

    async def _refuse(self, error: PortsideError, scope: Any, send: Any) -> int:
        """Refuse a connection, and return the HTTP status of the handshake."""
        await refuse_websocket(build_error_response(error, self._form), scope, send)
        return error.status

    async def _converse(self, ctx: SocketContext[Any], handler: Awaitable[None]) -> None:
        """Run the handler until it returns or the server drains, and close the connection."""
        work = asyncio.ensure_future(handler)
        drained = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait([work, drained], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await ctx.close(COME_BACK, "the server is leaving")
                return

            await work
            await ctx.close()
        except Disconnected:
            return
        except Exception as exc:  # noqa: BLE001 - the client sees it as close code 1011
            log_failure("a websocket failed", exc)
            await ctx.close(BROKEN)
        finally:
            await cancel_and_wait(work, drained)


def _match(routes: Sequence[BoundRoute], path: str) -> tuple[BoundRoute, dict[str, Any]]:
    """Return the route of a path, and the arguments in the path. Raises NotFound and Invalid."""
    segments = path.removeprefix("/").split("/")
    for bound in routes:
        parameters = _match_template(bound.route.path, segments)
        if parameters is not None:
            types = bound.route.path_types
            return bound, {name: decode_path(name, text, types[name]) for name, text in parameters.items()}

    raise NotFound


def _match_template(template: str, segments: list[str]) -> dict[str, str] | None:
    """Return the parameters of a path template in the segments of a path, or None if it does not match."""
    parts = template.removeprefix("/").split("/")
    if len(parts) != len(segments):
        return None

    parameters: dict[str, str] = {}
    for part, segment in zip(parts, segments, strict=True):
        if part.startswith("{"):
            parameters[part[1:-1]] = segment
        elif part != segment:
            return None

    return parameters
