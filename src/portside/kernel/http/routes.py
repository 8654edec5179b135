"""Typed routes: a handler's signature is its contract.

    routes = Routes("deployments")

    @routes.get("/v2/deployments/{deployment_id}", raises=(DeploymentNotFound,))
    async def show_deployment(ctx: Context, deployment_id: UUID) -> Deployment:
        \"\"\"Return one deployment.\"\"\"

Path parameters are matched by name, `query` takes a struct of query parameters, `body` the decoded JSON body. What is
returned is encoded; None makes an empty answer. The same signatures make the OpenAPI document (`openapi.py`).
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.db import Database
from portside.kernel.errors import Invalid, MethodNotAllowed, NotFound, PortsideError
from portside.kernel.http.decode import decode_body, decode_path, decode_query

T = TypeVar("T")
Handler = Callable[..., Awaitable[Any]]
Guard = Callable[["Context", "Route"], Awaitable[Any]]
NO_CONTENT = 204
_JSON = (b"content-type", b"application/json")


class Context:
    """One request: the wired services, who is asking, and headers to add to the answer."""

    __slots__ = ("_at_end", "_receive", "_request", "_send", "_services", "actor", "headers", "scope")

    def __init__(self, scope: Any, receive: Any, send: Any, services: Mapping[type, Any]) -> None:
        self.scope = scope
        self.headers: dict[str, str] = {}
        self.actor: Any = None
        self._receive = receive
        self._send = send
        self._services = services
        self._request: Request | None = None
        self._at_end: list[Callable[[], None]] = []

    @property
    def request(self) -> Request:
        """The request with its headers and its body; many routes want neither, so it is made where it is looked at."""
        if self._request is None:
            self._request = Request(self.scope, self._receive, self._send)
        return self._request

    def get(self, kind: type[T]) -> T:
        """Return the service of this type that the program was wired with."""
        service: T = self._services[kind]
        return service

    @property
    def db(self) -> Database:
        """The program's database."""
        return self.get(Database)

    def at_end(self, act: Callable[[], None]) -> None:
        """Have something done when the answer is over, however it ends."""
        self._at_end.append(act)

    def end(self) -> None:
        """Do what is to be done now that the answer is over."""
        for act in self._at_end:
            act()


@dataclass(frozen=True)
class Route:
    """One operation."""

    method: str
    path: str
    handler: Handler
    tag: str
    status: int = 200
    raises: tuple[type[PortsideError], ...] = ()
    public: bool = False
    permission: str | None = None
    media_type: str = "application/json"
    path_types: dict[str, Any] = field(default_factory=dict)
    query_type: type[msgspec.Struct] | None = None
    body_type: Any = None
    body_optional: bool = False
    returns: Any = None
    """What the answer holds; the handler's signature says it, unless that returns a response of its own."""
    answers: Mapping[int, Any] = field(default_factory=dict)
    """Other successes by status, and what each holds."""
    headers: tuple[str, ...] = ()
    """Headers of the answer that clients look at."""
    takes: tuple[str, ...] = ()
    """Headers of the request that are acted on, beside those that every request may have."""
    stays_open: bool = False
    """Whether the answer may be open for long: events that are streamed, or a result that is waited for."""
    max_body_bytes: int | None = None
    """The largest body, where it is not the server's own limit; `body_limits` tells the server."""

    @property
    def name(self) -> str:
        """The operation's name, which is its handler's."""
        return self.handler.__name__


def body_limits(routes: Sequence[Route]) -> dict[str, int]:
    """Return what the paths of routes with a limit of their own begin with, and that limit."""
    return {route.path.split("{")[0]: route.max_body_bytes for route in routes if route.max_body_bytes is not None}


