"""The schema of a database: forward-only migrations of tables, and SQL functions that are replaced as a whole.

`schema_files.py` reads the files. When the checksum of the files of functions differs from the recorded one, all of
them are applied again, and functions that are no longer in the files are dropped.

`create or replace` can change neither the result and the parameter names of a function nor the columns of a view. If it
fails for that reason, all functions and views of the package that no table uses are dropped and created again, in the
same transaction. An index, a generated column or a constraint stores results of the functions that it uses. A change of
such a function is refused unless a new migration is applied in the same start, which has to compute the data again.

Everything that is missing is applied in one transaction under an advisory lock. Several processes may start at once:
one applies, the others wait. These databases are refused: one with a migration whose file has changed, one that lacks
an object that an applied file creates, and one that is newer than the program, unless older versions run on it. What
the files declare about older versions is recorded in the database, for those versions to read.
"""

import re
from typing import Any, NamedTuple

import asyncpg

from portside.kernel.db import Database
from portside.kernel.errors import DependencyUnavailable, UserMistake
from portside.kernel.schema_files import (
    OLDER_VERSIONS_RUN,
    FunctionFiles,
    Migration,
    list_created,
    read_functions,
    read_migrations,
)

# For the lock of migrations, and for each lock of a table that a migration changes.
LOCK_TIMEOUT_S = 60
_LOCK_KEY = 0x706F7274  # "port"
_RECORDS = """
create table if not exists applied_migrations (
    package text not null,
    number int not null,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now(),
    primary key (package, number)
);
create table if not exists applied_functions (
    package text primary key,
    revision int not null,
    checksum text not null,
    objects text[] not null,
    applied_at timestamptz not null default now()
);
alter table applied_migrations add column if not exists older_versions text;
alter table applied_functions add column if not exists oldest int"""
_INSERT_MIGRATION = (
    "insert into applied_migrations (package, number, name, checksum, older_versions) values ($1, $2, $3, $4, $5)"
)
# Functions with `set search_path from current` get this path: the schema of the tables, and the one of extensions.
_PIN_SEARCH_PATH = """
select set_config(
    'search_path', concat_ws(', ', quote_ident(current_schema()), nullif('public', current_schema())), true
)"""
_WAY_BACK = (
    "Install the version again that changed the database. To go back to this one, restore the backup that was taken "
    "before the upgrade: portside backup restore FILE --home NEW_HOME"
)
# Of the objects that the applied migrations created, those that are not there any more.
_FIND_MISSING = """
select kind || ' ' || name from unnest($1::text[], $2::text[]) with ordinality as made (kind, name, number)
where not case kind
    when 'function' then exists (
        select from pg_proc where pronamespace = current_schema()::regnamespace and proname = name
    )
    when 'trigger' then exists (
        select from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = current_schema()::regnamespace and t.tgname = name
    )
    else exists (select from pg_class where relnamespace = current_schema()::regnamespace and relname = name)
end
order by number"""
# The same of recorded functions and views, which are named with their parameters.
_FIND_MISSING_OBJECTS = """
select object from unnest($1::text[]) with ordinality as made (object, number)
where case split_part(object, ' ', 1)
    when 'function' then to_regprocedure(substr(object, 10)) is null
    else to_regclass(substr(object, 6)) is null
end
order by number"""
# The functions and views that this transaction created or replaced. A row of the catalog that this transaction wrote
# has the age 0, or a negative age if a savepoint wrote it.
_FIND_REPLACED = """
select kind || ' ' || coalesce(p.oid::regprocedure::text, name) as object
from unnest($1::text[], $2::text[]) with ordinality as made (kind, name, number)
left join pg_proc p on kind = 'function' and p.proname = name and p.pronamespace = current_schema()::regnamespace
    and age(p.xmin) <= 0
order by number, object"""
# Postgres does not record which functions a body in PL/pgSQL calls. Functions of stored data are in SQL, or call none
# of ours (`tests/db/test_search_path.py`).
_FUNCTIONS_OF_STORED_DATA = """
with recursive used (oid) as (
    select d.refobjid from pg_depend d
    left join pg_attrdef a on d.classid = 'pg_attrdef'::regclass and a.oid = d.objid
    left join pg_attribute c on c.attrelid = a.adrelid and c.attnum = a.adnum
    where d.refclassid = 'pg_proc'::regclass
        and (d.classid in ('pg_class'::regclass, 'pg_constraint'::regclass) or c.attgenerated <> '')
    union
    select d.refobjid from used join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = used.oid
    where d.refclassid = 'pg_proc'::regclass
)
select p.oid::regprocedure::text as name, pg_get_functiondef(p.oid) as definition
from pg_proc p where p.oid in (select oid from used) and p.pronamespace = current_schema()::regnamespace
order by 1"""


