"""Checks of the home folder at start.

No platform starts with the home or the master key of another database.
"""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from portside.kernel.crypto import SecretBox
from portside.kernel.errors import UserMistake
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.maintenance import rotate_master_key
from portside.platform.settings import PlatformSettings

# That of the images and manifests.
POD_USER = 10001


async def test_keys_are_private_and_a_missing_master_key_is_refused(platform_databases, tmp_path):
    url = await platform_databases()
    home = Home(tmp_path)
    settings = PlatformSettings()
    async with open_platform(home, settings, url) as first:
        assert first.new_key == home.api_key.read_text().strip()
        connection = await asyncpg.connect(url)
        used = await connection.fetch("select permissions, used_by from api_keys where user_id is null")
        assert [tuple(row) for row in used] == [(["listeners:work"], "the platform's own listener")]
        await connection.close()

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


def test_shared_folder_keeps_its_mode_also_at_the_second_start(tmp_path):
    tmp_path.chmod(0o1777)
    for _ in range(2):
        home = Home(tmp_path)
        home.lock()
        os.close(home._lock)
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


# For a volume whose root belongs to root and to the group of a pod, as `fsGroup` leaves it, and for one that everybody
# may write to.
LOCK_AS_POD = f"""
import os, pathlib, sys
from portside.kernel.errors import UserMistake
from portside.platform.home import Home
os.setgroups([{POD_USER}]); os.setgid({POD_USER}); os.setuid({POD_USER})
for _ in range(2):  # The second start finds a home.
    home = Home(pathlib.Path(sys.argv[1]))
    try:
        home.lock()
    except UserMistake as mistake:
        sys.exit(str(mistake))
    status = home.path.stat()
    print(status.st_uid, oct(status.st_mode & 0o7777))
    os.close(home._lock)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another user")
def test_root_of_a_volume_keeps_its_mode_if_not_everybody_may_write_to_it():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # that of the test is in one that others cannot enter
        volume = Path(folder)
        (volume / "lost+found").mkdir(mode=0o700)
        os.chown(volume, 0, POD_USER)

        volume.chmod(0o2775)
        assert run_as_pod(LOCK_AS_POD, str(volume)) == ("0 0o2775\n" * 2, "")

        (volume / "platform.lock").unlink()
        volume.chmod(0o777)
        says = f"{volume} belongs to the user root, and everybody may write to it; name a folder in it instead"
        assert says in run_as_pod(LOCK_AS_POD, str(volume))[1]
        assert run_as_pod(LOCK_AS_POD, str(volume / "portside")) == (f"{POD_USER} 0o700\n" * 2, "")


CONNECT_AS_POD = f"""
import asyncio, asyncpg, os
from portside.cli.main import leave_closed_home
os.setgroups([]); os.setgid({POD_USER}); os.setuid({POD_USER})
for prepare in (lambda: None, leave_closed_home):
    prepare()
    try:
        asyncio.run(asyncpg.connect("postgresql://a:b@127.0.0.1:1/c", timeout=300))
    except OSError as exc:
        print(type(exc).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another user")
def test_driver_looks_for_no_key_in_a_home_of_another_user(tmp_path):
    """HOME of an image that runs as another user: there the driver failed on ~/.postgresql/postgresql.key."""
    tmp_path.chmod(0o700)
    assert run_as_pod(CONNECT_AS_POD, HOME=str(tmp_path)) == ("PermissionError\nConnectionRefusedError\n", "")


def run_as_pod(program: str, *arguments: str, **variables: str) -> tuple[str, str]:
    """Run a program that changes to another user, and return what it prints."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=300)
    return done.stdout, done.stderr


async def test_used_home_is_refused_on_an_empty_database(platform_databases, fresh_database, tmp_path):
    url = await platform_databases()
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
async def test_wrong_master_key_is_refused_at_start(platform_databases, tmp_path, *, is_old: bool):
    url = await platform_databases()
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
