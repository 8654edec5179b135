"""Moves stored data from older AES keys to the current one, so that an older key can be removed.

`RenewedKeys` reads every row that an older key encrypted, a page at a time, and replaces its ciphertext where the old
one is still stored. A pass that finds none says so in the log. Webhooks that are not delivered yet and stored stream
events are left out: they live for hours and minutes.
"""

import asyncio
import base64
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from portside.agent.encryption.ciphers import AesKeys
from portside.agent.encryption.encryptor import Encryptor, decrypt_document
from portside.agent.encryption.locations import (
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    Location,
    body_binding,
    piece_binding,
    row_of,
    value_binding,
    write_binding,
)
from portside.agent.encryption.reencryption import Statement, document_statements
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption import CannotDecrypt
from portside.kernel.db import Query, Record, Session
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
# Values may be large, and those of one page are in memory together.
PAGE = 16
_CHECK_AGAIN_S = 6 * 3600.0
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class _Blob(NamedTuple):
    """A column of ciphertext: what it is bound to, and the statement that replaces it, by these columns."""

    column: str
    target: ModelField
    binding: Callable[[Record], bytes]
    replace: Query
    keys: tuple[str, ...]


class _Table(NamedTuple):
    """A table: its pages, where they begin, and what may be encrypted. `name` is that of `document_statements`."""

    name: str
    page: Query
    start: dict[str, tuple[str, Any]]
    """By parameter, the column that it compares, and a value before all others."""
    documents: tuple[str, ...] = ()
    blob: _Blob | None = None


_CHECKPOINT = {"after": ("thread_id", ""), "after_ns": ("checkpoint_ns", ""), "after_id": ("checkpoint_id", "")}
_TABLES = (
    _Table(
        "threads", sql.threads_of_older_keys, {"after": ("thread_id", _FIRST_ID)},
        ("metadata", "config", "values", "interrupts", "error"),
    ),
    _Table("runs", sql.runs_of_older_keys, {"after": ("run_id", _FIRST_ID)}, ("metadata", "kwargs", "error")),
    _Table(
        "assistants", sql.assistants_of_older_keys, {"after": ("assistant_id", _FIRST_ID)},
        ("metadata", "config", "context"),
    ),
    _Table(
        "assistant_versions", sql.assistant_versions_of_older_keys,
        {"after": ("assistant_id", _FIRST_ID), "after_version": ("version", -1)}, ("metadata", "config", "context"),
    ),
    _Table("crons", sql.crons_of_older_keys, {"after": ("cron_id", _FIRST_ID)}, ("metadata", "payload", "owner")),
    _Table(
        "items", sql.items_of_older_keys, {"after_namespace": ("namespace", []), "after_key": ("key", "")}, ("value",)
    ),
    _Table(
        "checkpoints", sql.checkpoints_of_older_keys, _CHECKPOINT, ("metadata",),
        _Blob(
            "body", CHECKPOINT_BODY,
            lambda row: body_binding(row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]),
            sql.replace_checkpoint_body, ("thread_id", "checkpoint_ns", "checkpoint_id"),
        ),
    ),
    _Table(
        "values", sql.values_of_older_keys,
        {
            "after": ("thread_id", ""), "after_ns": ("checkpoint_ns", ""), "after_channel": ("channel", ""),
            "after_version": ("version", ""),
        },
        (),
        _Blob(
            "data", CHECKPOINT_VALUE,
            lambda row: value_binding(row["thread_id"], row["checkpoint_ns"], row["channel"]),
            sql.replace_checkpoint_value, ("thread_id", "checkpoint_ns", "channel"),
        ),
    ),
    _Table(
        "pieces", sql.pieces_of_older_keys,
        {"after": ("thread_id", ""), "after_series": ("series", -1), "after_number": ("number", -1)},
        (),
        _Blob(
            "data", CHECKPOINT_PIECE, lambda row: piece_binding(row["thread_id"], row["series"], row["number"]),
            sql.replace_checkpoint_piece, ("thread_id", "series", "number"),
        ),
    ),
    _Table(
        "writes", sql.writes_of_older_keys,
        # Special writes have negative indexes, but no task has an empty id.
        {**_CHECKPOINT, "after_task": ("task_id", ""), "after_idx": ("idx", 0)},
        (),
        _Blob(
            "data", CHECKPOINT_WRITE,
            lambda row: write_binding(
                (row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]), row["task_id"], row["channel"]
            ),
            sql.replace_checkpoint_write, ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "channel"),
        ),
    ),
)  # fmt: skip


