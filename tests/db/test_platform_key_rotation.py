"""Rotation of the master key, while the platform is stopped and while it runs, also after an interruption."""

import asyncio
import base64
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from portside.control import key_rotation
from portside.control.key_rotation import check_master_key, reencrypt
from portside.kernel.crypto import SecretBox, begin_rotation, previous_file
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.reconcile import Status
from portside.platform import master_key
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.maintenance import rotate_master_key
from portside.platform.master_key import KeyRotation, check_key, rotate_stopped
from portside.platform.settings import PlatformSettings
from tests.conftest import eventually
from tests.servers import KEY, platform_server

INTEGRATION = """
insert into integrations (id, workspace_id, kind, name, base_url, token_sealed)
select gen_random_uuid(), id, 'github', $1, 'https://github.com', ''::bytea from workspaces returning id::text
"""


async def test_interrupted_key_rotation_continues(
    platform_databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The values of one column are more than one batch.
    monkeypatch.setattr(key_rotation, "BATCH", 1)
    home = Home(tmp_path)
    url = await platform_databases()
    async with open_platform(home, PlatformSettings(), url):
        pass

    connection = await asyncpg.connect(url)
    first = SecretBox.from_file(home.master_key)
    ids = [await connection.fetchval(INTEGRATION, f"i{number}") for number in range(2)]
    store = "update integrations set token_sealed = $2 where id = $1::text::uuid"
    for one in ids:
        await connection.execute(store, one, first.encrypt(b"token", one))

    # The state after a kill in the middle: both keys, and one value encrypted with each.
    half = begin_rotation(home.master_key)
    await connection.execute(store, ids[0], half.encrypt(b"token", ids[0]))
    with monkeypatch.context() as patch:
        # The platform would go on with the rotation at once, and this is about a command that does.
        patch.setattr(KeyRotation, "activate", do_nothing)
        async with open_platform(home, PlatformSettings(), url) as app:
            assert app.new_key is None, "the platform starts with both keys"

    assert await rotate_master_key(home, url) == 2, "one value, and the check of the key"
    after = SecretBox.from_file(home.master_key)
    assert (after.keys, after.key_id) == (half.keys[:1], half.key_id)
    assert previous_file(home.master_key).stat().st_mode & 0o777 == 0o600

    for one in ids:
        encrypted = await connection.fetchval("select token_sealed from integrations where id = $1::text::uuid", one)
        assert after.decrypt(encrypted, one) == b"token"

    assert await rotate_master_key(home, url) == 3
    assert SecretBox.from_file(home.master_key).key_id != half.key_id
    await connection.close()


async def do_nothing(_rotation: KeyRotation) -> Status:
    return Status()


async def test_running_platform_rotates_and_keeps_the_previous_key(
    platform_databases, tmp_path: Path, monkeypatch
) -> None:
    home = Home(tmp_path)
    url = await platform_databases()
    async with open_platform(home, PlatformSettings(), url):
        pass

    connection = await asyncpg.connect(url)
    db = await Database.connect(url)
    box = await check_key(db, home)
    first = SecretBox(*box.keys)
    stored = await connection.fetchval(INTEGRATION, "i")
    store = "update integrations set token_sealed = $2 where id = $1::text::uuid"
    read = "select token_sealed from integrations where id = $1::text::uuid"

    await connection.execute(store, stored, first.encrypt(b"token", stored))
    rotation = KeyRotation(db, home, box)
    assert (await rotation.activate()).did == {}, "there is nothing to do"
    state = await rotation.begin()
    assert timedelta(minutes=9) < state.older_key_until - datetime.now(UTC) < timedelta(minutes=11)
    assert (state.reencrypted, box.keys[1:], SecretBox.from_file(home.master_key).keys) == (2, first.keys, box.keys)
    assert box.decrypt(await connection.fetchval(read, stored), stored) == b"token"

    assert (await rotation.activate()).did == {"reencrypted": 0}
    assert len(box.keys) == 2, "a request may store a value with the older key until then"

    # A request had encrypted with the older key before, and stores its value only now.
    await connection.execute(store, stored, first.encrypt(b"late", stored))
    monkeypatch.setattr(master_key, "REMOVE_AFTER", timedelta(0))
    assert (await rotation.activate()).did == {"reencrypted": 1}
    assert len(box.keys) == 2, "the older key goes when a whole pass found nothing"
    assert (await rotation.activate()).did == {"reencrypted": 0}
    assert len(box.keys) == 1
    assert SecretBox(*box.keys).decrypt(await connection.fetchval(read, stored), stored) == b"late"

    # A database from before the rotation opens with the key that was kept, and is encrypted again.
    await connection.execute(store, stored, first.encrypt(b"restored", stored))
    await connection.execute("delete from master_key_check")
    await check_master_key(db, first)
    again = await check_key(db, home)
    assert (again.keys, again.decrypt(await connection.fetchval(read, stored), stored)) == (box.keys, b"restored")
    previous_file(home.master_key).unlink()
    await connection.execute("delete from master_key_check")

    await connection.execute(store, stored, first.encrypt(b"restored", stored))
    with pytest.raises(UserMistake, match="does not decrypt the secrets"):
        await check_key(db, home)

    await connection.close()
    await db.close()


# Stands for a value of each type, in columns that need one.
ANY = {
    "uuid": "gen_random_uuid()",
    "text": "'x'",
    "jsonb": "'{}'",
    "timestamp with time zone": "now()",
    "boolean": "true",
    "integer": "1",
    "bigint": "1",
    "bytea": "''",
    "ARRAY": "'{}'",
}
SEALED = """
select table_name, array_agg(column_name::text) as columns from information_schema.columns
where table_schema = current_schema() and column_name like '%\\_sealed' group by 1 order by 1
"""
NEEDED = """
select column_name, data_type from information_schema.columns
where table_schema = current_schema() and table_name = $1 and is_nullable = 'NO' and column_default is null
    and is_generated = 'NEVER' and is_identity = 'NO' and column_name <> 'id' and column_name not like '%\\_sealed'
"""
CHECKS = "select conname from pg_constraint where conrelid = $1::text::regclass and contype = 'c'"


async def store_sealed(connection: asyncpg.Connection, table: str, columns: list[str], box: SecretBox) -> str:
    """Store a row whose encrypted columns have a value each; its other columns say nothing. Return its id."""
    for row in await connection.fetch(CHECKS, table):
        await connection.execute(f'alter table {table} drop constraint "{row["conname"]}"')

    needed = {row["column_name"]: ANY[row["data_type"]] for row in await connection.fetch(NEEDED, table)}
    number = str(uuid4())
    names = ["id", *columns, *needed]
    values = ["$1::text::uuid", *(f"${place}" for place in range(2, len(columns) + 2)), *needed.values()]
    encrypted = [box.encrypt(f"{table}.{column}".encode(), number) for column in columns]

    await connection.execute(
        f"insert into {table} ({', '.join(names)}) values ({', '.join(values)})", number, *encrypted
    )

    return number


async def test_every_encrypted_column_gets_the_new_key(platform_databases) -> None:
    """One that was forgotten could not be read any more after the older key is gone."""
    url = await platform_databases()
    older = SecretBox(b"o" * 32)
    newer = SecretBox(b"n" * 32)
    connection = await asyncpg.connect(url)
    db = await Database.connect(url)

    # Rows of other tables, and triggers, are not what this is about.
    await connection.execute("set session_replication_role = replica")
    sealed = {row["table_name"]: row["columns"] for row in await connection.fetch(SEALED)}
    ids = {table: await store_sealed(connection, table, columns, older) for table, columns in sealed.items()}

    both = SecretBox(*newer.keys, *older.keys)
    count = sum(len(columns) for columns in sealed.values())
    assert await reencrypt(db, both) == count > 5
    assert await reencrypt(db, both) == 0

    for table, columns in sealed.items():
        row = await connection.fetchrow(f"select * from {table} where id = $1::text::uuid", ids[table])
        assert row is not None
        assert {column: newer.decrypt(row[column], ids[table]) for column in columns} == {
            column: f"{table}.{column}".encode() for column in columns
        }

    await connection.close()
    await db.close()


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_key_of_another_platform_is_not_rotated(platform_databases, tmp_path: Path) -> None:
    """Nothing is written that would make the right key, once it is there again, an older one; nor do kept keys help."""
    home = Home(tmp_path)
    right = SecretBox(b"r" * 32)
    home.master_key.write_text(base64.b64encode(b"w" * 32).decode())
    previous_file(home.master_key).write_text(base64.b64encode(b"p" * 32).decode())

    before = read_files(tmp_path)
    db = await Database.connect(await platform_databases())
    await check_master_key(db, right)

    with pytest.raises(UserMistake, match="does not decrypt the secrets of this database"):
        await rotate_stopped(db, home)

    assert read_files(tmp_path) == before
    # Now the right one was kept, and the database follows to the current key.
    previous_file(home.master_key).write_text(base64.b64encode(b"r" * 32).decode())
    assert (await check_key(db, home)).keys == SecretBox(b"w" * 32).keys
    await check_master_key(db, SecretBox(b"w" * 32))
    await db.close()


async def test_damaged_key_file_ends_no_rotation(platform_databases, tmp_path: Path) -> None:
    home = Home(tmp_path)
    db = await Database.connect(await platform_databases())
    rotation = KeyRotation(db, home, await check_key(db, home))
    await rotation.begin()

    both = home.master_key.read_text()
    home.master_key.write_text(both[:-9])

    with pytest.raises(UserMistake, match="restore it from a backup"):
        await rotation.begin()

    assert home.master_key.read_text() == both[:-9]
    home.master_key.write_text(both)
    await check_master_key(db, SecretBox.from_file(home.master_key))
    await db.close()


@pytest.mark.thorough
async def test_interrupted_rotation_ends_after_the_next_start(platform_databases, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(master_key, "REMOVE_AFTER", timedelta(0))
    monkeypatch.setattr(KeyRotation, "every_s", 0.1)

    home = Home(tmp_path)
    url = await platform_databases()
    async with open_platform(home, PlatformSettings(), url):
        pass

    half = begin_rotation(home.master_key)
    async with open_platform(home, PlatformSettings(), url):
        await eventually(lambda: asyncio.sleep(0, SecretBox.from_file(home.master_key).keys == half.keys[:1]))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_command_rotates_a_running_platform(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    with platform_server(home) as server:
        before = SecretBox.from_file(home / "master-key").keys
        command = [sys.executable, "-P", "-m", "portside", "keys", "rotate-master", "--home", str(home)]
        done = subprocess.run(
            [*command, "--url", server.url],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "DATABASE_URL": ""},
        )

        assert "the older key is removed after 20" in done.stdout, done.stderr
        assert SecretBox.from_file(home / "master-key").keys[1:] == before
        headers = {"X-Api-Key": KEY}
        entries = httpx2.get(f"{server.url}/audit-log", headers=headers).text
        assert "master_key.rotate" in entries

    with platform_server(home) as server:
        assert httpx2.get(f"{server.url}/ok").status_code == 200

    stopped = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env={**os.environ, "DATABASE_URL": ""}
    )
    assert "with the new master key" in stopped.stdout, stopped.stderr
