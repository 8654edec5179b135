"""The doors: what a caller may do, by the handlers of the project.

A route asks before it does anything. What the handler returns as a filter is looked at by the database, here for one
thread or assistant, elsewhere as part of a search (`fits` in the migrations). Without handlers nothing is asked.
"""

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from starlette.authentication import AuthCredentials
from starlette.requests import HTTPConnection

from portside.agent.access.errors import HandlerFailed
from portside.agent.access.filters import fits
from portside.agent.access.loading import OPEN, Protection, is_loopback
from portside.agent.access.requests import (
    run_taken_back,
    run_value,
    store_taken_back,
    store_value,
    taken_back,
    told,
)
from portside.agent.access.users import caller_again
from portside.agent.access.watching import UNWATCHED, Watch
from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, INSIDE, AuthOpenApi, Caller, CronFilters, CronGrant, Filter, Grant
from portside.agent.types.runs import RunCreate
from portside.kernel.codec import dump_user
from portside.kernel.db import Database
from portside.kernel.errors import Forbidden
from portside.kernel.http.inside import is_inside, user_inside
from portside.kernel.http.routes import Context, Route
from portside.kernel.http.websockets import WEBSOCKET
from portside.kernel.ids import uuid7

T = TypeVar("T", bound=msgspec.Struct)
CALLER = "caller"


def caller_of(ctx: Context) -> Caller:
    """Return who asks, as the guard found out."""
    caller: Caller = ctx.actor or ANYONE
    return caller