class Routes:
    """Collects the operations of one resource."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.list: list[Route] = []

    def __iter__(self) -> Any:
        return iter(self.list)

    def add(self, method: str, *paths: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register the decorated handler under a method and one or more path templates."""

        def register(handler: Handler) -> Handler:
            self.list += [_inspect(Route(method, path, handler, self.tag, **options)) for path in paths]
            return handler

        return register

    def get(self, *paths: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a GET operation."""
        return self.add("GET", *paths, **options)

    def post(self, *paths: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a POST operation."""
        return self.add("POST", *paths, **options)

    def put(self, *paths: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a PUT operation."""
        return self.add("PUT", *paths, **options)

    def patch(self, *paths: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a PATCH operation."""
        return self.add("PATCH", *paths, **options)

    def delete(self, *paths: str, **options: Any) -> Callable[[Handler], Handler]:
        """Register a DELETE operation."""
        return self.add("DELETE", *paths, **options)


def _inspect(route: Route) -> Route:
    """Fill in the types that the handler's signature declares."""
    hints = get_type_hints(route.handler, include_extras=True)
    parameters = list(inspect.signature(route.handler).parameters.values())[1:]
    in_path = {part[1:-1] for part in route.path.split("/") if part.startswith("{")}
    found: dict[str, Any] = {"path_types": {}, "returns": route.returns or _told(hints.get("return"))}
    for parameter in parameters:
        kind = hints[parameter.name]
        if parameter.name == "body":
            found["body_type"] = kind
            found["body_optional"] = parameter.default is not inspect.Parameter.empty
        elif parameter.name == "query":
            found["query_type"] = kind
        elif parameter.name in in_path:
            found["path_types"][parameter.name] = kind
        else:
            raise TypeError(f"{route.name}: parameter {parameter.name} is neither in the path nor query nor body")
    if in_path != set(found["path_types"]):
        raise TypeError(f"{route.name}: the path {route.path} and the signature name different parameters")
    return Route(**{**route.__dict__, **found})


def _told(kind: Any) -> Any:
    """Return the type that a handler's signature promises, short of the responses that it makes itself beside it."""
    members = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else ()
    told = [member for member in members if not (isinstance(member, type) and issubclass(member, Response))]
    return Union[tuple(told)] if told and len(told) < len(members) else kind  # noqa: UP007 - made at run time


class _Node:
    """One path segment of the routing tree."""

    __slots__ = ("children", "methods", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, Route] = {}


class Api:
    """An ASGI application made of routes. Every route that is not public passes the guard first, or is refused."""

    def __init__(self, routes: Sequence[Route], services: Mapping[type, Any], guard: Guard) -> None:
        self.routes = list(routes)
        self.services = services
        self._guard = guard
        self._root = _Node()
        for route in self.routes:
            self._insert(route)

    def _insert(self, route: Route) -> None:
        node = self._root
        for segment in route.path.removeprefix("/").split("/"):
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.children.setdefault(segment, _Node())
        if route.method in node.methods:
            raise ValueError(f"{route.method} {route.path} is routed twice")
        node.methods[route.method] = route

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        try:
            route, segments = self._match(scope["method"], scope["path"])
        except NotFound:
            if not self._is_known_without_slash(scope):
                raise
            await Response(status_code=307, headers={"Location": _without_slash(scope)})(scope, receive, send)
            return
        scope.setdefault("state", {})["route"] = route.path
        ctx = Context(scope, receive, send, self.services)
        try:
            result = await self._handle(ctx, route, segments)
            if isinstance(result, Response):
                MutableHeaders(raw=result.raw_headers).update(ctx.headers)
                if scope["method"] == "HEAD":
                    await _send_head(result, scope, send)
                else:
                    await result(scope, receive, send)
            else:
                await _send_json(result, route.status, ctx, send)
        finally:
            ctx.end()

    async def _handle(self, ctx: Context, route: Route, segments: list[str]) -> Any:
        """Return what the route's handler makes of a request."""
        if not route.public:
            ctx.actor = await self._guard(ctx, route)
        arguments: dict[str, Any] = {
            name: decode_path(name, segments[index], route.path_types[name]) for index, name in _parameters(route.path)
        }
        ignored: list[str] = []
        if route.query_type is not None or ctx.scope["query_string"]:
            pairs = parse_qsl(ctx.scope["query_string"].decode("latin-1"), keep_blank_values=True)
            query, ignored = decode_query(pairs, route.query_type)
            if route.query_type is not None:
                arguments["query"] = query
        if route.body_type is not None and ((raw := await ctx.request.body()) or not route.body_optional):
            arguments["body"], unknown = decode_body(raw, route.body_type)
            ignored += unknown
        if ignored:
            ctx.headers["X-Ignored-Fields"] = _header_text(ignored)
        return await route.handler(ctx, **arguments)

    def find(self, scope: Any) -> Route | None:
        """Return the route that answers a request; None where there is none for its path and method."""
        try:
            return self._match(scope["method"], scope["path"])[0]
        except (NotFound, MethodNotAllowed):
            return None

    def _match(self, method: str, path: str) -> tuple[Route, list[str]]:
        segments = path.removeprefix("/").split("/")
        node = _find(self._root, segments, 0)
        if node is None:
            raise NotFound
        route = node.methods.get("GET" if method == "HEAD" else method)
        if route is None:
            _refuse_method(node)
        return route, segments

    def _is_known_without_slash(self, scope: Any) -> bool:
        *segments, last = scope["path"].removeprefix("/").split("/")
        is_told_so = last == "" and any(segments) and scope["raw_path"].endswith(b"/")
        return is_told_so and _find(self._root, segments, 0) is not None


def _without_slash(scope: Any) -> str:
    """Where a path with a slash too many leads to, as the client wrote it: escaped, and with any prefix."""
    path = scope["raw_path"].decode("latin-1").removesuffix("/")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def _send_head(response: Response, scope: Any, send: Any) -> None:
    """Send a response without its body. A stream is told that its client has gone, so that it ends."""

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def only_head(message: Any) -> None:
        if message["type"] == "http.response.start":
            await send(message)

    await response(scope, gone, only_head)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_json(result: Any, status: int, ctx: Context, send: Any) -> None:
    """Send what a handler returned; None is an empty body."""
    body, headers = b"", []
    if result is not None:
        body, headers = dump_api(result), [_JSON]
    if status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    if ctx.headers:
        MutableHeaders(raw=headers).update(ctx.headers)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if ctx.scope["method"] == "HEAD" else body})


