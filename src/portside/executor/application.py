"""The project's own web application (`http.app`), with the server's routes in it.

The project's routes come first, so it can override the server's, and its middleware sees every request. Routes that
match every path, such as the files of a front end, come after the server's.

Starlette is imported by name: an application that this loads has brought it, and nothing else here needs it.
"""

import asyncio
import importlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from portside.executor.imports import add_to_path, describe_failure, import_object
from portside.executor.project import Project
from portside.kernel.errors import PortsideError, UserMistake
from portside.kernel.http.in_process import PREFIX
from portside.kernel.tasks import cancel_and_wait

log = logging.getLogger(__name__)
LABEL = "http.app"
ORIGINAL_PATH = "portside.original_path"
_EVERYTHING = re.compile(r"/\{\w+:path\}")
_PLAIN_PACKAGES = frozenset({"fastapi", "starlette"})
Find = Callable[[Any], Any]
"""Returns the server's route for a scope, or None. A route that is `public` needs no authentication."""


class ServerRoutes(NamedTuple):
    """The server's routes: how to find and serve one, and the middleware that authenticates requests.

    `make_authenticate` is given the application behind it, and the rule that decides which requests it authenticates.
    """

    find: Find
    serve: Any
    make_authenticate: Callable[..., Any]
    is_auth_first: bool = False
    """Whether requests are authenticated before the project's middleware."""
    authenticates_project: bool = False
    """Whether requests to the project's routes are authenticated."""


class RouteFacts(NamedTuple):
    """A route as the server needs to know it: its path as a regular expression, and its methods; None for all.

    `is_server` stands for all routes of the server. A route without a pattern may match anything.
    """

    pattern: str | None
    methods: list[str] | None = None
    is_server: bool = False

    @property
    def takes_post(self) -> bool:
        """Whether a POST is one of its methods."""
        return self.methods is None or "POST" in self.methods


class ProjectApp:
    """The application of the project, which the server's routes become part of. Raises UserMistake."""

    def __init__(self, project: Project, source: str) -> None:
        self.app: Any = import_object(project, LABEL, source, roots=add_to_path(project))
        if not _is_application(self.app):
            kind = type(self.app).__name__
            raise UserMistake(
                f"{project.file}: {LABEL} ({source}) is of type {kind}; export a Starlette or FastAPI app"
            )

        self._project = project
        self._source = source
        self._has_middleware = bool(self.app.user_middleware) or not _is_plain(self.app)
        self.state: dict[str, Any] = {}

    def run_lifespan(self) -> AbstractAsyncContextManager[None]:
        """Run its lifespan. Raises UserMistake if the startup fails."""

        def describe(exc: BaseException) -> UserMistake:
            return describe_failure(self._project, LABEL, self._source, exc)

        return run_lifespan(self.app, self.state, describe)

    def join_server(self, server: ServerRoutes) -> None:
        """Add the server's routes; call it once, before the first request."""
        _set_error_handlers(self.app)
        routes = self.app.router.routes
        _drop_documentation_pages(self.app, server.find)
        _put_prefix_before_documents(routes)

        position = next((index for index, route in enumerate(routes) if _takes_everything(route)), len(routes))
        routes.insert(position, _build_server_route(server, leaves_root=position < len(routes)))
        self.app.router.default = server.serve

        if server.is_auth_first or server.authenticates_project:
            rule = _build_authentication_rule(routes, custom=server.authenticates_project)
            layer = _import_starlette("middleware").Middleware(server.make_authenticate, requires_auth=rule)
            self.app.user_middleware.insert(0 if server.is_auth_first else len(self.app.user_middleware), layer)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts by which a server in another process decides which requests it can serve without this one."""
        routes = [_to_facts(route) for route in self.app.router.routes]
        has_document = bool(getattr(self.app, "openapi_url", None)) and callable(getattr(self.app, "openapi", None))
        return {"routes": routes, "has_middleware": self._has_middleware, "has_document": has_document}

    def takes_post(self, path: str) -> bool:
        """Whether a path is that of a project's route that takes a POST."""
        scope = {"type": "http", "method": "POST", "path": path, ORIGINAL_PATH: path, "root_path": "", "headers": []}
        full = _import_starlette("routing").Match.FULL
        first = next((route for route in self.app.router.routes if route.matches(scope)[0] is full), None)
        return first is not None and not hasattr(first, "find_server_route")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request or WebSocket."""
        state = scope.setdefault("state", {})
        for name, value in self.state.items():
            state.setdefault(name, value)

        scope[ORIGINAL_PATH] = scope["path"]
        if prefix := scope.get(PREFIX):
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
            log.exception("a route of the project failed", extra={"fields": {"path": scope["path"]}})

        state.setdefault("route", getattr(scope.get("route"), "path", "unrouted"))


def _import_starlette(module: str) -> Any:
    return importlib.import_module(f"starlette.{module}")


def _is_application(value: Any) -> bool:
    """Whether a value is an application; without Starlette nothing is one."""
    try:
        return isinstance(value, _import_starlette("applications").Starlette)
    except ImportError:
        return False


def _is_plain(app: Any) -> bool:
    """Whether nobody has replaced how an application finds its routes."""
    kinds = {type(part).__module__.partition(".")[0] for part in (app, app.router)}
    return kinds <= _PLAIN_PACKAGES and app.middleware_stack is None


def _build_server_route(server: ServerRoutes, *, leaves_root: bool) -> Any:
    """Return all routes of the server as one of a Starlette application."""
    routing = _import_starlette("routing")
    full = routing.Match.FULL
    none = routing.Match.NONE

    class ServerRouteEntry(routing.BaseRoute):  # type: ignore[misc, name-defined]
        find_server_route = staticmethod(server.find)

        def matches(self, scope: Any) -> tuple[Any, Any]:
            """Match requests that the server has a route for. Those without any route reach it as the default."""
            # The router also tries paths with and without a trailing slash to redirect; the server redirects itself.
            may_match = scope.get(ORIGINAL_PATH) == scope["path"] and not (leaves_root and scope["path"] == "/")
            return (full if may_match and server.find(scope) else none), {}

        async def handle(self, scope: Any, receive: Any, send: Any) -> None:
            """Serve one request."""
            await server.serve(scope, receive, send)

        def url_path_for(self, name: str, /, **path_params: Any) -> Any:
            """Raise NoMatchFound: the server's routes have no names that a project can link to."""
            raise routing.NoMatchFound(name, path_params)

    return ServerRouteEntry()


