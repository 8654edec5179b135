"""What tests give back is as it was at first for the next test, or is gone."""

import asyncpg

from tests.conftest import AGENT, MigratedDatabases, with_name

THREAD = "insert into portside.threads (thread_id) values (gen_random_uuid())"
RUN = """
insert into portside.runs (run_id, thread_id, assistant_id, status, multitask_strategy)
select gen_random_uuid(), thread_id, thread_id, 'success', 'enqueue' from portside.threads
returning number
"""


async def give_back_after(migrated: MigratedDatabases, postgres: str, name: str, *statements: str) -> str:
    """Change a database and give it back; return the name of the next one."""
    connection = await asyncpg.connect(with_name(postgres, name))
    for statement in statements:
        await connection.execute(statement)

    await connection.close()
    migrated.give_back(name)
    return migrated.copy(AGENT)


async def test_rows_and_numbers_are_as_at_first(migrated: MigratedDatabases, postgres: str) -> None:
    name = migrated.copy(AGENT)
    kept = "update portside.encryption set may_contain_unbound = not may_contain_unbound"
    assert await give_back_after(migrated, postgres, name, THREAD, RUN, kept) == name

    connection = await asyncpg.connect(with_name(postgres, name))
    assert await connection.fetchval("select count(*) from portside.threads") == 0
    assert await connection.fetchval("select may_contain_unbound from portside.encryption") is False
    await connection.execute(THREAD)
    assert await connection.fetchval(RUN) == 1
    await connection.close()
    migrated.give_back(name)


async def test_a_changed_table_is_not_given_to_the_next_test(migrated: MigratedDatabases, postgres: str) -> None:
    name = migrated.copy(AGENT)
    changes = ["alter table portside.threads add column more int", "alter table portside.threads drop column more"]
    after = await give_back_after(migrated, postgres, name, *changes)
    assert after != name

    index = await give_back_after(migrated, postgres, after, "drop index portside.runs_ready")
    assert index != after
    migrated.give_back(index)


async def test_a_database_in_use_is_not_given_to_the_next_test(migrated: MigratedDatabases, postgres: str) -> None:
    name = migrated.copy(AGENT)
    forgotten = await asyncpg.connect(with_name(postgres, name))
    after = await give_back_after(migrated, postgres, name)
    assert after != name

    forgotten.terminate()
    migrated.give_back(after)
