"""The project's own web application (`http.app`) and this server: in one process, or with a link between.

`executor/application.py` has the application itself.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

from starlette.authentication import AuthCredentials, UnauthenticatedUser
from starlette.requests import Request

from portside.agent.access.service import Access
from portside.agent.config import AgentConfig
from portside.agent.custom.cache import CACHE
from portside.agent.custom.loopback import LOOPBACK
from portside.executor.application import ProjectApp, ServerRoutes
from portside.kernel.db import Database
from portside.kernel.http.error_responses import ErrorFormat, build_error_response, refuse_websocket, to_error
from portside.kernel.http.middleware import ErrorResponses
from portside.kernel.http.websockets import SocketApi
from portside.kernel.logs import get_logger

log = get_logger(__name__)


class WebApp(Protocol):
    """The project's application with this server's routes in it."""

    @property
    def app(self) -> Any:
        """The application object; that of FastAPI has `openapi_url` and `openapi`."""
        ...

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request or WebSocket."""
        ...

    def run_lifespan(self) -> AbstractAsyncContextManager[None]:
        """Run its lifespan. Raises UserMistake if the startup fails."""
        ...

    def takes_post(self, path: str) -> bool:
        """Whether the project has a route for POST requests at this path."""
        ...

    async def fetch_document(self) -> None:
        """Fetch its OpenAPI document, if it is in another process. Raises Unavailable."""
        ...


class CustomApp(ProjectApp):
    """The application in this process. Raises UserMistake if it cannot be loaded."""

    def __init__(self, config: AgentConfig, source: str) -> None:
        super().__init__(config.project, source)
        self._http = config.http

    async def fetch_document(self) -> None:
        """Do nothing: the application in this process has its document."""

    def join(self, api: SocketApi, access: Access) -> None:
        """Add our routes; call it once, before the first request."""
        self.join_server(
            ServerRoutes(
                api.find,
                ErrorResponses(api, ErrorFormat.TEXT),
                partial(Authenticate, access=access),
                is_auth_first=self._http.middleware_order == "auth_first",
                authenticates_project=self._http.enable_custom_route_auth,
            )
        )


@asynccontextmanager
async def running(custom: WebApp | None, loopback_app: Any, db: Database | None = None) -> AsyncIterator[None]:
    """Run the project's application, if it has one, and enable loopback calls and the cache for its code.

    `loopback_app` answers the loopback calls.

    Raises UserMistake if the application does not start.
    """
    LOOPBACK.open(loopback_app)
    CACHE.open(db)
    try:
        async with nullcontext() if custom is None else custom.run_lifespan():
            yield
    finally:
        CACHE.open(None)
        await LOOPBACK.close()


def join_custom(config: AgentConfig, api: SocketApi, access: Access) -> CustomApp | None:
    """Load the project's application, if it has one, and add our routes to it. Raises UserMistake."""
    if config.http.app is None:
        return None

    custom = CustomApp(config, config.http.app)
    custom.join(api, access)
    return custom


class Authenticate:
    """Middleware that authenticates requests, and sets `request.user` and `request.auth`.

    It runs before the project's middleware, or between that and the project's routes. Our own routes have a guard of
    their own; this is for the project's routes, and for middleware that needs the user.
    """

    def __init__(self, app: Any, access: Access, requires_auth: Callable[[Any], bool]) -> None:
        self.app = app
        self.access = access
        self.requires_auth = requires_auth

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse unauthenticated requests. In-process calls, and servers without authentication, have no user."""
        if scope["type"] not in {"http", "websocket"} or not self.requires_auth(scope):
            await self.app(scope, receive, send)
            return

        if scope["type"] == "websocket":
            await self._authenticate_handshake(scope, receive, send)
            return

        request = Request(scope, receive)
        try:
            await self.access.authenticate(request)
        except Exception as exc:  # noqa: BLE001 - any failure to authenticate refuses the request
            await build_error_response(to_error(exc, scope["path"]), ErrorFormat.TEXT)(scope, receive, send)
            return

        _set_no_user(scope)
        await self.app(scope, _replay_body(request, receive), send)

    async def _authenticate_handshake(self, scope: Any, receive: Any, send: Any) -> None:
        # A handshake is a GET request, and its headers authenticate the client.
        handshake = Request({**scope, "type": "http", "method": "GET"})
        try:
            await self.access.authenticate(handshake)
        except Exception as exc:  # noqa: BLE001 - any failure to authenticate refuses the connection
            # A handshake begins with the message `websocket.connect`, which has to be received before an answer.
            await receive()
            await refuse_websocket(build_error_response(to_error(exc, scope["path"]), ErrorFormat.TEXT), scope, send)
            return

        for name in ("user", "auth"):
            if name in handshake.scope:
                scope[name] = handshake.scope[name]

        _set_no_user(scope)
        await self.app(scope, receive, send)


def _set_no_user(scope: Any) -> None:
    scope.setdefault("user", UnauthenticatedUser())
    scope.setdefault("auth", AuthCredentials())


def _replay_body(request: Request, receive: Any) -> Any:
    """Return a `receive` that replays the body, if authentication has read it."""
    if not hasattr(request, "_body"):
        return receive

    unread = [request._body]  # noqa: SLF001 - Starlette's own middleware uses it, too

    async def replay() -> Any:
        return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

    return replay
