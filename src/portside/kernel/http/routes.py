"""Typed routes: a handler's signature is its contract.

    routes = Routes[Context[ControlServices]]("deployments")

    @routes.get("/v2/deployments/{deployment_id}", raises=(DeploymentNotFound,))
    async def get_deployment(ctx: Context[ControlServices], deployment_id: UUID) -> Deployment:
        \"\"\"Return one deployment.\"\"\"
        return await deployments.get(ctx.services.db, deployment_id)

Each package declares the services that its handlers use, as a frozen dataclass derived from `BaseServices`, beside its
own `Context` and `Routes` (the generic ones with that dataclass filled in). A server binds the routes of each package
to its services; mypy checks that they are what the handlers need.

Path parameters are matched by name; one with dots, `{path...}`, takes the rest of the path. `query` takes a struct of
query parameters, `body` the decoded JSON body. The result is encoded; None makes an empty response. The OpenAPI
document is made of the same signatures (`openapi.py`).
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from types import UnionType
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    NoReturn,
    ParamSpec,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from portside.kernel import large_reads
from portside.kernel.codec import dump_api
from portside.kernel.db import Database
from portside.kernel.disk import DiskFull, DiskWatch
from portside.kernel.errors import Invalid, MethodNotAllowed, NotFound, PortsideError
from portside.kernel.http.audit_actions import Audit
from portside.kernel.http.body_size import drain_body
from portside.kernel.http.decode import decode_body, decode_path, decode_query
from portside.kernel.http.middleware import get_buffered_writer
from portside.kernel.http.operation_ids import to_operation_id
from portside.kernel.large_reads import ReadBudget, ReadReservation, ReservationNeeded
from portside.kernel.timeouts import timeout

T = TypeVar("T")
P = ParamSpec("P")
# Contexts are covariant and routes contravariant: the context of a whole server suits the handlers of each package.
S = TypeVar("S", bound="BaseServices")
S_co = TypeVar("S_co", bound="BaseServices", covariant=True)
C = TypeVar("C", bound="Context[Any]")
C_contra = TypeVar("C_contra", bound="Context[Any]", contravariant=True)
Handler = Callable[Concatenate[C, P], Awaitable[T]]

NO_CONTENT = 204
JSON_OBJECT: Mapping[str, dict[str, Any]] = {"application/json": {"type": "object"}}
MULTIPART: Mapping[str, dict[str, Any]] = {"multipart/form-data": {"type": "object", "minProperties": 1}}
_JSON = (b"content-type", b"application/json")
READING_METHODS = frozenset({"GET", "HEAD"})
_STORING_NOTHING = READING_METHODS | {"DELETE"}
# How many times a handler runs again because it needs more memory than was reserved for it.
MAX_RERUNS = 3
# A large response is sent in slices: the transport copies what the client has not read yet, here one slice at most.
SLICE_BYTES = 256 * 1024
SEND_TIMEOUT_S = 60.0
MIN_BYTES_PER_S = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class BaseServices:
    """The services that every handler has. Packages derive their own from it."""

    db: Database


class Context(Generic[S_co]):
    """One request: the services of its handler, the authenticated caller, and headers to add to the response."""

    __slots__ = ("_on_finish", "_receive", "_request", "_send", "actor", "headers", "scope", "services")

    def __init__(self, scope: Any, receive: Any, send: Any, services: S_co) -> None:
        self.scope = scope
        self.services = services
        self.actor: Any = None
        # Headers to add to the response.
        self.headers: dict[str, str] = {}
        self._receive = receive
        self._send = send
        self._request: Request | None = None
        self._on_finish: list[Callable[[], None]] = []

    @property
    def request(self) -> Request:
        """The request, made on first use: many routes need neither headers nor body."""
        if self._request is None:
            self._request = Request(self.scope, self._receive, self._send)
        return self._request

    @property
    def db(self) -> Database:
        """The database: short for `services.db`."""
        return self.services.db

    def on_finish(self, callback: Callable[[], None]) -> None:
        """Call back when the response is over, however it ends."""
        self._on_finish.append(callback)

    def finish(self) -> None:
        """Run the callbacks: the response is over."""
        for callback in self._on_finish:
            callback()


@dataclass(frozen=True)
class Route(Generic[C_contra]):
    """One operation. Its handler takes a context of type `C_contra`."""

    method: str
    path: str
    handler: Callable[Concatenate[C_contra, ...], Awaitable[Any]]
    tag: str
    operation_id: str = ""
    """Its name in the OpenAPI document; a handler with several paths is several operations."""
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
    """The type of the response's body. Needed only if the handler returns a `Response` of its own."""
    responses: Mapping[int, Any] = field(default_factory=dict)
    """The types of other successful responses, by status."""
    response_headers: tuple[str, ...] = ()
    """Headers of the response that clients read."""
    consumes: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """JSON schemas by media type, for a body that the handler reads itself; the OpenAPI document shows them."""
    request_headers: tuple[str, ...] = ()
    """Headers of the request that the handler reads, beside those that every request may have."""
    stays_open: bool = False
    """Whether the response may take long: it streams events, or waits for a result."""
    max_body_bytes: int | None = None
    """The limit of the body's size, if it differs from the server's; `get_body_limits` collects them."""
    read_only: bool = False
    """Whether a POST only reads. Like a GET it then has a budget, and its handler may run twice (`large_reads.py`)."""
    works_on_full_disk: bool = False
    """Whether it is served while the disk is nearly full although it changes something: it makes room or is tiny."""
    audit: Audit | None = None
    """What the audit log records of it, or why nothing. A server with an audit log demands it unless `only_reads`."""

    @property
    def name(self) -> str:
        """The name of its handler."""
        return self.handler.__name__

    @property
    def only_reads(self) -> bool:
        """Whether a request changes nothing."""
        return self.read_only or self.method in READING_METHODS

    @cached_property
    def has_budget(self) -> bool:
        """Whether the response has a budget, for which the handler may run again."""
        return self.only_reads and not self.stays_open

    @cached_property
    def stores_data(self) -> bool:
        """Whether the route is refused while the disk is nearly full."""
        is_harmless = self.read_only or self.works_on_full_disk
        return self.method not in _STORING_NOTHING and not is_harmless


