"""The project's own web application (`http.app`), with our routes in it.

Its routes come first, so it can put its own in the place of ours; its middleware sees every request. What it serves
below the root as a whole, such as the files of a front end, comes after ours: it means whatever else is asked for.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, NoMatchFound

from portside.agent.access.service import Access
from portside.agent.config import AgentConfig
from portside.agent.custom.authentication import Authenticate
from portside.agent.custom.cache import CACHE
from portside.agent.custom.lifespan import started
from portside.agent.custom.loopback import INSIDE
from portside.agent.graphs.imports import add_to_path, import_named, named_failure
from portside.kernel.db import Database
from portside.kernel.errors import PortsideError, UserMistake
from portside.kernel.http.front import AnswerErrors
from portside.kernel.http.refusals import ErrorForm, error_response
from portside.kernel.http.websockets import SocketApi
from portside.kernel.logs import get_logger

log = get_logger(__name__)
LABEL = "http.app"
ASKED_PATH = "portside.asked_path"
_EVERYTHING = re.compile(r"/\{\w+:path\}")


class CustomApp:
    """An application of the project, which our routes become part of. Raises UserMistake when it does not load."""

    def __init__(self, config: AgentConfig, source: str) -> None:
        app = import_named(config, LABEL, source, add_to_path(config))
        if not isinstance(app, Starlette):
            kind = type(app).__name__
            raise UserMistake(f"{config.file}: {LABEL} ({source}) is of type {kind}; export a Starlette or FastAPI app")
        self.app = app
        self._config = config
        self._source = source
        self._state: dict[str, Any] = {}

    def started(self) -> AbstractAsyncContextManager[None]:
        """Keep it started. Raises UserMistake when its lifespan fails at the start."""

        def mistake_of(exc: BaseException) -> UserMistake:
            return named_failure(self._config, LABEL, self._source, exc)

        return started(self.app, self._state, mistake_of)

    def join(self, api: SocketApi, access: Access) -> None:
        """Make our routes part of it; once, before it answers anything."""
        _tell_errors(self.app)
        routes = self.app.router.routes
        _drop_described(self.app, api)
        place = next((index for index, route in enumerate(routes) if _takes_everything(route)), len(routes))
        own = routes[:place]
        routes.insert(place, OurRoutes(api, leaves_root=place < len(routes)))
        self.app.router.default = AnswerErrors(api, ErrorForm.TEXT)
        http = self._config.http
        is_first = http.middleware_order == "auth_first"
        if is_first or http.enable_custom_route_auth:
            is_asked = _asked(own, api, custom=http.enable_custom_route_auth)
            door = Middleware(Authenticate, access=access, is_asked=is_asked)
            self.app.user_middleware.insert(0 if is_first else len(self.app.user_middleware), door)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or speak with one client."""
        state = scope.setdefault("state", {})
        for name, value in self._state.items():
            state.setdefault(name, value)
        scope[ASKED_PATH] = scope["path"]
        is_whole = False

        async def notice(message: Any) -> None:
            nonlocal is_whole
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self.app(scope, receive, notice)
        except Exception:
            # The framework raises again what it has answered already.
            if not is_whole:
                raise
            log.exception("a route of the project failed", path=scope["path"])
        state.setdefault("route", getattr(scope.get("route"), "path", "unrouted"))


@asynccontextmanager
async def running(custom: CustomApp | None, inside: Any, db: Database | None = None) -> AsyncIterator[None]:
    """Keep the project's application started, where it has one, and let its code call this server and use its cache.

    Raises UserMistake when the application does not start.
    """
    INSIDE.open(inside)
    CACHE.open(db)
    try:
        async with nullcontext() if custom is None else custom.started():
            yield
    finally:
        CACHE.open(None)
        await INSIDE.close()


class OurRoutes(BaseRoute):
    """All our routes as one of a Starlette application."""

    def __init__(self, api: SocketApi, *, leaves_root: bool) -> None:
        self.api = api
        self.leaves_root = leaves_root
        self._answering = AnswerErrors(api, ErrorForm.TEXT)

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """Match what we have a route for; whatever nobody has one for comes to us all the same, in the end."""
        # The router also asks about paths with a slash more or less, to redirect: we do that ourselves.
        is_asked = scope.get(ASKED_PATH) == scope["path"] and not (self.leaves_root and scope["path"] == "/")
        return (Match.FULL if is_asked and self.api.find(scope) else Match.NONE), {}

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        await self._answering(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Raise NoMatchFound: names of ours are not for the project's code to link to."""
        raise NoMatchFound(name, path_params)


def join_custom(config: AgentConfig, api: SocketApi, access: Access) -> CustomApp | None:
    """Load the project's application, where it has one, and make our routes part of it. Raises UserMistake."""
    if config.http.app is None:
        return None
    custom = CustomApp(config, config.http.app)
    custom.join(api, access)
    return custom


def _asked(own: list[BaseRoute], api: SocketApi, *, custom: bool) -> Callable[[Any], bool]:
    """Return what tells who has to be known before anything else: whatever is not ours counts as the project's."""

    def is_asked(scope: Any) -> bool:
        is_custom = any(route.matches(scope)[0] is Match.FULL for route in own)
        ours = None if is_custom else api.find(scope)
        return custom if ours is None else not ours.public

    return is_asked


def _takes_everything(route: BaseRoute) -> bool:
    path = getattr(route, "path", None)
    return (isinstance(route, Mount) and path == "") or bool(path and _EVERYTHING.fullmatch(path))


def _drop_described(app: Starlette, api: SocketApi) -> None:
    """Take out the pages about itself that a framework adds where we have one about both."""
    app.router.routes[:] = [
        route
        for route in app.router.routes
        if not (
            getattr(getattr(route, "endpoint", None), "__qualname__", "").startswith("FastAPI.setup.")
            and api.find({"type": "http", "method": "GET", "path": getattr(route, "path", "")})
        )
    ]


def _tell_errors(app: Starlette) -> None:
    """Give errors the form that ours have, where the project has none for them; none shows its inside."""
    if app.debug:
        log.warning("debug_switched_off", reason="it would show source code to whoever calls")
        app.debug = False
    if not app.exception_handlers.keys() & {500, Exception}:
        app.exception_handlers[Exception] = _failed
    app.exception_handlers.setdefault(HTTPException, _refused)


def _failed(_request: Request, _exc: Exception) -> Response:
    return error_response(PortsideError(), ErrorForm.TEXT)


def _refused(_request: Request, exc: Any) -> Response:
    if exc.status_code in {204, 304}:
        return Response(status_code=exc.status_code, headers=exc.headers)
    return JSONResponse({"detail": exc.detail}, exc.status_code, exc.headers)
