"""Authorization of requests by the project's handlers.

A route calls the method for its action before it does anything. If the handler returns a filter, the database applies
it: here for one thread or assistant, elsewhere as part of a search (`matches_access` in `agent/functions`). Without
handlers every method returns at once. The end of the module writes requests in the form that handlers get, and applies
the changes that a handler makes to them.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from starlette.authentication import AuthCredentials
from starlette.requests import HTTPConnection

from portside.agent.access.authentication import OPEN, AccessPolicy, caller_from_user, is_loopback
from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.sql import sql
from portside.agent.store.names import WILDCARD, check_namespace
from portside.agent.streams.buffers import counted_caller
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, IN_PROCESS, AuthOpenApi, Caller, CronFilters, CronGrant, Filter, Grant
from portside.agent.types.runs import Command, RunConfig, RunCreate, StreamMode
from portside.executor.auth import HandlerFailed
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.errors import Forbidden, Invalid, TooManyRequests
from portside.kernel.http.decode import convert
from portside.kernel.http.in_process import in_process_user, is_in_process
from portside.kernel.http.routes import Context, Guard, Route, S
from portside.kernel.http.websockets import WEBSOCKET
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger
from portside.kernel.user_json import dump_user

log = get_logger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
CALLER = "caller"


def get_caller(ctx: Context[Any]) -> Caller:
    """Return the caller that the guard found."""
    caller: Caller = ctx.actor or ANYONE
    return caller


class DeferredThreadCheck(NamedTuple):
    """A check that waits for a thread to exist: a client may follow a thread before it is created.

    `check` is made before the first event is passed on; None if no check is needed.
    """

    check: Callable[[], Awaitable[bool | None]] | None = None

    def filtered(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass on the events of the thread, or end silently if the thread turns out to be another caller's."""
        return events if self.check is None else _checked_stream(events, self.check)

    async def passes(self) -> bool:
        """Whether events of the thread may be passed on."""
        return self.check is None or bool(await self.check())


NO_CHECK = DeferredThreadCheck()


