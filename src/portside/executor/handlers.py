"""The project's handlers in an executor process: everything that a configuration imports beside graphs.

They run on one event loop, so that they may share clients that belong to a loop. What authentication returned stays
here, and the server knows it by a number: handlers get the same object again as long as it is remembered.
"""

import asyncio
import importlib
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from itertools import count
from typing import Any

from langgraph_sdk.auth import Auth

from portside.executor import messages
from portside.executor.asgi import Application, Peer, PeerOfAnotherLoop, answered, received_scope
from portside.executor.auth import Authentication, ProjectAuth, load_auth
from portside.executor.link import CallFailed, Handler, Link, ServedCall
from portside.executor.load import set_environment
from portside.executor.loops import GraphLoop
from portside.executor.project import Project
from portside.executor.user import Identity, StudioCaller, User
from portside.executor.values import pack, unpack
from portside.kernel.errors import UserMistake

MAX_USERS = 10_000
Serve = Callable[[Any], Coroutine[Any, Any, Any]]


class ProjectHandlers:
    """The handlers of one project, on a loop of their own."""

    def __init__(self, link: Link, loop: GraphLoop) -> None:
        self._loop = loop
        self._server: Peer = PeerOfAnotherLoop(link, asyncio.get_running_loop())
        self._serves: dict[str, Serve] = {}

    async def load(self, project: Project, sources: Mapping[str, Any]) -> dict[str, Any]:
        """Import what the configuration names, and return what the server has to know. Raises UserMistake."""
        set_environment(project)
        return await self._loop.call(self._load(project, sources))

    async def _load(self, project: Project, sources: Mapping[str, Any]) -> dict[str, Any]:
        known: dict[str, Any] = {}
        users = Users()
        if (path := sources.get("auth")) is not None:
            auth = AuthHandlers(load_auth(project, path), users, self._server)
            known["auth"] = auth.facts
            self._serves |= {messages.AUTHENTICATE: auth.authenticate, messages.AUTHORIZE: auth.authorize}
        return known

    def served(self) -> dict[str, Handler]:
        """Return what serves the calls of the server, on the loop of the link."""

        def on_loop(serve: Serve) -> Handler:
            def begin(body: Any, _call: ServedCall) -> Awaitable[Any]:
                return self._loop.call(answered(serve(body)))

            return begin

        return {method: on_loop(serve) for method, serve in self._serves.items()}


class Users:
    """The users whom authentication returned, the newest of them, by their numbers."""

    def __init__(self) -> None:
        self._users: OrderedDict[int, Any] = OrderedDict()
        # Not those of the process before: the server may still name its users.
        self._numbers = count(secrets.randbits(62))

    def remember(self, user: Any) -> messages.SentUser:
        """Return a user as the server is told of it."""
        handle = next(self._numbers)
        self._users[handle] = user
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)
        is_studio = isinstance(user, Auth.types.StudioUser)
        return messages.SentUser(fields=pack(dict(user)), handle=handle, is_studio=is_studio)

    def find(self, given: Any) -> Any:
        """Return the user whom the server names."""
        if given is None:
            return None
        sent = messages.read(messages.SentUser, given)
        if (known := self._users.get(sent.handle)) is not None:
            return known
        fields = unpack(sent.fields)
        return StudioCaller(fields["identity"]) if sent.is_studio else User(fields)


class AuthHandlers:
    """Answers the server's calls to authentication and authorization. Raises UserMistake without what requests need."""

    def __init__(self, auth: ProjectAuth, users: Users, server: Peer) -> None:
        self._auth, self._users, self._server = auth, users, server
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
        """What the server has to know: what the handler reads, and which actions have a handler."""
        return {"parameters": self._auth.authenticate.parameters, "decides": self._auth.handlers.keys()}

    async def authenticate(self, body: Any) -> messages.Authenticated:
        """Return whom the handler finds."""
        scope = {**received_scope(body["scope"]), "state": {}}
        receive = Application(self._server, body["exchange"], _unanswered).receive
        authenticate: Authentication = self._auth.authenticate
        found: Identity = await authenticate(self._make_request(scope, receive))
        return messages.Authenticated(
            identity=found.identity,
            display_name=found.display_name,
            permissions=list(found.permissions),
            user=self._users.remember(found.user),
        )

    async def authorize(self, body: Any) -> tuple[bytes | None, Any]:
        """Return the value as the handler changed it, None if it did not, and its filter."""
        given = messages.read(messages.Authorization, body)
        value, caller = unpack(given.value), _Sender(given.permissions, self._users.find(given.user))
        allowed = await self._auth.handlers.decide(caller, given.resource, given.action, value)
        changed = pack(value)
        return (None if changed == given.value else changed), allowed


class _Sender:
    """Who sent a request, for authorization."""

    def __init__(self, permissions: list[str], user: Any) -> None:
        self.permissions, self.user = permissions, user


class PlainRequest:
    """A request for handlers that do not take it as a whole, in an environment that need not have Starlette."""

    def __init__(self, scope: Any, receive: Any) -> None:
        self.scope, self._receive = scope, receive

    async def body(self) -> bytes:
        """Return the body. Raises CallFailed and LinkClosed."""
        body: bytes = b""
        while True:
            message = await self._receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                return body


def _unanswered(_messages: Any) -> None:
    raise CallFailed("malformed", "authentication sends nothing to the client")
