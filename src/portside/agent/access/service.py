"""Authorization of requests by the project's handlers.

A route calls the method for its action before it does anything. If the handler returns a filter, the database applies
it: here for one thread or assistant, elsewhere as part of a search (`matches_access` in `agent/functions`). Without
handlers every method returns at once.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from starlette.authentication import AuthCredentials
from starlette.requests import HTTPConnection

from portside.agent.access.authentication import OPEN, AccessPolicy, caller_from_user
from portside.agent.access.handler_values import (
    apply_changes,
    apply_run_changes,
    apply_store_changes,
    check_store_filter,
    matches_filter,
    to_handler_value,
    to_run_handler_value,
    to_store_handler_value,
)
from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, IN_PROCESS, AuthOpenApi, Caller, CronFilters, CronGrant, Filter, Grant
from portside.agent.types.runs import RunCreate
from portside.kernel.db import Database
from portside.kernel.errors import Forbidden
from portside.kernel.http.in_process import in_process_user, is_in_process
from portside.kernel.http.routes import Context, Route
from portside.kernel.http.websockets import WEBSOCKET
from portside.kernel.ids import uuid7
from portside.kernel.local_addresses import is_loopback
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
        return events if self.check is None else _stream_if_visible(events, self.check)

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
            return _identify_by_address(ctx.scope, route)

        segments = ctx.scope["path"].removeprefix("/").split("/")
        names = route.path.removeprefix("/").split("/")

        # Handlers of the project may read the path parameters, which our router would not set in the scope.
        pairs = zip(names, segments, strict=False)
        path_params = {name[1:-1]: segment for name, segment in pairs if name.startswith("{")}
        ctx.scope["path_params"] = path_params

        caller = await self.authenticate(ctx.request)
        if route.permission and not (caller.is_in_process or caller.has_permission(route.permission)):
            raise Forbidden(f"This requires the permission {route.permission}; use a key or a user that has it.")

        if route.method == WEBSOCKET and "thread_id" in path_params:
            # Checked before the socket is accepted: afterwards it can no longer be refused with a status.
            await self.authorize_thread_follow(caller, UUID(path_params["thread_id"]))

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
        caller: Caller | None = state.get(CALLER)
        if caller is None:
            caller = state[CALLER] = await self._policy.identify(connection)
            scope["user"] = caller.user
            scope["auth"] = AuthCredentials(caller.permissions)

        return caller

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

        fields = {name: to_handler_value(name, getattr(body, name)) for name in names}
        value = {**also, **fields}
        resource, _, action = event.partition(".")
        allowed = await self.authorize(caller, resource, action, value)
        if action == "create" and not matches_filter(value.get("metadata") or {}, allowed):
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

    async def _check_thread(self, thread_id: UUID, access: Filter | None) -> None:
        if access is not None and not await self.thread_matches(thread_id, access):
            raise ThreadNotFound.of(thread_id)

    async def authorize_threads(self, caller: Caller, action: str, thread_ids: list[UUID]) -> list[UUID]:
        """Authorize access to several threads; return those that exist and match."""
        if self._skips_handlers(caller):
            return thread_ids

        filters: list[str | None] = []
        for thread_id in thread_ids:
            access = await self.authorize(caller, "threads", action, {"thread_id": thread_id})
            filters.append(None if access is None else dump_user(access).decode())

        rows = await self._db.fetch(sql.threads_that_match, thread_ids=thread_ids, filters=filters)
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
        changed_metadata: Any = value.get("metadata") or {}
        if not matches_filter(changed_metadata, allowed):
            raise Forbidden("Forbidden")

        return dict(changed_metadata)

    async def authorize_thread_follow(self, caller: Caller, thread_id: UUID) -> DeferredThreadCheck:
        """Authorize following a thread, which need not exist yet. Raises what `authorize_thread` raises."""
        if self._skips_handlers(caller):
            return NO_CHECK

        allowed = await self.authorize(caller, "threads", "read", {"thread_id": thread_id})
        if allowed is None:
            return NO_CHECK

        is_match = await self.thread_matches(thread_id, allowed)
        if is_match is False:
            raise ThreadNotFound.of(thread_id)

        return NO_CHECK if is_match else DeferredThreadCheck(lambda: self.thread_matches(thread_id, allowed))

    async def thread_matches(self, thread_id: UUID, access: Filter) -> bool | None:
        """Whether a thread matches a filter; None if there is no such thread."""
        is_match: bool | None = await self._db.fetchval(sql.thread_matches, thread_id=thread_id, access=access)
        return is_match

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
        value = to_run_handler_value(body, {"thread_id": thread_id, "assistant_id": assistant_id, "run_id": run_id})
        allowed = await self.authorize(caller, "threads", "create_run", value)

        apply_run_changes(body, value)
        grant = Grant(caller, run_id, allowed, creates=False)
        if thread_id is None or body.on_not_exist != "create":
            return grant
        if await self._db.fetchval(sql.has_thread, thread_id=thread_id):
            return grant

        new_thread = await self.authorize_thread_create(caller, thread_id, {}, if_exists="do_nothing")
        return grant._replace(new_thread=new_thread)

    async def authorize_cron_search(self, caller: Caller, query: T, names: tuple[str, ...]) -> tuple[T, CronFilters]:
        """Authorize a search of crons; crons on threads that the caller may not see are left out as well."""
        if self._skips_handlers(caller):
            return query, CronFilters()

        query, allowed = await self.authorize_request(caller, "crons.search", query, names)
        allowed_threads = await self.authorize(caller, "threads", "search", {"metadata": {}})
        return query, CronFilters(allowed, allowed_threads)

    async def authorize_cron_create(
        self, caller: Caller, thread_id: UUID | None, body: T, run_value: dict[str, Any]
    ) -> tuple[T, CronGrant]:
        """Authorize a new cron, its assistant, and runs on its thread; return the request as the handlers changed it.

        Raises Forbidden, Invalid, AssistantNotFound and ThreadNotFound, and the errors of the handlers.
        """
        if self._skips_handlers(caller):
            return body, CronGrant(caller)

        cron_id = UUID(run_value["cron_id"]) if "cron_id" in run_value else uuid7()
        assistant_id = await self.authorize_assistant_use(caller, str(run_value["assistant_id"]))
        also = {"cron_id": cron_id, "thread_id": thread_id, "user_id": caller.identity, "payload": run_value}
        body, _ = await self.authorize_request(
            caller, "crons.create", body, ("metadata", "schedule", "end_time"), **also
        )

        if thread_id is None:
            return body, CronGrant(caller, cron_id)

        run = {
            "thread_id": thread_id,
            "assistant_id": assistant_id,
            "run_id": None,
            "status": "pending",
            "metadata": dict(run_value.get("metadata") or {}),
            "kwargs": run_value,
        }
        allowed = await self.authorize(caller, "threads", "create_run", run)
        await self._check_thread(thread_id, allowed)

        return body, CronGrant(caller, cron_id, allowed)

    async def authorize_cron(
        self, caller: Caller, action: str, cron_id: UUID, body: T, names: tuple[str, ...] = ()
    ) -> tuple[T, CronFilters]:
        """Authorize access to a cron; return the request as the handler changed it, and the filters for the cron."""
        if self._skips_handlers(caller):
            return body, CronFilters()

        also: dict[str, Any] = {"cron_id": cron_id}
        if names:
            also["payload"] = msgspec.to_builtins(body)

        body, allowed = await self.authorize_request(caller, f"crons.{action}", body, names, **also)
        thread_id = await self._db.fetchval(sql.thread_of_cron, cron_id=cron_id)
        if thread_id is None:
            return body, CronFilters(allowed)

        allowed_threads = await self.authorize(caller, "threads", "read", {"thread_id": thread_id})
        return body, CronFilters(allowed, allowed_threads)

    async def authorize_store(self, caller: Caller, action: str, body: T, fields: dict[str, str]) -> T:
        """Authorize access to items of the store; the handler may rewrite the namespace, or return a filter for it.

        `fields` maps the names that handlers know to those of the request. Raises what `authorize` raises, Forbidden
        for a request that the filter does not match, and Invalid if the handler returns a bad namespace.
        """
        if self._skips_handlers(caller):
            return body

        value = to_store_handler_value(body, fields)
        allowed = await self.authorize(caller, "store", action, value)
        changed = apply_store_changes(body, fields, value)
        if allowed is not None:
            check_store_filter(allowed, action, to_store_handler_value(changed, fields))

        return changed


def _identify_by_address(scope: Any, route: Route[Any]) -> Caller:
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


async def _stream_if_visible(
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
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
