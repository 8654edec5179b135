"""Refuses new data while the databases of an external server are nearly as large as they may be."""

import asyncio
from pathlib import Path

from portside.kernel.db import Database
from portside.kernel.disk import DATABASE_NOTICE, make_watched_folder, megabytes
from portside.kernel.reconcile import Status, Task
from portside.operate.sql import sql

_FULL_AT = 0.95


class DatabaseLimit(Task):
    """Writes a notice into the home while the databases of an external server are nearly as large as they may be.

    Every server with this home reads the notice (`kernel/disk.py`) and refuses new data.
    """

    every_s = 15.0

    def __init__(self, db: Database, home: Path, max_bytes: int) -> None:
        super().__init__()
        self._db = db
        self._max_bytes = max_bytes
        self._notice = make_watched_folder(home) / DATABASE_NOTICE

    async def activate(self) -> Status:
        """Measure, and write or remove the notice."""
        size = int(await self._db.fetchval(sql.databases_size)) if self._max_bytes else 0
        is_full = self._max_bytes > 0 and size > self._max_bytes * _FULL_AT
        if is_full and not self._notice.exists():
            limit = megabytes(self._max_bytes)
            text = f"its databases take {megabytes(size)} of the {limit} that DATABASE_MAX_BYTES allows"

            # Not private: agents in containers read it.
            await asyncio.to_thread(self._notice.write_text, text + "\n", "utf-8")
            self._notice.chmod(0o644)
        elif not is_full:
            self._notice.unlink(missing_ok=True)

        return Status({"full": int(is_full)})
