"""The project's handlers in an executor process of their own, so that this server imports none of the project's code.

Each class has the interface of the object that it stands for. While no process is ready, a request that needs a handler
is refused with 503: nothing is allowed, encrypted or answered without the handler.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from starlette.authentication import UnauthenticatedUser
from starlette.requests import HTTPConnection

from portside.agent.config import AgentConfig
from portside.agent.executors.member import Executor
from portside.agent.executors.pool import ExecutorPool, PoolLimits
from portside.agent.executors.serving import COMMON_HANDLERS, answer_request
from portside.agent.executors.spawned_executor import Program
from portside.agent.sql.declarations import ModelField
from portside.agent.types.access import Caller, Filter
from portside.executor import messages
from portside.executor.asgi import DRAIN, RECEIVE, Exchange, Exchanges, encode_scope
from portside.executor.authorization import read_result
from portside.executor.encryption_handlers import Decrypted
from portside.executor.errors import to_error
from portside.executor.link import CallFailed, Handler, LinkClosed, ServedCall
from portside.executor.user import Identity, StudioCaller, StudioUser, User
from portside.executor.values import pack, unpack
from portside.kernel.aliases import is_javascript
from portside.kernel.errors import Unavailable, UserMistake
from portside.kernel.timeouts import timeout

ANY = "*"
# Longer than the executor's own time limits for these handlers (`executor/encryption_handlers.py`, `embeddings.py`).
ENCRYPTED_WITHIN_S = 45.0
EMBEDDED_WITHIN_S = 75.0
AWAY = "The project's handlers are not available: their process is starting again. Send the request again."


def list_handler_paths(config: AgentConfig, *, in_javascript: bool) -> dict[str, Any]:
    """Return the locations of a configuration's handlers in one language, by their kinds."""
    index = config.store.index
    paths = {
        "auth": config.auth.path,
        "app": config.http.app,
        "encryption": config.encryption.path,
        "embed": None if index is None else index.embed,
    }

    return {kind: path for kind, path in paths.items() if path is not None and is_javascript(path) == in_javascript}


class ServedApp(Protocol):
    """The routes and the authentication that the server offers to the project's application in an executor."""

    async def serve_server_route(self, executor: Executor, body: Any, exchange: Exchange, call: ServedCall) -> None:
        """Answer a request that the application passed on to our routes."""
        ...

    async def authenticate(self, executor: Executor, body: Any, exchange: Exchange) -> dict[str, Any]:
        """Authenticate a request that the application passes on to its own routes."""
        ...


