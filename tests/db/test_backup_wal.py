"""With the WAL beside the backups, each second since a backup can be restored, and nothing else is."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from portside.backup import wal_archive
from portside.backup.container import Passphrase
from portside.backup.create import BackupTarget, SourcePlatform, create_backup
from portside.backup.databases import BackupFailed
from portside.backup.history import read_wal_state
from portside.backup.listing import join_spans, list_restorable_backups, read_stored_header
from portside.backup.restore import Backup, NewHome, restore, verify_wal
from portside.backup.stores import FolderStore
from portside.backup.wal_archive import WalArchive, next_segment, prune_wal
from portside.kernel.crypto import SecretBox, begin_rotation, end_rotation
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.errors import UserMistake
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.maintenance import check_restored
from portside.platform.settings import PlatformSettings
from tests.conftest import eventually

PASSPHRASE = Passphrase("correct horse battery")
ROWS = 5


@dataclass
class Archived:
    """A home whose WAL is in the store: the moments before each row of the table `drill`, and after the last one."""

    home: Path
    store: FolderStore
    moments: list[datetime] = field(default_factory=list)


async def open_url(url: str) -> Any:
    return await asyncpg.connect(url)


async def fill(archived: Archived, url: str) -> None:
    settings = PlatformSettings(home=str(archived.home), rate_limits=False)
    async with open_platform(Home(archived.home), settings, url):
        pass

    archive = WalArchive(archived.home, url, archived.store, PASSPHRASE)
    await archive.activate()
    target = BackupTarget(archived.store, "a.backup", PASSPHRASE)
    await create_backup(SourcePlatform(archived.home, url, "data"), target, lambda _: None)

    connection = await open_url(url)
    await connection.execute("create table drill (n int)")

    for number in range(ROWS):
        archived.moments.append(await connection.fetchval("select clock_timestamp()"))
        await connection.execute("insert into drill values ($1)", number)
        if number == 2:
            await rotate(archived.home, connection)

        archive._ended_at = 0.0
        await archive.activate()

    archived.moments.append(await connection.fetchval("select clock_timestamp()"))
    last = await connection.fetchval("select pg_walfile_name(pg_current_wal_lsn())")
    await connection.close()
    archive._ended_at = 0.0
    archive._last_transaction = None

    async def is_stored() -> bool:
        # Postgres copies a segment a moment after it has ended.
        await archive.activate()
        return any(file.name.endswith(last) for file in archived.store.list(f"log/{installation(archived)}"))

    await eventually(is_stored)


async def rotate(home: Path, connection: Any) -> None:
    """Rotate the master key after the backup, and upload an archive."""
    box = begin_rotation(home / "master-key")
    row = await connection.fetchrow("select id, check_sealed from master_key_check")
    sealed = box.encrypt(box.decrypt(row["check_sealed"], str(row["id"])), str(row["id"]))
    await connection.execute("update master_key_check set check_sealed = $1", sealed)
    end_rotation(home / "master-key")
    (home / "archives").mkdir()
    (home / "archives" / "late.tar.gz").write_bytes(b"late archive")


def installation(archived: Archived) -> str:
    return wal_archive.ensure_identity(archived.home).id


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    folder = tmp_path_factory.mktemp("archived")
    made = Archived(folder / "a home", FolderStore(folder / "stored"))
    server = EmbeddedPostgres(made.home, is_archiving=True)
    url = server.acquire()
    try:
        asyncio.run(fill(made, url))
        yield made
    finally:
        server.release()


@contextlib.asynccontextmanager
async def connect_to_postgres(home: Path) -> AsyncIterator[Any]:
    server = EmbeddedPostgres(home)
    connection = await open_url(await asyncio.to_thread(server.acquire))
    try:
        yield connection
    finally:
        await connection.close()
        await asyncio.to_thread(server.release)


async def restore_rows(archived: Archived, home: Path, at: datetime | None) -> list[int]:
    """Restore at a time, and return the rows that were there then."""
    backup = Backup(archived.store, "a.backup", PASSPHRASE)
    await restore(backup, NewHome(home, None, check_restored, at), lambda _: lambda _: None)
    async with connect_to_postgres(home) as connection:
        if await connection.fetchval("select to_regclass('drill')") is None:
            return []
        return [row["n"] for row in await connection.fetch("select n from drill order by n")]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(0, marks=pytest.mark.thorough),
        pytest.param(1, marks=pytest.mark.thorough),
        3,
        pytest.param(ROWS, marks=pytest.mark.thorough),
    ],
)
async def test_each_moment_comes_back(archived: Archived, tmp_path: Path, rows: int) -> None:
    home = tmp_path / "new"
    assert await restore_rows(archived, home, archived.moments[rows]) == list(range(rows))

    # What was new after the backup came with the WAL.
    assert (home / "archives" / "late.tar.gz").read_bytes() == b"late archive"
    keys = SecretBox.from_file(home / "master-key").keys
    assert keys[0] == SecretBox.from_file(archived.home / "master-key").keys[0] or len(keys) == 2
    assert os.listdir(tmp_path) == ["new"]  # noqa: PTH208


@pytest.mark.thorough
async def test_without_a_time_the_end_of_the_backup_comes_back(archived: Archived, tmp_path: Path) -> None:
    assert await restore_rows(archived, tmp_path / "new", None) == []


async def expect_refusal(archived: Archived, tmp_path: Path, at: datetime) -> str:
    with pytest.raises(UserMistake) as caught:
        await restore_rows(archived, tmp_path / "new", at)

    assert not os.listdir(tmp_path)  # noqa: PTH208
    return str(caught.value)


@pytest.mark.thorough
async def test_times_that_the_log_does_not_reach_are_refused(archived: Archived, tmp_path: Path) -> None:
    """The refusal names the times that can be restored; Postgres would only say that its log ended."""
    (span,) = join_spans(list_restorable_backups(archived.store))
    assert span.since < archived.moments[0] < archived.moments[ROWS] < span.until
    for at in (span.since - timedelta(seconds=1), datetime.now(UTC) + timedelta(hours=1)):
        assert str(span) in await expect_refusal(archived, tmp_path, at)


async def test_lost_and_damaged_segments_are_refused_by_name(
    archived: Archived, tmp_path_factory, tmp_path: Path
) -> None:
    """Never a restore that stops at the hole without saying so."""
    copy = tmp_path_factory.mktemp("copy") / "stored"
    shutil.copytree(archived.store.location, copy)
    segments = sorted(path for path in (copy / "log" / installation(archived)).iterdir() if len(path.name) == 24)
    segments[-4].unlink()

    damaged = Archived(archived.home, FolderStore(copy))
    (span,) = join_spans(list_restorable_backups(damaged.store))
    assert str(span) in await expect_refusal(damaged, tmp_path, archived.moments[ROWS])

    torn = segments[-5]
    torn.write_bytes(torn.read_bytes()[:-1])
    assert torn.name in await expect_refusal(damaged, tmp_path, archived.moments[1])
    backup = Backup(damaged.store, "a.backup", PASSPHRASE)
    verified = verify_wal(backup, read_stored_header(damaged.store, "a.backup"), lambda _: lambda _: None)
    assert verified is not None and list(verified.damaged) == [torn.name]
    assert "ends without its last part" in verified.damaged[torn.name]


async def test_intact_log_is_verified_to_its_end(archived: Archived) -> None:
    backup = Backup(archived.store, "a.backup", PASSPHRASE)
    verified = verify_wal(backup, read_stored_header(archived.store, "a.backup"), lambda _: lambda _: None)
    assert verified is not None and verified.damaged == {} and verified.files > ROWS
    assert verified.span.holds(archived.moments[ROWS])


def test_names_of_segments_follow_each_other() -> None:
    assert next_segment("000000010000000A000000FE") == "000000010000000A000000FF"
    assert next_segment("000000010000000A000000FF") == "000000010000000B00000000"


async def test_store_without_the_log_is_refused(archived: Archived, tmp_path_factory, tmp_path: Path) -> None:
    copy = tmp_path_factory.mktemp("copy")
    shutil.copy(Path(archived.store.location) / "a.backup", copy)
    reason = await expect_refusal(Archived(archived.home, FolderStore(copy)), tmp_path, archived.moments[1])
    assert "it has no WAL of this platform that follows a backup" in reason


async def test_log_before_the_oldest_backup_is_deleted(archived: Archived, tmp_path: Path) -> None:
    copy = tmp_path / "stored"
    shutil.copytree(archived.store.location, copy)

    # The store of a home that was restored has the WAL of the home before, too.
    shutil.copytree(copy / "log" / installation(archived), copy / "log" / "before")
    store = FolderStore(copy)
    assert store.list_folders("log") == sorted(["before", installation(archived)])
    number = 2 * len(store.list(f"log/{installation(archived)}"))
    assert prune_wal(store, datetime.now(UTC) - timedelta(days=1)) == 0
    assert prune_wal(store, datetime.now(UTC) + timedelta(days=1)) > number > 10
    assert store.list(f"log/{installation(archived)}") == store.list("log/before") == []

    assert (copy / "a.backup").exists()


async def test_unreachable_store_fills_no_disk(archived: Archived, tmp_path: Path, monkeypatch) -> None:
    """The spool is bounded, the problem is shown, and it goes on when the store is there again."""
    monkeypatch.setattr(wal_archive, "MAX_SPOOLED", 3)
    home = tmp_path / "home"
    spool = home / "postgres" / "wal"
    spool.mkdir(parents=True)
    shutil.copy(archived.home / "master-key", home / "master-key")
    (tmp_path / "stored").write_text("a file where the folder should be")

    archive = WalArchive(home, "unused", FolderStore(tmp_path / "stored"), PASSPHRASE)
    archive._ended_at = float("inf")

    for number in range(5):
        (spool / f"00000001000000000000000{number}").write_bytes(b"x")

    with pytest.raises(UserMistake):
        await archive.activate()

    assert archive.problem is not None
    assert sorted(path.name[-1] for path in spool.iterdir()) == ["2", "3", "4"]
    (tmp_path / "stored").unlink()
    began = read_wal_state(home)

    (spool / "000000010000000000000003").unlink()
    status = await archive.activate()
    assert (status.did, archive.problem, list(spool.iterdir())) == ({"stored": 3}, None, [])
    gap = read_wal_state(home)
    assert began is not None and gap is not None
    assert (gap.last_segment, gap.since > began.since) == ("000000010000000000000004", True), "a backup is due"

    # After a crash Postgres may archive the last segment again, before it goes on.
    for number in (4, 5):
        (spool / f"00000001000000000000000{number}").write_bytes(b"x")

    await archive.activate()
    after = read_wal_state(home)
    assert after is not None
    assert (after.last_segment, after.since) == ("000000010000000000000005", gap.since)


async def test_segment_whose_upload_only_seemed_to_fail_is_not_stored_twice(archived: Archived, tmp_path: Path) -> None:
    class Doubtful(FolderStore):
        """Completes the first segment, and then fails, as a bucket does whose answer is lost."""

        failures = 1

        @contextlib.contextmanager
        def create(self, name: str) -> Iterator[Any]:
            with super().create(name) as out:
                yield out

            if self.failures and "/files/" not in name:
                self.failures -= 1
                raise BackupFailed("the answer was lost")

    home = tmp_path / "home"
    spool = home / "postgres" / "wal"
    spool.mkdir(parents=True)
    shutil.copy(archived.home / "master-key", home / "master-key")

    for number in range(2):
        (spool / f"00000001000000000000000{number}").write_bytes(b"x")

    archive = WalArchive(home, "unused", Doubtful(tmp_path / "stored"), PASSPHRASE)
    archive._ended_at = float("inf")
    with pytest.raises(BackupFailed):
        await archive.activate()

    await archive.activate()
    assert (archive.problem, list(spool.iterdir())) == (None, [])


async def test_server_without_archiving_is_a_problem(tmp_path: Path, monkeypatch) -> None:
    """A program without BACKUP_POINT_IN_TIME started Postgres, so there is no spool."""

    async def refuse(_: WalArchive) -> None:
        raise BackupFailed("Postgres was started without archiving")

    monkeypatch.setattr(WalArchive, "_end_segment", refuse)
    archive = WalArchive(tmp_path / "home", "unused", FolderStore(tmp_path / "stored"), PASSPHRASE)
    with pytest.raises(BackupFailed):
        await archive.activate()

    assert archive.problem is not None
