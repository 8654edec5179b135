"""The project's handlers in an executor process: everything that a configuration imports beside graphs.

They run on one event loop, so that they may share clients that belong to a loop. The user objects that authentication
returned stay here, and the server knows them by numbers: handlers get the same object again while it is cached.
"""

import asyncio
import importlib
import json
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from langgraph_sdk.auth import Auth

from portside.executor import messages
from portside.executor.application import ProjectApp, ServerRoutes
from portside.executor.asgi import (
    DISCONNECTED,
    DRAIN,
    EXCHANGE,
    RECEIVE,
    Application,
    CrossLoopPeer,
    Exchanges,
    OnItem,
    Peer,
    await_answer,
    decode_message,
    decode_scope,
    encode_scope,
    send_request,
)
from portside.executor.auth import LoadedAuth, load_auth
from portside.executor.authentication import Authentication
from portside.executor.embeddings import ProjectEmbeddings, load_embeddings
from portside.executor.encryption_handlers import Decrypted, EncryptionHandlers, load_encryption
from portside.executor.errors import EmbeddingFailed
from portside.executor.link import CallFailed, Handler, Link, ServedCall
from portside.executor.loops import GraphLoop
from portside.executor.project import Project, set_environment
from portside.executor.user import Identity, StudioCaller, User
from portside.executor.values import pack, unpack
from portside.kernel.errors import UserMistake

MAX_USERS = 10_000
SERVER_ROUTE = "portside.server_route"
"""The key of a scope that has the server's route for it: its method, its path, and whether it is public; or None."""
_ENCRYPTION = frozenset({"encrypt_json", "decrypt_json", "encrypt_blob", "decrypt_blob"})
Serve = Callable[[Any], Coroutine[Any, Any, Any]]


class HandlerService:
    """Serves the server's calls to the handlers of one project, on a loop of their own."""

    def __init__(self, link: Link, loop: GraphLoop) -> None:
        self._loop = loop
        self._server: Peer = CrossLoopPeer(link, asyncio.get_running_loop())
        self._serves: dict[str, Serve] = {}
        self._app: AppHandlers | None = None

    async def load(self, project: Project, sources: Mapping[str, Any]) -> dict[str, Any]:
        """Import what the configuration names, and describe it for the server. Raises UserMistake."""
        set_environment(project)
        return await self._loop.call(self._load(project, sources))

    async def _load(self, project: Project, sources: Mapping[str, Any]) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        users = Users()
        if (path := sources.get("auth")) is not None:
            auth = AuthHandlers(load_auth(project, path), users, self._server)
            facts["auth"] = auth.facts
            self._serves |= {messages.AUTHENTICATE: auth.authenticate, messages.AUTHORIZE: auth.authorize}

        if (path := sources.get("encryption")) is not None:
            handlers = load_encryption(project, path)
            facts["encryption"] = {"does_json": handlers.does_json, "does_blobs": handlers.does_blobs}
            self._serves[messages.ENCRYPTION] = partial(_encrypt, handlers, users)

        if (path := sources.get("embed")) is not None:
            embeddings = load_embeddings(project, path)
            facts["embed"] = {}
            self._serves[messages.EMBED] = partial(_embed, embeddings, path)

        if (path := sources.get("app")) is not None:
            facts["app"] = {}
            self._app = app = AppHandlers(ProjectApp(project, path), users, self._server)
            starting = {messages.APP_START: app.start, messages.APP_STOP: app.stop}
            self._serves |= {**starting, messages.APP_DOCUMENT: app.document}
            self._serves |= {RECEIVE: app.exchanges.receive, DRAIN: app.exchanges.drain}

        return facts

    def build_handlers(self) -> dict[str, Handler]:
        """Return the handlers of the server's calls, to be called on the loop of the link."""

        def on_loop(serve: Serve) -> Handler:
            def begin(body: Any, _call: ServedCall) -> Awaitable[Any]:
                return self._loop.call(await_answer(serve(body)))

            return begin

        served = {method: on_loop(serve) for method, serve in self._serves.items()}
        if (app := self._app) is not None:

            def request(body: Any, call: ServedCall) -> Awaitable[Any]:
                return self._loop.call(await_answer(app.request(body, Outbox(call).put)))

            served[messages.APP_REQUEST] = request

        return served


async def _encrypt(handlers: EncryptionHandlers, users: "Users", body: Any) -> bytes:
    """Serve a call of an encryption handler."""
    call = messages.read(messages.EncryptionCall, body)
    metadata = unpack(call.metadata)
    if call.operation == "context":
        return pack(await handlers.derive_context(users.find(call.about), metadata))
    if call.operation not in _ENCRYPTION:
        raise CallFailed("unknown_operation", f"there is no operation {call.operation!r} of encryption")

    work = getattr(handlers, call.operation)
    result = await work(EncryptedField(*call.about), metadata, unpack(call.value or b""))
    return pack(tuple(result) if isinstance(result, Decrypted) else result)


