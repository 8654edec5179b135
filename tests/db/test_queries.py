"""Every statement of every package fits the schema that its migrations make, and is used."""

import importlib
import re
from pathlib import Path

import asyncpg
import pytest

import portside
from portside.agent.config import StoreIndex
from portside.agent.store.search_index import open_generation
from portside.kernel.db import Database
from portside.platform.modules import PACKAGES

SOURCE = Path(portside.__file__).parent
WITH_SQL = sorted(folder.parent.name for folder in SOURCE.glob("*/sql"))
# The data plane's queries run in the databases of agents.
OF_AGENTS = ("agent", "dataplane")


async def open_database(url: str, package: str) -> Database:
    """Open a database as the program that runs the package does."""
    db = await Database.connect(url, schema="portside" if package in OF_AGENTS else None)
    if package == "agent":
        await open_generation(db, StoreIndex(embed="./embed.py:embed", dims=3))

    return db


@pytest.mark.parametrize("package", WITH_SQL)
async def test_every_query_of_a_package_can_be_prepared(agent_databases, platform_databases, package: str) -> None:
    queries = list(importlib.import_module(f"portside.{package}.sql").sql)
    assert queries

    copied = await (agent_databases() if package in OF_AGENTS else platform_databases())
    db = await open_database(copied, package)
    wrong = {}
    async with db.pool.acquire() as connection:
        for query in queries:
            try:
                statement = await connection.prepare(query.sql)
            except asyncpg.PostgresError as exc:
                wrong[query.name] = str(exc)
            else:
                assert len(statement.get_parameters()) == len(query.parameters), query.name

    await db.close()
    assert wrong == {}


@pytest.mark.parametrize("package", WITH_SQL)
def test_every_query_of_a_package_is_used(package: str) -> None:
    names = {query.name for query in importlib.import_module(f"portside.{package}.sql").sql}
    text = "\n".join(file.read_text() for file in (SOURCE / package).rglob("*.py"))
    assert names - set(re.findall(r"\bsql\.(\w+)", text)) == set()


def test_every_package_with_migrations_is_migrated_by_a_program() -> None:
    with_migrations = {folder.parent.name for folder in SOURCE.glob("*/migrations")}
    assert with_migrations == {package.rsplit(".", 1)[1] for package in PACKAGES} | {"agent"}
