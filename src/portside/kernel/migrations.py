"""Forward-only migrations: numbered SQL files, all that are missing in one transaction, under an advisory lock.

A room keeps its files in `migrations/0001_what.sql`. What was applied is remembered with a checksum; a changed file,
or a database newer than the program, is refused. Several processes may start at once: one applies, the others wait.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import asyncpg

from portside.kernel.db import Database
from portside.kernel.errors import OutOfReach, UserMistake

LOCK_TIMEOUT_S = 60
_LOCK_KEY = 0x706F7274  # "port"
_LEDGER = """
create table if not exists applied_migrations (
    room text not null,
    number int not null,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now(),
    primary key (room, number)
)"""


@dataclass(frozen=True)
class Migration:
    """One SQL file of a room."""

    room: str
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the file's text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations_of(package: str) -> list[Migration]:
    """Read a room's migrations in order."""
    room = package.rsplit(".", 1)[-1]
    found = [file for file in files(package).joinpath("migrations").iterdir() if file.name.endswith(".sql")]
    return sorted(
        (Migration(room, int(file.name.split("_", 1)[0]), file.name, file.read_text("utf-8")) for file in found),
        key=lambda migration: migration.number,
    )


async def migrate(db: Database, packages: list[str], *, schema: str | None = None) -> int:
    """Apply what is missing and return how many files that was.

    Raises UserMistake for a changed file, a database newer than the program, and a lock that is not let go.
    """
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_S}s'")
        await _lock(connection)
        if schema:
            await connection.execute(f'create schema if not exists "{schema}"')
        await connection.execute(_LEDGER)
        count = 0
        for package in packages:
            count += await _migrate_room(connection, package)
        return count


async def _lock(connection: Any) -> None:
    try:
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK_KEY)
    except asyncpg.LockNotAvailableError as exc:
        raise OutOfReach(
            f"another process is changing the database and has not ended within {LOCK_TIMEOUT_S} s; stop it"
        ) from exc


async def _migrate_room(connection: Any, package: str) -> int:
    known = {migration.number: migration for migration in migrations_of(package)}
    room = package.rsplit(".", 1)[-1]
    rows = await connection.fetch("select number, name, checksum from applied_migrations where room = $1", room)
    for row in rows:
        if row["number"] not in known:
            raise UserMistake(f"the database is newer than this program: {room} has migration {row['name']}; upgrade")
        if known[row["number"]].checksum != row["checksum"]:
            raise UserMistake(f"migration {room}/{row['name']} was changed after it was applied")
    done = {row["number"] for row in rows}
    missing = [migration for number, migration in known.items() if number not in done]
    for migration in missing:
        await connection.execute(migration.sql)
        await connection.execute(
            "insert into applied_migrations (room, number, name, checksum) values ($1, $2, $3, $4)",
            room,
            migration.number,
            migration.name,
            migration.checksum,
        )
    return len(missing)
