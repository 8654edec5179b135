"""Rotation of the master key, also after an interruption."""

from pathlib import Path

import asyncpg

from portside.kernel.crypto import SecretBox, begin_rotation
from portside.platform.app import open_platform, rotate_master_key
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings

INTEGRATION = """
insert into integrations (id, workspace_id, kind, name, base_url, token_sealed)
select gen_random_uuid(), id, 'github', $1, 'https://github.com', ''::bytea from workspaces returning id::text
"""


async def test_interrupted_key_rotation_continues(fresh_database, tmp_path: Path) -> None:
    home, url = Home(tmp_path), await fresh_database()
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
    async with open_platform(home, PlatformSettings(), url) as app:
        assert app.new_key is None, "the platform starts with both keys"
    assert await rotate_master_key(home, url) == 2, "one value, and the check of the key"
    after = SecretBox.from_file(home.master_key)
    assert (after.keys, after.key_id) == (half.keys[:1], half.key_id)
    for one in ids:
        encrypted = await connection.fetchval("select token_sealed from integrations where id = $1::text::uuid", one)
        assert after.decrypt(encrypted, one) == b"token"
    assert await rotate_master_key(home, url) == 3
    assert SecretBox.from_file(home.master_key).key_id != half.key_id
    await connection.close()
