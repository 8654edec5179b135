"""One database and one role for each deployment, on the Postgres that the operator names.

The password lives in a private file of the deployment's folder; Postgres is only ever told its SCRAM verifier, so that
it shows in no server log. Both operations may be repeated at any time.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
from uuid import UUID

import asyncpg

from portside.dataplane.failures import CreateFailed
from portside.dataplane.sql import sql
from portside.kernel.files import write_private
from portside.kernel.queries import Query

_TIMEOUT_S = 60.0
_ITERATIONS = 4096


class Databases:
    """Makes and drops the databases of deployments."""

    def __init__(self, admin_url: str) -> None:
        self._admin_url = admin_url

    async def ensure(self, deployment_id: UUID, password_file: Path) -> None:
        """Make the deployment's role and database where they are missing.

        Raises CreateFailed when Postgres will never allow it, and OSError or asyncpg.PostgresError for what may pass.
        """
        name, verifier = database_name(deployment_id), scram_verifier(_make_password(password_file), os.urandom(16))
        try:
            async with self._admin() as connection:
                await _write(connection, sql.write_role, name=name, verifier=verifier)
                await _write(connection, sql.write_membership, name=name)
                await _write(connection, sql.write_database, name=name)
                await _write(connection, sql.write_privacy, name=name)
            async with self._admin(name) as connection:
                await connection.execute(sql.offer_vectors.sql)
        except asyncpg.InsufficientPrivilegeError as exc:
            raise CreateFailed(f"the database cannot be made: {exc}; the role needs CREATEDB and CREATEROLE") from exc

    async def drop(self, deployment_id: UUID) -> None:
        """Drop the deployment's database, with whoever is connected, and its role."""
        async with self._admin() as connection:
            await _write(connection, sql.write_drop_database, name=database_name(deployment_id))
            await _write(connection, sql.write_drop_role, name=database_name(deployment_id))

    def url(self, deployment_id: UUID, password_file: Path) -> str:
        """Return the URL that the deployment's servers connect with."""
        return deployment_url(self._admin_url, database_name(deployment_id), _password(password_file))

    @asynccontextmanager
    async def _admin(self, database: str | None = None) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(
            self._admin_url, database=database, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S
        )
        try:
            yield connection
        finally:
            await connection.close(timeout=5)


def database_name(deployment_id: UUID) -> str:
    """Return the name of a deployment's database and role."""
    return f"agent_{deployment_id.hex}"


def deployment_url(admin_url: str, name: str, password: str) -> str:
    """Return the admin's URL turned into the one of a deployment: other user and database, the same server."""
    parts = urlsplit(admin_url)
    server = parts.netloc.rpartition("@")[2]
    query = [(key, value) for key, value in parse_qsl(parts.query) if key not in {"user", "password", "dbname"}]
    netloc = f"{quote(name)}:{quote(password)}@{server}"
    return urlunsplit((parts.scheme, netloc, f"/{quote(name)}", urlencode(query, safe="/", quote_via=quote), ""))


def scram_verifier(password: str, salt: bytes) -> str:
    """Return what Postgres stores for a password (RFC 5803, SCRAM-SHA-256)."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    shown = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{shown[0]}${shown[1]}:{shown[2]}"


def _make_password(file: Path) -> str:
    if not file.exists():
        write_private(file, secrets.token_urlsafe(32) + "\n")
    return _password(file)


def _password(file: Path) -> str:
    return file.read_text().strip()


async def _write(connection: Any, query: Query, **values: str) -> None:
    statement = await connection.fetchval(query.sql, *query.arguments(values))
    if statement is not None:
        await connection.execute(statement)
