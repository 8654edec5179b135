"""The use of the disk: each table of each database, and each kind of file in the home folder, by deployment.

Files count by their blocks, and one with several names once, as `du` counts them. A build never changes, so its size is
measured once.
"""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from portside.kernel.db import Database
from portside.kernel.disk import DiskReserve, measure
from portside.kernel.logs import get_logger
from portside.operate.sql import sql

log = get_logger(__name__)
_AGENT_DATABASE = re.compile(r"^agent_([0-9a-f]{32})$")
_TIMEOUT_S = 30.0
_VALID_S = 10.0
_BLOCK = 512
# The tables of the agent server are in a schema of their own; the rest of such a database is the project's.
_OWN_SCHEMA = "portside"
_KINDS_OF_AGENT = {
    "checkpoint": "checkpoints",
    "stream": "event logs",
    "store": "store",
    "thread": "threads",
    "runs": "runs",
    "webhook": "webhooks",
    "long_value": "checkpoints",
}
_KINDS_OF_PLATFORM = {
    "runs": "traces",
    "traces": "traces",
    "attachments": "traces",
    "feedback": "traces",
    "shared_runs": "traces",
    "run_pieces": "traces",
    "piece_users": "traces",
    "daily_": "usage",
    "trace_": "usage",
    "counted_": "usage",
    "project_days": "usage",
    "revision_logs": "run logs",
    "datasets": "datasets",
    "dataset_": "datasets",
    "example": "datasets",
    "prompt": "prompts",
    "audit": "audit log",
}
_FILES_OF_HOME = {
    "archives": "archives",
    "logs": "logs",
    "examples": "other",
    "dataplane/uv-cache": "build cache",
    "dataplane/compiled-modules": "build cache",
    "dataplane/wheels": "build cache",
    "dataplane/node-cache": "build cache",
    "dataplane/node-runtimes": "build cache",
    "dataplane/node": "build cache",
    "backups": "backups",
    "ingress": "front",
    "postgres/data/pg_wal": "write-ahead log",
}
_FILES_OF_DEPLOYMENT = {
    "revisions": "builds",
    "sources": "sources of builds",
    "logs": "logs",
    "home": "files of agents",
}


class SpaceTaken(msgspec.Struct):
    """One kind of data in one place, in bytes. `dead_bytes` is the share of rows that autovacuum will free."""

    kind: str
    place: Literal["database", "files"]
    bytes: int
    deployment_id: UUID | None = None
    deployment: str | None = None
    dead_bytes: int = 0


class DatabaseSize(msgspec.Struct):
    """A database, and why its tables could not be measured, if they could not."""

    name: str
    bytes: int
    problem: str | None = None


class DiskReport(msgspec.Struct):
    """The disk of the home folder, and what takes its space, the largest first.

    `shortage` says why new data is refused; it is null while there is room.
    """

    folder: str
    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    shortage: str | None
    home_bytes: int
    databases_bytes: int
    databases: list[DatabaseSize]
    taken: list[SpaceTaken]


class _SizeKey(NamedTuple):
    kind: str
    place: Literal["database", "files"]
    deployment_id: UUID | None = None


