"""Moves stored data from older AES keys to the current one, so that an older key can be removed.

`RenewedKeys` reads every row that an older key encrypted, a page at a time. A pass that finds none says so in the log.
`ENCRYPTED_TABLES` are the tables, and what of them may be encrypted.
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
    EVENTS,
    Location,
    body_binding,
    events_binding,
    identify_row,
    piece_binding,
    value_binding,
    write_binding,
)
from portside.agent.encryption.replacements import Statement, build_document_statements
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption_handlers import CannotDecrypt
from portside.kernel.db import Query, Record, Session
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
# Values may be large, and those of one page are in memory together.
PAGE = 16
# After a pass that found nothing to renew.
_CHECK_AGAIN_S = 6 * 3600.0
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class BlobColumn(NamedTuple):
    """A column of ciphertext."""

    column: str
    target: ModelField
    binding: Callable[[Record], bytes]
    """What binds the ciphertext to its row."""
    replace: Query
    """The statement that replaces it."""
    keys: tuple[str, ...]
    """The columns by which that statement finds the row."""


class EncryptedTable(NamedTuple):
    """A table, and what in it may be encrypted."""

    name: str
    """The name that `build_document_statements` knows."""
    page: Query
    """Returns a page of its rows that an older key encrypted."""
    start: dict[str, tuple[str, Any]]
    """By parameter, the column that it compares, and a value before all others."""
    documents: tuple[str, ...] = ()
    blob: BlobColumn | None = None


_FIRST_CHECKPOINT = {"after": ("thread_id", ""), "after_ns": ("checkpoint_ns", ""), "after_id": ("checkpoint_id", "")}


ENCRYPTED_TABLES = (
    EncryptedTable(
        name="threads",
        page=sql.threads_of_older_keys,
        start={"after": ("thread_id", _FIRST_ID)},
        documents=("metadata", "config", "values", "interrupts", "error"),
    ),
    EncryptedTable(
        name="runs",
        page=sql.runs_of_older_keys,
        start={"after": ("run_id", _FIRST_ID)},
        documents=("metadata", "kwargs", "error"),
    ),
    EncryptedTable(
        name="assistants",
        page=sql.assistants_of_older_keys,
        start={"after": ("assistant_id", _FIRST_ID)},
        documents=("metadata", "config", "context"),
    ),
    EncryptedTable(
        name="assistant_versions",
        page=sql.assistant_versions_of_older_keys,
        start={"after": ("assistant_id", _FIRST_ID), "after_version": ("version", -1)},
        documents=("metadata", "config", "context"),
    ),
    EncryptedTable(
        name="crons",
        page=sql.crons_of_older_keys,
        start={"after": ("cron_id", _FIRST_ID)},
        documents=("metadata", "payload", "owner"),
    ),
    EncryptedTable(
        name="items",
        page=sql.items_of_older_keys,
        start={"after_namespace": ("namespace", []), "after_key": ("key", "")},
        documents=("value",),
    ),
    EncryptedTable(
        name="checkpoints",
        page=sql.checkpoints_of_older_keys,
        start=_FIRST_CHECKPOINT,
        documents=("metadata",),
        blob=BlobColumn(
            column="body",
            target=CHECKPOINT_BODY,
            binding=lambda row: body_binding(row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]),
            replace=sql.replace_checkpoint_body,
            keys=("thread_id", "checkpoint_ns", "checkpoint_id"),
        ),
    ),
    EncryptedTable(
        name="values",
        page=sql.values_of_older_keys,
        start={
            "after": ("thread_id", ""),
            "after_ns": ("checkpoint_ns", ""),
            "after_channel": ("channel", ""),
            "after_version": ("version", ""),
        },
        blob=BlobColumn(
            column="data",
            target=CHECKPOINT_VALUE,
            binding=lambda row: value_binding(row["thread_id"], row["checkpoint_ns"], row["channel"]),
            replace=sql.replace_checkpoint_value,
            keys=("thread_id", "checkpoint_ns", "channel"),
        ),
    ),
    EncryptedTable(
        name="pieces",
        page=sql.pieces_of_older_keys,
        start={"after": ("thread_id", ""), "after_series": ("series", -1), "after_number": ("number", -1)},
        blob=BlobColumn(
            column="data",
            target=CHECKPOINT_PIECE,
            binding=lambda row: piece_binding(row["thread_id"], row["series"], row["number"]),
            replace=sql.replace_checkpoint_piece,
            keys=("thread_id", "series", "number"),
        ),
    ),
    EncryptedTable(
        name="writes",
        page=sql.writes_of_older_keys,
        # Special writes have negative indexes, but no task has an empty id.
        start={**_FIRST_CHECKPOINT, "after_task": ("task_id", ""), "after_idx": ("idx", 0)},
        blob=BlobColumn(
            column="data",
            target=CHECKPOINT_WRITE,
            binding=lambda row: write_binding(
                (row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]), row["task_id"], row["channel"]
            ),
            replace=sql.replace_checkpoint_write,
            keys=("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "channel"),
        ),
    ),
    EncryptedTable(
        name="webhook_deliveries",
        page=sql.webhooks_of_older_keys,
        start={"after": ("run_id", _FIRST_ID)},
        documents=("values", "metadata", "kwargs", "error"),
    ),
    EncryptedTable(
        name="chunks",
        page=sql.chunks_of_older_keys,
        start={"after": ("thread_id", _FIRST_ID), "after_number": ("number", -1)},
        blob=BlobColumn(
            column="body",
            target=EVENTS,
            binding=lambda row: events_binding(row["thread_id"]),
            replace=sql.replace_stream_chunk,
            keys=("thread_id", "number"),
        ),
    ),
)


class RenewedKeys(Task):
    """Encrypts again, with the first AES key, what older keys encrypted, one page at a time.

    Several servers may do so at once: the second one finds that the old ciphertext is gone.
    """

    every_s = 60.0

    def __init__(self, pool: Any, encryptor: Encryptor, keys: AesKeys) -> None:
        super().__init__()
        # Without a codec: pages are read as they are stored.
        self._session = Session(pool)
        self._encryptor = encryptor
        self._starts = keys.older_starts
        self._patterns = [f"%{base64_prefix(start)}%" for start in self._starts]
        self._left: list[EncryptedTable] = list(ENCRYPTED_TABLES)
        self._cursor: dict[str, Any] | None = None

        self._renewed = 0
        self._failed = 0
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
        # Documents are found by patterns of their envelopes, and blobs by how they start.
        conditions = {"patterns": self._patterns, "starts": self._starts}
        conditions = {name: value for name, value in conditions.items() if name in table.page.parameters}

        rows = await self._session.fetch(table.page, **cursor, **conditions, limit=PAGE)
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
            log.error(
                "values that were encrypted with older AES keys cannot be decrypted and stay as they are",
                values=self._failed,
            )
        elif not is_again and not self._is_clean:
            keys = [start[1:].hex() for start in self._starts]
            log.warning("no stored data uses the older AES keys any more; remove them from GRAPH_AES_KEY", keys=keys)

        self._is_clean = not is_again and not self._failed
        if not is_again:
            # Servers that still encrypt with an older key may continue for a while.
            self._next_pass_at = time.monotonic() + _CHECK_AGAIN_S

        self._left = list(ENCRYPTED_TABLES)
        self._renewed = 0
        self._failed = 0

        return is_again

    async def _renew(self, table: EncryptedTable, row: Record) -> int:
        changed = 0
        for query, values in await self._statements(table, row):
            changed += await self._session.execute(query, **values)

        return int(changed > 0)

    async def _statements(self, table: EncryptedTable, row: Record) -> list[Statement]:
        statements: list[Statement] = []

        for field in table.documents:
            if row[field] is None:
                continue

            location = Location(identify_row(dict(row)), field)
            try:
                _, replacements = await decrypt_document(self._encryptor, row[field], location)
            except CannotDecrypt:
                self._failed += 1
            else:
                statements += build_document_statements(table.name, row, field, replacements)

        blob = table.blob
        if blob is not None:
            stored = row[blob.column]
            try:
                _, new = await self._encryptor.decrypt_blob(stored, blob.target, blob.binding(row))
            except CannotDecrypt:
                self._failed += 1
            else:
                if new is not None:
                    ids = {key: row[key] for key in blob.keys}
                    statements.append((blob.replace, {**ids, "old": stored, "new": new}))

        await asyncio.sleep(0)
        return statements


def base64_prefix(start: bytes) -> str:
    """Return the characters with which the base64 of everything begins that begins with these bytes."""
    return base64.b64encode(start).decode()[: len(start) * 8 // 6]
