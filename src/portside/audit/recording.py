"""Records requests in the audit log: wraps the handlers of the routes that are declared with an action.

The handler of such a route gets a database that appends the entry with the first change (`entries.py`). If the handler
changes nothing through it, the entry is written before the response is sent. Other routes keep their handlers, and cost
nothing.

Refused requests are recorded too, up to `MAX_REFUSALS` in a minute and `MAX_REFUSALS_OF_ONE` of one caller for one
action; further ones are counted, and one entry says how many there were.
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import asyncpg
import msgspec
from cachetools import TTLCache
from msgspec import NODEFAULT, UNSET
from starlette.responses import Response

from portside.audit.actions import READ_SECRET, find_action
from portside.audit.entries import AuditedDatabase, PendingEntry, append_entry, shorten, to_text
from portside.identity.signin import find_browser_actor
from portside.identity.types import Actor
from portside.kernel.db import Database
from portside.kernel.errors import Forbidden, PortsideError
from portside.kernel.http.audit_actions import Action
from portside.kernel.http.headers import get_header
from portside.kernel.http.proxies import Network, get_client_address
from portside.kernel.http.routes import Context, Route
from portside.kernel.reconcile import Status, Task
from portside.kernel.transient_errors import log_failure
from portside.listener_api import Desired

Handler = Callable[..., Awaitable[Any]]
MAX_REFUSALS = 60
MAX_REFUSALS_OF_ONE = 10
_MAX_FIELDS = 100
# How many reads of secrets are remembered as recorded.
_MAX_READ = 10_000
# A command that polls a deployment, or lists them, is shown the same secrets each time.
SHOWN_AGAIN_AFTER_S = 3600.0
_WITH_CREDENTIALS = re.compile(r"https?://[^/?#]*@", re.IGNORECASE)
# The fields of a body that may name the object, the best first.
_NAMES = ("name", "display_name", "title", "repo_handle", "email", "description")
_REFUSALS = frozenset({401, 403, 429})
_FORM = "application/x-www-form-urlencoded"


class Recorder:
    """Records the requests of one platform."""

    def __init__(self, db: Database, trusted_proxies: Sequence[Network] = ()) -> None:
        self._db = db
        self._trusted_proxies = trusted_proxies
        # The reads of listeners, and the secrets shown to others, that were recorded already.
        self._read: set[tuple[Any, ...]] = set()
        self._shown: TTLCache[tuple[Any, ...], bool] = TTLCache(_MAX_READ, SHOWN_AGAIN_AFTER_S)
        self._refusals: Counter[tuple[Any, ...]] = Counter()
        self._suppressed = 0

    def wrap_routes(self, routes: Sequence[Route[Any]]) -> list[Route[Any]]:
        """Return the routes, with handlers that record their actions.

        Raises ValueError for a route that may change something and says neither its action nor why it has none.
        """
        wrapped_routes = []
        for route in routes:
            action = find_action(route)
            wrapped_routes.append(route if action is None else self._wrap_route(route, action))

        return wrapped_routes

    def wrap_guard(
        self, guard: Callable[[Any, Route[Any]], Awaitable[Any]]
    ) -> Callable[[Any, Route[Any]], Awaitable[Any]]:
        """Return a guard that also records requests that it forbids, if the audit log records such requests."""

        async def record(ctx: Context[Any], route: Route[Any], action: Action) -> Any:
            try:
                return await guard(ctx, route)
            except Forbidden as exc:
                entry = self._build_entry(ctx, action, {})
                await self._record_refusal(entry.with_outcome("refused", exc.status, exc.code))
                raise

        def choose(ctx: Any, route: Route[Any]) -> Awaitable[Any]:
            action = route.audit
            if isinstance(action, Action) and not action.if_shown:
                return record(ctx, route, action)

            return guard(ctx, route)

        return choose

    def _wrap_route(self, route: Route[Any], action: Action) -> Route[Any]:
        handler = self._wrap_read(route, action) if action.is_read else self._wrap_change(route, action)
        return dataclasses.replace(route, handler=handler)

    def _wrap_read(self, route: Route[Any], action: Action) -> Handler:
        """Return a handler that records who read a secret, before the response is sent."""
        handler: Handler = route.handler

        @functools.wraps(handler)
        async def record(ctx: Context[Any], **arguments: Any) -> Any:
            entry = self._build_entry(ctx, action, arguments)
            result = await handler(ctx, **arguments)

            if action.if_shown:
                await self._record_shown(entry, result)
            else:
                await self._record_read(entry, result)

            return result

        return record

    def _wrap_change(self, route: Route[Any], action: Action) -> Handler:
        """Return a handler that records what it changes, or how it failed."""
        handler: Handler = route.handler

        @functools.wraps(handler)
        async def record(ctx: Context[Any], **arguments: Any) -> Any:
            if action.by_browser:
                ctx.actor = await find_browser_actor(ctx)

            entry = self._build_entry(ctx, action, arguments)
            ctx.services = dataclasses.replace(ctx.services, db=AuditedDatabase(self._db, entry))
            try:
                result = await handler(ctx, **arguments)
            except PortsideError as exc:
                await self._record_end(entry, exc.status, exc.code)
                raise
            except Exception as exc:
                await self._record_end(entry, PortsideError.status, type(exc).__name__)
                raise

            await self._add_email(ctx, entry)
            status = result.status_code if isinstance(result, Response) else route.status
            await self._record_end(entry, status, None)
            await self._record_shown(entry, result)

            return result

        return record

    def _build_entry(self, ctx: Context[Any], action: Action, arguments: Mapping[str, Any]) -> PendingEntry:
        scope = ctx.scope
        values = {
            **_to_actor_columns(ctx.actor),
            "address": get_client_address(scope, self._trusted_proxies),
            "client": shorten(get_header(scope, b"user-agent") or "") or None,
            "request_id": scope.get("state", {}).get("request_id"),
        }

        body = arguments.get("body")
        entry = PendingEntry(action, {**values, "object_name": _find_name(body), "fields": list_set_fields(body)})
        for name, value in arguments.items():
            if name not in {"body", "query"}:
                entry.add_id(value)

        items = body if isinstance(body, list) else [body]
        for struct in (*items, arguments.get("query")):
            for name in action.id_fields:
                value = getattr(struct, name, None)
                object_ids = value if isinstance(value, (list, tuple, set)) else [value]
                for object_id in object_ids:
                    entry.add_id(object_id)

        return entry

    async def _add_email(self, ctx: Context[Any], entry: PendingEntry) -> None:
        """Name the e-mail address that a form of the sign-in holds."""
        if entry.action.is_sign_in and (get_header(ctx.scope, b"content-type") or "").startswith(_FORM):
            fields = dict(parse_qsl((await ctx.request.body()).decode("utf-8", "replace"), max_num_fields=20))
            entry.values["object_name"] = shorten(fields.get("email", "")) or None

    async def _record_end(self, entry: PendingEntry, status: int, error: str | None) -> None:
        """Record how a request ended, if no transaction has done that."""
        is_refused = status == Forbidden.status or (entry.action.is_sign_in and status in _REFUSALS)
        if status < 400 and not entry.is_written:
            await append_entry(self._db, entry.values)
        elif is_refused and not entry.is_written:
            await self._record_refusal(entry.with_outcome("refused", status, error))
        elif status >= 400 and (entry.is_written or status >= 500):
            await self._record_refusal(entry.with_outcome("failed", status, error))

    async def _record_refusal(self, entry: PendingEntry) -> None:
        """Record a request that was refused or failed, unless there were too many of them in this minute."""
        values = entry.values
        caller = values.get("session_id") or values.get("key_id") or values.get("address")
        key = (caller, entry.action.name)
        if self._refusals.total() >= MAX_REFUSALS or self._refusals[key] >= MAX_REFUSALS_OF_ONE:
            self._suppressed += 1
            return

        self._refusals[key] += 1
        try:
            await append_entry(self._db, values)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
            # The request has failed already, and its client learns why.
            log_failure("the audit log could not record a refused request", exc)

    async def _record_read(self, entry: PendingEntry, result: Any) -> None:
        """Record a read before the response is sent; what a listener asks for again and again, only once."""
        if not isinstance(result, Desired):
            await append_entry(self._db, entry.values)
            return

        for deployment in result.deployments:
            for revision in deployment.revisions:
                key = (entry.values.get("key_id"), *entry.values["object_ids"], revision.id)
                if key in self._read:
                    continue

                values = {
                    "workspace_id": str(deployment.tenant_id),
                    "object_ids": [str(deployment.id), str(revision.id)],
                    "object_name": deployment.name,
                    "fields": [shorten(f"secrets.{secret.name}") for secret in revision.secrets[:_MAX_FIELDS]],
                }

                await append_entry(self._db, {**entry.values, **values})
                if len(self._read) >= _MAX_READ:
                    self._read.clear()

                self._read.add(key)

    async def _record_shown(self, entry: PendingEntry, result: Any) -> None:
        """Record the secrets of deployments that a response shows and its request did not send, before it is sent.

        Once an hour for each caller, address and revision.
        """
        fields = entry.values["fields"]
        request_names = {field.removeprefix("secret_changes.set.").removeprefix("secrets.") for field in fields}
        caller = [entry.values.get(name) for name in ("session_id", "key_id", "address")]

        reads: dict[tuple[Any, ...], dict[str, Any]] = {}
        for deployment in _list_deployments(result):
            names = _list_visible_secrets(deployment)
            new_names = [name for name in names if name.removeprefix("secrets.") not in request_names]
            object_ids = (deployment.id, deployment.latest_revision_id)
            key = (*caller, *object_ids)

            if new_names and key not in self._shown:
                reads[key] = {
                    "action": READ_SECRET.name,
                    "workspace_id": str(deployment.tenant_id),
                    "object_ids": [str(object_id) for object_id in object_ids if object_id is not None],
                    "object_name": deployment.name,
                    "fields": [shorten(name) for name in new_names[:_MAX_FIELDS]],
                }

        if not reads:
            return

        async with self._db.transaction() as tx:
            for values in reads.values():
                await append_entry(tx, {**entry.values, **values})

        self._shown.update(dict.fromkeys(reads, True))

    async def end_minute(self) -> int:
        """Begin another minute of refused requests; record how many were left out, and return the number."""
        self._refusals.clear()
        suppressed = self._suppressed
        if suppressed:
            values = {"actor_kind": "platform", "outcome": "refused", "count": suppressed}
            await append_entry(self._db, PendingEntry(Action("audit_log.suppress"), values).values)
            self._suppressed -= suppressed

        return suppressed


class SuppressedRefusals(Task):
    """Records how many refused requests the audit log has left out in each minute."""

    every_s = 60.0

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    async def activate(self) -> Status:
        """Record the number of the last minute."""
        return Status({"suppressed": await self._recorder.end_minute()})


def _to_actor_columns(actor: Actor | None) -> dict[str, Any]:
    if actor is None:
        return {"actor_kind": "anonymous"}

    is_own_session = actor.key_id == actor.session_id
    return {
        "actor_kind": "service_key" if actor.user_id is None else "user",
        "organization_id": str(actor.organization_id),
        "workspace_id": to_text(actor.workspace),
        "user_id": to_text(actor.user_id),
        "user_email": actor.user_email,
        "key_id": None if is_own_session else str(actor.key_id),
        "short_key": actor.short_key or None,
        "session_id": to_text(actor.session_id),
    }


def _list_deployments(result: Any) -> list[Any]:
    """Return the deployments of a response of the control plane, whose types are above this package."""
    resources = getattr(result, "resources", None)
    items = resources if isinstance(resources, list) else [result]
    return [item for item in items if hasattr(item, "secrets")]


def _list_visible_secrets(deployment: Any) -> list[str]:
    """Return the names of the fields of a deployment that show a secret."""
    names = [f"secrets.{secret.name}" for secret in deployment.secrets if secret.value]
    repository = deployment.source_config.repo_url
    if _WITH_CREDENTIALS.match(repository or ""):
        names.append("source_config.repo_url")

    return names


def list_set_fields(body: Any) -> list[str]:
    """Return the names of the fields that a body sets, never their values; secrets as `secrets.NAME`."""
    names: dict[str, None] = {}
    for item in body if isinstance(body, list) else [body]:
        if isinstance(item, msgspec.Struct):
            names.update(dict.fromkeys(_list_struct_fields(item, "")))

    return [shorten(name) for name in names][:_MAX_FIELDS]


def _list_struct_fields(struct: msgspec.Struct, prefix: str) -> list[str]:
    names: list[str] = []
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if value is UNSET or (field.default is not NODEFAULT and value == field.default):
            continue

        name = f"{prefix}{field.encode_name}"
        if isinstance(value, msgspec.Struct):
            names += _list_struct_fields(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(getattr(item, "name", None), str) for item in value):
            names += [f"{name}.{item.name}" for item in value]
        else:
            names.append(name)

    return names


def _find_name(body: Any) -> str | None:
    values = (getattr(body, name, None) for name in _NAMES)
    return next((shorten(value) for value in values if isinstance(value, str) and value), None)