def _to_facts(route: Any) -> RouteFacts:
    if hasattr(route, "find_server_route"):
        return RouteFacts("", is_server=True)

    pattern = getattr(getattr(route, "path_regex", None), "pattern", None)
    methods = getattr(route, "methods", None)
    is_plain = type(route).__module__.partition(".")[0] in _PLAIN_PACKAGES

    return RouteFacts(pattern if is_plain else None, sorted(methods) if methods else None)


def _build_authentication_rule(routes: list[Any], *, custom: bool) -> Callable[[Any], bool]:
    """Return the rule that decides which requests have to be authenticated.

    `custom` says whether routes of the project are among them; every route that is not the server's counts as the
    project's. The rule tries the routes in the order of the router, so both always find the same one.
    """
    full = _import_starlette("routing").Match.FULL

    def requires_auth(scope: Any) -> bool:
        match = next((route for route in routes if route.matches(scope)[0] is full), None)
        find_server_route = getattr(match, "find_server_route", None)
        server_route = None if find_server_route is None else find_server_route(scope)
        return custom if server_route is None else not server_route.public

    return requires_auth


def _takes_everything(route: Any) -> bool:
    path = getattr(route, "path", None)
    return (isinstance(route, _import_starlette("routing").Mount) and path == "") or bool(
        path and _EVERYTHING.fullmatch(path)
    )


def _drop_documentation_pages(app: Any, find: Find) -> None:
    """Remove the documentation pages that FastAPI adds where the server's describe both applications."""
    app.router.routes[:] = [
        route
        for route in app.router.routes
        if not (
            _is_documentation(route) and find({"type": "http", "method": "GET", "path": getattr(route, "path", "")})
        )
    ]


def _is_documentation(route: Any) -> bool:
    """Whether FastAPI has added this page or document."""
    return getattr(getattr(route, "endpoint", None), "__qualname__", "").startswith("FastAPI.setup.")


def _put_prefix_before_documents(routes: list[Any]) -> None:
    """Let the pages and documents of FastAPI name the paths that clients ask for. It builds them from the root path."""
    routing = _import_starlette("routing")
    for route in routes:
        if isinstance(route, routing.Route) and _is_documentation(route):
            route.app = _BelowPrefix(route.app)
        elif isinstance(route, routing.Mount):
            _put_prefix_before_documents(list(route.routes or ()))


class _BelowPrefix:
    """Shows an application the root path that clients see."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on."""
        root_path = scope.get(PREFIX, "") + scope.get("root_path", "")
        await self.app({**scope, "root_path": root_path}, receive, send)


def _set_error_handlers(app: Any) -> None:
    """Give errors the server's form unless the project has handlers for them, and switch off debug pages."""
    if app.debug:
        reason = {"fields": {"reason": "it would show source code to any client"}}
        log.warning("debug mode of the application is disabled", extra=reason)
        app.debug = False

    if not app.exception_handlers.keys() & {500, Exception}:
        app.exception_handlers[Exception] = _answer_failure

    app.exception_handlers.setdefault(_import_starlette("exceptions").HTTPException, _answer_http_exception)


def _answer_failure(_request: Any, _exc: Exception) -> Any:
    return _import_starlette("responses").JSONResponse({"detail": PortsideError().message}, PortsideError.status)


def _answer_http_exception(_request: Any, exc: Any) -> Any:
    responses = _import_starlette("responses")
    if exc.status_code in {204, 304}:
        return responses.Response(status_code=exc.status_code, headers=exc.headers)

    return responses.JSONResponse({"detail": exc.detail}, exc.status_code, exc.headers)


@asynccontextmanager
async def run_lifespan(
    app: Any, state: dict[str, Any], describe: Callable[[BaseException], UserMistake]
) -> AsyncIterator[None]:
    """Run the lifespan of an application; the state that it yields goes into `state`.

    Raises `describe(failure)` if the startup fails. A failed shutdown is only logged: the rest of the server has to
    be stopped as well.
    """
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}

    # One task for startup and shutdown: task groups and cancel scopes must be closed in the task that opened them.
    task = asyncio.create_task(app(scope, inbox.get, outbox.put))
    try:
        if failure := await _run_lifespan_step(inbox, outbox, task, "startup"):
            raise describe(failure) from failure

        yield
        if failure := await _run_lifespan_step(inbox, outbox, task, "shutdown"):
            log.error("the application of the project failed while it stopped", exc_info=failure)
    finally:
        await cancel_and_wait(task)


async def _run_lifespan_step(
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
