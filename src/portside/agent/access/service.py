"""The doors: what a caller may do, by the handlers of the project.

A route asks before it does anything. What the handler returns as a filter is looked at by the database, here for one
thread or assistant, elsewhere as part of a search (`fits` in the migrations). Without handlers nothing is asked.
"""

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from portside.agent.access.filters import fits
from portside.agent.access.handlers import Handlers
from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.sql import sql
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import ANYONE, FREE, Caller, Filter, Grant
from portside.agent.types.runs import RunConfig, RunCreate
from portside.kernel.db import Database
from portside.kernel.errors import Forbidden
from portside.kernel.http.decode import convert
from portside.kernel.http.routes import Context
from portside.kernel.ids import uuid7

T = TypeVar("T", bound=msgspec.Struct)


def caller_of(ctx: Context) -> Caller:
    """Return who asks, as the guard found out."""
    caller: Caller = ctx.actor or ANYONE
    return caller


class Access:
    """What callers may do. Without handlers everything is allowed, and nothing is looked at."""

    def __init__(self, db: Database, assistants: Assistants, handlers: Handlers | None = None) -> None:
        self._db = db
        self._assistants = assistants
        self._handlers = handlers

    @property
    def is_open(self) -> bool:
        """Whether no handler decides about anything."""
        return self._handlers is None

    async def may(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Ask the handler of an action, which may change `value`; return what the resource has to be like.

        None is no condition. Raises Forbidden, and what the handler refuses with.
        """
        if self._handlers is None:
            return None
        return await self._handlers.decide(caller, resource, action, value)

    async def shape(
        self, caller: Caller, resource: str, action: str, body: T, names: tuple[str, ...]
    ) -> tuple[T, Filter | None]:
        """Ask as `may` does about these fields of a request; return it as the handler left it.

        Raises what `may` raises, and Forbidden for something new that would not be as the handler wants it.
        """
        if self._handlers is None:
            return body, None
        value = {name: _builtin(getattr(body, name)) for name in names}
        allowed = await self.may(caller, resource, action, value)
        if action == "create" and not fits(value.get("metadata") or {}, allowed):
            raise Forbidden("Forbidden")
        before = msgspec.structs.asdict(body)
        changed = {name: value[name] for name in names if name in value and value[name] != _builtin(before[name])}
        return _replaced(body, changed), allowed

    async def see_thread(
        self, caller: Caller, action: str, thread_id: UUID, value: Mapping[str, Any] | None = None
    ) -> Filter | None:
        """Ask as `may` does for a thread that is there. Raises ThreadNotFound for one that does not fit as well."""
        if self._handlers is None:
            return None
        allowed = await self.may(caller, "threads", action, {"thread_id": thread_id, **(value or {})})
        if allowed is not None and not await self.thread_fits(thread_id, allowed):
            raise ThreadNotFound.of(thread_id)
        return allowed

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
        if self._handlers is None:
            return None
        allowed = await self.may(caller, "assistants", action, {"assistant_id": assistant_id, **(value or {})})
        if allowed is None or (action == "read" and self._assistants.is_of_a_graph(assistant_id)):
            return allowed
        if not await self._db.fetchval(sql.assistant_fits, assistant_id=assistant_id, access=allowed):
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
        if self._handlers is None:
            return FREE
        run_id = uuid7()
        assistant_id = await self.use_assistant(caller, body.assistant_id)
        value = _run_value(body, {"thread_id": thread_id, "assistant_id": assistant_id, "run_id": run_id})
        allowed = await self.may(caller, "threads", "create_run", value)
        _take_back(body, value)
        grant = Grant(caller, run_id, allowed, creates=False)
        if thread_id is None or body.on_not_exist != "create":
            return grant
        if await self._db.fetchval(sql.has_thread, thread_id=thread_id):
            return grant
        made: dict[str, Any] = {"thread_id": thread_id, "metadata": {}, "if_exists": "do_nothing"}
        wanted = await self.may(caller, "threads", "create", made)
        if not fits(made.get("metadata") or {}, wanted):
            raise Forbidden("Forbidden")
        return grant._replace(new_thread=made.get("metadata") or {})


def _builtin(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=(UUID,)) if isinstance(value, msgspec.Struct) else value


def _replaced(body: T, changed: dict[str, Any]) -> T:
    """Return a request with what a handler changed; it has to make sense still. Raises Invalid."""
    if not changed:
        return body
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    replaced: T = convert(msgspec.to_builtins({**given, **changed}), type(body), "body")
    return replaced


def _run_value(body: RunCreate, ids: dict[str, Any]) -> dict[str, Any]:
    """Return what a handler is told of a run that is asked for."""
    kwargs = {
        "input": body.input,
        "command": _builtin(body.command),
        "config": _builtin(body.config) or {},
        "context": body.context,
        "stream_mode": body.stream_mode,
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": body.webhook,
    }
    return {
        **ids,
        "status": "pending",
        "metadata": dict(body.metadata or {}),
        "prevent_insert_if_inflight": body.multitask_strategy == "reject",
        "multitask_strategy": body.multitask_strategy or "enqueue",
        "if_not_exists": body.on_not_exist or "reject",
        "after_seconds": body.after_seconds or 0,
        "kwargs": kwargs,
    }


def _take_back(body: RunCreate, value: dict[str, Any]) -> None:
    """Take what a handler may have changed of a run: its metadata, input, config and context."""
    kwargs = value.get("kwargs") or {}
    body.metadata = value.get("metadata") or None
    body.input, body.context = kwargs.get("input"), kwargs.get("context")
    config = kwargs.get("config")
    body.config = convert(config, RunConfig, "body") if config else None
