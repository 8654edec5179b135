"""Notes the SQL functions that the tests called, for `make coverage`: Postgres counts them for each database.

The counts end with their database, so they are read before a database of a test is dropped, and at the end of the run.
Without `make coverage` nothing here does anything.
"""

import os
from pathlib import Path

import asyncpg

RESULTS = "PORTSIDE_COVERAGE"
CALLED = "functions"
# A connection tells its counts when it ends.
_END_OTHERS = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"
_OTHERS = "select count(*) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"


def is_measured() -> bool:
    """Whether this is a run of `make coverage`."""
    return RESULTS in os.environ


async def count_calls(url: str) -> None:
    """Let a server count the calls of functions in all of its databases from now on."""
    if not is_measured():
        return

    admin = await asyncpg.connect(url)
    await admin.execute("alter system set track_functions = 'all'")
    await admin.execute("select pg_reload_conf()")
    await admin.close()


async def note_calls(url: str, name: str) -> None:
    """Note which functions were called in the database of this name, which is in use no more."""
    if not is_measured():
        return

    try:
        connection = await asyncpg.connect(url)
    except asyncpg.InvalidCatalogNameError:  # a test has dropped it
        return

    await connection.fetch(_END_OTHERS, name)

    while await connection.fetchval(_OTHERS, name):
        await connection.execute("select pg_stat_clear_snapshot(), pg_sleep(0.01)")

    rows = await connection.fetch("select distinct funcname from pg_stat_user_functions where calls > 0")
    await connection.close()

    with Path(os.environ[RESULTS], CALLED).open("a") as file:
        file.write("".join(f"{row['funcname']}\n" for row in rows))


async def note_all_calls(url: str) -> None:
    """Note the functions that were called in the databases that are left, for example those of deployments."""
    if not is_measured():
        return

    from tests.databases import with_name

    admin = await asyncpg.connect(url)
    names = await admin.fetch("select datname from pg_database where not datistemplate and datallowconn")
    await admin.close()

    for row in names:
        await note_calls(with_name(url, row["datname"]), row["datname"])
