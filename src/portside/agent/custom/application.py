"""The project's own web application (`http.app`), with our routes in it.

Its routes come first, so it can override ours, and its middleware sees every request. Routes that match every path,
such as the files of a front end, come after ours.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, UnauthenticatedUser
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, NoMatchFound, Route

from portside.agent.access.service import Access
from portside.agent.config import AgentConfig
from portside.agent.custom.cache import CACHE
from portside.agent.custom.loopback import LOOPBACK
from portside.executor.imports import add_to_path, import_named, named_failure
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError, UserMistake
from portside.kernel.http.error_responses import ErrorFormat, error_for, error_response
from portside.kernel.http.middleware import ErrorResponses
from portside.kernel.http.proxies import prefix_of
from portside.kernel.http.websockets import SocketApi, refuse
from portside.kernel.logs import get_logger

log = get_logger(__name__)
LABEL = "http.app"
ORIGINAL_PATH = "portside.original_path"
_EVERYTHING = re.compile(r"/\{\w+:path\}")


class CustomApp:
    """The application of the project, which our routes become part of. Raises UserMistake if it cannot be loaded."""

    def __init__(self, config: AgentConfig, source: str) -> None:
        app = import_named(config.project, LABEL, source, add_to_path(config.project))
        if not isinstance(app, Starlette):
            kind = type(app).__name__
            raise UserMistake(f"{config.file}: {LABEL} ({source}) is of type {kind}; export a Starlette or FastAPI app")
        self.app = app
        self._config = config
        self._source = source
        self._state: dict[str, Any] = {}

    def started(self) -> AbstractAsyncContextManager[None]:
        """Run its lifespan. Raises UserMistake if the startup fails."""

        def mistake_of(exc: BaseException) -> UserMistake:
            return named_failure(self._config.project, LABEL, self._source, exc)

        return started_app(self.app, self._state, mistake_of)

    def join(self, api: SocketApi[Any], access: Access) -> None:
        """Add our routes; call it once, before the first request."""
        _set_error_handlers(self.app)
        routes = self.app.router.routes
        _drop_documentation_pages(self.app, api)
        _put_prefix_before_documents(routes)
        position = next((index for index, route in enumerate(routes) if _takes_everything(route)), len(routes))
        routes.insert(position, OurRoutes(api, leaves_root=position < len(routes)))
        self.app.router.default = ErrorResponses(api, ErrorFormat.TEXT)
        http = self._config.http
        is_first = http.middleware_order == "auth_first"
        if is_first or http.enable_custom_route_auth:
            requires_auth = _authentication_rule(routes, custom=http.enable_custom_route_auth)
            layer = Middleware(Authenticate, access=access, requires_auth=requires_auth)
            self.app.user_middleware.insert(0 if is_first else len(self.app.user_middleware), layer)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request or WebSocket."""
        state = scope.setdefault("state", {})
        for name, value in self._state.items():
            state.setdefault(name, value)
        scope[ORIGINAL_PATH] = scope["path"]
        if prefix := prefix_of(scope):
            # `url_for` adds it. As `root_path` it would have to be part of the path as well.
            scope["app_root_path"] = prefix
        is_complete = False

        async def watch_end(message: Any) -> None:
            nonlocal is_complete
            await send(message)
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self.app(scope, receive, watch_end)
        except Exception:
            # Starlette re-raises an exception after it has answered with a 500.
            if not is_complete:
                raise
            log.exception("a route of the project failed", path=scope["path"])
        state.setdefault("route", getattr(scope.get("route"), "path", "unrouted"))


@asynccontextmanager
async def running(custom: CustomApp | None, inside: Any, db: Database | None = None) -> AsyncIterator[None]:
    """Run the project's application, if it has one, and enable loopback calls and the cache for its code.

    Raises UserMistake if the application does not start.
    """
    LOOPBACK.open(inside)
    CACHE.open(db)
    try:
        async with nullcontext() if custom is None else custom.started():
            yield
    finally:
        CACHE.open(None)
        await LOOPBACK.close()


class OurRoutes(BaseRoute):
    """All our routes as one of a Starlette application."""

    def __init__(self, api: SocketApi[Any], *, leaves_root: bool) -> None:
        self.api = api
        self.leaves_root = leaves_root
        self._error_responses = ErrorResponses(api, ErrorFormat.TEXT)

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """Match requests that we have a route for. Those without any route reach us as the router's default."""
        # The router also tries paths with and without a trailing slash to redirect; we redirect ourselves.
        is_ours = scope.get(ORIGINAL_PATH) == scope["path"] and not (self.leaves_root and scope["path"] == "/")
        return (Match.FULL if is_ours and self.api.find(scope) else Match.NONE), {}

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        await self._error_responses(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Raise NoMatchFound: our routes have no names that a project can link to."""
        raise NoMatchFound(name, path_params)


def join_custom(config: AgentConfig, api: SocketApi[Any], access: Access) -> CustomApp | None:
    """Load the project's application, if it has one, and add our routes to it. Raises UserMistake."""
    if config.http.app is None:
        return None
    custom = CustomApp(config, config.http.app)
    custom.join(api, access)
    return custom


def _authentication_rule(routes: list[BaseRoute], *, custom: bool) -> Callable[[Any], bool]:
    """Return the rule that decides which requests `Authenticate` has to authenticate.

    `custom` says whether routes of the project are among them; every route that is not ours counts as the project's.
    The rule tries the routes in the order of the router, so both always find the same one.
    """

    def requires_auth(scope: Any) -> bool:
        found = next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)
        ours = found.api.find(scope) if isinstance(found, OurRoutes) else None
        return custom if ours is None else not ours.public

    return requires_auth


