"""The databases of a platform in a backup, by the programs of Postgres.

The embedded server is copied as a whole by `pg_basebackup`, with the WAL that makes the copy consistent.
Databases of another server are dumped by `pg_dump`, each as it is at one moment. Both work while everything runs.
"""

import asyncio
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import asyncpg

from portside.backup.contents import Packer
from portside.kernel.embedded import find_program
from portside.kernel.errors import UserMistake
from portside.kernel.ids import uuid7
from portside.kernel.logs import get_logger

if TYPE_CHECKING:
    from portside.backup.work import InterruptibleWork

log = get_logger(__name__)
_CONNECT_WITHIN_S = 60.0
_SLOT = "portside_backup_"
DUMPS = "dumps"
DUMP_SUFFIX = ".dump"
# The platform's database, and those of deployments, which `portside.dataplane` names `agent_` and their id. One that is
# dropped meanwhile has no size.
_DATABASES = """
select datname as name, coalesce(pg_database_size(oid), 0) as size_bytes, current_database() = datname as is_platform
from pg_database
where (datname = current_database() or datname ~ '^agent_[0-9a-f]{32}$') and has_database_privilege(oid, 'connect')
order by is_platform desc, datname"""

# Postgres quotes the names, so `count_rows` may put them into a statement.
_TABLES = """
select format('%I.%I', schemaname, tablename) as name from pg_tables
where schemaname not in ('pg_catalog', 'information_schema')"""
_AGENT = re.compile(r"agent_[0-9a-f]{32}")
_PUBLIC_EXTENSION = re.compile(r'^CREATE EXTENSION IF NOT EXISTS "?([\w-]+)"? WITH SCHEMA public;$', re.MULTILINE)
# The types of extensions that the platform creates wherever it may.
_TYPES = {"vector": re.compile(r"\b(?:vector|halfvec|sparsevec)\b")}
_ABOUT_EXTENSION = re.compile(r"\bEXTENSION\b")


class BackupFailed(UserMistake):
    """A backup or a restore could not be completed; the message says why."""


class DatabaseConnection(NamedTuple):
    """How programs of Postgres reach a database: the password is in their environment, never among their arguments."""

    dsn: str
    environment: Mapping[str, str]

    @classmethod
    def from_url(cls, url: str, database: str | None = None) -> "DatabaseConnection":
        """Return the access of a URL, to its database or to another one."""
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        name, _, password = user.partition(":")
        netloc = f"{name}@{host}" if name else host
        path = parts.path if database is None else f"/{quote(database)}"
        dsn = urlunsplit(("postgresql", netloc, path, parts.query, ""))

        environment = {**os.environ, "LC_ALL": "C"}
        if password:
            environment["PGPASSWORD"] = unquote(password)

        return cls(dsn, environment)


class OwnedDatabase(NamedTuple):
    """A database that belongs to the platform."""

    name: str
    size_bytes: int


async def list_platform_databases(url: str) -> list[OwnedDatabase]:
    """List the platform's database, which is the first, and those of its deployments on the same server."""
    async with open_connection(url) as connection:
        return [OwnedDatabase(row["name"], row["size_bytes"]) for row in await connection.fetch(_DATABASES)]


async def count_rows(url: str) -> dict[str, int]:
    """Count the rows of all tables of each database of the platform. Raises BackupFailed."""
    totals = {}
    for database in await list_platform_databases(url):
        async with open_connection(url, database.name) as connection:
            tables = await connection.fetch(_TABLES)
            counts = [await connection.fetchval(f"select count(*) from {row['name']}") for row in tables]  # noqa: S608

        totals[database.name] = sum(counts)

    return totals


async def get_applied_migrations(url: str) -> dict[str, int]:
    """Return the number of the last migration of each package; none of an empty database."""
    async with open_connection(url) as connection:
        if await connection.fetchval("select to_regclass('applied_migrations')") is None:
            return {}

        rows = await connection.fetch("select package, max(number) as number from applied_migrations group by package")
        return {row["package"]: row["number"] for row in rows}


async def get_postgres_version(url: str) -> int:
    """Return the major version of a server."""
    async with open_connection(url) as connection:
        return int(connection.get_server_version().major)