class DatabaseIsNewer(UserMistake):
    """The database was changed by a newer version, and this one does not run on it."""


class _PackageState(NamedTuple):
    """The files of a package's folders, and which of them the database lacks."""

    functions: FunctionFiles
    # The migrations that are to be applied.
    missing: list[Migration]
    # Whether the functions are to be applied.
    is_stale: bool
    # The functions and views that the database has.
    objects: list[str]


async def migrate(db: Database, packages: list[str], *, schema: str | None = None) -> int:
    """Apply missing migrations and functions, and return the number of applied migrations.

    Raises UserMistake for a database that is refused (see above), and DependencyUnavailable while another session
    holds a lock.
    """
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_S}s'")
        await _acquire_lock(connection)

        if schema:
            await connection.execute(f'create schema if not exists "{schema}"')

        await connection.execute(_PIN_SEARCH_PATH)
        await connection.execute(_RECORDS)
        return sum([await _migrate_package(connection, package) for package in packages])


async def is_migrated(db: Database) -> bool:
    """Whether migrations were applied to the database before."""
    return bool(await db.pool.fetchval("select to_regclass('applied_migrations') is not null"))


async def find_pending(db: Database, packages: list[str]) -> list[str]:
    """Return what the next start will apply to a database that was migrated before, as `package/file`.

    Raises UserMistake for a database that it will refuse.
    """
    pending: list[str] = []
    async with db.pool.acquire() as connection:
        for package in packages:
            state = await _examine_package(connection, package)
            name = state.functions.package
            pending += [f"{name}/{migration.name}" for migration in state.missing]
            if state.is_stale:
                pending.append(f"{name}/functions")

    return pending


async def find_missing(db: Database, packages: list[str]) -> list[Migration]:
    """Return the migrations that the next start will apply. Raises UserMistake for a database that it will refuse."""
    async with db.pool.acquire() as connection:
        states = [await _examine_package(connection, package) for package in packages]
    return [migration for state in states for migration in state.missing]


async def _acquire_lock(connection: Any) -> None:
    try:
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK_KEY)
    except asyncpg.LockNotAvailableError as exc:
        raise DependencyUnavailable(
            f"another process is changing the database and has not ended within {LOCK_TIMEOUT_S} s; stop it"
        ) from exc


async def _examine_package(connection: Any, package: str) -> _PackageState:
    """Compare the files of a package with the records of the database. Raises UserMistake if it is refused."""
    migrations = {migration.number: migration for migration in read_migrations(package)}
    functions = read_functions(package)
    name = functions.package

    rows = await connection.fetch(
        # The column is missing until a version that has it migrates the database.
        "select number, name, checksum, to_jsonb(m) ->> 'older_versions' as older_versions "
        "from applied_migrations m where package = $1",
        name,
    )

    for row in rows:
        _check_migration(name, row, migrations.get(row["number"]))

    function_row = await connection.fetchrow("select * from applied_functions where package = $1", name)
    is_stale = _are_stale(functions, function_row)
    objects = function_row["objects"] if function_row else []

    applied_numbers = {row["number"] for row in rows}
    applied = [migration for number, migration in migrations.items() if number in applied_numbers]
    await _check_complete(connection, name, applied=applied, objects=objects)

    missing = [migration for number, migration in migrations.items() if number not in applied_numbers]
    return _PackageState(functions=functions, missing=missing, is_stale=is_stale, objects=objects)


def _check_migration(package: str, row: Any, migration: Migration | None) -> None:
    """Raise UserMistake if a recorded migration differs from its file, or has none and this program cannot run."""
    if migration is None:
        if row["older_versions"] == OLDER_VERSIONS_RUN:
            return

        reason = f" ({row['older_versions']})" if row["older_versions"] else ""
        raise DatabaseIsNewer(
            f"the database is newer than this program: {package} has migration {row['name']}, and older versions do "
            f"not run on that{reason}. {_WAY_BACK}"
        )

    if migration.checksum != row["checksum"]:
        raise UserMistake(
            f"migration {package}/{row['name']} was changed after it was applied to this database; restore the file"
        )


def _are_stale(functions: FunctionFiles, row: Any) -> bool:
    """Whether the functions must be applied; `row` records those of the database. Raises DatabaseIsNewer."""
    if row is None:
        return functions.checksum != FunctionFiles("", 0).checksum
    if functions.checksum == row["checksum"]:
        return False
    if row["revision"] <= functions.revision:
        return True

    oldest = row.get("oldest")
    if oldest is None or oldest > functions.revision:
        raise DatabaseIsNewer(
            f"the database is newer than this program: the functions of {functions.package} have revision "
            f"{row['revision']}, and this program has {functions.revision}, which cannot call them. {_WAY_BACK}"
        )

    # Those of the newer program, which this one can call, stay.
    return False