def _takes_everything(route: BaseRoute) -> bool:
    path = getattr(route, "path", None)
    return (isinstance(route, Mount) and path == "") or bool(path and _EVERYTHING.fullmatch(path))


def _drop_documentation_pages(app: Starlette, api: SocketApi[Any]) -> None:
    """Remove the documentation pages that FastAPI adds where ours describe both applications."""
    app.router.routes[:] = [
        route
        for route in app.router.routes
        if not (
            _is_documentation(route) and api.find({"type": "http", "method": "GET", "path": getattr(route, "path", "")})
        )
    ]


def _is_documentation(route: BaseRoute) -> bool:
    """Whether FastAPI has added this page or document."""
    return getattr(getattr(route, "endpoint", None), "__qualname__", "").startswith("FastAPI.setup.")


def _put_prefix_before_documents(routes: list[BaseRoute]) -> None:
    """Let the pages and documents of FastAPI name the paths that clients ask for. It builds them from the root path."""
    for route in routes:
        if isinstance(route, Route) and _is_documentation(route):
            route.app = _BelowPrefix(route.app)
        elif isinstance(route, Mount):
            _put_prefix_before_documents(list(route.routes or ()))


class _BelowPrefix:
    """Shows an application the root path that clients see."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on."""
        root_path = prefix_of(scope) + scope.get("root_path", "")
        await self.app({**scope, "root_path": root_path}, receive, send)


def _set_error_handlers(app: Starlette) -> None:
    """Give errors our form unless the project has handlers for them, and switch off debug pages."""
    if app.debug:
        log.warning("debug mode of the application is disabled", reason="it would show source code to any client")
        app.debug = False
    if not app.exception_handlers.keys() & {500, Exception}:
        app.exception_handlers[Exception] = _failed
    app.exception_handlers.setdefault(HTTPException, _refused)


def _failed(_request: Request, _exc: Exception) -> Response:
    return error_response(PortsideError(), ErrorFormat.TEXT)


def _refused(_request: Request, exc: Any) -> Response:
    if exc.status_code in {204, 304}:
        return Response(status_code=exc.status_code, headers=exc.headers)
    return JSONResponse({"detail": exc.detail}, exc.status_code, exc.headers)


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
        except Exception as exc:  # noqa: BLE001 - as above
            await receive()
            await refuse(error_response(error_for(exc, scope["path"]), ErrorFormat.TEXT), scope, send)
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


@asynccontextmanager
async def started_app(
    app: Any, state: dict[str, Any], mistake_of: Callable[[BaseException], UserMistake]
) -> AsyncIterator[None]:
    """Run the lifespan of an application; the state that it yields goes into `state`.

    Raises `mistake_of(failure)` if the startup fails. A failed shutdown is only logged: the rest of the server has to
    be stopped as well.
    """
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    # One task for startup and shutdown: task groups and cancel scopes must be closed in the task that opened them.
    task = asyncio.create_task(app(scope, inbox.get, outbox.put))
    try:
        if failure := await _lifespan_step(inbox, outbox, task, "startup"):
            raise mistake_of(failure) from failure
        yield
        if failure := await _lifespan_step(inbox, outbox, task, "shutdown"):
            log.error("the application of the project failed while it stopped", exc_info=failure)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _lifespan_step(
    inbox: "asyncio.Queue[dict[str, str]]",
    outbox: "asyncio.Queue[dict[str, str]]",
    task: "asyncio.Task[None]",
    step: str,
) -> BaseException | None:
    """Send a lifespan event and wait until it is handled; return the failure, if any."""
    inbox.put_nowait({"type": f"lifespan.{step}"})
    handled = asyncio.create_task(outbox.get())
    await asyncio.wait([handled, task], return_when=asyncio.FIRST_COMPLETED)
    if handled.done() and handled.result()["type"] == f"lifespan.{step}.complete":
        return None
    handled.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return RuntimeError(f"its lifespan was cancelled at the {step}")
    return task.exception() or RuntimeError(f"its lifespan ended without completing the {step}")


CLASH_PREFIX = "Custom"
_COMPONENTS = "#/components/"


def described_with(ours: bytes, app: Any) -> bytes:
    """Return our OpenAPI document with the operations of the project's application, if it has an OpenAPI document."""
    if not getattr(app, "openapi_url", None) or not callable(getattr(app, "openapi", None)):
        return ours
    try:
        theirs = msgspec.json.decode(msgspec.json.encode(app.openapi()))
    except Exception:
        # A failing description is no reason not to serve; without us FastAPI would fail as late, on the first request.
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
        known = ours.setdefault("components", {}).setdefault(kind, {})
        known.update({renamed.get(f"{_COMPONENTS}{kind}/{name}", name): entry for name, entry in entries.items()})
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

    def __init__(self, custom: CustomApp) -> None:
        self._custom = custom

    def has(self, url: str) -> bool:
        """Whether a URL path, with or without a query, is that of a project's route that takes a POST."""
        path = httpx.URL(PROJECT_HOST + url).path
        scope = {"type": "http", "method": "POST", "path": path, ORIGINAL_PATH: path, "root_path": "", "headers": []}
        matching = (route for route in self._custom.app.router.routes if route.matches(scope)[0] is Match.FULL)
        first = next(matching, None)
        return first is not None and not isinstance(first, OurRoutes)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        """Call a route and return the status. Raises TimeoutError, and what the route raises."""
        transport = httpx.ASGITransport(self._custom)
        async with asyncio.timeout(within_s), httpx.AsyncClient(transport=transport, base_url=PROJECT_HOST) as client:
            return (await client.post(url, headers=dict(headers), content=body)).status_code