Guard = Callable[[Context[S], Route[Any]], Awaitable[Any]]


class BoundRoute(NamedTuple):
    """A route with the services that its handler gets."""

    route: Route[Any]
    services: BaseServices


def bind(routes: Iterable[Route[Context[S]]], services: S) -> list[BoundRoute]:
    """Return the routes with the services that their handlers get."""
    return [BoundRoute(route, services) for route in routes]


def get_body_limits(routes: Sequence[Route[Any]]) -> dict[str, int]:
    """Return the body limits of the routes that have their own, by the fixed beginning of their path."""
    return {route.path.split("{")[0]: route.max_body_bytes for route in routes if route.max_body_bytes is not None}


class RouteOptions(TypedDict, total=False):
    """The options of a route that several may share: fields of `Route` with the same names."""

    status: int
    raises: tuple[type[PortsideError], ...]
    public: bool
    permission: str | None
    media_type: str
    returns: Any
    responses: Mapping[int, Any]
    response_headers: tuple[str, ...]
    consumes: Mapping[str, dict[str, Any]]
    request_headers: tuple[str, ...]
    stays_open: bool
    max_body_bytes: int | None
    read_only: bool
    works_on_full_disk: bool
    body_optional: bool


class OwnOptions(RouteOptions, total=False):
    """All options of a route, with those that stand at its declaration: `Routes.add` says what they are."""

    operation: str
    audit: Audit


