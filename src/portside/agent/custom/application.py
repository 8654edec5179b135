"""The project's own web application (`http.app`) and this server: in one process, or with a link between.

`executor/application.py` has the application itself.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import httpx
import msgspec
from starlette.authentication import AuthCredentials, UnauthenticatedUser
from starlette.requests import Request

from portside.agent.access.service import Access
from portside.agent.config import AgentConfig
from portside.agent.custom.cache import CACHE
from portside.agent.custom.loopback import LOOPBACK
from portside.executor.application import ProjectApp, ServerRoutes
from portside.kernel.db import Database
from portside.kernel.http.error_responses import ErrorFormat, error_for, error_response, refuse_websocket
from portside.kernel.http.middleware import ErrorResponses
from portside.kernel.http.websockets import SocketApi
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

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


class CustomApp(ProjectApp):
    """The application in this process. Raises UserMistake if it cannot be loaded."""

    def __init__(self, config: AgentConfig, source: str) -> None:
        super().__init__(config.project, source)
        self._http = config.http

    def join(self, api: SocketApi[Any], access: Access) -> None:
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


def join_custom(config: AgentConfig, api: SocketApi[Any], access: Access) -> CustomApp | None:
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
            await self._connect(scope, receive, send)
            return

        request = Request(scope, receive)
        try:
            await self.access.authenticate(request)
        except Exception as exc:  # noqa: BLE001 - any failure to authenticate refuses the request
            await error_response(error_for(exc, scope["path"]), ErrorFormat.TEXT)(scope, receive, send)
            return

        _set_no_user(scope)
        await self.app(scope, _replayed(request, receive), send)

    async def _connect(self, scope: Any, receive: Any, send: Any) -> None:
        # A handshake is a GET request, and its headers authenticate the client.
        handshake = Request({**scope, "type": "http", "method": "GET"})
        try:
            await self.access.authenticate(handshake)
        except Exception as exc:  # noqa: BLE001 - any failure to authenticate refuses the connection
            # A handshake begins with the message `websocket.connect`, which has to be received before an answer.
            await receive()
            await refuse_websocket(error_response(error_for(exc, scope["path"]), ErrorFormat.TEXT), scope, send)
            return

        for name in ("user", "auth"):
            if name in handshake.scope:
                scope[name] = handshake.scope[name]

        _set_no_user(scope)
        await self.app(scope, receive, send)


def _set_no_user(scope: Any) -> None:
    scope.setdefault("user", UnauthenticatedUser())
    scope.setdefault("auth", AuthCredentials())


def _replayed(request: Request, receive: Any) -> Any:
    """Return a `receive` that replays the body, if authentication has read it."""
    if not hasattr(request, "_body"):
        return receive

    unread = [request._body]  # noqa: SLF001 - Starlette's own middleware uses it, too

    async def replay() -> Any:
        return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

    return replay


CLASH_PREFIX = "Custom"
_COMPONENTS = "#/components/"


def add_project_api(ours: bytes, app: Any) -> bytes:
    """Return our OpenAPI document with the operations of the project's application, if it has an OpenAPI document."""
    if not getattr(app, "openapi_url", None) or not callable(getattr(app, "openapi", None)):
        return ours

    try:
        theirs = msgspec.json.decode(msgspec.json.encode(app.openapi()))
    except Exception:
        # Serve without the project's part of the document. FastAPI alone would also fail only when somebody reads it.
        log.exception("the application of the project cannot be described")
        return ours

    return msgspec.json.encode(_merge_documents(msgspec.json.decode(ours), theirs))


def _merge_documents(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Add their operations to ours; theirs override ours, as their routes do."""
    renamed = _clashes(ours.get("components", {}), theirs.get("components", {}))
    theirs = _with_names(theirs, renamed)
    for path, operations in theirs.get("paths", {}).items():
        ours.setdefault("paths", {}).setdefault(path, {}).update(operations)

    for kind, entries in theirs.get("components", {}).items():
        components = ours.setdefault("components", {}).setdefault(kind, {})
        components.update({renamed.get(f"{_COMPONENTS}{kind}/{name}", name): entry for name, entry in entries.items()})

    tags = {tag["name"] for tag in ours.get("tags", [])}
    if new := [tag for tag in theirs.get("tags", []) if tag["name"] not in tags]:
        ours["tags"] = [*ours.get("tags", []), *new]

    return ours


def _clashes(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, str]:
    """Return new names for their components that have the name of a different one of ours, by reference."""
    return {
        f"{_COMPONENTS}{kind}/{name}": f"{CLASH_PREFIX}{name}"
        for kind, entries in theirs.items()
        for name, entry in entries.items()
        if name in ours.get(kind, {}) and ours[kind][name] != entry
    }


def _with_names(value: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_names(part, renamed) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_names(part, renamed) for part in value]
    if isinstance(value, str) and value in renamed:
        return f"{value.rpartition('/')[0]}/{renamed[value]}"

    return value


PROJECT_HOST = "http://api"


class ProjectRoutes:
    """The project's own routes, called from inside the process for webhooks that name only a path.

    Only routes that the project added are called, never ours. The call has no user: a route that needs to know its
    caller has to check the headers that are configured for webhooks.
    """

    def __init__(self, custom: WebApp) -> None:
        self._custom = custom

    def has(self, url: str) -> bool:
        """Whether the project has a route for POST requests at this URL path; a query is ignored."""
        return self._custom.takes_post(httpx.URL(PROJECT_HOST + url).path)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        """Call a route and return the status. Raises TimeoutError, and what the route raises."""
        transport = httpx.ASGITransport(self._custom)
        async with timeout(within_s), httpx.AsyncClient(transport=transport, base_url=PROJECT_HOST) as client:
            return (await client.post(url, headers=dict(headers), content=body)).status_code
