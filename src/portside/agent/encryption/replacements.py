"""Replaces stored ciphertext, in the background.

A handler may replace what it decrypts, for example to move it to a newer key. `ReplacementWriter` stores the
replacement, one statement at a time, and only where the old ciphertext is still there. If it is dropped, the next read
of the value offers it again.
"""

import asyncio
from collections import deque
from typing import Any

from portside.agent.encryption.encryptor import Replacement
from portside.agent.sql import sql
from portside.kernel.db import Query, Record, Session
from portside.kernel.logs import get_logger

log = get_logger(__name__)
MAX_WAITING = 1000
_CHECKPOINT = ("thread_id", "checkpoint_ns", "checkpoint_id")
# By the table that a query declares as `replaceable`, the statement that replaces, and the columns that name the row.
_REPLACEMENTS: dict[str, tuple[Query, tuple[str, ...]]] = {
    "threads": (sql.replace_in_threads, ("thread_id",)),
    "runs": (sql.replace_in_runs, ("run_id",)),
    "assistants": (sql.replace_in_assistants, ("assistant_id",)),
    "assistant_versions": (sql.replace_in_assistant_versions, ("assistant_id", "version")),
    "crons": (sql.replace_in_crons, ("cron_id",)),
    "items": (sql.replace_in_items, ("namespace", "key")),
    "checkpoints": (sql.replace_in_checkpoints, _CHECKPOINT),
    "webhook_deliveries": (sql.replace_in_webhook_deliveries, ("run_id",)),
}
Statement = tuple[Query, dict[str, Any]]


class ReplacementWriter:
    """Writes replacements. Create it on the event loop of the pool; any loop may offer."""

    def __init__(self, pool: Any) -> None:
        # Without a codec: what it writes is already encrypted.
        self._session = Session(pool)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Statement] = deque()
        self._writing: asyncio.Task[None] | None = None

    def offer(self, statements: list[Statement]) -> None:
        """Queue statements to be run in the background; those that do not fit the queue are dropped."""
        if statements:
            self._loop.call_soon_threadsafe(self._take, statements)

    def _take(self, statements: list[Statement]) -> None:
        self._waiting.extend(statements[: MAX_WAITING - len(self._waiting)])
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                query, values = self._waiting.popleft()
                await self._session.execute(query, **values)
        except Exception as exc:  # noqa: BLE001 - the next read offers it again
            log.warning("a value that the encryption handler encrypted again was not stored", error=type(exc).__name__)
        finally:
            self._writing = None


def build_document_statements(
    table: str | None, row: Record, field: str, replacements: list[Replacement]
) -> list[Statement]:
    """Return the statements that replace envelopes in a document of a row; none where a query declares no table."""
    if table is None:
        return []

    query, keys = _REPLACEMENTS[table]
    ids = {key: row[key] for key in keys}
    return [
        (query, {**ids, "field": field, "path": list(replacement.path), "old": replacement.old, "new": replacement.new})
        for replacement in replacements
    ]


def build_blob_statement(row: Record, column: str, index: int, pair: tuple[bytes, bytes]) -> Statement | None:
    """Return the statement that replaces a blob of a checkpoint; None for events, which are kept for minutes only."""
    if "checkpoint_id" not in row:
        return None

    old, new = pair
    values: dict[str, Any] = {key: row[key] for key in _CHECKPOINT} | {"old": old, "new": new}
    if column == "body":
        return sql.replace_checkpoint_body, values

    if column == "write_datas":
        ids = {"task_id": row["write_tasks"][index], "channel": row["write_channels"][index]}
        return sql.replace_checkpoint_write, values | ids

    del values["checkpoint_id"]
    return sql.replace_checkpoint_value, values | {"channel": row["value_channels"][index]}