class Routes(Generic[C]):
    """Collects the operations of one resource. With `works_on_full_disk` a full disk refuses none of them."""

    def __init__(self, tag: str, *, works_on_full_disk: bool = False) -> None:
        self.tag = tag
        self._defaults: RouteOptions = {"works_on_full_disk": works_on_full_disk}
        self.list: list[Route[C]] = []

    def __iter__(self) -> Iterator[Route[C]]:
        return iter(self.list)

    def add(
        self,
        method: str,
        *paths: str,
        operation: str | None = None,
        audit: Audit | None = None,
        **options: Unpack[RouteOptions],
    ) -> Callable[[Handler[C, P, T]], Handler[C, P, T]]:
        """Register the decorated handler under a method and one or more path templates.

        `operation` is the id of the operation where it does not follow from the handler's name (`operation_ids.py`).
        `audit` is what the audit log records of it (`audit_actions.py`).
        """

        def register(handler: Handler[C, P, T]) -> Handler[C, P, T]:
            route_options: RouteOptions = {**self._defaults, **options}
            operation_id = operation or to_operation_id(handler.__name__)
            for number, path in enumerate(paths, 1):
                route = Route(
                    method=method,
                    path=path,
                    handler=handler,
                    tag=self.tag,
                    operation_id=operation_id if number == 1 else f"{operation_id}_{number}",
                    audit=audit,
                    **route_options,
                )

                self.list.append(_inspect(route))

            return handler

        return register

    def get(self, *paths: str, **options: Unpack[OwnOptions]) -> Callable[[Handler[C, P, T]], Handler[C, P, T]]:
        """Register a GET operation."""
        return self.add("GET", *paths, **options)

    def post(self, *paths: str, **options: Unpack[OwnOptions]) -> Callable[[Handler[C, P, T]], Handler[C, P, T]]:
        """Register a POST operation."""
        return self.add("POST", *paths, **options)

    def put(self, *paths: str, **options: Unpack[OwnOptions]) -> Callable[[Handler[C, P, T]], Handler[C, P, T]]:
        """Register a PUT operation."""
        return self.add("PUT", *paths, **options)

    def patch(self, *paths: str, **options: Unpack[OwnOptions]) -> Callable[[Handler[C, P, T]], Handler[C, P, T]]:
        """Register a PATCH operation."""
        return self.add("PATCH", *paths, **options)

    def delete(self, *paths: str, **options: Unpack[OwnOptions]) -> Callable[[Handler[C, P, T]], Handler[C, P, T]]:
        """Register a DELETE operation."""
        return self.add("DELETE", *paths, **options)


def _inspect(route: Route[C]) -> Route[C]:
    """Fill in the types that the handler's signature declares."""
    hints = get_type_hints(route.handler, include_extras=True)
    parameters = list(inspect.signature(route.handler).parameters.values())[1:]
    in_path = {_parameter_name(part) for part in route.path.split("/") if part.startswith("{")}
    path_types: dict[str, Any] = {}
    fields: dict[str, Any] = {"path_types": path_types, "returns": route.returns or _body_type(hints.get("return"))}

    for parameter in parameters:
        kind = hints[parameter.name]
        if parameter.name == "body":
            fields["body_type"] = kind
            fields["body_optional"] = parameter.default is not inspect.Parameter.empty
        elif parameter.name == "query":
            fields["query_type"] = kind
        elif parameter.name in in_path:
            path_types[parameter.name] = kind
        else:
            raise TypeError(f"{route.name}: parameter {parameter.name} is neither in the path nor query nor body")

    if in_path != set(path_types):
        raise TypeError(f"{route.name}: the path {route.path} and the signature name different parameters")

    return Route(**{**route.__dict__, **fields})


def _body_type(kind: Any) -> Any:
    """Return the type that a handler's signature promises; in a union, without the responses it makes itself."""
    is_union = isinstance(kind, UnionType) or get_origin(kind) is Union
    if not is_union:
        return kind

    members = get_args(kind)
    bodies = [member for member in members if not (isinstance(member, type) and issubclass(member, Response))]
    if not bodies or len(bodies) == len(members):
        return kind

    return Union[tuple(bodies)]  # noqa: UP007 - made at run time