class DiskUsage:
    """Measures what takes the space; callers at the same moment share one measurement."""

    def __init__(self, db: Database, database_url: str, home: Path, reserve: DiskReserve) -> None:
        self._db = db
        self._url = database_url
        self._home = home
        self._reserve = reserve
        self._lock = asyncio.Lock()
        self._last_report: tuple[float, DiskReport] | None = None
        self._builds: dict[tuple[str, int], int] = {}

    async def report(self, shortage: str | None) -> DiskReport:
        """Return what takes the space; the result may be some seconds old."""
        async with self._lock:
            if self._last_report is None or time.monotonic() - self._last_report[0] > _VALID_S:
                self._last_report = (time.monotonic(), await self._measure())

            return msgspec.structs.replace(self._last_report[1], shortage=shortage)

    async def _measure(self) -> DiskReport:
        sizes = Counter[_SizeKey]()
        dead = Counter[_SizeKey]()

        rows = await self._db.fetch(sql.databases_by_size)
        databases = [await self._measure_database(row, sizes, dead) for row in rows]
        home_bytes = await asyncio.to_thread(self._measure_files, sizes)

        total = sum(database.bytes for database in databases)
        if (self._home / "postgres" / "data").is_dir():
            # The files of the embedded Postgres that belong to no database.
            key = _SizeKey("Postgres itself", "files")
            sizes[key] = max(0, sizes[key] - total)

        names = {row["id"]: row["name"] for row in await self._db.fetch(sql.names_of_deployments)}
        taken = [
            SpaceTaken(
                kind=key.kind,
                place=key.place,
                bytes=size,
                deployment_id=key.deployment_id,
                deployment=_get_deployment_name(key.deployment_id, names),
                dead_bytes=dead[key],
            )
            for key, size in sizes.most_common()
        ]

        space = measure(self._home)
        return DiskReport(
            folder=str(self._home),
            total_bytes=space.total,
            free_bytes=space.free,
            reserve_bytes=self._reserve.of(space.total),
            shortage=None,
            home_bytes=home_bytes,
            databases_bytes=total,
            databases=databases,
            taken=taken,
        )

    async def _measure_database(self, row: Any, sizes: Counter[_SizeKey], dead: Counter[_SizeKey]) -> DatabaseSize:
        """Add the tables of a database, and what it has beside them."""
        database = DatabaseSize(row["name"], row["bytes"])
        match = _AGENT_DATABASE.match(row["name"])
        deployment_id = None if match is None else UUID(match[1])
        rest = database.bytes

        if match is not None or row["is_own"]:
            try:
                async with self._connect(row["name"]) as connection:
                    tables = await connection.fetch(sql.table_sizes.sql)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
                database.problem = str(exc) or type(exc).__name__
                tables = []

            for table in tables:
                key = _SizeKey(_get_kind(table, is_agent=match is not None), "database", deployment_id)
                sizes[key] += table["bytes"]
                dead[key] += table["bytes"] * table["dead_rows"] // max(1, table["dead_rows"] + table["live_rows"])
                rest -= table["bytes"]

        is_foreign = match is None and not row["is_own"]
        rest_kind = "other databases" if is_foreign else "catalogs"
        sizes[_SizeKey(rest_kind, "database", deployment_id)] += max(0, rest)

        return database

    @asynccontextmanager
    async def _connect(self, name: str) -> Any:
        connection = await asyncpg.connect(self._url, database=name, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S)
        try:
            yield connection
        finally:
            await connection.close(timeout=5)

    def _measure_files(self, sizes: Counter[_SizeKey]) -> int:
        """Add the files of the home, and return what all of them take."""
        inodes: set[tuple[int, int]] = set()
        before = sizes.total()
        deployments = self._home / "dataplane" / "deployments"
        parts: dict[Path, _SizeKey] = {
            self._home / name: _SizeKey(kind, "files") for name, kind in _FILES_OF_HOME.items()
        }
        parts[self._home / "postgres" / "data"] = _SizeKey("Postgres itself", "files")

        for folder in _list_folders(deployments):
            deployment_id = _parse_uuid(folder.name)
            for name, kind in _FILES_OF_DEPLOYMENT.items():
                parts[folder / name] = _SizeKey(kind, "files", deployment_id)

        borders = frozenset(map(str, parts))
        for path, key in parts.items():
            if key.kind == "builds":
                sizes[key] += sum(
                    self._measure_build(build, inodes) for build in _list_folders(path)
                ) + _get_block_bytes(path)
            else:
                sizes[key] += measure_size(path, inodes, borders)

        sizes[_SizeKey("other", "files")] += measure_size(self._home, inodes, borders)
        return sizes.total() - before

    def _measure_build(self, build: Path, inodes: set[tuple[int, int]]) -> int:
        """Return the size of a build; that of a complete one is measured once."""
        marker = build / "built.json"
        try:
            key = (str(build), marker.stat().st_mtime_ns)
        except OSError:
            return measure_size(build, inodes)

        if key not in self._builds:
            self._builds[key] = measure_size(build, inodes)

        return self._builds[key]


def measure_size(path: Path, inodes: set[tuple[int, int]], borders: frozenset[str] = frozenset()) -> int:
    """Return the bytes that a file or folder takes on the disk; what is in `inodes` was counted before.

    Nothing inside it whose path is in `borders` counts.
    """
    size = 0
    waiting = [str(path)]
    while waiting:
        current = waiting.pop()
        try:
            status = os.lstat(current)
            is_folder = _is_folder(status.st_mode)
            if status.st_nlink > 1 and not is_folder:
                inode = (status.st_dev, status.st_ino)
                if inode in inodes:
                    continue

                inodes.add(inode)

            size += status.st_blocks * _BLOCK
            if is_folder:
                waiting += [entry.path for entry in os.scandir(current) if entry.path not in borders]
        except OSError:
            continue  # Removed in the meantime, or another user's.

    return size


def _is_folder(mode: int) -> bool:
    return mode & 0o170000 == 0o040000


def _get_block_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * _BLOCK
    except OSError:
        return 0


def _list_folders(parent: Path) -> Iterator[Path]:
    try:
        yield from (entry for entry in parent.iterdir() if entry.is_dir() and not entry.is_symlink())
    except OSError:
        return


def _parse_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _get_deployment_name(deployment_id: UUID | None, names: dict[UUID, str]) -> str | None:
    if deployment_id is None:
        return None
    return names.get(deployment_id, f"deleted ({deployment_id})")


def _get_kind(table: Any, *, is_agent: bool) -> str:
    name = str(table["name"])
    if not is_agent:
        return _find_kind(name, _KINDS_OF_PLATFORM, "platform")
    if table["schema"] != _OWN_SCHEMA:
        return "tables of the project"

    return _find_kind(name, _KINDS_OF_AGENT, "agent server")


def _find_kind(name: str, kinds: dict[str, str], otherwise: str) -> str:
    return next((kind for start, kind in kinds.items() if name.startswith(start)), otherwise)
