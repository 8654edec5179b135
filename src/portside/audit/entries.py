"""The entries of the audit log, and the databases that append them.

The database of a request appends the entry as the last statement of the first transaction that changes something, so
the change and its entry are committed together. A statement outside of a transaction gets one.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
from msgspec import UNSET

from portside.audit.sql import sql
from portside.audit.types import Outcome
from portside.kernel.db import Database, Isolation, Query, Record, Session, Transaction
from portside.kernel.errors import UserMistake
from portside.kernel.http.audit_actions import Action
from portside.kernel.ids import uuid7
from portside.kernel.pool import retry_conflicts
from portside.kernel.transient_errors import log_failure

_MAX_IDS = 100
_MAX_TEXT = 200


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

        self.is_written = False
        self.is_being_written = False
        # An action that creates something has happened once the statement has run that stores it.
        self.is_ready = action.id_query is None

    def add_id(self, object_id: Any) -> None:
        """Name an object that the action is about."""
        ids = self.values["object_ids"]
        if object_id not in (None, UNSET) and str(object_id) not in ids and len(ids) < _MAX_IDS:
            ids.append(shorten(str(object_id)))

    def observe(self, query: Query, values: Mapping[str, Any]) -> None:
        """Take the id of a new object, and who signs in, from the statement that stores it."""
        if query.name not in {self.action.id_query, self.action.related_id_query}:
            return

        for name in ("deployment_id", "id"):
            self.add_id(values.get(name))

        if query.name != self.action.id_query:
            return

        self.is_ready = True
        user_id = values.get("user_id")
        key_id = values.get("key_id")
        if self.action.is_sign_in and (user_id or key_id):
            kind = "service_key" if user_id is None else "user"
            self.values |= {"actor_kind": kind, "user_id": to_text(user_id), "key_id": to_text(key_id)}

    def with_outcome(self, outcome: Outcome, status: int, error: str | None) -> "PendingEntry":
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
                    is_appended = await append_entry(tx, entry.values, only_if_changed=True)

            entry.is_written |= is_appended
        finally:
            if is_ours:
                entry.is_being_written = False


class BackgroundDatabase(Database):
    """A database for background work: each transaction that runs `id_query` also appends an entry of the platform."""

    def __init__(self, db: Database, action: str, id_query: str) -> None:
        super().__init__(db.pool, db.codec)
        self._action = Action(action, id_query)

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Transaction]:
        """Open a transaction; its last statement appends the entry, if it ran the query."""
        db = AuditedDatabase(self, PendingEntry(self._action, {"actor_kind": "platform"}))
        async with db.transaction(isolation=isolation) as tx:
            yield tx


async def append_entry(db: Session, values: Mapping[str, Any], *, only_if_changed: bool = False) -> bool:
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
    await append_entry(db, PendingEntry(Action(action), values).values)


def shorten(text: str) -> str:
    """Return a text as an entry may hold it: short, and without NUL, which Postgres does not store."""
    return text.replace("\0", "")[:_MAX_TEXT]


def to_text(value: UUID | None) -> str | None:
    """Return an id as a text; None stays."""
    return None if value is None else str(value)
