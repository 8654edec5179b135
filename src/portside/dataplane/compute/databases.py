"""The databases of deployments on this machine, on the Postgres that the operator names.

Each deployment has a database and a role of its own. The password is in a private file in the deployment's folder.
Postgres gets only its SCRAM verifier, so that no server log can show it.
"""

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
from uuid import UUID

import asyncpg

from portside.dataplane.failures import CreateFailed, NoConnectionsLeft
from portside.dataplane.sql import sql
from portside.kernel.db import Query
from portside.kernel.files import write_private

_TIMEOUT_S = 60.0
_LOOK_WITHIN_S = 5.0
_ITERATIONS = 4096
# What an idle agent server holds at most, and what counts for each deployment that is awake.
IDLE_CONNECTIONS = 3
# Every deployment may open at least this many.
LEAST_LIMIT = 9
# One server and its successor are always admitted.
FREE_REPLICAS = 2
# A tenth of the connections, and at least these, are left for the second servers of switches, and for load.
LEAST_SPARE_CONNECTIONS = 6
# For the platform itself, when its role is not a superuser and so has no reserved connections.
PLATFORM_CONNECTIONS = 20
# Key of the advisory lock from the check of the budget to the creation of the role, so that two deployments do not
# both get the last connections.
_BUDGET_LOCK = 0x706F7274736964
UNREACHABLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Databases:
    """Creates and drops the databases of deployments, and says whether Postgres has connections for their servers.

    `asleep` returns the deployments that sleep: they need none.
    """

    def __init__(self, admin_url: str, asleep: Callable[[], Collection[UUID]] = tuple) -> None:
        self._admin_url = admin_url
        self._asleep = asleep

        # A start looks all deployments up at once.
        self._looking = asyncio.Semaphore(4)
        self._listing: asyncio.Future[set[str] | None] | None = None

    async def ensure(self, deployment_id: UUID, password_file: Path, *, is_new: bool = True) -> None:
        """Create the deployment's role if it is missing, and its database if the deployment is new.

        Raises CreateFailed when the role may not create them, Postgres has too few connections for one more
        deployment, or an older deployment's database is gone; OSError or asyncpg.PostgresError for transient errors.
        """
        name = database_name(deployment_id)
        password = _read_password(password_file) or secrets.token_urlsafe(32)
        verifier = build_scram_verifier(password, os.urandom(16))

        try:
            async with self._admin() as connection:
                await connection.execute(sql.lock_budget.sql, _BUDGET_LOCK)
                limit = _connection_limit(await self._read_budget(connection, name), name, is_new=is_new)
                await _run_written(connection, sql.write_role, name=name, verifier=verifier, connections=limit)
                await _run_written(connection, sql.write_membership, name=name)
                await _run_written(connection, sql.write_database, name=name)
                await _run_written(connection, sql.write_owner, name=name)
                await _run_written(connection, sql.write_privacy, name=name)

            async with self._admin(name) as connection:
                await connection.execute(sql.offer_vectors.sql)
        except asyncpg.InsufficientPrivilegeError as exc:
            raise CreateFailed(
                f"the database cannot be created: {exc}; its role needs CREATEDB and CREATEROLE"
            ) from exc

        # Last, because the file says that all of this was done.
        write_private(password_file, password + "\n")

    async def exists(self, deployment_id: UUID) -> bool:
        """Whether the deployment's database is there; also true if Postgres does not answer."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.ensure_future(self._list())

        names = await asyncio.shield(self._listing)
        return names is None or database_name(deployment_id) in names

    async def _list(self) -> set[str] | None:
        """Return the names of all databases, for all deployments that ask meanwhile; None without an answer."""
        try:
            async with self._looking, self._admin() as connection:
                return {row["datname"] for row in await connection.fetch(sql.list_databases.sql)}
        except UNREACHABLE:
            return None

    async def admit(self, deployment_id: UUID, replicas: int) -> None:
        """Check that Postgres has connections for so many replicas of a deployment.

        Raises NoConnectionsLeft, but never for a replica and its successor. Without an answer of Postgres the replicas
        are admitted: they wait for it themselves.
        """
        if replicas > FREE_REPLICAS:
            await self._check(deployment_id, replicas, f"another replica: {replicas} replicas need")

    async def admit_awake(self, deployment_id: UUID) -> None:
        """Check that Postgres has connections for a deployment that wakes. Raises NoConnectionsLeft as `admit` does."""
        await self._check(deployment_id, 1, "another agent to wake: it needs")

    async def _check(self, deployment_id: UUID, replicas: int, what: str) -> None:
        try:
            async with self._looking, self._admin() as connection:
                row = await self._read_budget(connection, database_name(deployment_id))
        except UNREACHABLE:
            return

        connections_before = max(row["held"], (replicas - 1) * IDLE_CONNECTIONS)
        connections = connections_before + IDLE_CONNECTIONS
        if row["taken"] + connections > _count_usable(row):
            raise NoConnectionsLeft(
                f"Postgres has no connections left for {what} {connections}, the other {row['number']} deployments "
                f"that are awake take {row['taken']}, and all may use {_count_usable(row)}. Let deployments sleep "
                "(portside deployments sleep), lower scales, or raise max_connections (setting "
                "POSTGRES_MAX_CONNECTIONS for the embedded Postgres) and restart Postgres"
            )

    async def next_due(self, deployment_id: UUID, password_file: Path) -> float | None:
        """Return when the agent of a deployment has something to do, in seconds since 1970, or None.

        Raises OSError and what asyncpg raises, also if the database is of a version that cannot tell.
        """
        async with self._looking:
            connection = await asyncpg.connect(self.url(deployment_id, password_file), timeout=_LOOK_WITHIN_S)
            try:
                return cast("float | None", await connection.fetchval(sql.next_due.sql, timeout=_LOOK_WITHIN_S))
            finally:
                await connection.close(timeout=5)

    async def drop(self, deployment_id: UUID) -> None:
        """Drop the deployment's database and its role; open connections are terminated."""
        async with self._admin() as connection:
            await _run_written(connection, sql.write_drop_database, name=database_name(deployment_id))
            await _run_written(connection, sql.write_drop_role, name=database_name(deployment_id))

    def url(self, deployment_id: UUID, password_file: Path) -> str:
        """Return the URL with which the deployment's servers connect."""
        return deployment_url(self._admin_url, database_name(deployment_id), password_file.read_text().strip())

    async def _read_budget(self, connection: Any, name: str) -> Any:
        asleep = [database_name(deployment_id) for deployment_id in self._asleep()]
        values = {
            "name": name,
            "platform": PLATFORM_CONNECTIONS,
            "share": IDLE_CONNECTIONS,
            "asleep": asleep,
        }

        return await connection.fetchrow(sql.read_budget.sql, *sql.read_budget.arguments(values))

    @asynccontextmanager
    async def _admin(self, database: str | None = None) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(
            self._admin_url, database=database, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S
        )

        try:
            yield connection
        finally:
            await connection.close(timeout=5)


