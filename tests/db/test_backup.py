"""Backups of a platform's home and database: everything comes back, and a refused restore changes nothing."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from portside.backup import restore as restoring
from portside.backup import stores
from portside.backup.container import BackupRefused, EncryptedReader, Passphrase
from portside.backup.contents import unpack
from portside.backup.create import BackupTarget, SourcePlatform, create_backup
from portside.backup.databases import BackupFailed, restore_dumps
from portside.backup.listing import list_stored_backups, read_stored_header
from portside.backup.restore import Backup, NewHome, restore, verify
from portside.backup.stores import FolderStore
from portside.cli import service as cli_service
from portside.control.key_rotation import open_all
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres, find_program
from portside.kernel.errors import UserMistake
from portside.kernel.schema_files import read_migrations
from portside.kernel.version import full_version
from portside.operate.service import Service
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.maintenance import check_restored
from portside.platform.settings import PlatformSettings
from tests.commands import run_here
from tests.preloaded import run_command
from tests.servers import free_port
from tests.small_disk import small_disk

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
PASSPHRASE = Passphrase("correct horse battery")
AGENT = "agent_0123456789abcdef0123456789abcdef"
SECRET = b"s3cret"
# What is valid on one machine only.
LEFT_OUT_FILES = (
    "address",
    "platform.lock",
    "dataplane/listener.lock",
    "dataplane/deployments/1/state.json",
    "dataplane/deployments/1/database-password",
    "dataplane/deployments/1/revisions/2/built.json",
)


@dataclass
class Original:
    """A platform's home with an embedded Postgres, which runs, and the URL of its database."""

    home: Path
    server: EmbeddedPostgres
    url: str


def silently(_phase: str) -> Any:
    return lambda _size: None


async def run(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def value(url: str, query: str, *arguments: Any) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query, *arguments)
    finally:
        await connection.close()


async def fill(original: Original) -> None:
    """Make a platform, a secret of an integration, an agent's database and some files."""
    settings = PlatformSettings(home=str(original.home), rate_limits=False)
    async with open_platform(Home(original.home), settings, original.url):
        pass

    box = SecretBox.from_file(original.home / "master-key")
    token = "00000000-0000-7000-8000-000000000001"
    workspace = await value(original.url, "select id from workspaces limit 1")

    await run(
        original.url,
        "insert into integrations (id, workspace_id, kind, name, base_url, token_sealed) values"
        f" ('{token}', '{workspace}', 'github', 'kept', 'https://github.com', '\\x{box.encrypt(SECRET, token).hex()}')",
        f"create role {AGENT} login",
        f"create database {AGENT} owner {AGENT}",
    )

    await run(
        original.server.url(AGENT),
        "create extension vector",
        f"set role {AGENT}",
        "create schema portside",
        "create table portside.vectors (v vector(3))",
        "create table portside.threads as select g as id, repeat('x', 100) as body from generate_series(1, 5000) g",
    )

    (original.home / "archives").mkdir()
    (original.home / "archives" / "1.tar.gz").write_bytes(os.urandom(2_000_000))

    for left_out in (*LEFT_OUT_FILES, "dataplane/uv-cache/x", "logs/listener.log"):
        (original.home / left_out).parent.mkdir(parents=True, exist_ok=True)
        (original.home / left_out).write_text("{}")

    # An agent's own file may have the name of one of the platform that is left out.
    for kept in ("home/notes", "home/state.json", "home/logs/today", "sources/2/HEAD", "served.json"):
        (original.home / "dataplane/deployments/1" / kept).parent.mkdir(parents=True, exist_ok=True)
        (original.home / "dataplane/deployments/1" / kept).write_text("kept")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    home = tmp_path_factory.mktemp("original") / "a home"
    home.mkdir()

    server = EmbeddedPostgres(home)
    made = Original(home, server, server.acquire())
    try:
        asyncio.run(fill(made))
        yield made
    finally:
        server.release()


