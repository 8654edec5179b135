"""The project's web application in an executor, with this server's routes in it.

A request goes to the application, and from there back to this server if it is for a route of the server. Where the
application has neither middleware nor a route for the path, the server answers at once.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.authentication import UnauthenticatedUser
from starlette.requests import ClientDisconnect

from portside.agent.access.service import Access
from portside.agent.config import AgentConfig
from portside.agent.custom.web_app import Authenticate
from portside.agent.executors.handlers_executor import HandlersExecutor, to_sent_user
from portside.agent.executors.member import Executor
from portside.executor import messages
from portside.executor.application import RouteFacts
from portside.executor.asgi import (
    DISCONNECTED,
    Application,
    Exchange,
    await_answer,
    decode_scope,
    encode_message,
    send_request,
)
from portside.executor.link import CallFailed, ServedCall
from portside.kernel.errors import PortsideError
from portside.kernel.http.error_responses import ErrorFormat, build_error_response, refuse_websocket, to_error
from portside.kernel.http.middleware import ErrorResponses
from portside.kernel.http.websockets import COME_BACK, SocketApi

_BEGINS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})


class RemoteApp:
    """The project's application in another process. It is its own `app`, with FastAPI's `openapi_url` and `openapi`."""

    def __init__(self, handlers: HandlersExecutor, config: AgentConfig, api: SocketApi, access: Access) -> None:
        self._handlers = handlers
        self._config = config
        self._api = api
        self._access = access
        self._ours = ErrorResponses(api, ErrorFormat.TEXT)
        self._routes: list[RouteFacts] | None = None

        # Whether the application gets the requests for our routes: all of them, or those that match a pattern.
        self._sees_ours = True
        self._sees_our_sockets = True
        self._patterns: list[re.Pattern[str]] = []

        self._document: Any = None
        self.openapi_url: str | None = None

    @property
    def app(self) -> "RemoteApp":
        """The object with FastAPI's `openapi_url` and `openapi`, which is this one."""
        return self

    @asynccontextmanager
    async def run_lifespan(self) -> AsyncIterator[None]:
        """Run its lifespan, again in each later executor. Raises UserMistake if the startup fails."""
        http = self._config.http
        start = {
            "pages": [route.path for route in self._api.http.routes if route.method == "GET"],
            "is_auth_first": http.middleware_order == "auth_first",
            "authenticates_project": http.enable_custom_route_auth,
        }

        await self._handlers.begin(messages.APP_START, start, self._learn)
        try:
            yield
        finally:
            await self._handlers.end(messages.APP_STOP)

    def _learn(self, facts: Any) -> None:
        self._routes = [RouteFacts(*route) for route in facts["routes"]]
        position = next(index for index, route in enumerate(self._routes) if route.is_server)
        patterns_before = [route.pattern for route in self._routes[:position]]

        # Routes after the server's own get every path that the server has no route for, and the root.
        root = ["/$"] if position < len(self._routes) - 1 else []
        self._sees_ours = facts["has_middleware"] or None in patterns_before
        self._patterns = [re.compile(pattern) for pattern in (*patterns_before, *root) if pattern is not None]

        # Middleware of JavaScript applications sees HTTP requests, but no WebSockets.
        self._sees_our_sockets = facts.get("sees_our_sockets", True)
        self.openapi_url = "/openapi.json" if facts["has_document"] else None

    async def fetch_document(self) -> None:
        """Fetch the application's OpenAPI document. Raises Unavailable."""
        if self.openapi_url is not None:
            self._document = msgspec.json.decode(await self._handlers.call(messages.APP_DOCUMENT, None))

    def openapi(self) -> Any:
        """Return the application's OpenAPI document, after `fetch_document`."""
        return self._document

    def takes_post(self, path: str) -> bool:
        """Whether a path is that of a project's route that takes a POST."""
        for route in self._routes or ():
            if route.is_server:
                if self._api.find({"type": "http", "method": "POST", "path": path}) is not None:
                    return False
            elif route.takes_post and route.pattern is not None and re.match(route.pattern, path):
                return True

        return False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request or WebSocket. Raises Unavailable while there is no executor."""
        route = self._api.find(scope)
        path = scope["path"]
        if route is not None and not self._passes_on(scope["type"], path):
            await self._ours(scope, receive, send)
            return

        state = scope.setdefault("state", {})
        server_route = None if route is None else (scope.get("method"), path, route.public)
        body = {"server_route": server_route, "request_id": state.get("request_id")}
        serve = self._serve_socket if scope["type"] == "websocket" else self._serve

        state.setdefault("route", await serve(scope, receive, send, body))

    def _passes_on(self, kind: str, path: str) -> bool:
        """Whether the application gets a request or WebSocket for a route of the server."""
        if kind == "websocket" and not self._sees_our_sockets:
            return False
        return self._sees_ours or any(pattern.match(path) for pattern in self._patterns)

    async def _serve(self, scope: Any, receive: Any, send: Any, body: Any) -> Any:
        with self._handlers.exchanges.open(scope, receive) as exchange:
            try:
                return await send_request(self._handlers, messages.APP_REQUEST, body, exchange, send)
            except CallFailed as exc:
                if exc.code == DISCONNECTED:
                    raise ClientDisconnect from exc
                raise

    async def _serve_socket(self, scope: Any, receive: Any, send: Any, body: Any) -> Any:
        has_begun = False

        async def note(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            return await self._serve(scope, receive, note, body)
        except PortsideError as exc:
            if has_begun:
                await send({"type": "websocket.close", "code": COME_BACK})
            else:
                await refuse_websocket(
                    build_error_response(to_error(exc, scope["path"]), ErrorFormat.TEXT), scope, send
                )

            return "unrouted"

    # Serving the application's calls

    async def serve_server_route(self, executor: Executor, body: Any, exchange: Exchange, call: ServedCall) -> None:
        """Answer a request that the application passed on to our routes."""
        scope = _merge_scope(exchange, body)
        application = Application(executor.link, body["exchange"], call.send)

        async def tell(message: Any) -> None:
            if message["type"] in _BEGINS and "user" in scope:
                call.send([{"type": messages.APP_USER, **_dump_user(scope)}])
            await application.send(message)

        await await_answer(self._ours(scope, application.receive, tell))

    async def authenticate(self, executor: Executor, body: Any, exchange: Exchange) -> dict[str, Any]:
        """Authenticate a request that the application passes on to its own routes."""
        scope = _merge_scope(exchange, body)
        user_fields: dict[str, Any] = {}
        refusal: list[Any] = []

        async def accept(scope: Any, _receive: Any, _send: Any) -> None:
            user_fields.update(_dump_user(scope))

        async def collect(message: Any) -> None:
            refusal.extend(encode_message(message))

        receive = Application(executor.link, body["exchange"], _refuse_to_send).receive
        await await_answer(Authenticate(accept, self._access, lambda _scope: True)(scope, receive, collect))
        return {**user_fields, "refusal": refusal}


class RemoteHandlers(HandlersExecutor):
    """The project's handlers in their executor."""

    def join_app(self, config: AgentConfig, api: SocketApi, access: Access) -> RemoteApp | None:
        """Return the web application with our routes in it, if the project has one."""
        app = RemoteApp(self, config, api, access) if self.has_app else None
        self.app = app
        return app


def _refuse_to_send(_messages: Any) -> None:
    """Raise CallFailed: authentication sends nothing to the client."""
    raise CallFailed("malformed", "authentication sends nothing to the client")


def _merge_scope(exchange: Exchange, body: Any) -> dict[str, Any]:
    """Return the scope of an exchange with the application's changes; keys that it was not sent stay as they were."""
    changes = decode_scope(body["scope"])
    changes.pop("extensions", None)
    return {**exchange.scope, **changes}


def _dump_user(scope: Any) -> dict[str, Any]:
    user = scope.get("user")
    if user is None or isinstance(user, UnauthenticatedUser):
        return {"user": None, "permissions": []}

    return {"user": to_sent_user(user), "permissions": list(scope["auth"].scopes)}
