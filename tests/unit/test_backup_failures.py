"""What goes wrong with backups is named, and destroys no other backup."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from portside.backup import create
from portside.backup.container import BackupRefused, EncryptedWriter, Header, Passphrase, new_salt
from portside.backup.databases import BackupFailed
from portside.backup.history import record_attempt
from portside.backup.restore import Backup, NewHome, _create_parents, _move_home, _work_folder, restore
from portside.backup.schedule import ScheduledBackups
from portside.backup.stores import FolderStore
from portside.backup.wal_archive import check_wal, fetch_files, fetch_wal
from tests.conftest import eventually
from tests.unit.test_backup_schedule import attempt, schedule

PASSPHRASE = Passphrase("correct horse battery")
NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
SEGMENT = "000000010000000000000001"


def test_existing_backup_is_not_replaced(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "stored")
    with store.create("a.backup") as out:
        out.write(b"the first")

    with pytest.raises(BackupFailed, match=r"a\.backup exists already; choose another name"), store.create("a.backup"):
        raise AssertionError

    with store.open("a.backup") as source:
        assert source.read(100) == b"the first"


def test_backup_that_cannot_be_completed_leaves_no_file(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "stored")

    with pytest.raises(BackupFailed, match="No space left"), store.create("a.backup") as out:
        out.write(b"a half")
        raise OSError(28, "No space left on device")

    assert os.listdir(tmp_path / "stored") == []  # noqa: PTH208


@contextlib.contextmanager
def begun_restore(home: Path) -> Iterator[Path]:
    """Begin a restore into a folder, as `restore` does, and give it something to work on."""
    with _create_parents(home), _work_folder(home) as folder:
        (folder / "home").mkdir()
        (folder / "home" / "master.key").write_text("a key")
        yield folder


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "user"])
def test_failed_restore_into_a_new_folder_leaves_neither_it_nor_its_parents(
    tmp_path: Path, failure: BaseException
) -> None:
    home = tmp_path / "outer" / "inner" / "home"

    with pytest.raises((BackupFailed, KeyboardInterrupt)) as raised, begun_restore(home) as folder:
        assert folder.parent == home.parent, "the result is moved by a rename"
        raise failure

    assert list(tmp_path.iterdir()) == []
    if isinstance(failure, OSError):
        assert str(raised.value) == f"cannot restore into {home}: No space left on device; nothing is left of it"


def test_failed_restore_into_an_existing_folder_leaves_it_empty(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    with pytest.raises(BackupFailed, match="nothing is left of it"), begun_restore(home) as folder:
        assert folder.parent == home, "the folder beside it may be root's"
        raise OSError(28, "No space left on device")

    assert [*tmp_path.rglob("*")] == [home]


def test_failed_restore_keeps_what_others_wrote_beside_it(tmp_path: Path) -> None:
    home = tmp_path / "outer" / "home"

    with pytest.raises(BackupFailed), begun_restore(home):
        (home.parent / "of somebody else").write_text("kept")
        raise OSError(28, "No space left on device")

    assert [*home.parent.iterdir()] == [home.parent / "of somebody else"]


def header(kind: str = "wal", wal_name: str | None = SEGMENT) -> Header:
    return Header(
        kind=kind,  # type: ignore[arg-type]
        created_at=NOW,
        version="0.1.0",
        postgres=18,
        installation="own",
        salt=new_salt(),
        scrypt_log_n=14,
        wal_name=wal_name,
    )


@contextlib.contextmanager
def open_backup(store: FolderStore, name: str, of: Header) -> Iterator[EncryptedWriter]:
    with store.create(name) as out:
        writer = EncryptedWriter(out, of, PASSPHRASE)
        yield writer
        writer.close()


@pytest.mark.parametrize(
    ("of", "content", "reason"),
    [
        (header("data", None), b"", "it is not an archived WAL file; remove it"),
        (header(), b"no frame of zstandard", "its content is damaged .*; choose a time before it was archived"),
    ],
    ids=["a backup", "damaged"],
)
def test_file_that_is_no_wal_is_refused_by_name(tmp_path: Path, of: Header, content: bytes, reason: str) -> None:
    store = FolderStore(tmp_path / "stored")
    with open_backup(store, f"log/own/{SEGMENT}", of) as out:
        out.write(content)

    with pytest.raises(BackupRefused, match=f"the WAL file .*{SEGMENT} cannot be used: {reason}"):
        fetch_wal(store, header(), PASSPHRASE, NOW, tmp_path)

    number, damaged = check_wal(store, header(), PASSPHRASE, SEGMENT, lambda _size: None)
    assert (number, list(damaged)) == (1, [SEGMENT])


def test_wal_of_a_time_is_fetched_up_to_the_second_segment_behind_it(tmp_path: Path) -> None:
    """The first one that was archived later may hold no transaction after the time, and recovery needs one."""
    store = FolderStore(tmp_path / "stored")
    target = tmp_path / "segments"
    target.mkdir()
    segments = [f"{number:024X}" for number in range(1, 7)]

    for number, name in enumerate(segments):
        archived = msgspec.structs.replace(header(wal_name=name), created_at=NOW + timedelta(minutes=10 * number))
        with open_backup(store, f"log/own/{name}", archived) as out:
            out.write(zstandard.compress(b"records"))

    count = fetch_wal(store, header(), PASSPHRASE, NOW + timedelta(minutes=15), target)

    assert count == 4
    assert sorted(file.name for file in target.iterdir()) == segments[:4]


@pytest.mark.parametrize("name", ["../outside", "archives/../../outside", "/tmp/outside", "postgres/password"])
def test_files_beside_the_wal_cannot_be_written_elsewhere(tmp_path: Path, name: str) -> None:
    store = FolderStore(tmp_path / "stored")
    home = tmp_path / "home"
    home.mkdir()

    with open_backup(store, "log/own/files/1", header(wal_name=name)):
        pass

    fetch_files(store, header(), PASSPHRASE, home)

    assert list(home.iterdir()) == []
    assert sorted(found.name for found in tmp_path.iterdir()) == ["home", "stored"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": "999.0.0"}, "made by Portside 999.0.0, which is newer"),
        ({"version": "not a version"}, "its header names no version"),
        ({"migrations": {"identity": 9999}}, "migration 9999 of identity"),
        ({"migrations": {"unheard_of": 1}}, "migration 1 of unheard_of"),
        # A package without tables.
        ({"migrations": {"console": 1}}, "migration 1 of console"),
        ({"kind": "wal", "wal_name": SEGMENT}, "is a WAL segment, not a backup"),
    ],
)
async def test_backups_that_this_version_cannot_read_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    store = FolderStore(tmp_path / "stored")
    with open_backup(store, "newer.backup", msgspec.structs.replace(header("dumps", None), **changes)):
        pass

    backup = Backup(store, "newer.backup", PASSPHRASE)

    async def check(_url: str, _home: Path) -> None:
        raise AssertionError

    with pytest.raises(BackupRefused, match=reason):
        await restore(backup, NewHome(tmp_path / "a" / "new", None, check), lambda _: lambda _: None)

    assert os.listdir(tmp_path) == ["stored"]  # noqa: PTH208


async def test_moment_of_dumps_cannot_be_chosen(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "stored")
    with open_backup(store, "a.backup", header("dumps", None)):
        pass

    async def check(_url: str, _home: Path) -> None:
        raise AssertionError

    with pytest.raises(BackupRefused, match="dumps hold one moment only"):
        await restore(
            Backup(store, "a.backup", PASSPHRASE), NewHome(tmp_path / "new", None, check, NOW), lambda _: lambda _: None
        )


def test_master_key_is_the_last_file_of_a_restored_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform that starts on the others too early finds secrets that it cannot read, and says so."""
    restored = tmp_path / "restored"
    target = tmp_path / "home"
    for folder in (restored, target):
        folder.mkdir()

    for name in ("api-key", "master-key", "postgres", "zeta"):
        (restored / name).touch()

    moved: list[str] = []
    rename = Path.rename

    def note(self: Path, to: Path) -> Path:
        moved.append(self.name)
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", note)
    _move_home(restored, target)
    assert moved[-1] == "master-key"
    assert (
        sorted(path.name for path in target.iterdir()) == sorted(moved) == ["api-key", "master-key", "postgres", "zeta"]
    )