async def _embed(embeddings: ProjectEmbeddings, source: str, body: Any) -> list[list[float]]:
    """Serve a call of the embedding. Raises EmbeddingFailed."""
    texts = body["texts"]
    vectors = [await embeddings.embed_query(texts[0])] if body["is_query"] else await embeddings.embed_documents(texts)
    try:
        return [[float(number) for number in vector] for vector in vectors]
    except (TypeError, ValueError) as exc:
        raise EmbeddingFailed.of(source, f"it returned something other than a list of numbers: {exc}") from exc


class EncryptedField(NamedTuple):
    """The model and the field that a handler encrypts."""

    model: str
    field: str

    def __str__(self) -> str:
        return f"{self.model}.{self.field}"


class Outbox:
    """Carries messages of an application from its loop to the link; messages that wait are sent as one item."""

    def __init__(self, call: ServedCall) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._items: list[Any] = []

    def put(self, items: list[Any]) -> None:
        """Add messages, in any thread."""
        with self._lock:
            is_first = not self._items
            self._items += items

        if is_first:
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        with self._lock:
            items = self._items
            self._items = []

        self._call.send(items)


class Users:
    """The users whom authentication returned, the newest of them, by their numbers."""

    def __init__(self) -> None:
        self._users: OrderedDict[int, Any] = OrderedDict()
        # Begin at random: the server may still name users of the process before, which must not match.
        self._numbers = count(secrets.randbits(62))

    def remember(self, user: Any) -> messages.SentUser:
        """Return a user as the server gets it."""
        handle = next(self._numbers)
        self._users[handle] = user
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)

        is_studio = isinstance(user, Auth.types.StudioUser)
        return messages.SentUser(fields=pack(dict(user)), handle=handle, is_studio=is_studio)

    def find(self, body: Any) -> Any:
        """Return the user whom the server names."""
        if body is None:
            return None

        sent_user = messages.read(messages.SentUser, body)
        if (user := self._users.get(sent_user.handle)) is not None:
            return user
        if sent_user.is_nobody:
            return make_nobody()

        fields = unpack(sent_user.fields)
        return StudioCaller(fields["identity"]) if sent_user.is_studio else User(fields)


class Nobody:
    """An unauthenticated user, in an environment without Starlette."""

    is_authenticated = False
    display_name = ""


def make_nobody() -> Any:
    """Return an unauthenticated user, which is Starlette's where that is installed."""
    try:
        return importlib.import_module("starlette.authentication").UnauthenticatedUser()
    except ImportError:
        return Nobody()


class AuthHandlers:
    """Answers the server's calls to authentication and authorization. Raises UserMistake if Starlette is missing."""

    def __init__(self, auth: LoadedAuth, users: Users, server: Peer) -> None:
        self._auth = auth
        self._users = users
        self._server = server
        self._make_request: Any = PlainRequest

        if "request" in auth.authenticate.parameters:
            try:
                self._make_request = importlib.import_module("starlette.requests").Request
            except ImportError as exc:
                raise UserMistake(
                    "the authenticate handler takes `request`, which needs the package starlette; add it to the "
                    "project's dependencies, or take `headers` instead"
                ) from exc

    @property
    def facts(self) -> dict[str, Any]:
        """The facts for the server: the parameters of the handler, and the actions that have a handler."""
        return {"parameters": self._auth.authenticate.parameters, "decides": self._auth.handlers.keys()}

    async def authenticate(self, body: Any) -> messages.Authenticated:
        """Return the user that the handler finds."""
        scope = {**decode_scope(body["scope"]), "state": {}}
        receive = Application(self._server, body["exchange"], _refuse_to_send).receive
        authenticate: Authentication = self._auth.authenticate
        identity: Identity = await authenticate(self._make_request(scope, receive))

        return messages.Authenticated(
            identity=identity.identity,
            display_name=identity.display_name,
            permissions=list(identity.permissions),
            user=self._users.remember(identity.user),
        )

    async def authorize(self, body: Any) -> tuple[bytes | None, list[str], Any]:
        """Return the fields that the handler changed (None if none), the names that it removed, and its filter."""
        question = messages.read(messages.Authorization, body)
        value = unpack(question.value)
        caller = _Sender(question.permissions, self._users.find(question.user))
        before = {name: pack(field) for name, field in value.items()}
        condition = await self._auth.handlers.decide(caller, question.resource, question.action, value)
        changed_fields = {name: field for name, field in value.items() if before.get(name) != pack(field)}

        removed_names = [name for name in before if name not in value]
        return (pack(changed_fields) if changed_fields else None), removed_names, condition


class _Sender:
    """The sender of a request, as authorization handlers get it."""

    def __init__(self, permissions: list[str], user: Any) -> None:
        self.permissions = permissions
        self.user = user