class Access:
    """What callers may do. Without handlers everything is allowed, and nothing is looked at."""

    def __init__(self, db: Database, assistants: Assistants, protection: Protection = OPEN) -> None:
        self._db = db
        self._assistants = assistants
        self._protection = protection
        self._handlers = protection.handlers

    async def close(self) -> None:
        """Let go of what authentication holds."""
        await self._protection.close()

    @property
    def security(self) -> AuthOpenApi | None:
        """What the description of the API says of authentication."""
        return self._protection.security

    @property
    def is_open(self) -> bool:
        """Whether no handler decides about anything."""
        return self._handlers is None

    def _is_free(self, caller: Caller) -> bool:
        return self._handlers is None or caller.is_inside

    async def guard(self, ctx: Context, route: Route) -> Caller:
        """Return who asks for a route.

        Raises as `authenticate` does, Forbidden for a route that wants a permission, and ThreadNotFound for a socket on
        a thread.
        """
        if self._protection.is_open:
            return _let_in(ctx.scope, route)
        segments = ctx.scope["path"].removeprefix("/").split("/")
        names = route.path.removeprefix("/").split("/")
        pairs = zip(names, segments, strict=False)
        named = {name[1:-1]: given for name, given in pairs if name.startswith("{")}
        ctx.scope["path_params"] = named
        caller = await self.authenticate(ctx.request)
        if route.permission and not (caller.is_inside or caller.may(route.permission)):
            raise Forbidden(f"This wants the permission {route.permission}.")
        if route.method == WEBSOCKET and "thread_id" in named:
            # Before it is open: afterwards there is no status to refuse it with.
            await self.watch_thread(caller, UUID(named["thread_id"]))
        return caller

    async def authenticate(self, connection: HTTPConnection) -> Caller:
        """Return who sends a request, and leave the user in its scope; it is asked once for each request.

        Raises Unauthorized, PlatformSilent, and what the project's handler refuses with.
        """
        scope = connection.scope
        if is_inside(scope):
            return self._inside(scope)
        if self._protection.is_open:
            return ANYONE
        state = scope.setdefault("state", {})
        known: Caller | None = state.get(CALLER)
        if known is None:
            known = state[CALLER] = await self._protection.identify(connection)
            scope["user"], scope["auth"] = known.user, AuthCredentials(known.permissions)
        return known

    def _inside(self, scope: Any) -> Caller:
        """Return who calls from inside: the process, or the user whose run does where calls are judged as theirs."""
        user = user_inside(scope) if self._protection.judges_inside else None
        return caller_again(user) if user else INSIDE

    async def may(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Ask the handler of an action, which may change `value`; return what the resource has to be like.

        None is no condition. Raises Forbidden, and what the handler refuses with.
        """
        handlers = self._handlers
        if handlers is None or caller.is_inside:
            return None
        return await handlers.decide(caller, resource, action, value)

    async def shape(
        self, caller: Caller, event: str, body: T, names: tuple[str, ...], **also: Any
    ) -> tuple[T, Filter | None]:
        """Ask as `may` does about an event such as `threads.create` and these fields of its request.

        Returns the request as the handler left it, and the filter. Raises what `may` raises, and Forbidden for what
        would be made and not be as the handler wants it.
        """
        if self._is_free(caller):
            return body, None
        given = {name: told(name, getattr(body, name)) for name in names}
        value = {**also, **given}
        resource, _, action = event.partition(".")
        allowed = await self.may(caller, resource, action, value)
        if action == "create" and not fits(value.get("metadata") or {}, allowed):
            raise Forbidden("Forbidden")
        return taken_back(body, names, value), allowed

    async def shape_thread(self, caller: Caller, action: str, thread_id: UUID, body: T, names: tuple[str, ...]) -> T:
        """Ask as `shape` does about a thread that is there. Raises ThreadNotFound for one that does not fit as well."""
        body, allowed = await self.shape(caller, f"threads.{action}", body, names, thread_id=thread_id)
        await self._check_thread(thread_id, allowed)
        return body

    async def shape_assistant(
        self, caller: Caller, action: str, assistant_id: UUID, body: T, names: tuple[str, ...]
    ) -> T:
        """Ask as `shape` does about an assistant that is there. Raises AssistantNotFound for one that does not fit."""
        body, allowed = await self.shape(caller, f"assistants.{action}", body, names, assistant_id=assistant_id)
        if not await self._assistants.fits(assistant_id, allowed):
            raise AssistantNotFound("Not Found")
        return body

    async def see_thread(
        self, caller: Caller, action: str, thread_id: UUID, value: Mapping[str, Any] | None = None
    ) -> Filter | None:
        """Ask as `may` does for a thread that is there. Raises ThreadNotFound for one that does not fit as well."""
        if self._is_free(caller):
            return None
        allowed = await self.may(caller, "threads", action, {"thread_id": thread_id, **(value or {})})
        await self._check_thread(thread_id, allowed)
        return allowed

    async def _check_thread(self, thread_id: UUID, wanted: Filter | None) -> None:
        if wanted is not None and not await self.thread_fits(thread_id, wanted):
            raise ThreadNotFound.of(thread_id)

    async def see_threads(self, caller: Caller, action: str, thread_ids: list[UUID]) -> list[UUID]:
        """Ask as `may` does for each of several threads; return those that are there and fit."""
        if self._is_free(caller):
            return thread_ids
        filters = [await self.may(caller, "threads", action, {"thread_id": each}) for each in thread_ids]
        written = [None if each is None else dump_user(each).decode() for each in filters]
        rows = await self._db.fetch(sql.threads_that_fit, thread_ids=thread_ids, filters=written)
        return [row["thread_id"] for row in rows]

    async def copy_thread(self, caller: Caller, thread_id: UUID) -> tuple[UUID, dict[str, Any] | None]:
        """Ask whether a thread may be read and another one made; return the id and the metadata of the copy.

        Without metadata the copy gets that of its original. Raises ThreadNotFound and Forbidden.
        """
        target = uuid7()
        if self._is_free(caller):
            return target, None
        await self.see_thread(caller, "read", thread_id)
        metadata = await self._db.fetchval(sql.metadata_of_thread, thread_id=thread_id)
        if metadata is None:
            raise ThreadNotFound.of(thread_id)
        return target, await self.make_thread(caller, target, metadata, if_exists="raise")

    async def make_thread(
        self, caller: Caller, thread_id: UUID, metadata: dict[str, Any], *, if_exists: str
    ) -> dict[str, Any]:
        """Ask whether a thread may be made; return its metadata as the handler wants it. Raises Forbidden."""
        value = {"thread_id": thread_id, "metadata": metadata, "if_exists": if_exists}
        allowed = await self.may(caller, "threads", "create", value)
        made: Any = value.get("metadata") or {}
        if not fits(made, allowed):
            raise Forbidden("Forbidden")
        return dict(made)

    async def watch_thread(self, caller: Caller, thread_id: UUID) -> Watch:
        """Ask whether a thread may be followed, which need not be there yet. Raises ThreadNotFound, and as `may`."""
        if self._is_free(caller):
            return UNWATCHED
        allowed = await self.may(caller, "threads", "read", {"thread_id": thread_id})
        if allowed is None:
            return UNWATCHED
        fitting = await self.thread_fits(thread_id, allowed)
        if fitting is False:
            raise ThreadNotFound.of(thread_id)
        return UNWATCHED if fitting else Watch(lambda: self.thread_fits(thread_id, allowed))

    async def thread_fits(self, thread_id: UUID, wanted: Filter) -> bool | None:
        """Whether a thread is as a filter wants it; None where there is none."""
        fitting: bool | None = await self._db.fetchval(sql.thread_fits, thread_id=thread_id, access=wanted)
        return fitting

    async def see_assistant(
        self, caller: Caller, action: str, assistant_id: UUID, value: Mapping[str, Any] | None = None
    ) -> Filter | None:
        """Ask as `may` does for an assistant that is there; those of the server's own graphs are open to be read.

        Raises AssistantNotFound for one that does not fit as well.
        """
        if self._is_free(caller):
            return None
        allowed = await self.may(caller, "assistants", action, {"assistant_id": assistant_id, **(value or {})})
        if allowed is None or (action == "read" and self._assistants.is_of_a_graph(assistant_id)):
            return allowed
        if not await self._assistants.fits(assistant_id, allowed):
            raise AssistantNotFound("Not Found")
        return allowed

    async def use_assistant(self, caller: Caller, name: str) -> UUID:
        """Ask whether an assistant may be used for a run, and return its id; those of the server's own graphs may.

        Raises Invalid for no such graph, AssistantNotFound, and what `may` raises.
        """
        assistant_id = (await self._assistants.recall(name)).assistant_id
        if not self._assistants.is_of_a_graph(assistant_id):
            try:
                await self.see_assistant(caller, "read", assistant_id, {"metadata": {}})
            except AssistantNotFound:
                raise AssistantNotFound("Thread or assistant not found.") from None
        return assistant_id

    async def start_run(self, caller: Caller, thread_id: UUID | None, body: RunCreate) -> Grant:
        """Ask for a run, which the handler may change, and for its assistant; return what `Runs.create` wants.

        Raises Forbidden, Invalid, AssistantNotFound, and what the handlers refuse with. That the thread fits is looked
        at when the run is admitted.
        """
        if self._is_free(caller):
            return Grant(caller)
        run_id = uuid7()
        assistant_id = await self.use_assistant(caller, body.assistant_id)
        value = run_value(body, {"thread_id": thread_id, "assistant_id": assistant_id, "run_id": run_id})
        allowed = await self.may(caller, "threads", "create_run", value)
        run_taken_back(body, value)
        grant = Grant(caller, run_id, allowed, creates=False)
        if thread_id is None or body.on_not_exist != "create":
            return grant
        if await self._db.fetchval(sql.has_thread, thread_id=thread_id):
            return grant
        return grant._replace(new_thread=await self.make_thread(caller, thread_id, {}, if_exists="do_nothing"))

    async def see_crons(self, caller: Caller, query: T, names: tuple[str, ...]) -> tuple[T, CronFilters]:
        """Ask for a search among crons; those on threads that the caller does not see are not seen either."""
        if self._is_free(caller):
            return query, CronFilters()
        query, allowed = await self.shape(caller, "crons.search", query, names)
        return query, CronFilters(allowed, await self.may(caller, "threads", "search", {"metadata": {}}))

    async def make_cron(
        self, caller: Caller, thread_id: UUID | None, body: T, told_of_run: dict[str, Any]
    ) -> tuple[T, CronGrant]:
        """Ask for a cron, for its assistant, and for runs on its thread; return it as the handler left it.

        Raises Forbidden, Invalid, AssistantNotFound and ThreadNotFound, and what the handlers refuse with.
        """
        if self._is_free(caller):
            return body, CronGrant(caller)
        cron_id, assistant = uuid7(), str(told_of_run["assistant_id"])
        assistant_id = await self.use_assistant(caller, assistant)
        also = {"cron_id": cron_id, "thread_id": thread_id, "user_id": caller.identity, "payload": told_of_run}
        body, _ = await self.shape(caller, "crons.create", body, ("metadata", "schedule", "end_time"), **also)
        if thread_id is None:
            return body, CronGrant(caller, cron_id)
        ids = {"thread_id": thread_id, "assistant_id": assistant_id, "run_id": None}
        run = {**ids, "status": "pending", "metadata": dict(told_of_run.get("metadata") or {}), "kwargs": told_of_run}
        allowed = await self.may(caller, "threads", "create_run", run)
        await self._check_thread(thread_id, allowed)
        return body, CronGrant(caller, cron_id, allowed)

    async def see_cron(
        self, caller: Caller, action: str, cron_id: UUID, body: T, names: tuple[str, ...] = ()
    ) -> tuple[T, CronFilters]:
        """Ask for one cron; return the request as the handler left it, and what the cron has to be like."""
        if self._is_free(caller):
            return body, CronFilters()
        also = {"cron_id": cron_id, "payload": msgspec.to_builtins(body)} if names else {"cron_id": cron_id}
        body, allowed = await self.shape(caller, f"crons.{action}", body, names, **also)
        thread_id = await self._db.fetchval(sql.thread_of_cron, cron_id=cron_id)
        if thread_id is None:
            return body, CronFilters(allowed)
        return body, CronFilters(allowed, await self.may(caller, "threads", "read", {"thread_id": thread_id}))

    async def scope(self, caller: Caller, action: str, body: T, fields: dict[str, str]) -> T:
        """Ask for items of the store, whose namespace the handler may rewrite; `fields` are those of the request by the
        names that handlers know.

        Raises what `may` raises, and Invalid for a namespace that is none.
        """
        if self._is_free(caller):
            return body
        value = store_value(body, fields)
        if await self.may(caller, "store", action, value) is not None:
            raise HandlerFailed
        return store_taken_back(body, fields, value)


def _let_in(scope: Any, route: Route) -> Caller:
    """Let in somebody whom nobody asks who they are. Raises Forbidden where that wants a permission and is not here."""
    client = scope.get("client")
    if client is None:
        return ANYONE
    if route.permission and not is_loopback(client[0]):
        raise Forbidden("Without authentication this is open to calls from the same machine alone.")
    return Caller(address=client[0])
