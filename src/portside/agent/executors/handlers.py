"""The project's handlers in an executor process of their own, so that this server imports none of the project's code.

The classes have the interfaces of what they stand for. While the process is away, a request that needs a handler is
refused with 503: nothing is allowed, encrypted or answered without the handler.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import HTTPConnection

from portside.agent.config import AgentConfig
from portside.agent.executors.member import Executor
from portside.agent.executors.pool import ExecutorPool
from portside.agent.types.access import Caller, Filter
from portside.executor import messages
from portside.executor.asgi import DRAIN, RECEIVE, Exchanges, sent_scope
from portside.executor.errors import error_of
from portside.executor.link import CallFailed, Handler, LinkClosed, ServedCall
from portside.executor.user import Identity, StudioCaller, StudioUser, User
from portside.executor.values import pack, unpack
from portside.kernel.errors import Unavailable

ANY = "*"
AWAY = "The project's handlers are not available: their process is starting again. Send the request again."


def handlers_of(config: AgentConfig) -> dict[str, Any]:
    """Return what an executor has to import for a configuration beside its graphs."""
    return {} if config.auth.path is None else {"auth": config.auth.path}


class RemoteHandlers:
    """The executor of the project's handlers."""

    def __init__(self, pool: ExecutorPool, exchanges: Exchanges) -> None:
        self._pool = pool
        self.exchanges = exchanges

    @property
    def auth(self) -> "RemoteAuth | None":
        """The project's authentication, if it has one."""
        facts = self._pool.executors[0].hello.handlers.get("auth")
        return None if facts is None else RemoteAuth(self, facts)

    async def call(self, method: str, body: Any, *, on_item: Callable[[Any], None] | None = None) -> Any:
        """Call the executor. Raises Unavailable while there is none, and what the handler's error is for clients."""
        with self._pool.ready_one() as executor:
            if executor is None:
                raise Unavailable(AWAY)
            try:
                return await executor.link.call(method, body, on_item=on_item)
            except CallFailed as exc:
                raise error_of(exc) from exc
            except LinkClosed as exc:
                raise Unavailable(AWAY) from exc

    async def close(self) -> None:
        """End the executor."""
        await self._pool.close()


class ServedExchanges:
    """Serves what the executor asks for: what clients send to the project's handlers."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges

    def handlers(self, _executor: Callable[[], Executor]) -> Mapping[str, Handler]:
        """Return what serves the calls of one executor."""

        def receive(body: Any, _call: ServedCall) -> Awaitable[Any]:
            return self._exchanges.receive(body)

        def drain(body: Any, _call: ServedCall) -> Awaitable[None]:
            return self._exchanges.drain(body)

        return {RECEIVE: receive, DRAIN: drain}


class RemoteAuth:
    """The project's `Auth` object: authentication, and authorization as `handlers`."""

    def __init__(self, handlers: RemoteHandlers, facts: Mapping[str, Any]) -> None:
        self._calls = handlers
        self._reads_body = not {"body", "request"}.isdisjoint(facts["parameters"])
        self._decides = {(resource, action) for resource, action in facts["decides"]}
        self.handlers = self

    async def authenticate(self, connection: HTTPConnection) -> Identity:
        """Return whom the handler finds. Raises Unauthorized, HandlerRefused, HandlerFailed and Unavailable."""

        async def receive() -> Any:
            body = getattr(connection, "body", None)
            return {"type": "http.request", "body": b"" if body is None else await body(), "more_body": False}

        call = {"scope": sent_scope(connection.scope), "exchange": 0}
        if not self._reads_body:
            answer = await self._calls.call(messages.AUTHENTICATE, call)
        else:
            with self._calls.exchanges.opened(connection.scope, receive) as exchange:
                call["exchange"] = exchange.number
                answer = await self._calls.call(messages.AUTHENTICATE, call)
        found = messages.read(messages.Authenticated, answer)
        return Identity(found.identity, found.display_name, tuple(found.permissions), user_of(found.user))

    async def decide(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Call the handler of an action, which may change the value, and return its filter; None is no condition.

        Raises Forbidden, HandlerRefused, HandlerFailed and Unavailable.
        """
        keys = {(resource, action), (resource, ANY), (ANY, action), (ANY, ANY)}
        if keys.isdisjoint(self._decides):
            return None
        question = messages.Authorization(
            user=None if caller.user is None else sent_user(caller.user),
            permissions=list(caller.permissions),
            resource=resource,
            action=action,
            value=pack(value),
        )
        allowed: Filter | None
        changed, allowed = await self._calls.call(messages.AUTHORIZE, question)
        if changed is not None:
            value.clear()
            value.update(unpack(changed))
        return allowed


class RemoteUser(User):
    """A user whose object an executor has."""

    __slots__ = ("_handle",)

    def __init__(self, fields: dict[str, Any], handle: int) -> None:
        super().__init__(fields)
        self._handle = handle

    @property
    def sent(self) -> messages.SentUser:
        """What the executor finds its object by."""
        return messages.SentUser(fields=pack(dict(self)), handle=self._handle)


def user_of(given: Any) -> Any:
    """Return the user whom the executor found."""
    sent = messages.read(messages.SentUser, given)
    fields = unpack(sent.fields)
    return StudioCaller(fields["identity"]) if sent.is_studio else RemoteUser(fields, sent.handle)


def sent_user(user: Any) -> messages.SentUser:
    """Return what an executor is told of a user."""
    if isinstance(user, RemoteUser):
        return user.sent
    return messages.SentUser(fields=pack(dict(user)), is_studio=isinstance(user, StudioUser))
