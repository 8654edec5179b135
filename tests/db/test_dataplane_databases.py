"""Databases of deployments on a real Postgres."""

from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from portside.dataplane.databases import Databases, database_name
from portside.dataplane.failures import CreateFailed
from portside.dataplane.sql import sql


async def test_a_deployment_gets_a_database_of_its_own_and_loses_it(postgres: str, tmp_path: Path):
    databases, one, other = Databases(postgres), uuid4(), uuid4()
    try:
        for deployment in (one, other, one):
            await databases.ensure(deployment, tmp_path / str(deployment))
        assert (tmp_path / str(one)).stat().st_mode & 0o777 == 0o600
        url = databases.url(one, tmp_path / str(one))
        connection = await asyncpg.connect(url)
        await connection.execute("create table mine (id int)")
        assert await connection.fetchval("select '[1,2]'::vector <=> '[2,4]'::vector") == pytest.approx(0)
        assert await connection.fetchval("select current_database()") == database_name(one)
        elsewhere = databases.url(other, tmp_path / str(other)).replace(f"/{database_name(other)}?", "/portside?")
        assert "/portside?" in elsewhere
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await asyncpg.connect(url.replace(f"/{database_name(one)}?", f"/{database_name(other)}?"))
        await databases.drop(one)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("select 1")
        await connection.close()
        with pytest.raises(asyncpg.PostgresError):
            await asyncpg.connect(url)
    finally:
        for deployment in (one, other):
            await databases.drop(deployment)
            await databases.drop(deployment)


async def test_a_lost_password_file_is_mended(postgres: str, tmp_path: Path):
    databases, deployment = Databases(postgres), uuid4()
    try:
        await databases.ensure(deployment, tmp_path / "password")
        (tmp_path / "password").unlink()
        await databases.ensure(deployment, tmp_path / "password")
        connection = await asyncpg.connect(databases.url(deployment, tmp_path / "password"))
        await connection.close()
    finally:
        await databases.drop(deployment)


async def test_a_role_that_may_not_make_databases_is_named(postgres: str, tmp_path: Path):
    databases, deployment = Databases(postgres), uuid4()
    await databases.ensure(deployment, tmp_path / "password")
    try:
        weak = Databases(databases.url(deployment, tmp_path / "password"))
        with pytest.raises(CreateFailed, match="CREATEDB"):
            await weak.ensure(uuid4(), tmp_path / "other")
    finally:
        await databases.drop(deployment)


async def test_a_role_that_is_no_superuser_suffices(postgres: str, tmp_path: Path):
    boss, deployment = uuid4(), uuid4()
    databases = Databases(postgres)
    await databases.ensure(boss, tmp_path / "boss")
    admin = await asyncpg.connect(postgres)
    await admin.execute(f"alter role {database_name(boss)} createdb createrole")
    delegated = Databases(databases.url(boss, tmp_path / "boss"))
    try:
        await delegated.ensure(deployment, tmp_path / "password")
        await delegated.ensure(deployment, tmp_path / "password")
        connection = await asyncpg.connect(delegated.url(deployment, tmp_path / "password"))
        await connection.close()
        await delegated.drop(deployment)
    finally:
        await databases.drop(deployment)
        await databases.drop(boss)
        await admin.close()


async def test_every_query_can_be_prepared(postgres: str):
    connection = await asyncpg.connect(postgres)
    for query in sql:
        await connection.prepare(query.sql)
    await connection.close()