class RenewedKeys(Task):
    """Encrypts what older AES keys encrypted again with the first one, one page at a time.

    Several servers may do so at once: the second one finds that the old ciphertext is gone.
    """

    every_s = 60.0

    def __init__(self, pool: Any, encryptor: Encryptor, keys: AesKeys) -> None:
        super().__init__()
        # Without a codec: pages are read as they are stored.
        self._session, self._encryptor = Session(pool), encryptor
        self._starts = keys.older_starts
        self._patterns = [f"%{base64_prefix(start)}%" for start in self._starts]
        self._left: list[_Table] = list(_TABLES)
        self._cursor: dict[str, Any] | None = None
        self._renewed = self._failed = 0
        self._next_pass_at = 0.0
        self._is_clean = False

    async def activate(self) -> Status:
        """Renew one page. After a pass that found nothing older, the next one is hours later."""
        if not self._starts or time.monotonic() < self._next_pass_at:
            return Status()
        if not self._left:
            return Status(again=self._end_pass())
        table = self._left[0]
        cursor = self._cursor or {name: first for name, (_, first) in table.start.items()}
        chosen = {name: value for name, value in (("patterns", self._patterns), ("starts", self._starts))
                  if name in table.page.parameters}  # fmt: skip
        rows = await self._session.fetch(table.page, **cursor, **chosen, limit=PAGE)
        renewed = sum([await self._renew(table, row) for row in rows])
        self._renewed += renewed
        if len(rows) < PAGE:
            self._left.pop(0)
            self._cursor = None
        else:
            self._cursor = {name: rows[-1][column] for name, (column, _) in table.start.items()}
        return Status({"renewed": renewed}, again=True)

    def _end_pass(self) -> bool:
        """Report what the pass found, and return whether the next one follows at once to see what is left."""
        is_again = self._renewed > 0
        if self._failed and not is_again:
            log.error("values of older AES keys do not decrypt and stay as they are", values=self._failed)
        elif not is_again and not self._is_clean:
            keys = [start[1:].hex() for start in self._starts]
            log.warning("no stored data uses the older AES keys any more; remove them from GRAPH_AES_KEY", keys=keys)
        self._is_clean = not is_again and not self._failed
        if not is_again:
            # Servers that still encrypt with an older key may go on for a while.
            self._next_pass_at = time.monotonic() + _CHECK_AGAIN_S
        self._left, self._renewed, self._failed = list(_TABLES), 0, 0
        return is_again

    async def _renew(self, table: _Table, row: Record) -> int:
        changed = 0
        for query, values in await self._statements(table, row):
            changed += await self._session.execute(query, **values)
        return int(changed > 0)

    async def _statements(self, table: _Table, row: Record) -> list[Statement]:
        statements: list[Statement] = []
        for field in table.documents:
            if row[field] is None:
                continue
            try:
                _, replacements = await decrypt_document(
                    self._encryptor, row[field], Location(row_of(dict(row)), field)
                )
            except CannotDecrypt:
                self._failed += 1
            else:
                statements += document_statements(table.name, row, field, replacements)
        if (blob := table.blob) is not None:
            stored = row[blob.column]
            try:
                _, new = await self._encryptor.decrypt_blob(stored, blob.target, blob.binding(row))
            except CannotDecrypt:
                self._failed += 1
            else:
                if new is not None:
                    statements.append(
                        (blob.replace, {**{key: row[key] for key in blob.keys}, "old": stored, "new": new})
                    )
        await asyncio.sleep(0)
        return statements


def base64_prefix(start: bytes) -> str:
    """Return the characters with which the base64 of everything begins that begins with these bytes."""
    return base64.b64encode(start).decode()[: len(start) * 8 // 6]