@pytest.fixture(scope="module")
def store_with_backups(original: Original, tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    """A folder with a backup of each kind."""
    store = FolderStore(tmp_path_factory.mktemp("stored"))
    for kind in ("data", "dumps"):
        target = BackupTarget(store, f"{kind}.backup", PASSPHRASE)
        asyncio.run(create_backup(SourcePlatform(original.home, original.url, kind), target, lambda _: None))
        # What `tests/unit/test_backup_failures.py` shows to be refused if it is newer.
        header = read_stored_header(store, target.name)
        assert header.version == full_version()
        assert header.migrations["identity"] == read_migrations("portside.identity")[-1].number

    return store


class MeasuringStore(FolderStore):
    """A folder that keeps how large a backup was expected to be."""

    expected_bytes = 0

    def create(self, name: str, expected_bytes: int = 0) -> Any:
        self.expected_bytes = expected_bytes
        return super().create(name, expected_bytes)


async def test_backup_says_how_large_it_may_become(original: Original, tmp_path: Path) -> None:
    """The store chooses the size of the parts of an upload by it."""
    store = MeasuringStore(tmp_path)
    (original.home / "archives").mkdir(exist_ok=True)
    (original.home / "archives" / "large.tar.gz").write_bytes(os.urandom(3_000_000))

    try:
        platform = SourcePlatform(original.home, original.url, "dumps")
        made = await create_backup(platform, BackupTarget(store, "a.backup", PASSPHRASE), lambda _: None)
    finally:
        (original.home / "archives" / "large.tar.gz").unlink()

    assert store.expected_bytes >= sum(made.summary.databases.values()) + 3_000_000
    assert made.size_bytes <= store.expected_bytes <= sum(made.summary.databases.values()) + 50_000_000


@contextlib.asynccontextmanager
async def run_postgres(home: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(home)
    await asyncio.to_thread(server.acquire)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.release)


def check_files(original: Original, home: Path) -> None:
    """Check that a restored home has the files that a backup keeps, and none of the others."""
    of_agents = ("home/notes", "home/state.json", "home/logs/today", "sources/2/HEAD", "served.json")
    kept = ("master-key", "api-key", "archives/1.tar.gz", *(f"dataplane/deployments/1/{name}" for name in of_agents))
    for name in kept:
        assert (home / name).read_bytes() == (original.home / name).read_bytes()

    assert (home.stat().st_mode & 0o777, (home / "master-key").stat().st_mode & 0o777) == (0o700, 0o600)

    for left_out in (*LEFT_OUT_FILES, "logs", "backups", "dataplane/uv-cache"):
        assert not (home / left_out).exists()


@pytest.mark.parametrize("kind", ["data", "dumps"])
async def test_everything_comes_back(
    original: Original, store_with_backups: FolderStore, tmp_path: Path, kind: str
) -> None:
    _, summary = await asyncio.to_thread(verify, Backup(store_with_backups, f"{kind}.backup", PASSPHRASE), silently)
    assert list(summary.databases) == ["portside", AGENT]
    home = tmp_path / "new home"
    moved: list[tuple[str, str]] = []

    async def move(_url: str, before: str, after: str) -> None:
        moved.append((before, after))

    target = NewHome(home, None, check_restored, move=move)
    await restore(Backup(store_with_backups, f"{kind}.backup", PASSPHRASE), target, silently)
    assert moved == [(str(original.home), str(home))]
    check_files(original, home)

    async with run_postgres(home) as server:
        url = server.url("portside")
        db = await Database.connect(url)
        box = SecretBox.from_file(home / "master-key")
        assert await open_all(db, box) >= 2
        await db.close()

        encrypted = await value(url, "select token_sealed from integrations where name = 'kept'")
        assert box.decrypt(encrypted, "00000000-0000-7000-8000-000000000001") == SECRET
        timeline = "select timeline_id from pg_control_checkpoint()"
        assert await value(url, timeline) - await value(original.url, timeline) == (kind == "data")
        assert await value(url, "select current_setting('restore_command')") == ""
        assert await value(server.url(AGENT), "select count(*) from portside.threads") == 5000
        owner = await value(server.url(AGENT), "select tableowner from pg_tables where tablename = 'threads'")
        assert owner == AGENT

    assert os.listdir(tmp_path) == ["new home"], "nothing else is left"  # noqa: PTH208


async def expect_refusal(backup: Backup, home: Path, url: str | None = None) -> str:
    """Restore, which must be refused without a trace, and return the reason."""
    before = sorted(home.parent.rglob("*"))
    with pytest.raises(UserMistake) as caught:
        await restore(backup, NewHome(home, url, check_restored), silently)

    assert sorted(home.parent.rglob("*")) == before
    return str(caught.value)


async def test_refused_restores_leave_nothing(store_with_backups: FolderStore, tmp_path: Path, monkeypatch) -> None:
    store = FolderStore(tmp_path)
    whole = (Path(store_with_backups.location) / "dumps.backup").read_bytes()
    torn = whole[:-100_000]
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    (tmp_path / "torn.backup").write_bytes(torn)
    (tmp_path / "changed.backup").write_bytes(changed)

    home = tmp_path / "new"
    assert "passphrase does not open" in await expect_refusal(
        Backup(store_with_backups, "dumps.backup", Passphrase("wrong one")), home
    )
    assert "torn" in await expect_refusal(Backup(store, "torn.backup", PASSPHRASE), home)
    assert "damaged" in await expect_refusal(Backup(store, "changed.backup", PASSPHRASE), home)
    assert "no such file" in await expect_refusal(Backup(store, "missing.backup", PASSPHRASE), home)
    data = Backup(store_with_backups, "data.backup", PASSPHRASE)
    assert "unset" in await expect_refusal(data, home, "postgresql:///elsewhere")

    monkeypatch.setattr(restoring, "read_bundled_version", lambda: 17)
    assert "data folder of Postgres 18" in await expect_refusal(data, home)
    monkeypatch.undo()
    (home / "kept").mkdir(parents=True)
    assert "not empty" in await expect_refusal(data, home)


async def test_existing_folder_becomes_the_home(
    original: Original, store_with_backups: FolderStore, tmp_path: Path
) -> None:
    """A volume cannot be replaced, and a service's user may not write beside its home."""
    home = tmp_path / "volume"
    home.mkdir()
    moved: list[tuple[str, str]] = []

    async def move(_url: str, before: str, after: str) -> None:
        moved.append((before, after))

    with small_disk(home, 400) if os.geteuid() == 0 else contextlib.nullcontext():
        (home / "lost+found").mkdir()
        # A restore into it was killed.
        (home / ".restore-killed").mkdir()
        folder = home.stat().st_ino
        target = NewHome(home, None, check_restored, move=move)
        await restore(Backup(store_with_backups, "data.backup", PASSPHRASE), target, silently)
        assert moved == [(str(original.home), str(home))]
        check_files(original, home)
        assert (home.stat().st_ino, home.stat().st_mode & 0o777) == (folder, 0o700)
        names = {path.name for path in home.iterdir()}
        assert names >= {"api-key", "master-key", "postgres", "lost+found"}

        # It began a timeline of its own, and does not ask for more WAL at its next start.
        data = home / "postgres" / "data"
        assert [path.name for path in data.glob("pg_wal/*.history")] == ["00000002.history"]
        assert "restore_command" not in (data / "postgresql.auto.conf").read_text()
        assert not (data / "recovery.signal").exists()

        assert not [name for name in names if name.startswith(".restore-")]
        assert os.listdir(tmp_path) == ["volume"]  # noqa: PTH208


@needs_root
async def test_folder_of_another_user_is_refused(store_with_backups: FolderStore, tmp_path: Path) -> None:
    """Otherwise the files would be those of a user who is not the service's."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    reason = await expect_refusal(Backup(store_with_backups, "data.backup", PASSPHRASE), home)
    assert re.search(r"belongs to the user \w+: restore as", reason)


@pytest.mark.parametrize("kind", ["data", "dumps"])
async def test_restore_that_fails_late_leaves_nothing(
    store_with_backups: FolderStore, tmp_path: Path, kind: str
) -> None:
    """The master key does not belong to the database: everything was written and recovered by then."""

    async def fails(_url: str, home: Path) -> None:
        assert (home / "postgres" / "data" / "PG_VERSION").exists()
        raise UserMistake("it does not open")

    backup = Backup(store_with_backups, f"{kind}.backup", PASSPHRASE)
    with pytest.raises(UserMistake, match="does not open"):
        await restore(backup, NewHome(tmp_path / "a" / "b" / "new", None, fails), silently)

    assert not os.listdir(tmp_path)  # noqa: PTH208
    (tmp_path / "there").mkdir()
    with pytest.raises(UserMistake, match="does not open"):
        await restore(backup, NewHome(tmp_path / "there", None, fails), silently)

    assert not os.listdir(tmp_path / "there")  # noqa: PTH208


async def test_place_that_cannot_be_written_is_named(store_with_backups: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    with pytest.raises(UserMistake, match=r"cannot restore into .*file/home: .*; nothing is left of it$"):
        await restore(
            Backup(store_with_backups, "dumps.backup", PASSPHRASE), NewHome(home, None, check_restored), silently
        )


async def test_dumps_go_into_an_empty_server_or_nowhere(
    store_with_backups: FolderStore, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    home = tmp_path / "new"
    backup = Backup(store_with_backups, "dumps.backup", PASSPHRASE)
    async with run_postgres(tmp_path_factory.mktemp("other")) as server:
        admin = server.url("postgres")
        await run(
            admin, "create role plain login createdb createrole password 'secret'", "create database own owner plain"
        )

        url = server.url("own", "plain", "secret")
        await run(url, "create table something (x int)")
        assert "is not empty" in await expect_refusal(backup, home, url)
        await run(url, "drop table something")
        await run(admin, f"create role {AGENT}")
        assert "already" in await expect_refusal(backup, home, url)
        await run(admin, f"drop role {AGENT}")

        assert "create it in the database template1" in await expect_refusal(backup, home, url)
        await restore_without_vectors(server, tmp_path / "dumps")
        await run(server.url("template1"), "create extension vector")
        await restore(backup, NewHome(home, url, check_restored), silently)
        assert not (home / "postgres").exists()
        assert await value(url, "select count(*) from integrations where name = 'kept'") == 1
        threads = await value(server.url(AGENT), "select count(*) from portside.threads")
        assert threads == 5000

        assert await value(server.url(AGENT), "select has_database_privilege('public', $1, 'connect')", AGENT) is False


async def restore_without_vectors(server: EmbeddedPostgres, folder: Path) -> None:
    """Restore an agent whose store has no vectors, as a role that may not create the extension for them."""
    agent = "agent_fedcba9876543210fedcba9876543210"
    await run(server.url("postgres"), "create database source", "create database plain owner plain")
    await run(
        server.url("source"),
        "create extension vector",
        "create extension pg_trgm",
        "create table words (word text)",
        "create index on words using gin (word public.gin_trgm_ops)",
        "insert into words values ('vector')",
    )

    def dump() -> None:
        folder.mkdir()
        for name, source in ((agent, "source"), ("plain", "plain")):
            command = [
                find_program("pg_dump"),
                "-F",
                "custom",
                "-f",
                str(folder / f"{name}.dump"),
                "-d",
                server.url(source),
            ]
            subprocess.run(command, check=True, timeout=300)

    await asyncio.to_thread(dump)
    await restore_dumps(server.url("plain", "plain", "secret"), folder)
    assert await value(server.url(agent), "select word from words") == "vector"
    found = await value(server.url(agent), "select string_agg(extname, ' ' order by extname) from pg_extension")
    assert found == "pg_trgm plpgsql"


@pytest.mark.thorough
async def test_failed_dump_leaves_no_database(
    store_with_backups: FolderStore, tmp_path_factory, tmp_path: Path, monkeypatch
) -> None:
    real: Any = restoring.restore_dumps

    async def damaged(url: str, folder: Path) -> None:
        with (folder / "portside.dump").open("r+b") as file:
            file.truncate(20_000)
        await real(url, folder)

    monkeypatch.setattr(restoring, "restore_dumps", damaged)
    async with run_postgres(tmp_path_factory.mktemp("other")) as server:
        await run(server.url("postgres"), "create database own")
        backup = Backup(store_with_backups, "dumps.backup", PASSPHRASE)
        assert "pg_restore failed" in await expect_refusal(backup, tmp_path / "new", server.url("own"))
        assert await value(server.url("own"), "select count(*) from pg_tables where schemaname = 'public'") == 0
        assert await value(server.url("own"), "select count(*) from pg_database where datname ~ 'agent_'") == 0
        assert await value(server.url("own"), "select count(*) from pg_roles where rolname ~ 'agent_'") == 0


async def test_failed_backup_leaves_no_file(original: Original, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "stored")
    unreachable = SourcePlatform(original.home, original.server.url("missing"), "dumps")
    with pytest.raises(BackupFailed, match="does not exist"):
        await create_backup(unreachable, BackupTarget(store, "a.backup", PASSPHRASE), lambda _: None)

    def breaks(_size: int) -> None:
        raise OSError(28, "No space left on device")

    for kind in ("data", "dumps"):
        with pytest.raises(BackupFailed, match="No space left"):
            await create_backup(
                SourcePlatform(original.home, original.url, kind), BackupTarget(store, "a.backup", PASSPHRASE), breaks
            )

    assert list((tmp_path / "stored").iterdir()) == []
    assert await value(original.url, "select count(*) from pg_replication_slots") == 0


async def test_backup_begins_again_when_a_deployment_is_deleted(original: Original, tmp_path: Path) -> None:
    deleted = "agent_" + "f" * 32
    await run(original.url, f"create database {deleted}")
    drops = iter([f"drop database {deleted}"])

    def delete_once(_size: int) -> None:
        # The platform's own database is the first, so this one is listed and not dumped yet.
        for drop in drops:
            asyncio.run(run(original.url, drop))

    store = FolderStore(tmp_path)
    platform = SourcePlatform(original.home, original.url, "dumps")
    result = await create_backup(platform, BackupTarget(store, "a.backup", PASSPHRASE), delete_once)

    assert deleted not in result.summary.databases
    assert AGENT in result.summary.databases
    assert [file.name for file in store.list()] == ["a.backup"]
    verify(Backup(store, "a.backup", PASSPHRASE), silently)


async def test_rotation_during_a_backup_keeps_both_keys(original: Original, tmp_path: Path) -> None:
    """What was copied before the rotation needs the older key; the newer one encrypts."""
    home = tmp_path / "home"
    key = original.home / "master-key"
    home.mkdir()

    for name in ("master-key", "postgres"):
        (home / name).symlink_to(original.home / name)

    (home / "master-key").unlink()
    shutil.copy(key, home / "master-key")
    newer = SecretBox.from_file(tmp_path / "newer")

    def rotates(_size: int) -> None:
        shutil.copy(tmp_path / "newer", home / "master-key")

    store = FolderStore(tmp_path)
    await create_backup(
        SourcePlatform(home, original.url, "dumps"), BackupTarget(store, "a.backup", PASSPHRASE), rotates
    )
    with store.open("a.backup") as source:
        await asyncio.to_thread(unpack, EncryptedReader(source, PASSPHRASE), tmp_path / "unpacked", lambda _: None)

    older = SecretBox.from_file(key)
    assert SecretBox.from_file(tmp_path / "unpacked" / "home" / "master-key").keys == (*newer.keys, *older.keys)


def portside(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return run_command("backup", *arguments, environment={**os.environ, "DATABASE_URL": "", **environment})


@pytest.mark.parametrize("kind", [["--dumps"], []], ids=["dumps", "data"])
def test_two_commands_restore_a_platform(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: list[str]
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("PORTSIDE_BACKUP_PASSPHRASE", raising=False)
    (tmp_path / "passphrase").write_text("correct horse battery\nnot this line\n")
    (tmp_path / "scratch").mkdir()
    file = str(tmp_path / "a.backup")
    key = ("--passphrase-file", str(tmp_path / "passphrase"))
    made = run_here("backup", "create", *kind, "--home", str(original.home), "--to", file, *key)
    assert (made.returncode, made.stdout.strip()) == (0, file), made.stderr
    assert Path(file).stat().st_mode & 0o777 == 0o600

    assert "a.backup  20" in run_here("backup", "list", str(tmp_path)).stdout
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
        verified = run_here("backup", "verify", file, "--restore", *key)

    assert "every secret opens" in verified.stdout, verified.stderr
    assert re.search(rf"^{AGENT} +5000$", verified.stdout, re.MULTILINE)
    assert os.listdir(tmp_path / "scratch") == [], "nothing is left of it"  # noqa: PTH208
    (tmp_path / "wrong").write_text("another passphrase")
    wrong = run_here("backup", "verify", file, "--passphrase-file", str(tmp_path / "wrong"))
    assert (wrong.returncode, "does not open" in wrong.stderr) == (1, True)

    done = run_here("backup", "restore", str(tmp_path), "--home", str(tmp_path / "new"), *key)
    assert done.returncode == 0, done.stderr
    check_files(original, tmp_path / "new")


def type_at_terminal(*arguments: str, typed: str, prompts: int) -> int:
    """Run a command at a terminal of its own, type the same at each prompt, and return its exit status."""
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if "PASSPHRASE" not in name}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "portside", "backup", *arguments],
        stdin=follower,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**environment, "DATABASE_URL": ""},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one call of the system
    ) as process:
        os.close(follower)

        for _ in range(prompts):
            # The prompt ends so, when the terminal shows no more what is typed.
            shown = b""
            while not shown.endswith(b" "):
                shown += os.read(leader, 100)

            os.write(leader, f"{typed}\n".encode())
            assert typed.encode() not in shown

        code = process.wait(300)

    os.close(leader)
    return code


def test_passphrase_is_asked_for(original: Original, tmp_path: Path) -> None:
    """Twice for a new backup, once to open one, and never where nobody can type."""
    file = str(tmp_path / "a.backup")
    create = ("create", "--home", str(original.home), "--to", file)
    nobody = portside(*create, PORTSIDE_BACKUP_PASSPHRASE="", PORTSIDE_BACKUP_PASSPHRASE_FILE="")
    assert (nobody.returncode, "needs a passphrase" in nobody.stderr) == (1, True)
    assert type_at_terminal(*create, typed="correct horse battery", prompts=2) == 0
    assert type_at_terminal("verify", file, typed="correct horse battery", prompts=1) == 0
    assert type_at_terminal("verify", file, typed="another passphrase", prompts=1) == 1

    assert portside("verify", file, PORTSIDE_BACKUP_PASSPHRASE="correct horse battery").returncode == 0


def test_commands_read_the_settings_of_the_service(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "BACKUP_TO", "PORTSIDE_BACKUP_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(cli_service, "ROOT", tmp_path)
    service = Service(root=tmp_path, home=original.home)
    service.unit_file.parent.mkdir(parents=True)
    service.unit_file.write_text(service.unit)
    service.settings_file.parent.mkdir(parents=True)
    service.settings_file.write_text(
        f"# as systemd reads it\nBACKUP_TO={tmp_path}/stored\nPORTSIDE_BACKUP_PASSPHRASE='correct horse battery'\n"
    )

    done = run_here("backup", "run", "--home", str(original.home))
    assert (done.returncode, done.stdout.startswith(f"{tmp_path}/stored/portside-")) == (0, True), done.stderr

    # Not for the home of another platform.
    (tmp_path / "other").mkdir()
    other = run_here("backup", "run", "--home", str(tmp_path / "other"))
    assert (other.returncode, "set BACKUP_TO" in other.stderr) == (1, True)
    done = run_here("backup", "restore", f"{tmp_path}/stored", "--home", str(tmp_path / "new"))
    assert (done.returncode, "needs a passphrase" in done.stderr) == (1, True)


def test_upgrade_backs_up_with_the_settings_of_its_file(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the credentials of the store, which are no settings of the platform."""
    opened: list[tuple[str, str | None]] = []
    real = stores.open_store

    def open_store(location: str, environ: Mapping[str, str]) -> stores.Store:
        opened.append((location, environ.get("AWS_ACCESS_KEY_ID")))
        return real(str(tmp_path / "stored"), {})

    monkeypatch.setattr(stores, "open_store", open_store)

    for name in ("DATABASE_URL", "BACKUP_TO", "PORTSIDE_BACKUP_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)

    file = tmp_path / "portside.env"
    file.write_text("BACKUP_TO=s3://ours\nAWS_ACCESS_KEY_ID=ours\nPORTSIDE_BACKUP_PASSPHRASE=correct horse battery\n")
    where = ("--home", str(original.home), "--port", str(free_port()), "--env-file", str(file))
    done = run_here("upgrade", *where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert opened == [("s3://ours", "ours")]
    assert len(list_stored_backups(real(str(tmp_path / "stored"), {}))) == 1


def test_list_names_files_that_are_no_backups(store_with_backups: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "other.backup").write_bytes(b"something else")
    (tmp_path / ".half.backup.partial").write_bytes(b"PORTSIDE BACKUP\n")
    shutil.copy(Path(store_with_backups.location) / "data.backup", tmp_path)
    found = {each.name: each.problem for each in list_stored_backups(FolderStore(tmp_path))}

    assert found == {
        "other.backup": "this file is not a Portside backup; name a file that 'portside backup create' wrote",
        "data.backup": None,
    }

    with pytest.raises(BackupRefused):
        read_stored_header(FolderStore(tmp_path), "other.backup")


def folders_beside(tmp_path: Path) -> set[Path]:
    """The folders of restores that run."""
    return {folder for folder in tmp_path.glob(".new.restore-*") if is_locked(folder)}


def is_locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # a restore has removed it
        return False

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)

    return False


# A restore that writes the first bytes of its files, and then goes on with them until it is ended.
ENDLESS_RESTORE = """
import time
from portside.backup import restore
from portside.cli.main import main

unpack = restore.unpack

def unpack_without_end(source, folder, progress):
    def hold(size):
        progress(size)
        while True:
            time.sleep(0.02)
            progress(0)

    unpack(source, folder, hold)

restore.unpack = unpack_without_end
main()
"""


def begin_restore(stored: FolderStore, tmp_path: Path, how: str = "default") -> "subprocess.Popen[bytes]":
    """Begin to restore into `tmp_path / "new"`, without an end; returns once its folder beside that is there.

    `how` is what SIGINT does to it: `ignore` or `default`, whatever the tests themselves inherited.
    """
    # All of them: a restore also locks what an earlier one left, while it removes that.
    before = set(tmp_path.glob(".new.restore-*"))
    process = subprocess.Popen(
        [
            "env",
            f"--{how}-signal=INT",
            sys.executable,
            "-P",
            "-c",
            ENDLESS_RESTORE,
            "backup",
            "restore",
            f"{stored.location}/data.backup",
            "--home",
            str(tmp_path / "new"),
        ],
        env={**os.environ, "DATABASE_URL": "", "PORTSIDE_BACKUP_PASSPHRASE": "correct horse battery"},
        stdin=subprocess.DEVNULL,
    )

    deadline = time.monotonic() + 120
    while not folders_beside(tmp_path) - before:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)

    return process


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGTERM, "default"), (signal.SIGTERM, "ignore"), (signal.SIGINT, "default")]
)
def test_interrupted_restore_leaves_nothing(
    store_with_backups: FolderStore, tmp_path: Path, number: signal.Signals, how: str
) -> None:
    """A shell lets its background jobs ignore SIGINT; SIGTERM ends them all the same."""
    process = begin_restore(store_with_backups, tmp_path, how)
    process.send_signal(number)
    assert process.wait(120) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
