"""Functions work with any search_path: `pg_restore` has an empty one, and computed columns and indexes call functions.

A function in SQL is bound to what it names when it is made, or is checked by Postgres itself. One in PL/pgSQL sets
its own search_path, or names nothing of ours.
"""

import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from portside.agent.app import SCHEMA
from portside.kernel.db import Database
from portside.kernel.migrations import migrate
from portside.kernel.schema_files import list_created, read_functions, read_migrations
from portside.platform.modules import PACKAGES

OURS = {"platform": (PACKAGES, "public"), "agent": (["portside.agent"], SCHEMA)}
FUNCTIONS = """
select p.oid::regprocedure::text as name, l.lanname, p.prosrc, p.proconfig, p.prosqlbody is not null as is_bound,
       pg_get_functiondef(p.oid) as definition
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = $1::text::regnamespace
    and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e')
"""
NAMES = """
select relname::text from pg_class where relnamespace = $1::text::regnamespace and relkind in ('r', 'v', 'm', 'S')
union select proname::text from pg_proc where pronamespace <> 'pg_catalog'::regnamespace
union select typname::text from pg_type where typnamespace not in ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)
    and typelem = 0
"""


@pytest.fixture(params=OURS)
async def migrated_connection(
    request: pytest.FixtureRequest, fresh_database
) -> AsyncIterator[tuple[asyncpg.Connection, str, list]]:
    packages, schema = OURS[request.param]
    url = await fresh_database()

    connection = await asyncpg.connect(url)
    for extension in ("vector", "pg_trgm"):
        await connection.execute(f"create extension {extension} schema public")

    db = await Database.connect(url, schema=schema)
    await migrate(db, packages, schema=schema)
    await db.close()
    yield connection, schema, packages
    await connection.close()


def find_words(body: str) -> set[str]:
    """The words of a body that no schema or table stands before; comments are left out, strings are not."""
    return set(re.findall(r"(?<![\w.])[a-z_]\w*", re.sub(r"--[^\n]*|/\*.*?\*/", "", body, flags=re.DOTALL).lower()))


async def test_every_function_works_with_an_empty_search_path(migrated_connection) -> None:
    connection, schema, _ = migrated_connection
    names = {row[0] for row in await connection.fetch(NAMES, schema)}
    functions = await connection.fetch(FUNCTIONS, schema)
    assert len(functions) > 15
    wanted = "search_path=public" if schema == "public" else f"search_path={schema}, public"

    await connection.execute("set search_path = ''")
    wrong = []
    for row in functions:
        path = next((value for value in row["proconfig"] or () if value.startswith("search_path=")), None)
        if path is not None:
            assert path == wanted, row["name"]
        elif row["lanname"] == "plpgsql" and (named := find_words(row["prosrc"]) & names):
            wrong.append(f"{row['name']} names {', '.join(sorted(named))}; add `set search_path from current`")
        elif not row["is_bound"]:
            try:
                await connection.execute(row["definition"])  # Postgres checks the body with the path of this session
            except asyncpg.PostgresError as exc:
                wrong.append(f"{row['name']}: {exc}; write its body after `return` or `begin atomic`")

    assert wrong == []


async def test_what_migrations_make_is_known_from_their_text(migrated_connection) -> None:
    connection, schema, packages = migrated_connection
    made = {
        made
        for package in packages
        for made in [*list_created(read_migrations(package)), *read_functions(package).created]
    }
    tables = await connection.fetch("select tablename from pg_tables where schemaname = $1", schema)

    assert {name for kind, name in made if kind == "table"} == {row[0] for row in tables} - {
        "applied_migrations",
        "applied_functions",
    }

    functions = {row["name"].split("(")[0].rpartition(".")[2] for row in await connection.fetch(FUNCTIONS, schema)}
    assert {name for kind, name in made if kind == "function"} == functions
    triggers = await connection.fetch("select distinct tgname from pg_trigger where not tgisinternal")
    assert {name for kind, name in made if kind == "trigger"} == {row[0] for row in triggers}
