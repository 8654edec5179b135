"""Writes the audit log: wraps the handlers of the routes that `actions.py` names.

The handler of such a route gets a database that appends the entry as the last statement of the first transaction that
changes something, so the change and its entry are committed together. A statement outside of a transaction gets one. If
the handler changes nothing through it, the entry is written before the response is sent. Other routes keep their
handlers, and cost nothing.

Refused requests are recorded too, up to `MAX_REFUSALS` in a minute and `MAX_REFUSALS_OF_ONE` of one caller for one
action; further ones are counted, and one entry says how many there were.
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import asyncpg
import msgspec
from cachetools import TTLCache
from msgspec import NODEFAULT, UNSET
from starlette.responses import Response

from portside.audit.actions import SHOW_SECRETS, Action, find_action
from portside.audit.sql import sql
from portside.identity.services import Context
from portside.identity.signin import browser_actor
from portside.identity.types import Actor
from portside.kernel.db import Database, Isolation, Query, Record, Session, Transaction
from portside.kernel.errors import Forbidden, PortsideError, UserMistake
from portside.kernel.http.headers import get_header
from portside.kernel.http.proxies import Network, client_address
from portside.kernel.http.routes import Route
from portside.kernel.ids import uuid7
from portside.kernel.pool import retry_conflicts
from portside.kernel.reconcile import Status, Task
from portside.kernel.transient_errors import log_failure
from portside.listener_api import Desired

Handler = Callable[..., Awaitable[Any]]
MAX_REFUSALS = 60
MAX_REFUSALS_OF_ONE = 10
_MAX_IDS = 100
_MAX_FIELDS = 100
_MAX_TEXT = 200
# How many reads of secrets are remembered as recorded.
_MAX_READ = 10_000
# A command that polls a deployment, or lists them, is shown the same secrets each time.
SHOWN_AGAIN_AFTER_S = 3600.0
_WITH_CREDENTIALS = re.compile(r"https?://[^/?#]*@", re.IGNORECASE)
# The fields of a body that may name the object, the best first.
_NAMES = ("name", "display_name", "title", "repo_handle", "email", "description")
_REFUSALS = frozenset({401, 403, 429})
_FORM = "application/x-www-form-urlencoded"


class PendingEntry:
    """One entry of the audit log until it is written: the action, and the values of its columns."""

    def __init__(self, action: Action, values: Mapping[str, Any]) -> None:
        self.action = action
        self.values: dict[str, Any] = {
            "actor_kind": "anonymous",
            "action": action.name,
            "object_ids": [],
            "fields": [],
            "outcome": "ok",
            "count": 1,
            **values,
        }

        self.is_written = self.is_being_written = False
        # An action that creates something has happened once the statement has run that stores it.
        self.is_ready = action.made_by is None

    def add_id(self, given: Any) -> None:
        """Name an object that the action is about."""
        ids = self.values["object_ids"]
        if given not in (None, UNSET) and str(given) not in ids and len(ids) < _MAX_IDS:
            ids.append(_shorten(str(given)))

    def observe(self, query: Query, values: Mapping[str, Any]) -> None:
        """Take the id of a new object, and who signs in, from the statement that stores it."""
        if query.name not in {self.action.made_by, self.action.makes}:
            return

        for name in ("deployment_id", "id"):
            self.add_id(values.get(name))

        if query.name != self.action.made_by:
            return

        self.is_ready = True
        user_id = values.get("user_id")
        key_id = values.get("key_id")
        if self.action.is_sign_in and (user_id or key_id):
            kind = "service_key" if user_id is None else "user"
            self.values |= {"actor_kind": kind, "user_id": _text(user_id), "key_id": _text(key_id)}

    def with_outcome(self, outcome: str, status: int, error: str | None) -> "PendingEntry":
        """Return a copy of the entry for what became of the request."""
        return PendingEntry(self.action, {**self.values, "outcome": outcome, "status": status, "error": error})


class _Observer:
    """Shows the entry each statement of its request."""

    def __init__(self, entry: PendingEntry) -> None:
        self._entry = entry

    async def encode(self, query: Query, values: dict[str, Any]) -> dict[str, Any]:
        self._entry.observe(query, values)
        return values

    async def decode(self, _query: Query, _values: dict[str, Any], rows: list[Record]) -> list[Any]:
        return rows


class _SingleStatements:
    """Runs each statement in a separate transaction, until the entry is written."""

    def __init__(self, db: "AuditedDatabase", pooled: Any) -> None:
        self._db = db
        self._pooled = pooled

    def __getattr__(self, method: str) -> Any:
        async def run(*args: Any) -> Any:
            if self._db.entry.is_written:
                return await getattr(self._pooled, method)(*args)
            return await retry_conflicts(self._run_once)(method, args)

        return run

    async def _run_once(self, method: str, args: Any) -> Any:
        async with self._db.transaction() as tx:
            return await getattr(tx.connection, method)(*args)


class AuditedDatabase(Database):
    """A database whose first transaction that changes something also appends an entry to the audit log."""

    def __init__(self, db: Database, entry: PendingEntry) -> None:
        super().__init__(db.pool, _Observer(entry))
        self.entry = entry
        self._source = _SingleStatements(self, self._source)

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Transaction]:
        """Open a transaction; its last statement appends the entry, if it is the first that changes something."""
        entry = self.entry
        is_appended = False
        is_ours = False
        try:
            async with super().transaction(isolation=isolation) as tx:
                yield tx
                # Of transactions at the same time one appends the entry.
                if entry.is_ready and not (entry.is_written or entry.is_being_written):
                    is_ours = entry.is_being_written = True
                    is_appended = await append(tx, entry.values, only_if_changed=True)

            entry.is_written |= is_appended
        finally:
            if is_ours:
                entry.is_being_written = False


class BackgroundDatabase(Database):
    """A database for background work: each transaction that runs `made_by` also appends an entry of the platform."""

    def __init__(self, db: Database, action: str, made_by: str) -> None:
        super().__init__(db.pool, db.codec)
        self._action = Action(action, made_by)

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Transaction]:
        """Open a transaction; its last statement appends the entry, if it ran the query."""
        recorded = AuditedDatabase(self, PendingEntry(self._action, {"actor_kind": "platform"}))
        async with recorded.transaction(isolation=isolation) as tx:
            yield tx


async def append(db: Session, values: Mapping[str, Any], *, only_if_changed: bool = False) -> bool:
    """Append an entry and return True; with `only_if_changed`, return False if the transaction has changed nothing."""
    entry = {"id": str(uuid7()), **values}
    return bool(await db.fetchval(sql.append_entry, entry=entry, only_if_changed=only_if_changed))


async def record_start(db: Database, version: str, settings: Sequence[str]) -> None:
    """Record a start of the platform and its settings. A full disk must not prevent the start."""
    try:
        await record_operation(db, "platform.start", fields=settings, name=version)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        log_failure("the audit log could not record the start of the platform", exc)


async def record_at(database_url: str, action: str, name: str) -> None:
    """Record what a command does with the platform's database, whether the platform runs or not.

    A database that has no audit log yet, or accepts no entry, is no reason to refuse a backup.
    """
    try:
        db = await Database.connect(database_url, max_size=1)
    except (OSError, UserMistake, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        log_failure("the audit log could not record a command", exc, action=action)
        return

    try:
        await record_command(db, action, name)
    finally:
        await db.close()


async def record_command(db: Session, action: str, name: str) -> None:
    """Record what a command does. A database without an audit log, or that accepts no entry, refuses no command."""
    try:
        await record_operation(db, action, name=name)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        log_failure("the audit log could not record a command", exc, action=action)


async def record_operation(db: Session, action: str, *, fields: Sequence[str] = (), name: str | None = None) -> None:
    """Record what the platform, or somebody with access to its machine, has done without a request."""
    values = {"actor_kind": "platform", "fields": list(fields), "object_name": name}
    await append(db, PendingEntry(Action(action), values).values)


class Recorder:
    """Records the requests of one platform."""

    def __init__(self, db: Database, trusted_proxies: Sequence[Network] = ()) -> None:
        self._db = db
        self._trusted_proxies = trusted_proxies
        self._read: set[tuple[Any, ...]] = set()
        self._shown: TTLCache[tuple[Any, ...], bool] = TTLCache(_MAX_READ, SHOWN_AGAIN_AFTER_S)
        self._refusals: Counter[tuple[Any, ...]] = Counter()
        self._suppressed = 0

    def recorded(self, routes: Sequence[Route[Any]]) -> list[Route[Any]]:
        """Return the routes, with handlers that record what `actions.py` names. Raises ValueError."""
        found = []
        for route in routes:
            action = find_action(route)
            found.append(route if action is None else self._recorded(route, action))

        return found

    def guarded(
        self, guard: Callable[[Any, Route[Any]], Awaitable[Any]]
    ) -> Callable[[Any, Route[Any]], Awaitable[Any]]:
        """Return a guard that also records requests that it forbids, if the audit log records such requests."""

        async def recording(ctx: Context, route: Route[Any], action: Action) -> Any:
            try:
                return await guard(ctx, route)
            except Forbidden as exc:
                await self._refused(self._entry(ctx, action, {}).with_outcome("refused", exc.status, exc.code))
                raise

        def choose(ctx: Any, route: Route[Any]) -> Awaitable[Any]:
            action = getattr(route.handler, "audited_as", None)
            return guard(ctx, route) if action is None else recording(ctx, route, action)

        return choose

    def _recorded(self, route: Route[Any], action: Action) -> Route[Any]:
        handler: Handler = route.handler

        @functools.wraps(handler)
        async def record(ctx: Context, **arguments: Any) -> Any:
            if action.by_browser:
                ctx.actor = await browser_actor(ctx)

            entry = self._entry(ctx, action, arguments)
            if action.is_read:
                result = await handler(ctx, **arguments)
                await (self._record_shown(entry, result) if action.if_shown else self._record_read(entry, result))
                return result

            ctx.services = dataclasses.replace(ctx.services, db=AuditedDatabase(self._db, entry))
            try:
                result = await handler(ctx, **arguments)
            except PortsideError as exc:
                await self._ended(entry, exc.status, exc.code)
                raise
            except Exception as exc:
                await self._ended(entry, PortsideError.status, type(exc).__name__)
                raise

            await self._add_email(ctx, entry)
            status = result.status_code if isinstance(result, Response) else route.status
            await self._ended(entry, status, None)
            await self._record_shown(entry, result)

            return result

        if not action.if_shown:
            record.audited_as = action  # type: ignore[attr-defined]

        return dataclasses.replace(route, handler=record)

    def _entry(self, ctx: Context, action: Action, arguments: Mapping[str, Any]) -> PendingEntry:
        scope = ctx.scope
        values = {
            **_actor_values(ctx.actor),
            "address": client_address(scope, self._trusted_proxies),
            "client": _shorten(get_header(scope, b"user-agent") or "") or None,
            "request_id": scope.get("state", {}).get("request_id"),
        }

        body = arguments.get("body")
        entry = PendingEntry(action, {**values, "object_name": _find_name(body), "fields": changed_fields(body)})
        for name, value in arguments.items():
            if name not in {"body", "query"}:
                entry.add_id(value)

        for part in (body if isinstance(body, list) else [body], [arguments.get("query")]):
            for holder in part:
                for name in action.ids:
                    given = getattr(holder, name, None)
                    for each in given if isinstance(given, (list, tuple, set)) else [given]:
                        entry.add_id(each)

        return entry

    async def _add_email(self, ctx: Context, entry: PendingEntry) -> None:
        """Name the e-mail address that a form of the sign-in holds."""
        if entry.action.is_sign_in and (get_header(ctx.scope, b"content-type") or "").startswith(_FORM):
            fields = dict(parse_qsl((await ctx.request.body()).decode("utf-8", "replace"), max_num_fields=20))
            entry.values["object_name"] = _shorten(fields.get("email", "")) or None

    async def _ended(self, entry: PendingEntry, status: int, error: str | None) -> None:
        """Record how a request ended, if no transaction has done that."""
        is_refused = status == Forbidden.status or (entry.action.is_sign_in and status in _REFUSALS)
        if status < 400 and not entry.is_written:
            await append(self._db, entry.values)
        elif is_refused and not entry.is_written:
            await self._refused(entry.with_outcome("refused", status, error))
        elif status >= 400 and (entry.is_written or status >= 500):
            await self._refused(entry.with_outcome("failed", status, error))

    async def _refused(self, entry: PendingEntry) -> None:
        """Record a request that was refused or failed, unless there were too many of them in this minute."""
        values = entry.values
        caller = (values.get("session_id") or values.get("key_id") or values.get("address"), entry.action.name)
        if self._refusals.total() >= MAX_REFUSALS or self._refusals[caller] >= MAX_REFUSALS_OF_ONE:
            self._suppressed += 1
            return

        self._refusals[caller] += 1
        try:
            await append(self._db, values)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
            # The request has failed already, and its client learns why.
            log_failure("the audit log could not record a refused request", exc)

    async def _record_read(self, entry: PendingEntry, result: Any) -> None:
        """Record a read before the response is sent; what a listener asks for again and again, only once."""
        if not isinstance(result, Desired):
            await append(self._db, entry.values)
            return

        for deployment in result.deployments:
            for revision in deployment.revisions:
                read = (entry.values.get("key_id"), *entry.values["object_ids"], revision.id)
                if read in self._read:
                    continue

                about = {
                    "workspace_id": str(deployment.tenant_id),
                    "object_ids": [str(deployment.id), str(revision.id)],
                    "object_name": deployment.name,
                    "fields": [_shorten(f"secrets.{secret.name}") for secret in revision.secrets[:_MAX_FIELDS]],
                }

                await append(self._db, {**entry.values, **about})
                if len(self._read) >= _MAX_READ:
                    self._read.clear()

                self._read.add(read)

    async def _record_shown(self, entry: PendingEntry, result: Any) -> None:
        """Record the secrets of deployments that a response shows and its request did not send, before it is sent.

        Once an hour for each caller, address and revision.
        """
        sent = {field.removeprefix("secret_changes.set.").removeprefix("secrets.") for field in entry.values["fields"]}
        read: dict[tuple[Any, ...], dict[str, Any]] = {}
        for deployment in _deployments_in(result):
            shown = [name for name in _shown_secrets(deployment) if name.removeprefix("secrets.") not in sent]
            caller = [entry.values.get(name) for name in ("session_id", "key_id", "address")]
            key = (*caller, deployment.id, deployment.latest_revision_id)
            if shown and key not in self._shown:
                read[key] = {
                    "action": SHOW_SECRETS.name,
                    "workspace_id": str(deployment.tenant_id),
                    "object_ids": [str(each) for each in key[-2:] if each is not None],
                    "object_name": deployment.name,
                    "fields": [_shorten(name) for name in shown[:_MAX_FIELDS]],
                }

        if not read:
            return

        async with self._db.transaction() as tx:
            for about in read.values():
                await append(tx, {**entry.values, **about})

        self._shown.update(dict.fromkeys(read, True))

    async def end_minute(self) -> int:
        """Begin another minute of refused requests; record how many were left out, and return the number."""
        self._refusals.clear()
        suppressed = self._suppressed
        if suppressed:
            values = {"actor_kind": "platform", "outcome": "refused", "count": suppressed}
            await append(self._db, PendingEntry(Action("audit_log.suppress"), values).values)
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


def _actor_values(actor: Actor | None) -> dict[str, Any]:
    if actor is None:
        return {"actor_kind": "anonymous"}

    is_own_session = actor.key_id == actor.session_id
    return {
        "actor_kind": "service_key" if actor.user_id is None else "user",
        "organization_id": str(actor.organization_id),
        "workspace_id": _text(actor.workspace),
        "user_id": _text(actor.user_id),
        "user_email": actor.user_email,
        "key_id": None if is_own_session else str(actor.key_id),
        "short_key": actor.short_key or None,
        "session_id": _text(actor.session_id),
    }


def _deployments_in(result: Any) -> list[Any]:
    """Return the deployments of a response of the control plane, whose types are above this package."""
    listed = getattr(result, "resources", None)
    return [each for each in (listed if isinstance(listed, list) else [result]) if hasattr(each, "secrets")]


def _shown_secrets(deployment: Any) -> list[str]:
    """Return the names of the fields of a deployment that show a secret."""
    names = [f"secrets.{secret.name}" for secret in deployment.secrets if secret.value]
    repository = deployment.source_config.repo_url
    if _WITH_CREDENTIALS.match(repository or ""):
        names.append("source_config.repo_url")

    return names


def changed_fields(body: Any) -> list[str]:
    """Return the names of the fields that a body sets, never their values; secrets as `secrets.NAME`."""
    found: dict[str, None] = {}
    for each in body if isinstance(body, list) else [body]:
        if isinstance(each, msgspec.Struct):
            found.update(dict.fromkeys(_set_fields(each, "")))

    return [_shorten(name) for name in found][:_MAX_FIELDS]


def _set_fields(struct: msgspec.Struct, prefix: str) -> list[str]:
    names: list[str] = []
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if value is UNSET or (field.default is not NODEFAULT and value == field.default):
            continue

        name = f"{prefix}{field.encode_name}"
        if isinstance(value, msgspec.Struct):
            names += _set_fields(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(getattr(item, "name", None), str) for item in value):
            names += [f"{name}.{item.name}" for item in value]
        else:
            names.append(name)

    return names


def _find_name(body: Any) -> str | None:
    given = (getattr(body, name, None) for name in _NAMES)
    return next((_shorten(text) for text in given if isinstance(text, str) and text), None)


def _shorten(text: str) -> str:
    return text.replace("\0", "")[:_MAX_TEXT]


def _text(given: UUID | None) -> str | None:
    return None if given is None else str(given)