class HandlersExecutor:
    """The executor of the project's handlers, and all handlers in it except the web application."""

    def __init__(self, program: Program, max_memory_bytes: int = 0) -> None:
        self.exchanges = Exchanges()
        limits = PoolLimits(executors=1, max_memory_bytes=max_memory_bytes)
        self._pool = ExecutorPool(program, limits, self._build_handlers, prepare=self._prepare)
        self._facts: Mapping[str, Any] = {}
        self.app: ServedApp | None = None
        self._call_first: Callable[[Executor], Awaitable[None]] | None = None

    async def start(self) -> None:
        """Start the executor; call `close` in any case. Raises UserMistake if the handlers do not load."""
        await self._pool.start()
        self._facts = self._pool.executors[0].hello.handlers

    @property
    def auth(self) -> "RemoteAuth | None":
        """The project's authentication and authorization, if it has one."""
        facts = self._facts.get("auth")
        return None if facts is None else RemoteAuth(self, facts)

    @property
    def encryption(self) -> "RemoteEncryption | None":
        """The project's encryption handlers, or None."""
        facts = self._facts.get("encryption")
        return None if facts is None else RemoteEncryption(self, facts)

    @property
    def has_app(self) -> bool:
        """Whether the project's web application is here."""
        return "app" in self._facts

    @property
    def embeddings(self) -> "RemoteEmbeddings | None":
        """The embedding of the store's index, if it has one."""
        return RemoteEmbeddings(self) if "embed" in self._facts else None

    async def call(self, method: str, body: Any = None, *, on_item: Callable[[Any], None] | None = None) -> Any:
        """Call the executor. Raises Unavailable if none is ready, and the handler's error as clients see it."""
        with self._pool.for_call_now() as executor:
            if executor is None:
                raise Unavailable(AWAY)

            try:
                return await executor.link.call(method, body, on_item=on_item)
            except CallFailed as exc:
                raise to_error(exc) from exc
            except LinkClosed as exc:
                raise Unavailable(AWAY) from exc

    async def call_with_retries(self, method: str, body: Any, within_s: float) -> Any:
        """Make a call that may be repeated: wait for an executor, and call another one if it ends meanwhile.

        Raises the errors that `call` raises.
        """
        try:
            async with timeout(within_s):
                while True:
                    async with self._pool.for_call() as executor:
                        try:
                            return await executor.link.call(method, body)
                        except CallFailed as exc:
                            raise to_error(exc) from exc
                        except LinkClosed:
                            await executor.wait_ended()
        except TimeoutError as exc:
            raise Unavailable(AWAY) from exc

    async def begin(self, method: str, body: Any, learn: Callable[[Any], None]) -> None:
        """Call the executor now, and each one that replaces it before it gets any other call. `learn` gets the result.

        Raises UserMistake if the call fails now.
        """

        async def call_first(executor: Executor) -> None:
            try:
                learn(await executor.link.call(method, body))
            except CallFailed as exc:
                raise UserMistake(exc.message) from exc
            except LinkClosed as exc:
                raise UserMistake(f"the executor of the project's handlers {await executor.wait_ended()}") from exc

        self._call_first = call_first
        async with self._pool.for_call() as executor:
            await call_first(executor)

    async def end(self, method: str) -> None:
        """Make a last call if an executor is ready; executors that start later get no first call."""
        self._call_first = None
        with contextlib.suppress(Unavailable):
            await self.call(method)

    async def close(self) -> None:
        """End the executor."""
        await self._pool.close()

    async def _prepare(self, executor: Executor) -> None:
        if self._call_first is not None:
            await self._call_first(executor)

    # Serving the executor's calls

    def _build_handlers(self, executor: Callable[[], Executor]) -> Mapping[str, Handler]:
        """Return the handlers of one executor's calls."""

        def start(work: Callable[[ServedApp, Exchange], Coroutine[Any, Any, Any]], body: Any) -> Awaitable[Any]:
            """Start work in the context of the client's request."""
            exchange = self.exchanges.find(body["original"])
            if self.app is None:
                raise CallFailed("closed", "the server does not serve its routes yet")

            return asyncio.create_task(work(self.app, exchange), context=exchange.context.copy())

        return {
            **COMMON_HANDLERS,
            messages.HTTP_REQUEST: lambda body, call: answer_request(executor(), body, call),
            RECEIVE: lambda body, _call: self.exchanges.receive(body),
            DRAIN: lambda body, _call: self.exchanges.drain(body),
            messages.APP_SERVER_ROUTE: lambda body, call: start(
                lambda app, exchange: app.serve_server_route(executor(), body, exchange, call), body
            ),
            messages.APP_AUTHENTICATE: lambda body, _call: start(
                lambda app, exchange: app.authenticate(executor(), body, exchange), body
            ),
        }


