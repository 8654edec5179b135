"""Storing what was read in the form that a handler wants it in from now on, such as under a newer key.

Nobody waits for that: it is done one at a time, on the server's event loop, and only where what was read still stands.
What does not get its turn is offered again when it is next read.
"""

import asyncio
from collections import deque
from typing import Any

from portside.agent.encryption.opening import Replaced
from portside.agent.sql import sql
from portside.kernel.db import Record, Session
from portside.kernel.logs import get_logger
from portside.kernel.queries import Query

log = get_logger(__name__)
WAITING_AT_MOST = 1000
_CHECKPOINT = ("thread_id", "checkpoint_ns", "checkpoint_id")
_THREAD = (sql.replace_in_threads, ("thread_id",))
_RUN = (sql.replace_in_runs, ("run_id",))
_ASSISTANT = (sql.replace_in_assistants, ("assistant_id",))
_CRON = (sql.replace_in_crons, ("cron_id",))
_ITEM = (sql.replace_in_items, ("namespace", "key"))
# Which statements read whose documents, and the columns that name them.
_READERS: dict[str, tuple[Query, tuple[str, ...]]] = {
    **dict.fromkeys(("get_thread", "search_threads", "patch_thread"), _THREAD),
    **dict.fromkeys(("get_run", "get_runs", "list_runs", "claim_runs"), _RUN),
    **dict.fromkeys(("get_assistant", "search_assistants"), _ASSISTANT),
    "list_assistant_versions": (sql.replace_in_assistant_versions, ("assistant_id", "version")),
    **dict.fromkeys(("get_cron", "search_crons", "claim_due_crons"), _CRON),
    **dict.fromkeys(("get_items", "search_items", "search_items_by_meaning"), _ITEM),
    **dict.fromkeys(("read_checkpoint", "read_states", "list_checkpoints"), (sql.replace_in_checkpoints, _CHECKPOINT)),
}
Statement = tuple[Query, dict[str, Any]]


class Replacer:
    """Writes replacements. Make it on the event loop that the pool belongs to; offers may come from any."""

    def __init__(self, pool: Any) -> None:
        # Without a codec: what it writes is sealed.
        self._session = Session(pool)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Statement] = deque()
        self._writing: asyncio.Task[None] | None = None

    def offer(self, statements: list[Statement]) -> None:
        """Take statements to be run when there is time."""
        if statements:
            self._loop.call_soon_threadsafe(self._take, statements)

    def _take(self, statements: list[Statement]) -> None:
        self._waiting.extend(statements[: WAITING_AT_MOST - len(self._waiting)])
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                query, values = self._waiting.popleft()
                await self._session.execute(query, **values)
        except Exception as exc:  # noqa: BLE001 - it is offered again when it is read again
            log.warning("what a handler replaced was not stored", error=type(exc).__name__)
        finally:
            self._writing = None


def document_statements(name: str, row: Record, field: str, replaced: list[Replaced]) -> list[Statement]:
    """Return what stores parts of a document anew that a statement read."""
    reader = _READERS.get(name)
    if reader is None:
        return []
    query, keys = reader
    place = {key: row[key] for key in keys}
    return [
        (query, {**place, "field": field, "path": list(one.path), "old": one.old, "new": one.new}) for one in replaced
    ]


def blob_statement(row: Record, column: str, number: int, pair: tuple[bytes, bytes]) -> Statement | None:
    """Return what stores a blob of a checkpoint anew; None for what is kept for minutes only."""
    if "checkpoint_id" not in row:
        return None
    values: dict[str, Any] = {key: row[key] for key in _CHECKPOINT} | {"old": pair[0], "new": pair[1]}
    if column == "body":
        return sql.replace_checkpoint_body, values
    if column == "write_datas":
        named = {"task_id": row["write_tasks"][number], "channel": row["write_channels"][number]}
        return sql.replace_checkpoint_write, values | named
    del values["checkpoint_id"]
    return sql.replace_checkpoint_value, values | {"channel": row["value_channels"][number]}