def test_two_backups_of_one_home_are_not_taken_at_once(tmp_path: Path) -> None:
    with create._lock(tmp_path):
        with pytest.raises(BackupFailed, match="another backup of this home"), create._lock(tmp_path):
            raise AssertionError

        with create._lock(tmp_path / "another home"):
            pass

    with create._lock(tmp_path):
        pass


async def test_failed_backup_is_a_problem_until_one_succeeds(tmp_path: Path) -> None:
    """The command itself fails: there is no platform in this folder."""
    plan = schedule(tmp_path / "home")
    backups = ScheduledBackups(plan, {"PORTSIDE_HOME": str(plan.home), "DATABASE_URL": ""})
    backups.request()

    assert (await backups.activate()).did == {"taken": 0, "failed": 1}
    assert backups.problem == "The last scheduled backup failed; the log has the reason."
    assert not backups.is_running

    # The history says the same after a restart, until another backup was taken.
    record_attempt(plan.home, attempt(datetime.now(UTC), size_bytes=None, error="the disk is full"))
    assert (await backups.activate()).did == {}, "it is tried again later"
    assert backups.problem is not None and "the disk is full" not in backups.problem
    record_attempt(plan.home, attempt(datetime.now(UTC)))
    assert ((await backups.activate()).did, backups.problem) == ({}, None)


def process_with(variable: str) -> str | None:
    """Return the id of a process that has a variable in its environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{variable}\0".encode() in (process / "environ").read_bytes():
                return process.name

    return None


async def test_platform_that_stops_ends_its_backup(tmp_path: Path) -> None:
    # The command waits for somebody who writes to this pipe, and nobody does.
    passphrase = tmp_path / "passphrase"
    os.mkfifo(passphrase)
    plan = schedule(tmp_path / "home")

    environment = {
        "PORTSIDE_HOME": str(plan.home),
        "DATABASE_URL": "",
        "BACKUP_TO": str(tmp_path / "stored"),
        "PORTSIDE_BACKUP_PASSPHRASE_FILE": str(passphrase),
    }

    backups = ScheduledBackups(plan, environment)
    backups.request()

    async def command() -> str | None:
        return process_with(f"PORTSIDE_HOME={plan.home}")

    running = asyncio.create_task(backups.activate())
    assert await eventually(command)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running

    assert await command() is None
    assert not backups.is_running