async def copy_server(url: str, packer: Packer, prefix: str, work: "InterruptibleWork") -> None:
    """Add a copy of the whole server's data folder. Raises BackupFailed."""
    async with open_connection(url) as connection:
        # Without a replication slot, the server could remove the WAL of a long copy before its end. This temporary slot
        # ends with the connection.
        slot = f"{_SLOT}{uuid7().hex}"
        await connection.fetchval("select pg_create_physical_replication_slot($1, true, true)", slot)

        access = DatabaseConnection.from_url(url)
        arguments = ["-D", "-", "-F", "tar", "-X", "fetch", "-c", "fast", "-d", access.dsn]
        with start_program("pg_basebackup", arguments, access) as process:
            await work.run(packer.add_archive, prefix, _get_stdout(process), on_interrupt=process.kill)


async def dump_database(url: str, name: str, packer: Packer, work: "InterruptibleWork") -> None:
    """Add a dump of one database as it is now. Raises BackupFailed."""
    access = DatabaseConnection.from_url(url, name)
    # Postgres' own format without compression: the whole backup is compressed.
    with start_program("pg_dump", ["-F", "custom", "-Z", "0", "-d", access.dsn], access) as process:
        dump = f"{DUMPS}/{name}{DUMP_SUFFIX}"
        await work.run(packer.add_stream, dump, _get_stdout(process), on_interrupt=process.kill)


async def restore_dumps(url: str, folder: Path) -> None:
    """Restore all dumps of a folder into the server of a URL, whose database must be empty. Raises BackupFailed.

    After a failure the server is as it was before: the databases of deployments are dropped, and the platform's own,
    which is the last, is restored in one transaction.
    """
    dumps = await asyncio.to_thread(_find_dumps, folder)
    agents = [name for name in dumps if _AGENT.fullmatch(name)]

    others = dumps.keys() - set(agents)
    if len(others) != 1:
        raise BackupFailed(f"the backup must hold one dump of a platform's database, and holds {len(others)}")

    (platform_name,) = others
    undo_statements: list[str] = []
    async with open_connection(url) as connection:
        await _check_empty(connection, agents)
        try:
            for name in agents:
                await _create_database(connection, name, undo_statements)
                await _restore_dump(url, name, dumps[name], ["--role", name])

            await _restore_dump(url, None, dumps[platform_name], [])
        except BaseException:
            await _undo(connection, undo_statements)
            raise


def _find_dumps(folder: Path) -> dict[str, Path]:
    return {file.name.removesuffix(DUMP_SUFFIX): file for file in sorted(folder.glob(f"*{DUMP_SUFFIX}"))}


async def _check_empty(connection: Any, agents: list[str]) -> None:
    tables = await connection.fetchval(
        "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.relkind in ('r', 'p', 'v', 'm', 'S') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'"
    )
    if tables:
        raise BackupFailed("the database of DATABASE_URL is not empty; restore into an empty one")

    existing_name = await connection.fetchval(
        "select min(datname) from pg_database where datname = any($1::text[])", agents
    )
    if existing_name is None:
        existing_name = await connection.fetchval(
            "select min(rolname) from pg_roles where rolname = any($1::text[])", agents
        )

    if existing_name is not None:
        raise BackupFailed(
            f"the server of DATABASE_URL has a database or a role {existing_name} already; restore into another "
            "server; nothing was changed"
        )


async def _create_database(connection: Any, name: str, undo_statements: list[str]) -> None:
    """Create the role and the database of a deployment. Raises BackupFailed.

    `undo_statements` gets the statements that undo it.
    """
    try:
        await _create(connection, f'role "{name}" login', undo_statements, f'drop role if exists "{name}"')
        await connection.execute(f'grant "{name}" to current_user')

        drop = f'drop database if exists "{name}" with (force)'
        await _create(connection, f'database "{name}" owner "{name}"', undo_statements, drop)
        await connection.execute(f'revoke connect on database "{name}" from public')
    except asyncpg.PostgresError as exc:
        raise BackupFailed(f"the database {name} cannot be created: {exc}") from exc


async def _create(connection: Any, what: str, undo_statements: list[str], undo: str) -> None:
    undo_statements.append(undo)
    try:
        await connection.execute(f"create {what}")
    except asyncpg.PostgresError:
        # It was refused, so something of this name belongs to somebody else. If it is interrupted, it may be there.
        undo_statements.pop()
        raise


