"""Checks of the home folder at start.

No platform starts with the home or the master key of another database.
"""

import os
import stat
from uuid import uuid4

import asyncpg
import pytest

from portside.kernel.crypto import SecretBox
from portside.kernel.errors import UserMistake
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.maintenance import rotate_master_key
from portside.platform.settings import PlatformSettings


async def test_keys_are_private_and_a_missing_master_key_is_refused(fresh_database, tmp_path):
    url = await fresh_database()
    home = Home(tmp_path)
    settings = PlatformSettings()
    async with open_platform(home, settings, url) as first:
        assert first.new_key == home.api_key.read_text().strip()

    for file in (home.api_key, home.listener_key, home.master_key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    async with open_platform(home, settings, url) as second:
        assert second.new_key is None
        assert second.listener_key == first.listener_key

    home.master_key.unlink()
    with pytest.raises(UserMistake, match="master-key is missing"):
        async with open_platform(home, settings, url):
            pass

    assert not home.master_key.exists()


def test_second_platform_cannot_lock_the_home(tmp_path):
    first = Home(tmp_path)
    first.lock()
    with pytest.raises(UserMistake, match=f"process {os.getpid()}"):
        Home(tmp_path).lock()


def test_existing_home_becomes_private_but_a_shared_folder_does_not(tmp_path):
    empty = tmp_path / "empty"
    shared = tmp_path / "shared"
    for folder in (empty, shared):
        folder.mkdir()
        folder.chmod(0o755)

    (shared / "somebody").touch()
    Home(empty).lock()
    Home(shared).lock()
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (empty, shared)] == [0o700, 0o755]


async def test_used_home_is_refused_on_an_empty_database(fresh_database, tmp_path):
    url = await fresh_database()
    home = Home(tmp_path)
    settings = PlatformSettings()
    async with open_platform(home, settings, url) as first:
        key = first.new_key

    empty = await fresh_database()
    for _ in range(2):
        with pytest.raises(
            UserMistake, match=r"api-key belongs to a platform, but the database is empty.*DATABASE_URL"
        ):
            async with open_platform(home, settings, empty):
                pass

    assert home.api_key.read_text().strip() == key
    connection = await asyncpg.connect(empty)
    assert await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0
    await connection.close()

    async with open_platform(home, settings, url) as again:
        assert again.new_key is None


@pytest.mark.parametrize("is_old", [False, True])
async def test_wrong_master_key_is_refused_at_start(fresh_database, tmp_path, *, is_old: bool):
    url = await fresh_database()
    home = Home(tmp_path)
    settings = PlatformSettings()
    async with open_platform(home, settings, url):
        pass

    connection = await asyncpg.connect(url)
    if is_old:  # a database from before the check was added has only secrets
        box = SecretBox.from_file(home.master_key)
        one = uuid4()
        await connection.execute("delete from master_key_check")

        await connection.execute(
            "insert into integrations (id, workspace_id, kind, name, base_url, token_sealed) "
            "select $1, id, 'github', 'one', 'https://github.com', $2 from workspaces",
            one,
            box.encrypt(b"t", str(one)),
        )

    right = home.master_key.read_bytes()
    home.master_key.unlink()
    SecretBox.from_file(home.master_key)
    wrong = home.master_key.read_bytes()

    for use in (open_platform(home, settings, url).__aenter__, lambda: rotate_master_key(home, url)):
        with pytest.raises(UserMistake, match="master-key does not decrypt the secrets of this database"):
            await use()

    assert home.master_key.read_bytes() == wrong
    home.master_key.write_bytes(right)

    for _ in range(2):
        async with open_platform(home, settings, url):
            pass

    assert await connection.fetchval("select count(*) from master_key_check") == 1
    await connection.close()
