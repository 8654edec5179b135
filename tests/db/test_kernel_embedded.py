import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.errors import UserMistake
from tests.conftest import eventually


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A home that the tests of this module use one after the other, so that it is set up once."""
    return tmp_path_factory.mktemp("a home with spaces, and 'quotes'")


@pytest.fixture
def user(home):
    """Make users of the home; those that a test leaves acquired are released."""
    users = []

    def make() -> EmbeddedPostgres:
        users.append(EmbeddedPostgres(home))
        return users[-1]

    yield make
    for made in users:
        made.release()


async def ask(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def postmaster(home: Path) -> int:
    return int((home / "postgres" / "data" / "postmaster.pid").read_text().splitlines()[0])


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def acquire(server: EmbeddedPostgres) -> str:
    import asyncio

    return await asyncio.to_thread(server.acquire)


async def test_it_starts_and_stops_with_its_last_user(home, user) -> None:
    first, second = user(), user()
    url = await acquire(first)
    assert await ask(url, "select current_user || ' ' || current_database()") == "portside portside"
    pid = postmaster(home)
    assert await acquire(second) == url
    assert postmaster(home) == pid, "the second user finds the server of the first"
    first.release()
    first.release()
    assert await ask(url, "select 1") == 1
    second.release()
    assert not lives(pid)


async def test_it_is_private(home, user) -> None:
    server = user()
    url = await acquire(server)
    assert await ask(url, "show listen_addresses") == ""
    folder = Path(str(await ask(url, "show unix_socket_directories")))
    for path, mode in ((folder, 0o700), (home / "postgres", 0o700), (home / "postgres" / "password", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path
    with pytest.raises(asyncpg.InvalidPasswordError):
        await ask(server.url("portside", password="guess"), "select 1")
    server.release()
    assert not folder.exists()  # noqa: ASYNC240


async def test_data_outlives_restarts_and_a_kill(home, user) -> None:
    import asyncio

    server = user()
    url = await asyncio.to_thread(lambda: (server.acquire(), server.create_database("mine"))[1])
    await ask(url, "create table kept (x int)")
    await ask(url, "insert into kept values (7)")
    server.release()
    await acquire(server)
    assert await ask(url, "select x from kept") == 7
    pid = postmaster(home)
    os.kill(pid, signal.SIGKILL)

    async def is_gone() -> bool:
        return not lives(pid)

    await eventually(is_gone, 10)
    heir = user()
    assert await asyncio.to_thread(lambda: (heir.acquire(), heir.create_database("mine"))[1]) == url
    assert postmaster(home) != pid
    assert await ask(url, "select x from kept") == 7


async def test_a_server_that_dies_in_use_is_started_again(home, user) -> None:
    server = user()
    url = await acquire(server)
    await ask(url, "create table survives (x int)")
    pid = postmaster(home)
    os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        try:
            return await ask(url, "select true from pg_tables where tablename = 'survives'") is True
        except (OSError, asyncpg.PostgresError):
            return False

    await eventually(is_back, 60)
    assert postmaster(home) != pid


async def test_a_user_that_is_killed_does_not_keep_it_running(home, user) -> None:
    program = f"""
import sys, pathlib
from portside.kernel.embedded import EmbeddedPostgres
EmbeddedPostgres(pathlib.Path({str(home)!r})).acquire()
print("ready", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"
    pid = postmaster(home)
    other.kill()
    other.communicate()
    assert lives(pid), "it outlives the crash"
    server = user()
    await acquire(server)
    assert postmaster(home) == pid, "and is used again"
    server.release()
    assert not lives(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_can_run_it_too() -> None:
    home = Path(f"/tmp/portside-test-{os.getpid()}")
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    program = f"""
import asyncio, asyncpg, os, pathlib
from portside.kernel.embedded import EmbeddedPostgres
os.setgroups([]); os.setgid(65534); os.setuid(65534)
server = EmbeddedPostgres(pathlib.Path({str(home)!r}))
url = server.acquire()
async def ask():
    connection = await asyncpg.connect(url)
    print(await connection.fetchval("select current_user"))
    await connection.close()
asyncio.run(ask())
server.release()
"""
    environment = {**os.environ, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.stdout, done.stderr) == ("portside\n", "")
    finally:
        shutil.rmtree(home)


def test_what_postgres_says_is_shown_when_it_cannot_start(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("portside.kernel.embedded._START_TIMEOUT_S", 0)
    server = EmbeddedPostgres(tmp_path)
    (tmp_path / "postgres" / "data").mkdir(parents=True)
    (tmp_path / "postgres" / "data" / "PG_VERSION").write_text("12\n")
    (tmp_path / "postgres" / "password").write_text("x\n")
    with pytest.raises(UserMistake, match=r"(?s)does not start.*/log:\npostgres: could not access"):
        server.acquire()
    server.release()