class Access:
    """Decides what callers may do. Without handlers everything is allowed, without a database query."""

    def __init__(self, db: Database, assistants: Assistants, policy: AccessPolicy = OPEN) -> None:
        self._db = db
        self._assistants = assistants
        self._policy = policy
        self._handlers = policy.handlers

    async def close(self) -> None:
        """Close the connections of authentication."""
        await self._policy.close()

    @property
    def security(self) -> AuthOpenApi | None:
        """The authentication in the OpenAPI document."""
        return self._policy.security

    @property
    def is_open(self) -> bool:
        """Whether there are no authorization handlers."""
        return self._handlers is None

    def _skips_handlers(self, caller: Caller) -> bool:
        return self._handlers is None or caller.is_in_process

    async def guard(self, ctx: Context[Any], route: Route[Any]) -> Caller:
        """Return the caller of a route.

        Raises what `authenticate` raises, Forbidden without the permission that the route requires, and ThreadNotFound
        for a WebSocket on a thread that the caller may not follow.
        """
        if self._policy.is_open:
            return _unauthenticated(ctx.scope, route)

        segments = ctx.scope["path"].removeprefix("/").split("/")
        names = route.path.removeprefix("/").split("/")

        # Handlers of the project may read the path parameters, which our router would not set in the scope.
        pairs = zip(names, segments, strict=False)
        named = {name[1:-1]: given for name, given in pairs if name.startswith("{")}
        ctx.scope["path_params"] = named

        caller = await self.authenticate(ctx.request)
        if route.permission and not (caller.is_in_process or caller.has_permission(route.permission)):
            raise Forbidden(f"This requires the permission {route.permission}; use a key or a user that has it.")

        if route.method == WEBSOCKET and "thread_id" in named:
            # Checked before the socket is accepted: afterwards it can no longer be refused with a status.
            await self.authorize_thread_follow(caller, UUID(named["thread_id"]))

        return caller

    async def authenticate(self, connection: HTTPConnection) -> Caller:
        """Return the caller, and set the user in the scope; a request is authenticated once, however often this runs.

        Raises Unauthorized, CallRefused, PlatformSilent, and what the project's handler raises.
        """
        scope = connection.scope
        if is_in_process(scope):
            return self._in_process_caller(scope)
        if self._policy.is_open:
            return ANYONE

        state = scope.setdefault("state", {})
        known: Caller | None = state.get(CALLER)
        if known is None:
            known = state[CALLER] = await self._policy.identify(connection)
            scope["user"], scope["auth"] = known.user, AuthCredentials(known.permissions)

        return known

    def _in_process_caller(self, scope: Any) -> Caller:
        """Return the caller of an in-process request: the process itself, or the user of the calling run."""
        user = in_process_user(scope) if self._policy.calls_as_user else None
        return caller_from_user(user) if user else IN_PROCESS

    async def authorize(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Call the handler of an action, which may change `value`; return the filter that the resource has to match.

        None means no condition. Raises Forbidden, and the errors of the handler.
        """
        handlers = self._handlers
        if handlers is None or caller.is_in_process:
            return None

        return await handlers.decide(caller, resource, action, value)

    async def authorize_request(
        self, caller: Caller, event: str, body: T, names: tuple[str, ...], **also: Any
    ) -> tuple[T, Filter | None]:
        """Authorize an event such as `threads.create`; the handler may change these fields of the request.

        Returns the changed request and the filter. Raises what `authorize` raises, and Forbidden if a new resource
        would not match the filter itself.
        """
        if self._skips_handlers(caller):
            return body, None

        given = {name: handler_value(name, getattr(body, name)) for name in names}
        value = {**also, **given}
        resource, _, action = event.partition(".")
        allowed = await self.authorize(caller, resource, action, value)
        if action == "create" and not matches(value.get("metadata") or {}, allowed):
            raise Forbidden("Forbidden")

        return apply_changes(body, names, value), allowed

    async def authorize_thread_request(
        self, caller: Caller, action: str, thread_id: UUID, body: T, names: tuple[str, ...]
    ) -> T:
        """Authorize a request to a thread. Raises ThreadNotFound also for one that does not match the filter."""
        body, allowed = await self.authorize_request(caller, f"threads.{action}", body, names, thread_id=thread_id)
        await self._check_thread(thread_id, allowed)
        return body

    async def authorize_assistant_request(
        self, caller: Caller, action: str, assistant_id: UUID, body: T, names: tuple[str, ...]
    ) -> T:
        """Authorize a request to an assistant. Raises AssistantNotFound also for one that does not match the filter."""
        body, allowed = await self.authorize_request(
            caller, f"assistants.{action}", body, names, assistant_id=assistant_id
        )
        if not await self._assistants.matches(assistant_id, allowed):
            raise AssistantNotFound

        return body

    async def authorize_thread(
        self, caller: Caller, action: str, thread_id: UUID, value: Mapping[str, Any] | None = None
    ) -> Filter | None:
        """Authorize access to a thread. Raises ThreadNotFound also for one that does not match the filter."""
        if self._skips_handlers(caller):
            return None

        allowed = await self.authorize(caller, "threads", action, {"thread_id": thread_id, **(value or {})})
        await self._check_thread(thread_id, allowed)
        return allowed

    async def _check_thread(self, thread_id: UUID, wanted: Filter | None) -> None:
        if wanted is not None and not await self.thread_matches(thread_id, wanted):
            raise ThreadNotFound.of(thread_id)

    async def authorize_threads(self, caller: Caller, action: str, thread_ids: list[UUID]) -> list[UUID]:
        """Authorize access to several threads; return those that exist and match."""
        if self._skips_handlers(caller):
            return thread_ids

        filters = [await self.authorize(caller, "threads", action, {"thread_id": each}) for each in thread_ids]
        written = [None if each is None else dump_user(each).decode() for each in filters]
        rows = await self._db.fetch(sql.threads_that_match, thread_ids=thread_ids, filters=written)

        return [row["thread_id"] for row in rows]

    async def authorize_thread_copy(self, caller: Caller, thread_id: UUID) -> tuple[UUID, dict[str, Any] | None]:
        """Authorize reading a thread and creating its copy; return the id and the metadata of the copy.

        None as metadata means that of the original. Raises ThreadNotFound and Forbidden.
        """
        target = uuid7()
        if self._skips_handlers(caller):
            return target, None

        await self.authorize_thread(caller, "read", thread_id)
        metadata = await self._db.fetchval(sql.metadata_of_thread, thread_id=thread_id)
        if metadata is None:
            raise ThreadNotFound.of(thread_id)

        return target, await self.authorize_thread_create(caller, target, metadata, if_exists="raise")

    async def authorize_thread_create(
        self, caller: Caller, thread_id: UUID, metadata: dict[str, Any], *, if_exists: str
    ) -> dict[str, Any]:
        """Authorize creating a thread; return its metadata as the handler changed it. Raises Forbidden."""
        value = {"thread_id": thread_id, "metadata": metadata, "if_exists": if_exists}
        allowed = await self.authorize(caller, "threads", "create", value)
        made: Any = value.get("metadata") or {}
        if not matches(made, allowed):
            raise Forbidden("Forbidden")

        return dict(made)

    async def authorize_thread_follow(self, caller: Caller, thread_id: UUID) -> DeferredThreadCheck:
        """Authorize following a thread, which need not exist yet. Raises what `authorize_thread` raises."""
        if self._skips_handlers(caller):
            return NO_CHECK

        allowed = await self.authorize(caller, "threads", "read", {"thread_id": thread_id})
        if allowed is None:
            return NO_CHECK

        matching = await self.thread_matches(thread_id, allowed)
        if matching is False:
            raise ThreadNotFound.of(thread_id)

        return NO_CHECK if matching else DeferredThreadCheck(lambda: self.thread_matches(thread_id, allowed))

    async def thread_matches(self, thread_id: UUID, wanted: Filter) -> bool | None:
        """Whether a thread matches a filter; None if there is no such thread."""
        matching: bool | None = await self._db.fetchval(sql.thread_matches, thread_id=thread_id, access=wanted)
        return matching

    async def authorize_assistant(
        self, caller: Caller, action: str, assistant_id: UUID, value: Mapping[str, Any] | None = None
    ) -> Filter | None:
        """Authorize access to an assistant. Raises AssistantNotFound also for one that does not match the filter."""
        if self._skips_handlers(caller):
            return None

        allowed = await self.authorize(caller, "assistants", action, {"assistant_id": assistant_id, **(value or {})})
        if not await self._assistants.matches(assistant_id, allowed):
            raise AssistantNotFound

        return allowed

    async def authorize_assistant_use(self, caller: Caller, name: str) -> UUID:
        """Authorize using an assistant for a run, and return its id.

        The assistants that the server creates for its graphs may always be used: a project whose handlers filter by
        owner could not run its own graphs otherwise.

        Raises Invalid for an unknown graph, AssistantNotFound, and what `authorize` raises.
        """
        assistant_id = (await self._assistants.find_cached(name)).assistant_id
        if not self._assistants.is_system(assistant_id):
            try:
                await self.authorize_assistant(caller, "read", assistant_id, {"metadata": {}})
            except AssistantNotFound:
                raise AssistantNotFound("Thread or assistant not found.") from None

        return assistant_id

    async def authorize_run(self, caller: Caller, thread_id: UUID | None, body: RunCreate) -> Grant:
        """Authorize a run, which the handler may change, and its assistant; return the grant for `Runs.create`.

        Raises Forbidden, Invalid, AssistantNotFound and the errors of handlers. The admission of the run checks that
        the thread matches the filter.
        """
        if self._skips_handlers(caller):
            return Grant(caller)

        run_id = uuid7()
        assistant_id = await self.authorize_assistant_use(caller, body.assistant_id)
        value = run_handler_value(body, {"thread_id": thread_id, "assistant_id": assistant_id, "run_id": run_id})
        allowed = await self.authorize(caller, "threads", "create_run", value)

        apply_run_changes(body, value)
        grant = Grant(caller, run_id, allowed, creates=False)
        if thread_id is None or body.on_not_exist != "create":
            return grant
        if await self._db.fetchval(sql.has_thread, thread_id=thread_id):
            return grant

        return grant._replace(
            new_thread=await self.authorize_thread_create(caller, thread_id, {}, if_exists="do_nothing")
        )

    async def authorize_cron_search(self, caller: Caller, query: T, names: tuple[str, ...]) -> tuple[T, CronFilters]:
        """Authorize a search of crons; crons on threads that the caller may not see are left out as well."""
        if self._skips_handlers(caller):
            return query, CronFilters()

        query, allowed = await self.authorize_request(caller, "crons.search", query, names)
        return query, CronFilters(allowed, await self.authorize(caller, "threads", "search", {"metadata": {}}))

    async def authorize_cron_create(
        self, caller: Caller, thread_id: UUID | None, body: T, run_value: dict[str, Any]
    ) -> tuple[T, CronGrant]:
        """Authorize a new cron, its assistant, and runs on its thread; return the request as the handlers changed it.

        Raises Forbidden, Invalid, AssistantNotFound and ThreadNotFound, and the errors of the handlers.
        """
        if self._skips_handlers(caller):
            return body, CronGrant(caller)

        cron_id = uuid7()
        assistant = str(run_value["assistant_id"])
        assistant_id = await self.authorize_assistant_use(caller, assistant)
        also = {"cron_id": cron_id, "thread_id": thread_id, "user_id": caller.identity, "payload": run_value}
        body, _ = await self.authorize_request(
            caller, "crons.create", body, ("metadata", "schedule", "end_time"), **also
        )

        if thread_id is None:
            return body, CronGrant(caller, cron_id)

        ids = {"thread_id": thread_id, "assistant_id": assistant_id, "run_id": None}
        run = {**ids, "status": "pending", "metadata": dict(run_value.get("metadata") or {}), "kwargs": run_value}
        allowed = await self.authorize(caller, "threads", "create_run", run)
        await self._check_thread(thread_id, allowed)

        return body, CronGrant(caller, cron_id, allowed)

    async def authorize_cron(
        self, caller: Caller, action: str, cron_id: UUID, body: T, names: tuple[str, ...] = ()
    ) -> tuple[T, CronFilters]:
        """Authorize access to a cron; return the request as the handler changed it, and the filters for the cron."""
        if self._skips_handlers(caller):
            return body, CronFilters()

        also = {"cron_id": cron_id, "payload": msgspec.to_builtins(body)} if names else {"cron_id": cron_id}
        body, allowed = await self.authorize_request(caller, f"crons.{action}", body, names, **also)
        thread_id = await self._db.fetchval(sql.thread_of_cron, cron_id=cron_id)
        if thread_id is None:
            return body, CronFilters(allowed)

        return body, CronFilters(allowed, await self.authorize(caller, "threads", "read", {"thread_id": thread_id}))

    async def authorize_store(self, caller: Caller, action: str, body: T, fields: dict[str, str]) -> T:
        """Authorize access to items of the store; the handler may rewrite the namespace, or return a filter for it.

        `fields` maps the names that handlers know to those of the request. Raises what `authorize` raises, Forbidden
        for a request that the filter does not match, and Invalid if the handler returns a bad namespace.
        """
        if self._skips_handlers(caller):
            return body

        value = store_handler_value(body, fields)
        allowed = await self.authorize(caller, "store", action, value)
        changed = apply_store_changes(body, fields, value)
        if allowed is not None:
            check_store_filter(allowed, action, store_handler_value(changed, fields))

        return changed


def _unauthenticated(scope: Any, route: Route[Any]) -> Caller:
    """Return the caller of a server without authentication.

    Raises Forbidden for a route that requires a permission, unless the client is on the same machine. The clients of a
    Unix socket have no address: a proxy may listen there for other machines.
    """
    if is_in_process(scope):
        return ANYONE

    client = scope.get("client")
    if route.permission and not (client and is_loopback(client[0])):
        raise Forbidden(
            "Without authentication this is only open to calls from the same machine over TCP; call 127.0.0.1 there, "
            "or configure authentication (auth.path or LANGSMITH_AUTH_ENDPOINT)."
        )

    return Caller(address=client[0]) if client else ANYONE


async def _checked_stream(
    events: AsyncIterator[bytes], check: Callable[[], Awaitable[bool | None]]
) -> AsyncIterator[bytes]:
    is_visible = False
    try:
        async for chunk in events:
            is_visible = is_visible or bool(await check())
            if not is_visible:
                return

            yield chunk
    finally:
        if (close := getattr(events, "aclose", None)) is not None:
            await close()


RETRY_AFTER_S = 5


class TooManyStreams(TooManyRequests):
    """The caller has as many streams and awaited results open as MAX_STREAMS_PER_CALLER allows; close one first."""

    code = "too_many_streams"


class StreamLimit:
    """The limit of open responses for each caller: event streams, awaited results and WebSockets; 0 turns it off.

    Each of these takes memory and a connection for as long as its client likes. They are counted in each process,
    because that is what they would exhaust. The process's own calls are not counted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def guarded(self, guard: Guard[S]) -> Guard[S]:
        """Return a guard that also refuses callers with too many open responses."""

        async def guarded(ctx: Context[S], route: Route[Any]) -> Any:
            caller: Caller = await guard(ctx, route)
            name = caller.limit_key if route.stays_open else None
            counted_caller.set(name)

            if name is not None and self._limit:
                self._enter(name)
                ctx.on_finish(partial(self._leave, name))

            return caller

        return guarded

    def _enter(self, name: str) -> None:
        if self._open[name] >= self._limit:
            raise TooManyStreams(
                f"The caller has {self._limit} streams and awaited results open, which is the limit "
                "(setting MAX_STREAMS_PER_CALLER). Close one first.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

        self._open[name] += 1

    def _leave(self, name: str) -> None:
        self._open[name] -= 1
        if self._open[name] == 0:
            # Otherwise the counter would grow with every caller that ever connected.
            del self._open[name]


def check_store_filter(allowed: Filter, action: str, value: dict[str, Any]) -> None:
    """Compare the namespace and the key of a request with a filter. Items have no metadata to compare.

    A search gets the items below its namespace: if that contains a label, theirs do too. Raises Forbidden, and
    HandlerFailed for a filter by anything else.
    """
    usable = {("has", "namespace")}
    if action not in {"search", "list_namespaces"}:
        usable |= {("eq", "namespace"), ("eq", "key")}

    unusable = set(_conditions(allowed)) - usable
    if unusable:
        log.error(
            "an authorization handler of the store returned a filter that cannot be compared with items, which have no "
            "metadata; filter by namespace with $contains, or let the handler change the namespace",
            action=action,
            conditions=sorted(f"{op} {key}" for op, key in unusable),
        )

        raise HandlerFailed

    if not matches(value, allowed):
        raise Forbidden("Forbidden")


def _conditions(wanted: Filter) -> Iterator[tuple[str, str]]:
    """Yield the operator and the key of each condition of a filter."""
    for key in wanted["equal"]:
        yield "eq", key

    pending = list(wanted["rest"])
    while pending:
        condition = pending.pop()
        if condition["op"] in {"all", "any"}:
            pending += condition["of"]
        else:
            yield condition["op"], condition["key"]


def matches(metadata: Mapping[str, Any], wanted: Filter | None) -> bool:
    """Whether metadata matches a filter. This is `matches_access` of the database, for what is not stored yet."""
    if wanted is None:
        return True

    equal = ({"op": "eq", "key": key, "value": value} for key, value in wanted["equal"].items())
    return all(_holds(metadata, condition) for condition in (*equal, *wanted["rest"]))


def _holds(metadata: Mapping[str, Any], condition: dict[str, Any]) -> bool:
    match condition["op"]:
        case "all":
            return all(_holds(metadata, part) for part in condition["of"])
        case "any":
            return any(_holds(metadata, part) for part in condition["of"])
        case "eq":
            return condition["key"] in metadata and _json_equal(metadata[condition["key"]], condition["value"])
        case _:
            stored = metadata.get(condition["key"])
            return isinstance(stored, (list, tuple)) and all(
                any(_json_equal(one, wanted) for one in stored) for wanted in condition["values"]
            )


def _json_equal(stored: Any, wanted: Any) -> bool:
    """Whether two values are equal in JSON, where true is not 1."""
    return bool(_typed(load(dump_user(stored))) == _typed(wanted))


def _typed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return [_typed(part) for part in value]

    return {key: _typed(part) for key, part in value.items()} if isinstance(value, dict) else value


# Handlers add keys to these without checking for null, so they get an empty object instead.
OBJECTS = frozenset({"metadata", "values", "config", "context", "filter"})
# The fields of a run, beside its input and context, that a handler may change.
RUN_FIELDS: dict[str, Any] = {
    "config": RunConfig,
    "command": Command,
    "stream_mode": StreamMode | list[StreamMode],
    "interrupt_before": Literal["*"] | list[str],
    "interrupt_after": Literal["*"] | list[str],
    "webhook": str,
}


def handler_value(name: str, value: Any) -> Any:
    """Return a field as handlers get it: plain data, and an empty object for a missing one."""
    if value is None and name in OBJECTS:
        return {}

    plain = msgspec.to_builtins(value, builtin_types=(UUID,)) if isinstance(value, msgspec.Struct) else value
    return dict(plain) if isinstance(plain, dict) else plain


def apply_changes(body: T, names: tuple[str, ...], value: dict[str, Any]) -> T:
    """Return a request with the changes of a handler. Raises Invalid if they make it invalid."""
    changed = {
        name: value[name] for name in names if name in value and value[name] != handler_value(name, getattr(body, name))
    }
    if not changed:
        return body

    given = {name: field for name, field in msgspec.structs.asdict(body).items() if field is not msgspec.UNSET}
    result: T = convert(msgspec.to_builtins({**given, **changed}), type(body), "body")
    return result


def run_handler_value(body: RunCreate, ids: dict[str, Any]) -> dict[str, Any]:
    """Return a request for a run as handlers get it."""
    kwargs = {
        "input": body.input,
        "command": None if body.command is None else msgspec.to_builtins(body.command),
        "config": handler_value("config", body.config),
        "context": handler_value("context", body.context),
        "stream_mode": body.stream_mode,
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": body.webhook,
    }

    return {
        **ids,
        "status": "pending",
        "metadata": handler_value("metadata", body.metadata),
        "prevent_insert_if_inflight": body.multitask_strategy == "reject",
        "multitask_strategy": body.multitask_strategy or "enqueue",
        "if_not_exists": body.on_not_exist or "reject",
        "after_seconds": body.after_seconds or 0,
        "kwargs": kwargs,
    }


def apply_run_changes(body: RunCreate, value: dict[str, Any]) -> None:
    """Apply the changes of a handler to a run: its metadata, and how it is executed. Raises Invalid."""
    kwargs = value.get("kwargs") or {}
    body.metadata = value.get("metadata") or None
    body.input = kwargs.get("input")
    body.context = kwargs.get("context") or None

    for name, kind in RUN_FIELDS.items():
        given = kwargs.get(name)
        is_none = given is None or (name in OBJECTS and not given)
        setattr(body, name, None if is_none else convert(given, kind, "body"))


def store_handler_value(body: msgspec.Struct, fields: dict[str, str]) -> dict[str, Any]:
    """Return a request to the store as handlers get it; the namespace is a tuple of labels."""
    value = {name: handler_value(name, getattr(body, field)) for name, field in fields.items()}
    value["namespace"] = tuple(_labels(value["namespace"]))
    return value


def apply_store_changes(body: T, fields: dict[str, str], value: dict[str, Any]) -> T:
    """Return a request to the store with the changes of a handler. Raises Invalid for a bad namespace."""
    labels = _labels(value.get("namespace"))
    try:
        check_namespace(labels)
    except ValueError as exc:
        raise Invalid.field(["body", "namespace"], str(exc)) from exc

    if labels.count(WILDCARD) > _labels(getattr(body, fields["namespace"])).count(WILDCARD):
        # A user named `*` would otherwise see the items of every user: searches take this label as a wildcard.
        why = f"the authorization handler added {WILDCARD!r}, which matches every label; it may not add wildcards"
        raise Invalid.field(["body", "namespace"], why)

    is_joined = isinstance(getattr(body, fields["namespace"]), str)
    value = {**value, "namespace": ".".join(labels) if is_joined else labels}
    given = {fields[name]: value.get(name) or None if name in OBJECTS else value.get(name) for name in fields}
    result: T = convert(msgspec.to_builtins({**msgspec.structs.asdict(body), **given}), type(body), "body")

    return result


def _labels(namespace: Any) -> list[str]:
    """Return the labels of a namespace; some requests join them by periods."""
    if isinstance(namespace, str):
        return namespace.split(".")
    return list(namespace or ())