async def admit_any(_replicas: int) -> None:
    """Admit any number of replicas, where no database is known."""


def database_name(deployment_id: UUID) -> str:
    """Return the name of a deployment's database and role."""
    return f"agent_{deployment_id.hex}"


def deployment_url(admin_url: str, name: str, password: str) -> str:
    """Return the URL of a deployment: the server of the admin's URL with another user and database."""
    parts = urlsplit(admin_url)
    server = parts.netloc.rpartition("@")[2]
    query = [(key, value) for key, value in parse_qsl(parts.query) if key not in {"user", "password", "dbname"}]
    netloc = f"{quote(name)}:{quote(password)}@{server}"
    return urlunsplit((parts.scheme, netloc, f"/{quote(name)}", urlencode(query, safe="/", quote_via=quote), ""))


def build_scram_verifier(password: str, salt: bytes) -> str:
    """Return the verifier that Postgres stores for a password (RFC 5803, SCRAM-SHA-256)."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    parts = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"


def _read_password(file: Path) -> str | None:
    return file.read_text().strip() if file.exists() else None


def _count_usable(row: Any) -> int:
    """Return how many connections deployments may count on."""
    available = int(row["available"])
    return available - max(LEAST_SPARE_CONNECTIONS, available // 10)


def _connection_limit(row: Any, name: str, *, is_new: bool) -> int:
    """Return how many connections a deployment may open: half of the available ones.

    Raises CreateFailed for a deployment beyond the budget, and for an older one whose database is gone.
    """
    if not is_new and not row["has_database"]:
        raise CreateFailed(
            f"its database {name} is not on this Postgres server, so its threads and runs are not either. Restore the "
            f"database from its dump. To start with an empty one instead, create it: create database {name}"
        )

    if not row["is_there"] and row["taken"] + IDLE_CONNECTIONS > _count_usable(row):
        raise CreateFailed(
            f"Postgres has no connections left for another deployment: the {row['number']} deployments that are awake "
            f"take {row['taken']}, which is {IDLE_CONNECTIONS} each, or what their replicas hold now if that is more. "
            f"Another one needs {IDLE_CONNECTIONS}, and deployments may use {_count_usable(row)}. Let some of them "
            "sleep (portside deployments sleep), delete one, or raise max_connections (setting "
            "POSTGRES_MAX_CONNECTIONS for the embedded Postgres) and restart Postgres"
        )

    return max(LEAST_LIMIT, int(row["available"]) // 2)


async def _run_written(connection: Any, query: Query, **values: str | int) -> None:
    statement = await connection.fetchval(query.sql, *query.arguments(values))
    if statement is not None:
        await connection.execute(statement)
