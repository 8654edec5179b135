"""Dumps that cannot be restored leave the server as it was, and the failure says why."""

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from portside.backup.databases import BackupFailed, _create_database, restore_dumps
from portside.kernel.embedded import find_program
from tests import databases
from tests.databases import with_name


class Dumps(NamedTuple):
    """A folder with the dumps of a platform and of its agent, and the name of the agent's database and role."""

    folder: Path
    agent: str

    @property
    def of_the_platform(self) -> Path:
        return self.folder / "platform.dump"


@pytest.fixture
async def dumps(fresh_database: Callable[[], Awaitable[str]], postgres: str, tmp_path: Path) -> AsyncIterator[Dumps]:
    source = await fresh_database()
    await databases.execute(source, "create table kept as select 1 as number")
    agent = f"agent_{secrets.token_hex(16)}"
    made = Dumps(tmp_path / "dumps", agent)

    made.folder.mkdir()

    for file in (made.folder / f"{agent}.dump", made.of_the_platform):
        command = [find_program("pg_dump"), "-F", "custom", "-f", str(file), "-d", source]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=600)

    yield made
    await databases.execute(postgres, f'drop database if exists "{agent}" with (force)')
    await databases.execute(postgres, f'drop role if exists "{agent}"')


async def fetch_value(url: str, query: str, *arguments: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query, *arguments)
    finally:
        await connection.close()


async def has_agent(url: str, agent: str) -> tuple[object, object]:
    """Whether the server has the database of an agent, and its role."""
    return (
        await fetch_value(url, "select exists (select from pg_database where datname = $1)", agent),
        await fetch_value(url, "select exists (select from pg_roles where rolname = $1)", agent),
    )


async def test_agents_are_dropped_again_if_the_dump_of_the_platform_is_damaged(dumps: Dumps, fresh_database) -> None:
    target = await fresh_database()
    whole = dumps.of_the_platform.read_bytes()
    dumps.of_the_platform.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(BackupFailed, match="pg_restore failed"):
        await restore_dumps(target, dumps.folder)

    assert await has_agent(target, dumps.agent) == (False, False)
    assert await fetch_value(target, "select to_regclass('kept')") is None

    # Nothing is in the way of the next attempt, with the whole dump.
    dumps.of_the_platform.write_bytes(whole)
    await restore_dumps(target, dumps.folder)
    assert await fetch_value(with_name(target, dumps.agent), "select number from kept") == 1
    assert await fetch_value(target, "select number from kept") == 1


async def test_role_that_may_create_no_roles_is_told_so(dumps: Dumps, fresh_database, postgres: str) -> None:
    target = await fresh_database()
    role = f"{databases.prefix()}{secrets.token_hex(6)}"
    await databases.execute(postgres, f"create role {role} login createdb password 'secret'")

    try:
        await databases.execute(target, f"grant all on schema public to {role}")
        url = databases.with_user(target, role, "secret")

        with pytest.raises(BackupFailed, match=f"the database {dumps.agent} cannot be created: permission denied"):
            await restore_dumps(url, dumps.folder)

        assert await has_agent(target, dumps.agent) == (False, False)
    finally:
        await databases.execute(target, f"drop owned by {role}")
        await databases.execute(postgres, f"drop role {role}")


async def test_role_that_may_create_no_databases_leaves_no_role(dumps: Dumps, fresh_database, postgres: str) -> None:
    target = await fresh_database()
    role = f"{databases.prefix()}{secrets.token_hex(6)}"
    await databases.execute(postgres, f"create role {role} login createrole password 'secret'")

    try:
        with pytest.raises(BackupFailed, match=f"the database {dumps.agent} cannot be created: permission denied"):
            await restore_dumps(databases.with_user(target, role, "secret"), dumps.folder)

        assert await has_agent(target, dumps.agent) == (False, False)
    finally:
        await databases.execute(postgres, f"drop role {role}")


async def test_dumps_without_that_of_a_platform_change_nothing(dumps: Dumps, fresh_database) -> None:
    target = await fresh_database()
    dumps.of_the_platform.unlink()

    with pytest.raises(BackupFailed, match="must hold one dump of a platform's database, and holds 0"):
        await restore_dumps(target, dumps.folder)

    assert await has_agent(target, dumps.agent) == (False, False)


async def test_role_that_appears_meanwhile_is_not_dropped(dumps: Dumps, postgres: str) -> None:
    await databases.execute(postgres, f'create role "{dumps.agent}"')
    undoing: list[str] = []
    connection = await asyncpg.connect(postgres)

    with pytest.raises(BackupFailed, match="already exists"):
        await _create_database(connection, dumps.agent, undoing)

    await connection.close()
    assert undoing == []