async def _undo(connection: Any, undo_statements: list[str]) -> None:
    """Execute statements, the last first. What cannot be undone is logged: the failure before it matters more."""
    for statement in reversed(undo_statements):
        try:
            await connection.execute(statement)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
            log.warning("a restore failed, and leaves something behind", statement=statement, reason=str(exc))


async def _restore_dump(url: str, name: str | None, dump: Path, more: list[str]) -> None:
    """Restore one dump in one transaction.

    A role that owns its database alone can create most extensions, but not all: those that are in the schema `public`
    are created before, by the role of the URL. One that may not be created and that nothing uses is left out: every
    database of an embedded server has `vector`, for stores that search by meaning.
    """
    access = DatabaseConnection.from_url(url, name)
    schema = await _run_program("pg_restore", ["--section=pre-data", "-f", "-", str(dump)], access)
    extensions = set(_PUBLIC_EXTENSION.findall(schema)) if name is not None else set[str]()
    for extension in sorted(extensions):
        try:
            await _create_extension(url, name, extension)
        except BackupFailed:
            if _is_used(extension, schema):
                raise
            log.info("an extension that nothing uses is left out", database=name, extension=extension)

    listing = await _run_program("pg_restore", ["--list", str(dump)], access)
    list_file = dump.with_suffix(".list")
    lines = [line for line in listing.splitlines() if not extensions.intersection(_list_extensions(line))]
    await asyncio.to_thread(list_file.write_text, "\n".join(lines))

    arguments = ["--single-transaction", "--exit-on-error", "--no-owner", "--use-list", str(list_file)]
    await _run_program("pg_restore", [*arguments, "-d", access.dsn, *more, str(dump)], access)


def _is_used(extension: str, schema: str) -> bool:
    """Whether the tables and functions of a dump may use an extension."""
    types = _TYPES.get(extension)
    if types is None:
        return True

    return any(types.search(line) for line in schema.splitlines() if not _ABOUT_EXTENSION.search(line))


def _list_extensions(line: str) -> list[str]:
    """Return the extension that a line of a dump's list creates or comments on, if it does."""
    matches = re.findall(r" EXTENSION - (\S+)| - EXTENSION (\S+)", line)
    return [name for groups in matches for name in groups if name]


async def _create_extension(url: str, name: str | None, extension: str) -> None:
    async with open_connection(url, name) as connection:
        try:
            await connection.execute(f'create extension if not exists "{extension}"')
        except asyncpg.PostgresError as exc:
            raise BackupFailed(
                f"the extension {extension} cannot be created: {exc}. As a superuser, install it and create it in the "
                "database template1, then restore again"
            ) from exc


async def _run_program(name: str, arguments: list[str], access: DatabaseConnection) -> str:
    """Run a program of Postgres and return what it prints; a cancellation kills it. Raises BackupFailed."""
    process = await asyncio.create_subprocess_exec(
        str(find_program(name)),
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(access.environment),
        cwd="/",
        start_new_session=True,
    )

    try:
        printed, errors = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()

        await process.wait()
        raise

    _check_end(name, process.returncode or 0, errors.decode("utf-8", "replace"))
    return printed.decode("utf-8", "replace")


def _check_end(name: str, code: int, errors: str) -> None:
    if code != 0:
        raise BackupFailed(f"{name} failed: {errors[-2000:].strip() or f'exit status {code}'}")


def _get_stdout(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    return process.stdout


@contextmanager
def start_program(name: str, arguments: list[str], access: DatabaseConnection) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program of Postgres during the block, which reads its output. Raises BackupFailed if it fails."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [str(find_program(name)), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(access.environment),
            cwd="/",
            start_new_session=True,
        )

        try:
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            _close(process.stdout)
            code = process.wait()

        errors.seek(0)
        _check_end(name, code, errors.read())


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        stream.read()
        stream.close()


@asynccontextmanager
async def open_connection(url: str, database: str | None = None) -> AsyncIterator[Any]:
    """Connect to a database for the length of the block. Raises BackupFailed if it cannot be reached."""
    try:
        connection = await asyncpg.connect(url, database=database, timeout=_CONNECT_WITHIN_S)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as exc:
        raise BackupFailed(f"the database does not answer: {exc}") from exc

    try:
        yield connection
    finally:
        await connection.close(timeout=5)