class _Node:
    """One path segment of the routing tree."""

    __slots__ = ("children", "methods", "parameter", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.rest: _Node | None = None
        self.methods: dict[str, BoundRoute] = {}


class Api:
    """An ASGI application made of routes. The guard runs before every route that is not public; it raises to refuse.

    `read_budget` limits the memory of large responses (`large_reads.py`). Routes that store data are refused while
    `disk` is nearly full.
    """

    def __init__(
        self,
        routes: Sequence[BoundRoute],
        guard: Guard[Any],
        *,
        read_budget: ReadBudget | None = None,
        disk: DiskWatch | None = None,
    ) -> None:
        self.routes = [route for route, _services in routes]
        self._guard = guard
        self._read_budget = read_budget
        self._disk = disk
        self._root = _Node()

        for bound in routes:
            self._insert(bound)

    def _insert(self, bound: BoundRoute) -> None:
        route = bound.route
        node = self._root
        for segment in route.path.removeprefix("/").split("/"):
            if segment.endswith("...}"):
                node.rest = node.rest or _Node()
                node = node.rest
            elif segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.children.setdefault(segment, _Node())

        if route.method in node.methods:
            raise ValueError(f"{route.method} {route.path} is routed twice")

        node.methods[route.method] = bound

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        try:
            (route, services), segments = self._match(scope["method"], scope["path"])
        except NotFound:
            if not self._is_known_without_slash(scope):
                raise

            await Response(status_code=307, headers={"Location": _without_slash(scope)})(scope, receive, send)
            return

        scope.setdefault("state", {})["route"] = route.path
        disk = self._disk
        if disk is not None and disk.shortage is not None and route.stores_data:
            refusal = DiskFull.because(disk.shortage)
            # Many clients read the refusal only after they have sent their body.
            await drain_body(receive)
            raise refusal

        ctx = Context(scope, receive, send, services)
        budget = self._read_budget
        reservation = ReadReservation(budget) if budget is not None and route.has_budget else None
        token = large_reads.set_current_read(reservation)
        try:
            response = await self._respond(ctx, route, segments, reservation)
            if isinstance(response, _BufferedResponse):
                await _send_buffered(response, scope, send)
            elif scope["method"] == "HEAD":
                await _send_head(response, scope, send)
            else:
                if reservation is not None:
                    reservation.start_streaming()
                await response(scope, receive, send)
        finally:
            large_reads.reset_current_read(token)
            if reservation is not None:
                reservation.close()

            ctx.finish()

    async def _respond(
        self, ctx: Context[Any], route: Route[Any], segments: list[str], reservation: ReadReservation | None
    ) -> "_BufferedResponse | Response":
        """Run the route's handler. Returns a `_BufferedResponse`, or a `Response` that streams."""
        arguments = await self._read_arguments(ctx, route, segments)
        try:
            result = await route.handler(ctx, **arguments)
        except ReservationNeeded as exc:
            if reservation is None:
                raise
            result = await _run_again(reservation, exc.size, partial(route.handler, ctx, **arguments))

        if reservation is not None and reservation.reserved:
            reservation.release_unused()

        if not isinstance(result, Response):
            return _encode(result, route.status, ctx.headers)

        if ctx.headers:
            MutableHeaders(raw=result.raw_headers).update(ctx.headers)

        if type(result) is Response and result.background is None:
            return _BufferedResponse(result.status_code, result.raw_headers, bytes(result.body))

        return result

    async def _read_arguments(self, ctx: Context[Any], route: Route[Any], segments: list[str]) -> dict[str, Any]:
        """Run the guard, and return the arguments of the handler."""
        if not route.public:
            ctx.actor = await self._guard(ctx, route)

        arguments: dict[str, Any] = {
            name: decode_path(name, "/".join(segments[index]), route.path_types[name])
            for index, name in _parse_parameters(route.path)
        }

        ignored: list[str] = []
        if route.query_type is not None or ctx.scope["query_string"]:
            text = ctx.scope["query_string"].decode("latin-1")
            pairs = parse_qsl(text, keep_blank_values=True) if text else ()

            # The query of a page is for its scripts, which read it in the browser.
            is_page = route.query_type is None and route.media_type == "text/html"
            query, ignored = decode_query(() if is_page else pairs, route.query_type)
            if route.query_type is not None:
                arguments["query"] = query

        if route.body_type is not None:
            raw = await ctx.request.body()
            if raw or not route.body_optional:
                arguments["body"], ignored_fields = decode_body(raw, route.body_type, is_search=route.read_only)
                ignored += ignored_fields

        if ignored:
            ctx.headers["X-Ignored-Fields"] = _to_header(ignored)

        return arguments

    def find(self, scope: Any) -> Route[Any] | None:
        """Return the route that answers a request; None where there is none for its path and method."""
        try:
            bound, _segments = self._match(scope["method"], scope["path"])
        except (NotFound, MethodNotAllowed):
            return None

        return bound.route

    def _match(self, method: str, path: str) -> tuple[BoundRoute, list[str]]:
        segments = path.removeprefix("/").split("/")
        node = _find(self._root, segments, 0)
        if node is None:
            raise NotFound

        bound = node.methods.get("GET" if method == "HEAD" else method)
        if bound is None:
            _refuse_method(node)

        return bound, segments

    def _is_known_without_slash(self, scope: Any) -> bool:
        *segments, last = scope["path"].removeprefix("/").split("/")
        has_slash = last == "" and any(segments) and scope["raw_path"].endswith(b"/")
        return has_slash and _find(self._root, segments, 0) is not None


def _without_slash(scope: Any) -> str:
    """Return the path without its trailing slash, as the client wrote it: escaped, and with its prefix."""
    path = scope["raw_path"].decode("latin-1").removesuffix("/")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def _send_head(response: Response, scope: Any, send: Any) -> None:
    """Send a response without its body. A stream ends because it sees a client that disconnected."""

    async def receive_disconnect() -> Any:
        return {"type": "http.disconnect"}

    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.start":
            await send(message)

    await response(scope, receive_disconnect, send_head)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _run_again(reservation: ReadReservation, size: int, run: Callable[[], Awaitable[Any]]) -> Any:
    """Run a read-only handler again after reserving the memory that it turned out to need.

    Raises TooManyLargeReads if the memory does not become free in time.
    """
    for _ in range(MAX_RERUNS - 1):
        await reservation.reserve(size)
        try:
            return await run()
        except ReservationNeeded as exc:
            size = exc.size

    await reservation.reserve(size)
    return await run()


class _BufferedResponse(NamedTuple):
    """A response that is in memory."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def _encode(result: Any, status: int, more_headers: Mapping[str, str]) -> _BufferedResponse:
    """Encode the result of a handler; None is an empty body, and bytes are JSON already."""
    body = b""
    headers = []
    if result is not None:
        body = result if type(result) is bytes else dump_api(result)
        headers = [_JSON]

    if status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))

    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in more_headers.items()]
    return _BufferedResponse(status, headers, body)


async def _send_buffered(response: _BufferedResponse, scope: Any, send: Any) -> None:
    """Send a response in slices. Raises ClientDisconnect if the client reads too slowly."""
    body = b"" if scope["method"] == "HEAD" else response.body
    write = get_buffered_writer(send) if len(body) <= SLICE_BYTES else None
    if write is not None and write(response.status, response.headers, body):
        return

    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    if len(body) <= SLICE_BYTES:
        await send({"type": "http.response.body", "body": body})
        return

    try:
        async with timeout(SEND_TIMEOUT_S + len(body) / MIN_BYTES_PER_S):
            for start in range(0, len(body), SLICE_BYTES):
                end = start + SLICE_BYTES
                await send({"type": "http.response.body", "body": body[start:end], "more_body": end < len(body)})
    except TimeoutError as exc:
        raise ClientDisconnect from exc


def _refuse_method(node: _Node) -> NoReturn:
    methods = set(node.methods)
    if "GET" in methods:
        methods.add("HEAD")

    raise MethodNotAllowed(headers={"Allow": ", ".join(sorted(methods))})


def _find(node: _Node, segments: list[str], depth: int) -> _Node | None:
    """Return the node that a path leads to. A fixed segment takes precedence over a parameter."""
    if depth == len(segments):
        return node if node.methods else None

    child = node.children.get(segments[depth])
    match = None if child is None else _find(child, segments, depth + 1)
    if match is None and node.parameter is not None and segments[depth]:
        match = _find(node.parameter, segments, depth + 1)

    return node.rest if match is None else match


@cache
def _parse_parameters(path: str) -> list[tuple[slice, str]]:
    """Return the parameters of a path template, each with the segments that it takes."""
    parameters: list[tuple[slice, str]] = []
    for index, part in enumerate(path.removeprefix("/").split("/")):
        if part.startswith("{"):
            end = None if part.endswith("...}") else index + 1
            parameters.append((slice(index, end), _parameter_name(part)))

    return parameters


def _parameter_name(part: str) -> str:
    return part[1:-1].removesuffix("...")


def _to_header(names: list[str]) -> str:
    """Convert field names to a header's value: the first 20 of them, with only the characters that headers allow."""
    text = ", ".join([*dict.fromkeys(names)][:20])[:1000]
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def encode_response(result: Any, status: int) -> Response:
    """Make a response with another status than its route's."""
    return Response(dump_api(result), status_code=status, media_type="application/json")


def refuse_field(name: str, why: str) -> Invalid:
    """Return the error for a documented field that this server does not support: such a field is never ignored."""
    return Invalid.field(["body", name], why, "not_supported")