def _refuse_method(node: _Node) -> NoReturn:
    allowed = {*node.methods, *(("HEAD",) if "GET" in node.methods else ())}
    raise MethodNotAllowed(headers={"Allow": ", ".join(sorted(allowed))})


def _find(node: _Node, segments: list[str], depth: int) -> _Node | None:
    """Return the place of the routes that a path leads to; what is named goes before a parameter."""
    if depth == len(segments):
        return node if node.methods else None
    child = node.children.get(segments[depth])
    found = None if child is None else _find(child, segments, depth + 1)
    if found is None and node.parameter is not None and segments[depth]:
        found = _find(node.parameter, segments, depth + 1)
    return found


@cache
def _parameters(path: str) -> list[tuple[int, str]]:
    return [(i, part[1:-1]) for i, part in enumerate(path.removeprefix("/").split("/")) if part.startswith("{")]


def _header_text(names: list[str]) -> str:
    """Write field names into a header: some of them, and only characters that a header takes."""
    shown = ", ".join([*dict.fromkeys(names)][:20])[:1000]
    return "".join(char if " " <= char <= "~" else "?" for char in shown)


def encode_response(result: Any, status: int) -> Response:
    """Make an answer of another status than its route's."""
    return Response(dump_api(result), status, media_type="application/json")


def refuse_field(name: str, why: str) -> Invalid:
    """Make the refusal of a documented field that is not acted on yet: it is never swallowed."""
    return Invalid.field(["body", name], why, "not_supported")
