"""The embedded Postgres and its supervisor.

A data folder of Postgres that contains files is never removed.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg
import pytest

from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.errors import UserMistake
from tests.conftest import eventually


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The home that all tests of this module share, so that it is initialised once."""
    return tmp_path_factory.mktemp("a home with spaces, and 'quotes'")


@pytest.fixture
def user(home):
    """Return a function that opens the home. Servers that a test does not release are released after it."""
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
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def has_ended(pid: int) -> bool:
    """Whether a process has ended. `pg_ctl` waits for the file of the postmaster, which goes a moment earlier."""
    return not lives(pid)


async def acquire(server: EmbeddedPostgres) -> str:
    import asyncio

    return await asyncio.to_thread(server.acquire)


async def test_server_stops_with_its_last_user(home, user) -> None:
    first = user()
    second = user()
    url = await acquire(first)
    assert await ask(url, "select current_user || ' ' || current_database()") == "portside portside"
    pid = postmaster(home)
    assert await acquire(second) == url
    assert postmaster(home) == pid, "the second user shares the server of the first"

    first.release()
    first.release()
    assert await ask(url, "select 1") == 1
    second.release()
    await eventually(lambda: has_ended(pid))


async def test_socket_and_files_are_private(home, user) -> None:
    server = user()
    url = await acquire(server)
    assert await ask(url, "show listen_addresses") == ""

    folder = Path(str(await ask(url, "show unix_socket_directories")))
    for path, mode in ((folder, 0o700), (home / "postgres", 0o700), (home / "postgres" / "password", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path

    with pytest.raises(asyncpg.InvalidPasswordError):
        await ask(server.url("portside", password="guess"), "select 1")

    # The role of a deployment reaches no database but its own, and cannot use up the connections.
    await ask(url, "create role stranger login password 'its own'")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await ask(server.url("portside", "stranger", "its own"), "select 1")

    connections = int(str(await ask(url, "show max_connections")))
    assert int(str(await ask(url, "show superuser_reserved_connections"))) == min(40, connections // 4) > 0

    server.release()
    assert not folder.exists()  # noqa: ASYNC240


async def test_data_survives_restarts_and_a_kill(home, user) -> None:
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
    await eventually(lambda: has_ended(pid))
    successor = user()
    assert await asyncio.to_thread(lambda: (successor.acquire(), successor.create_database("mine"))[1]) == url
    assert postmaster(home) != pid
    assert await ask(url, "select x from kept") == 7


async def test_dead_server_is_restarted(home, user) -> None:
    server = user()
    url = await acquire(server)
    await ask(url, "create table survives (x int)")
    pid = postmaster(home)

    os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        try:
            return await ask(url, "select true from pg_tables where tablename = 'survives'") is True
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False

    await eventually(is_back)
    assert postmaster(home) != pid


async def test_killed_user_releases_the_server(home, user) -> None:
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
    assert lives(pid), "the server survives the crash"
    server = user()

    await acquire(server)
    assert postmaster(home) == pid, "the server is used again"
    server.release()
    await eventually(lambda: has_ended(pid))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch to another user")
def test_ordinary_user_can_run_the_server() -> None:
    # Not in the folder of the test, which others cannot enter.
    home = Path(tempfile.mkdtemp(prefix="portside-test-", dir="/tmp"))
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
            command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=300
        )
        assert (done.stdout, done.stderr) == ("portside\n", "")
    finally:
        shutil.rmtree(home)


async def test_failed_start_shows_the_log_of_postgres(home, user, tmp_path) -> None:
    whole = user()
    await acquire(whole)
    whole.release()
    server = EmbeddedPostgres(tmp_path)

    (tmp_path / "postgres" / "data").mkdir(parents=True)
    shutil.copy(home / "postgres" / "data" / "PG_VERSION", tmp_path / "postgres" / "data" / "PG_VERSION")
    (tmp_path / "postgres" / "password").write_text("x\n")

    with pytest.raises(UserMistake, match=r"(?s)does not start.*/log:\npostgres: could not access"):
        server.acquire(within_s=0)

    server.release()


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder with its content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


async def refusal(server: EmbeddedPostgres) -> str:
    with pytest.raises(UserMistake) as refused:
        await acquire(server)
    return str(refused.value)


async def test_data_folder_without_version_file_is_refused_and_kept(home, user) -> None:
    server = user()
    url = await acquire(server)
    await ask(url, "create table precious (x int)")
    await ask(url, "insert into precious values (42)")
    server.release()

    data = home / "postgres" / "data"
    version = (data / "PG_VERSION").read_text()
    (data / "PG_VERSION").unlink()
    before = snapshot(data)

    for _ in range(2):
        text = await refusal(server)
        assert str(data) in text
        assert "Restore the folder from a backup" in text
        assert "move the folder away" in text
        server.release()

    assert snapshot(data) == before
    (data / "PG_VERSION").write_text(version)
    assert await ask(await acquire(server), "select x from precious") == 42


@pytest.mark.parametrize("version", ["16", ""])
async def test_data_folder_of_another_version_is_refused_with_instructions(home, user, version) -> None:
    server = user()
    await acquire(server)
    server.release()
    data = home / "postgres" / "data"
    real = (data / "PG_VERSION").read_text()

    (data / "PG_VERSION").write_text(f"{version}\n")
    before = snapshot(data)
    try:
        text = await refusal(server)
        assert f"brings Postgres {real.strip()}" in text
        assert "backup create --dumps" in text
        assert f"Postgres {version or 'of an unknown version'}" in text
        assert snapshot(data) == before
        server.release()
    finally:
        (data / "PG_VERSION").write_text(real)

    assert await ask(await acquire(server), "select 1") == 1


async def test_restored_data_folder_works_with_its_password(tmp_path) -> None:
    import asyncio

    server = EmbeddedPostgres(tmp_path)
    url = await acquire(server)
    await ask(url, "create table precious (x int)")
    server.release()

    data = tmp_path / "postgres" / "data"
    away = tmp_path / "postgres" / "data.saved"
    data.rename(away)
    assert await ask(await acquire(server), "select to_regclass('precious')") is None
    await asyncio.to_thread(server.release)
    shutil.rmtree(data)
    away.rename(data)

    assert await ask(await acquire(server), "select to_regclass('precious') is not null") is True
    await asyncio.to_thread(server.release)


def descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return []

    return [each for child in children for each in (child, *descendants(child))]


def end_with_descendants(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all that it started, as the loss of power would, and wait until none of them writes."""
    process.send_signal(signal.SIGSTOP)
    found = descendants(process.pid)
    for each in (*found, process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)

    process.wait()

    while any(lives(each) for each in found):
        time.sleep(0.001)


def is_interrupted(home: Path, files: int) -> bool:
    """Kill a first start as soon as initdb has written some files; return whether that came before its end."""
    folder = home / "postgres"
    left_before = set(folder.glob("initdb-*"))
    program = f"""
import pathlib
from portside.kernel.embedded import EmbeddedPostgres
EmbeddedPostgres(pathlib.Path({str(home)!r})).acquire()
"""

    starting = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, start_new_session=True)

    def progress() -> int:
        # Unlike `rglob`, this does not fail where a folder gets its final name meanwhile.
        folders = set(folder.glob("initdb-*")) - left_before
        return sum(len(below) + len(inside) for made in folders for _, below, inside in os.walk(made))

    while progress() < files and starting.poll() is None:
        time.sleep(0.001)

    if starting.poll() is None:
        end_with_descendants(starting)

    if (folder / "data").exists():
        return False

    assert progress() >= files, "something of it is left"
    assert len(list(folder.glob("initdb-*"))) == 1, "what the attempt before left is gone"
    return True


def test_initdb_never_works_in_the_data_folder(tmp_path, monkeypatch) -> None:
    """What a killed initdb leaves is not taken for data."""
    server = EmbeddedPostgres(tmp_path)
    folders: list[Path] = []

    def fail(program: str, *arguments: str, **_how: object) -> None:
        assert program == "initdb"
        folders.append(Path(arguments[arguments.index("-D") + 1]))
        assert not server.data.exists()
        raise UserMistake("it was interrupted")

    monkeypatch.setattr(server, "_run", fail)
    server.folder.mkdir()
    with pytest.raises(UserMistake, match="interrupted"):
        server._initialise()

    assert [folder.parent for folder in folders] == [server.folder]
    assert not server.data.exists()


def test_interrupted_first_start_is_repeated(tmp_path) -> None:
    """The first start is killed with all that it started at several moments of initdb; the next start succeeds."""
    folder = tmp_path / "postgres"
    for files in (1, 20, 400):
        # On a busy machine initdb may be quicker than the test, which then tries again.
        while not is_interrupted(tmp_path, files):
            server = EmbeddedPostgres(tmp_path)
            server.acquire()
            server.release()
            shutil.rmtree(folder / "data")

    server = EmbeddedPostgres(tmp_path)
    server.acquire()
    try:
        assert not list(folder.glob("initdb-*"))
        assert lives(postmaster(tmp_path))
    finally:
        server.release()


def test_used_data_folder_is_never_removed(tmp_path, user, home) -> None:
    """What an interrupted initdb left is: no server was ever started on it."""
    folder = tmp_path / "postgres"
    used = folder / "initdb-by-hand"
    used.mkdir(parents=True)
    (used / "postmaster.opts").write_text("used")

    interrupted = folder / "initdb-interrupted"
    interrupted.mkdir()
    (interrupted / "PG_VERSION").write_text("18")
    server = EmbeddedPostgres(tmp_path)

    server.acquire()
    server.release()
    assert (used / "postmaster.opts").exists()
    assert not interrupted.exists()


async def test_supervisor_survives_a_lack_of_descriptors(home) -> None:
    """No descriptor is free when Postgres dies, so it cannot be checked or restarted until one is."""
    program = f"""
import os, pathlib, resource, sys, time
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.logs import configure_logs
configure_logs()
server = EmbeddedPostgres(pathlib.Path({str(home)!r}))
server.acquire()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    print("full", flush=True)
while server.problem is None:
    time.sleep(0.01)
print(server.problem, flush=True)
sys.stdin.readline()
for descriptor in taken:
    os.close(descriptor)
while server.problem is not None:
    time.sleep(0.01)
print("well", flush=True)
sys.stdin.readline()
server.release()
"""

    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )

    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "full\n"
        os.kill(postmaster(home), signal.SIGKILL)
        assert "cannot be kept running" in process.stdout.readline()
        process.stdin.write("\n")
        assert process.stdout.readline() == "well\n"
        process.stdin.write("\n")
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


async def test_supervisor_survives_deaths_during_recovery(home, user) -> None:
    """Four new servers in a row are killed as soon as they appear; the next one survives."""
    server = user()
    url = await acquire(server)
    await ask(url, "create table if not exists survives_all (x int)")
    killed: set[int] = set()

    async def is_another() -> bool:
        try:
            pid = postmaster(home)
        except (FileNotFoundError, IndexError, ValueError):
            return False

        if pid in killed or not lives(pid):
            return False

        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
            return True

        return False

    for _ in range(4):
        await eventually(is_another)

    async def is_back() -> bool:
        try:
            return await ask(url, "select to_regclass('survives_all') is not null") is True
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False

    await eventually(is_back)

    async def is_well() -> bool:
        return server.problem is None

    await eventually(is_well)


def test_a_look_at_a_server_that_runs_cuts_its_log_and_clears_its_problem(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("portside.kernel.embedded.MAX_LOG_BYTES", 2000)
    server = EmbeddedPostgres(tmp_path)
    server.folder.mkdir()
    (server.folder / "log").write_text("x" * 3000)
    server.problem = "it did not start"

    def responds() -> bool:
        # One look is enough.
        server._released.set()
        return True

    monkeypatch.setattr(server, "_responds", responds)
    server._keep_running()

    assert (server.folder / "log.1").stat().st_size == 3000
    assert (server.folder / "log").stat().st_size == 0
    assert server.problem is None


async def test_log_of_postgres_is_rotated_while_it_runs(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("portside.kernel.embedded.MAX_LOG_BYTES", 2000)
    server = EmbeddedPostgres(tmp_path)
    url = await asyncio.to_thread(server.acquire)
    try:
        connection = await asyncpg.connect(url)
        with contextlib.suppress(asyncpg.PostgresError):
            await connection.fetch(f"select '{'x' * 3000}' from nothing")

        async def is_cut() -> bool:
            return (server.folder / "log.1").exists() and (server.folder / "log").stat().st_size < 2000

        await eventually(is_cut)
        with contextlib.suppress(asyncpg.PostgresError):
            await connection.fetch("select 'after' from nothing")

        await eventually(lambda: asyncio.sleep(0, "after" in (server.folder / "log").read_text()))
        await connection.close()
    finally:
        await asyncio.to_thread(server.release)
