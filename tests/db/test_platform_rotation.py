"""A new master key, also where the change to it was interrupted."""

from pathlib import Path

import asyncpg

from portside.kernel.crypto import SecretBox, begin_rotation
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.rotation import rotate_master_key
from portside.platform.settings import PlatformSettings

INTEGRATION = """
insert into integrations (id, workspace_id, kind, name, base_url, token_sealed)
select gen_random_uuid(), id, 'github', $1, 'https://github.com', ''::bytea from workspaces returning id::text
"""


async def test_an_interrupted_change_of_keys_goes_on(fresh_database, tmp_path: Path) -> None:
    home, url = Home(tmp_path), await fresh_database()
    async with open_platform(home, PlatformSettings(), url):
        pass
    connection = await asyncpg.connect(url)
    first = SecretBox.from_file(home.master_key)
    ids = [await connection.fetchval(INTEGRATION, f"i{number}") for number in range(2)]
    seal = "update integrations set token_sealed = $2 where id = $1::text::uuid"
    for one in ids:
        await connection.execute(seal, one, first.seal(b"token", one))
    # What a kill in the middle leaves behind: both keys, and one value under each.
    half = begin_rotation(home.master_key)
    await connection.execute(seal, ids[0], half.seal(b"token", ids[0]))
    async with open_platform(home, PlatformSettings(), url) as app:
        assert app.new_key is None, "the platform starts meanwhile"
    assert await rotate_master_key(home, url) == 1
    after = SecretBox.from_file(home.master_key)
    assert (after.keys, after.key_id) == (half.keys[:1], half.key_id)
    for one in ids:
        sealed = await connection.fetchval("select token_sealed from integrations where id = $1::text::uuid", one)
        assert after.open(sealed, one) == b"token"
    assert await rotate_master_key(home, url) == 2
    assert SecretBox.from_file(home.master_key).key_id != half.key_id
    await connection.close()