class PlainRequest:
    """A request for handlers that do not take it as a whole, in an environment that need not have Starlette."""

    def __init__(self, scope: Any, receive: Any) -> None:
        self.scope = scope
        self._receive = receive

    async def body(self) -> bytes:
        """Return the whole body. Raises CallFailed, also if the client disconnects before its end, and LinkClosed."""
        body: bytes = b""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallFailed(DISCONNECTED, "the client disconnected")

            body += message.get("body", b"")
            if not message.get("more_body"):
                return body


def _refuse_to_send(_messages: Any) -> None:
    raise CallFailed("malformed", "authentication sends nothing to the client")


class _ServerRoute(NamedTuple):
    """A route of the server, with the one fact about it that the executor needs."""

    public: bool = False


class AppHandlers:
    """Serves the project's web application to the server, which serves its own routes to the application."""

    def __init__(self, app: ProjectApp, users: Users, server: Peer) -> None:
        self.exchanges = Exchanges()
        self._app = app
        self._users = users
        self._server = server
        self._pages: frozenset[str] = frozenset()
        self._running = AsyncExitStack()

    async def start(self, body: Any) -> dict[str, Any]:
        """Add the server's routes, run the lifespan, and return what the server has to know.

        Raises CallFailed with the code `user_mistake` if the startup fails.
        """
        self._pages = frozenset(body["pages"])
        self._app.join_server(
            ServerRoutes(
                self._find_server_route,
                self._serve_server_route,
                partial(ServerAuthentication, handlers=self),
                is_auth_first=body["is_auth_first"],
                authenticates_project=body["authenticates_project"],
            )
        )

        try:
            await self._running.enter_async_context(self._app.run_lifespan())
        except UserMistake as exc:
            raise CallFailed("user_mistake", str(exc)) from exc

        return self._app.facts

    async def stop(self, _body: Any) -> None:
        """End the lifespan."""
        await self._running.aclose()

    async def document(self, _body: Any) -> bytes:
        """Return the application's OpenAPI document as JSON."""
        return json.dumps(self._app.app.openapi()).encode()

    async def request(self, body: Any, send_items: OnItem) -> str:
        """Serve one request or WebSocket; return the path of its route, for metrics."""
        number = body["exchange"]
        state = {"request_id": body["request_id"]}
        scope = {**decode_scope(body["scope"]), "state": state, EXCHANGE: number, SERVER_ROUTE: body["server_route"]}
        application = Application(self._server, number, send_items)

        await self._app(scope, application.receive, application.send)
        return str(state["route"])

    def _find_server_route(self, scope: Any) -> _ServerRoute | None:
        if SERVER_ROUTE not in scope:
            return _ServerRoute() if scope["path"] in self._pages else None

        route = scope[SERVER_ROUTE]
        if route is None or (route[0], route[1]) != (scope.get("method"), scope["path"]):
            return None

        return _ServerRoute(route[2])

    async def _serve_server_route(self, scope: Any, receive: Any, send: Any) -> None:
        async def take(message: Any) -> None:
            if message["type"] == messages.APP_USER:
                self.set_user(scope, message)
            else:
                await send(message)

        with self.exchanges.open(scope, receive) as exchange:
            original = {"original": scope[EXCHANGE]}
            await send_request(self._server, messages.APP_SERVER_ROUTE, original, exchange, take)

    async def authenticate(self, scope: Any, receive: Any) -> Any:
        """Have the server authenticate a request; return the user, or the messages of a refusal."""
        with self.exchanges.open(scope, receive) as exchange:
            call = {"original": scope[EXCHANGE], "exchange": exchange.number, "scope": encode_scope(scope)}
            return await self._server.call(messages.APP_AUTHENTICATE, call)

    def set_user(self, scope: Any, answer: Any) -> None:
        """Set the user of a request: the one whom the server found, or an unauthenticated one."""
        authentication = importlib.import_module("starlette.authentication")
        if answer["user"] is None:
            scope.setdefault("user", authentication.UnauthenticatedUser())
            scope.setdefault("auth", authentication.AuthCredentials())
        else:
            scope["user"] = self._users.find(answer["user"])
            scope["auth"] = authentication.AuthCredentials(answer["permissions"])


class ServerAuthentication:
    """Middleware that has the server authenticate requests, and sets `request.user` and `request.auth`."""

    def __init__(self, app: Any, handlers: AppHandlers, requires_auth: Callable[[Any], bool]) -> None:
        self.app = app
        self._handlers = handlers
        self._requires_auth = requires_auth

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse unauthenticated requests."""
        if scope["type"] not in {"http", "websocket"} or not self._requires_auth(scope):
            await self.app(scope, receive, send)
            return

        read_messages: deque[Any] = deque()

        async def record() -> Any:
            read_messages.append(await receive())
            return read_messages[-1]

        async def replay() -> Any:
            return read_messages.popleft() if read_messages else await receive()

        answer = await self._handlers.authenticate(scope, record)
        if answer["refusal"]:
            for message in answer["refusal"]:
                await send(decode_message(message))
            return

        self._handlers.set_user(scope, answer)
        await self.app(scope, replay, send)