async def _check_complete(connection: Any, package: str, *, applied: list[Migration], objects: list[str]) -> None:
    """Raise UserMistake if an object of the applied migrations or function files is missing."""
    created = list_created(applied)
    rows = await connection.fetch(_FIND_MISSING, [kind for kind, _ in created], [name for _, name in created])
    rows += await connection.fetch(_FIND_MISSING_OBJECTS, objects)
    if rows:
        raise UserMistake(
            f"the database is incomplete: the migrations of {package} were applied, but these are missing: "
            f"{', '.join(row[0] for row in rows)}. A restore that failed leaves such a database. "
            "Restore the backup again into an empty database, and stop at the first error of the restore"
        )


async def _migrate_package(connection: Any, package: str) -> int:
    state = await _examine_package(connection, package)
    name = state.functions.package
    if state.is_stale:
        await _replace_functions_for_tables(connection, state.functions, may_change=bool(state.missing))

    for migration in state.missing:
        await _execute(connection, migration.sql, f"{name}/migrations/{migration.name}")
        await _record(connection, migration)

    if state.is_stale:
        await _replace_functions(connection, state.functions, state.objects)

    return len(state.missing)


async def _replace_functions_for_tables(connection: Any, functions: FunctionFiles, *, may_change: bool) -> None:
    """Apply the files that come before the migrations.

    Raises UserMistake where that changes stored data and no migration computes it again.
    """
    before = await connection.fetch(_FUNCTIONS_OF_STORED_DATA)

    for name, sql in functions.before:
        await _execute(connection, sql, f"{functions.package}/functions/{name}")

    after = dict(await connection.fetch(_FUNCTIONS_OF_STORED_DATA))
    changed_names = [row["name"] for row in before if after.get(row["name"]) != row["definition"]]
    if changed_names and not may_change:
        raise UserMistake(
            f"{functions.package}/functions changes {', '.join(changed_names)}, "
            "whose results are stored in indexes or columns. "
            "Add a migration that computes these again (`reindex`, or drop and add the column)"
        )


async def _replace_functions(connection: Any, functions: FunctionFiles, old_objects: list[str]) -> None:
    """Apply the files that come after the migrations, drop removed functions, and record the result."""
    try:
        async with connection.transaction():
            await _apply(connection, functions)
    except (asyncpg.InvalidFunctionDefinitionError, asyncpg.InvalidTableDefinitionError):
        # A result, a parameter name or a column has changed, which `create or replace` cannot do.
        # An object is its kind, its name and its parameters: function name(text).
        replaceable = [item for item in old_objects if re.split(r"[ (]", item)[1] not in functions.names_in_tables]
        await _drop(connection, replaceable)
        await _apply(connection, functions)

    created = functions.created
    rows = await connection.fetch(_FIND_REPLACED, [kind for kind, _ in created], [name for _, name in created])
    objects = [row["object"] for row in rows]
    await _drop(connection, [item for item in old_objects if item not in objects])

    await connection.execute(
        "insert into applied_functions (package, revision, checksum, objects, oldest) values ($1, $2, $3, $4, $5) "
        "on conflict (package) do update set revision = excluded.revision, checksum = excluded.checksum, "
        "objects = excluded.objects, oldest = excluded.oldest, applied_at = now()",
        functions.package,
        functions.revision,
        functions.checksum,
        objects,
        functions.oldest,
    )


async def _apply(connection: Any, functions: FunctionFiles) -> None:
    for name, sql in functions.after:
        await _execute(connection, sql, f"{functions.package}/functions/{name}")


async def _drop(connection: Any, objects: list[str]) -> None:
    """Drop functions and views, in the opposite order of their creation; those that are gone already are skipped."""
    for item in reversed(objects):
        kind, name = item.split(" ", 1)
        await connection.execute(f"drop {kind} if exists {name}")


async def _execute(connection: Any, sql: str, file: str) -> None:
    try:
        await connection.execute(sql)
    except asyncpg.LockNotAvailableError as exc:
        raise DependencyUnavailable(
            f"{file} waited {LOCK_TIMEOUT_S} s for a lock that another session holds ({exc}), and nothing was changed; "
            "end the long transaction that pg_stat_activity shows, and start again"
        ) from exc
    except asyncpg.PostgresError as exc:
        exc.add_note(f"in {file}")
        raise


async def _record(connection: Any, migration: Migration) -> None:
    values = (migration.package, migration.number, migration.name, migration.checksum, migration.older_versions)
    await connection.execute(_INSERT_MIGRATION, *values)