class RemoteAuth:
    """The project's `Auth` object: authentication, and authorization as `handlers`."""

    def __init__(self, handlers: HandlersExecutor, facts: Mapping[str, Any]) -> None:
        self._calls = handlers
        self._reads_body = not {"body", "request"}.isdisjoint(facts["parameters"])
        self._decides = {(resource, action) for resource, action in facts["decides"]}
        self._reads_results = facts.get("reads_results", True)
        self.handlers = self

    async def authenticate(self, connection: HTTPConnection) -> Identity:
        """Return the caller that the handler identifies.

        Raises Unauthorized, HandlerRefused, HandlerFailed and Unavailable.
        """

        async def receive() -> Any:
            body = getattr(connection, "body", None)
            return {"type": "http.request", "body": b"" if body is None else await body(), "more_body": False}

        call = {"scope": encode_scope(connection.scope), "exchange": 0}
        if not self._reads_body:
            answer = await self._calls.call(messages.AUTHENTICATE, call)
        else:
            with self._calls.exchanges.open(connection.scope, receive) as exchange:
                call["exchange"] = exchange.number
                answer = await self._calls.call(messages.AUTHENTICATE, call)

        authenticated = messages.read(messages.Authenticated, answer)
        return Identity(
            identity=authenticated.identity,
            display_name=authenticated.display_name,
            permissions=tuple(authenticated.permissions),
            user=read_user(authenticated.user),
        )

    async def decide(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Call the handler of an action, which may change the value, and return its filter; None is no restriction.

        Raises Forbidden, HandlerRefused, HandlerFailed and Unavailable.
        """
        keys = {(resource, action), (resource, ANY), (ANY, action), (ANY, ANY)}
        if keys.isdisjoint(self._decides):
            return None

        question = messages.Authorization(
            user=None if caller.user is None else to_sent_user(caller.user),
            permissions=list(caller.permissions),
            resource=resource,
            action=action,
            value=pack(value),
        )

        changed_fields, removed_names, result = await self._calls.call(messages.AUTHORIZE, question)
        if changed_fields is not None:
            value.update(unpack(changed_fields))

        for name in removed_names:
            value.pop(name, None)

        return result if self._reads_results else read_result(result, resource, action)


class RemoteEncryption:
    """The project's encryption handlers. They are called again if their executor ends meanwhile."""

    def __init__(self, handlers: HandlersExecutor, facts: Mapping[str, bool]) -> None:
        self._calls = handlers
        self.does_json = facts["does_json"]
        self.does_blobs = facts["does_blobs"]

    async def derive_context(self, user: Any, metadata: dict[str, Any]) -> dict[str, Any]:
        """Have the handler derive the context of a request from its user. Raises EncryptionFailed."""
        about = None if user is None else to_sent_user(user)
        context: dict[str, Any] = await self._call("context", about, metadata)
        return context

    async def encrypt_json(
        self, target: ModelField, metadata: Mapping[str, Any], plain: dict[str, Any]
    ) -> dict[str, Any]:
        """Encrypt a document. Raises EncryptionFailed, also if the handler adds or removes keys."""
        encrypted: dict[str, Any] = await self._call("encrypt_json", target, metadata, plain)
        return encrypted

    async def decrypt_json(
        self, target: ModelField, metadata: Mapping[str, Any], encrypted: dict[str, Any]
    ) -> Decrypted:
        """Decrypt a document. Raises CannotDecrypt."""
        return Decrypted(*await self._call("decrypt_json", target, metadata, encrypted))

    async def encrypt_blob(self, target: ModelField, metadata: Mapping[str, Any], plain: bytes) -> bytes:
        """Encrypt a blob. Raises EncryptionFailed."""
        encrypted: bytes = await self._call("encrypt_blob", target, metadata, plain)
        return encrypted

    async def decrypt_blob(self, target: ModelField, metadata: Mapping[str, Any], encrypted: bytes) -> Decrypted:
        """Decrypt a blob. Raises CannotDecrypt."""
        return Decrypted(*await self._call("decrypt_blob", target, metadata, encrypted))

    async def _call(self, operation: str, about: Any, metadata: Mapping[str, Any], *value: Any) -> Any:
        body = messages.EncryptionCall(
            operation=operation, about=about, metadata=pack(dict(metadata)), value=pack(value[0]) if value else None
        )
        return unpack(await self._calls.call_with_retries(messages.ENCRYPTION, body, ENCRYPTED_WITHIN_S))


class RemoteEmbeddings:
    """The embedding of the store's index. It is called again if its executor ends meanwhile."""

    def __init__(self, handlers: HandlersExecutor) -> None:
        self._calls = handlers

    def use_running_loop(self) -> None:
        """Do nothing: the executor has a loop for it."""

    async def embed_documents(self, texts: list[str]) -> Any:
        """Return the vectors of texts. Raises EmbeddingFailed."""
        return await self._vectors(texts, is_query=False)

    async def embed_query(self, text: str) -> Any:
        """Return the vector of a search query. Raises EmbeddingFailed."""
        return (await self._vectors([text], is_query=True))[0]

    async def _vectors(self, texts: list[str], *, is_query: bool) -> list[Any]:
        call = {"texts": texts, "is_query": is_query}
        vectors: list[Any] = await self._calls.call_with_retries(messages.EMBED, call, EMBEDDED_WITHIN_S)
        return vectors


class RemoteUser(User):
    """A user whose object an executor has."""

    __slots__ = ("_handle",)

    def __init__(self, fields: dict[str, Any], handle: int) -> None:
        super().__init__(fields)
        self._handle = handle

    def to_sent_user(self) -> messages.SentUser:
        """Return the fields and the handle by which the executor finds its object."""
        return messages.SentUser(fields=pack(dict(self)), handle=self._handle)


def read_user(body: Any) -> Any:
    """Return the user that an executor sent."""
    user = messages.read(messages.SentUser, body)
    fields = unpack(user.fields)
    return StudioCaller(fields["identity"]) if user.is_studio else RemoteUser(fields, user.handle)


def to_sent_user(user: Any) -> messages.SentUser:
    """Return a user in the form in which executors receive it."""
    if isinstance(user, RemoteUser):
        return user.to_sent_user()
    if isinstance(user, UnauthenticatedUser):
        return messages.SentUser(fields=pack({}), is_nobody=True)

    return messages.SentUser(fields=pack(dict(user)), is_studio=isinstance(user, StudioUser))