async def test_next_restore_removes_what_a_killed_one_left(store_with_backups: FolderStore, tmp_path: Path) -> None:
    killed = await asyncio.to_thread(begin_restore, store_with_backups, tmp_path)
    killed.kill()
    await asyncio.to_thread(killed.wait)
    assert len(os.listdir(tmp_path)) == 1, "its folder"  # noqa: PTH208

    # Another one was killed when it had just made its folder.
    (tmp_path / ".new.restore-early").mkdir()
    running = await asyncio.to_thread(begin_restore, store_with_backups, tmp_path)
    running.send_signal(signal.SIGSTOP)

    try:
        (kept,) = folders_beside(tmp_path)
        await restore(
            Backup(store_with_backups, "data.backup", PASSPHRASE),
            NewHome(tmp_path / "new", None, check_restored),
            silently,
        )
        assert sorted(os.listdir(tmp_path)) == [kept.name, "new"], "one that runs is left alone"  # noqa: PTH208
    finally:
        running.kill()
        await asyncio.to_thread(running.wait)


def test_abandoned_partial_files_are_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (old, young) = (tmp_path / f".{name}.backup.partial" for name in ("old", "young"))
    for partial in (old, young):
        partial.write_bytes(b"x")

    os.utime(old, (0, 0))
    with store.create("a.backup") as out:
        out.write(b"x")

    assert sorted(path.name for path in tmp_path.iterdir()) == [".young.backup.partial", "a.backup"]
