"""When a scheduled backup is due, which ones are kept, and what is known of the last one."""

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from portside.backup import create, history, stores
from portside.backup import schedule as schedules
from portside.backup.container import EncryptedWriter, Header, Passphrase, new_salt
from portside.backup.create import ensure_identity
from portside.backup.databases import BackupFailed
from portside.backup.history import (
    Attempt,
    WalState,
    get_last_backup,
    read_attempts,
    record_attempt,
    record_wal_state,
)
from portside.backup.listing import (
    ListedBackup,
    RestorableBackup,
    TimeSpan,
    choose_backup,
    choose_newest_backup,
    join_spans,
    list_restorable_backups,
)
from portside.backup.schedule import RETRY_AFTER, BackupPlan, get_next_due, list_surplus, prune
from portside.backup.stores import BucketStore, FolderStore, open_store, split_location
from portside.backup.wal_archive import FOLDER, prune_wal
from portside.kernel.errors import UserMistake

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def schedule(home: Path, **changes: object) -> BackupPlan:
    given = {"every": DAY, "keep": 2, "keep_for": 7 * DAY, **changes}
    return BackupPlan(home, str(home), **given)  # type: ignore[arg-type]


def attempt(started_at: datetime, **more: object) -> Attempt:
    given = {
        "location": "/b",
        "name": "x.backup",
        "is_scheduled": True,
        "ended_at": started_at,
        "size_bytes": 5,
        **more,
    }

    return Attempt(started_at=started_at, **given)  # type: ignore[arg-type]


def build_backup(age_days: float, problem: str | None = None) -> ListedBackup:
    return ListedBackup(
        name=f"{age_days}", size_bytes=1, created_at=NOW - timedelta(days=age_days), kind="data", problem=problem
    )


def test_first_backup_is_due_at_once_and_later_ones_after_the_period(tmp_path: Path) -> None:
    assert get_next_due(schedule(tmp_path)) is None
    record_attempt(tmp_path, attempt(NOW))
    assert get_next_due(schedule(tmp_path)) == NOW + DAY
    record_attempt(tmp_path, attempt(NOW + timedelta(hours=1), is_scheduled=False))
    assert get_next_due(schedule(tmp_path)) == NOW + DAY, "one by hand changes nothing"


def test_failed_backup_is_tried_again_soon(tmp_path: Path) -> None:
    record_attempt(tmp_path, attempt(NOW, size_bytes=None, error="disk full"))
    assert get_next_due(schedule(tmp_path)) == NOW + RETRY_AFTER
    assert get_next_due(schedule(tmp_path, every=timedelta(minutes=1))) == NOW + timedelta(minutes=1)


def test_archived_log_needs_a_backup_that_it_follows(tmp_path: Path) -> None:
    """The first one after the setting was switched on, and one after each gap; not another for each segment."""
    keeping = schedule(tmp_path, keeps_log=True)
    record_attempt(tmp_path, attempt(NOW))
    assert get_next_due(keeping) == NOW + DAY, "nothing is archived yet"

    record_wal_state(tmp_path, WalState(location="/b", since=NOW + timedelta(hours=1), last_segment="0" * 24))
    assert get_next_due(keeping) is None
    assert get_next_due(schedule(tmp_path)) == NOW + DAY, "the setting is off"

    record_attempt(tmp_path, attempt(NOW + timedelta(hours=2), location="/elsewhere"))
    assert get_next_due(keeping) is None, "the log is not beside it"
    record_attempt(tmp_path, attempt(NOW + timedelta(hours=3), size_bytes=None, error="disk full"))
    assert get_next_due(keeping) == NOW + timedelta(hours=3) + RETRY_AFTER
    record_attempt(tmp_path, attempt(NOW + timedelta(hours=4)))
    assert get_next_due(keeping) == NOW + timedelta(hours=4) + DAY


def test_last_backup_names_the_failure_since(tmp_path: Path) -> None:
    assert (get_last_backup(tmp_path).succeeded, get_last_backup(tmp_path).failed) == (None, None)
    record_attempt(tmp_path, attempt(NOW))
    record_attempt(tmp_path, attempt(NOW + DAY, size_bytes=None, error="disk full"))
    found = get_last_backup(tmp_path)
    assert found.succeeded is not None and found.succeeded.started_at == NOW
    assert found.failed is not None and found.failed.error == "disk full"
    record_attempt(tmp_path, attempt(NOW + 2 * DAY))

    assert get_last_backup(tmp_path).failed is None
    assert [each.error for each in read_attempts(tmp_path)] == [None, "disk full", None]


def test_history_is_bounded_and_survives_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_KEPT", 5)
    for number in range(7):
        record_attempt(tmp_path, attempt(NOW + timedelta(hours=number)))

    assert [each.started_at - NOW for each in read_attempts(tmp_path)][-1] == timedelta(hours=2)
    (tmp_path / "backups" / "history.json").write_text("{")
    assert read_attempts(tmp_path) == []


def test_newest_and_young_backups_are_kept(tmp_path: Path) -> None:
    young = [build_backup(age) for age in (1, 2, 3, 6.9)]
    assert list_surplus([*young, build_backup(7.1), build_backup(30)], schedule(tmp_path), NOW) == ["7.1", "30"]
    old = [build_backup(age) for age in (50, 60, 70)]
    assert list_surplus(old, schedule(tmp_path), NOW) == ["70"], "two are kept whatever their age"
    assert list_surplus(young, schedule(tmp_path, keep_for=timedelta(0)), NOW) == ["3", "6.9"]


def store_backup(store: FolderStore, name: str, installation: str, created_at: datetime = NOW) -> None:
    header = Header(
        kind="data",
        created_at=created_at,
        version="0.1.0",
        postgres=18,
        installation=installation,
        salt=new_salt(),
        scrypt_log_n=14,
    )

    with store.create(name) as out:
        EncryptedWriter(out, header, Passphrase("correct horse battery")).close()


def test_backups_of_another_platform_are_never_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several platforms may keep their backups at one location."""
    monkeypatch.setattr(schedules, "now", lambda: NOW + DAY)
    store = FolderStore(tmp_path / "stored")
    own = ensure_identity(tmp_path).id
    for name, installation in (("a", own), ("b", own), ("c", "other"), ("d", "other")):
        store_backup(store, f"{name}.backup", installation)

    assert prune(store, schedule(tmp_path, keep=1, keep_for=timedelta(0))) == 1
    left = [file.name for file in store.list()]
    assert len(left) == 3
    assert {"c.backup", "d.backup"} < set(left)


def test_log_since_the_oldest_backup_that_is_left_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also since one that cannot be read now, which may be one of this home."""
    pruned: list[datetime] = []
    monkeypatch.setattr(schedules, "now", lambda: NOW + 30 * DAY)
    monkeypatch.setattr(schedules, "prune_wal", lambda _store, oldest: pruned.append(oldest) or 0)
    store = FolderStore(tmp_path / "stored")
    own = ensure_identity(tmp_path).id
    for name, age_days in (("old", 3), ("older", 4), ("new", 0)):
        store_backup(store, f"{name}.backup", own, created_at=NOW - age_days * DAY)

    unreadable = Path(store.location) / "unreadable.backup"
    unreadable.write_text("not a header")
    os.utime(unreadable, (0, (NOW - 9 * DAY).timestamp()))

    assert prune(store, schedule(tmp_path, keep=2)) == 1
    assert {file.name for file in store.list()} == {"old.backup", "new.backup", "unreadable.backup"}
    unreadable.unlink()
    assert prune(store, schedule(tmp_path, keep=2)) == 0
    assert pruned == [NOW - 9 * DAY, NOW - 3 * DAY]


def test_newest_backup_that_can_be_read_is_chosen(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "stored")
    with pytest.raises(BackupFailed, match="there is no backup"):
        choose_newest_backup(store)

    for name, age_days in (("new", 1), ("old", 2)):
        store_backup(store, f"{name}.backup", "any", created_at=NOW - age_days * DAY)

    damaged = Path(store.location) / "newest.backup"
    damaged.write_text("not a header")
    os.utime(damaged, (0, NOW.timestamp()))
    assert choose_newest_backup(store) == "new.backup"


def test_time_is_restored_from_the_newest_backup_before_it(tmp_path: Path) -> None:
    """The WAL reaches on from each backup, but the newest one has the least of it to apply."""
    store = FolderStore(tmp_path / "stored")
    log = f"{FOLDER}/own"
    for day in (1, 2, 3):
        segment = f"{day:024X}"
        ended_at = NOW + day * DAY + HOUR
        store_backup(store, f"{day}.backup", "own", created_at=NOW + day * DAY)
        store_backup(store, f"{log}/{segment}", "own", created_at=ended_at + HOUR)
        store_backup(store, f"{log}/{segment}.00000028.backup", "own", created_at=ended_at)

    assert [backup.name for backup in list_restorable_backups(store)] == ["3.backup", "2.backup", "1.backup"]
    assert choose_backup(store, NOW + 3 * DAY) == "2.backup"
    assert choose_backup(store, NOW + 3 * DAY + 2 * HOUR) == "3.backup"
    assert choose_backup(store, NOW + 3 * DAY + 2 * HOUR, "1.backup") == "1.backup"


def test_times_of_backups_whose_wal_overlaps_are_one_span() -> None:
    """The WAL of an earlier backup may reach further than that of a later one, which another home took."""

    def build(since: int, until: int) -> RestorableBackup:
        return RestorableBackup("x.backup", "own", "", TimeSpan(NOW + since * DAY, NOW + until * DAY))

    spans = join_spans([build(7, 8), build(1, 2), build(0, 5), build(5, 6)])
    assert spans == [TimeSpan(NOW, NOW + 6 * DAY), TimeSpan(NOW + 7 * DAY, NOW + 8 * DAY)]
    assert join_spans([build(0, 5), build(1, 2)]) == [TimeSpan(NOW, NOW + 5 * DAY)]


def test_log_is_deleted_with_a_margin_for_clocks(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "stored")
    for name, age in (("before", timedelta(minutes=4, seconds=1)), ("within", timedelta(minutes=4)), ("after", -DAY)):
        file = Path(store.location) / "log" / "any" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (0, (NOW - age).timestamp()))

    assert prune_wal(store, NOW) == 1
    assert [file.name for file in store.list("log/any")] == ["log/any/after", "log/any/within"]


def test_programs_that_start_together_agree_on_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them archives WAL, the other one takes a backup: a restore looks for WAL of the backup's identity."""
    both = threading.Barrier(2)
    salt = create.new_salt

    def together() -> bytes:
        # Wait for the other program, as long as it could come here too.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return salt()

    monkeypatch.setattr(create, "new_salt", together)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(ensure_identity, [tmp_path, tmp_path]))

    assert found[0] == found[1] == ensure_identity(tmp_path)


def test_failure_names_the_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A backup reads the home while it writes to the store: an error of the one is not blamed on the other."""
    store = FolderStore(tmp_path / "stored")
    with pytest.raises(BackupFailed, match=r"^/home/secret: Permission denied$"), store.create("a.backup"):
        raise PermissionError(13, "Permission denied", "/home/secret")

    assert store.list() == []


KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_bucket_is_that_of_aws_without_an_address() -> None:
    assert BucketStore("s3://bucket/prefix", KEYS)._store.config.get("endpoint") is None
    own = BucketStore("s3://bucket", {**KEYS, "AWS_ENDPOINT_URL": "http://store:9000"})
    assert own._store.config["endpoint"] == "http://store:9000"

    for missing in KEYS:
        with pytest.raises(UserMistake, match=f"^s3://bucket needs credentials; set {missing}$"):
            BucketStore("s3://bucket", {**KEYS, missing: ""})


def test_existing_file_of_a_bucket_is_not_replaced() -> None:
    store = BucketStore("s3://bucket", KEYS)
    store._store = MemoryStore()
    with store.create("a.backup") as out:
        out.write(b"first")

    with pytest.raises(BackupFailed, match=r"^s3://bucket/a\.backup exists already"), store.create("a.backup") as out:
        out.write(b"second")

    with store.open("a.backup") as source:
        assert source.read(10) == b"first"


def test_parts_of_an_upload_grow_with_the_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 takes 10,000 parts, and files of up to 5 TB."""
    assert stores.get_part_bytes(0) == stores.get_part_bytes(10**11) == stores.MIN_PART_BYTES

    for expected in (2 * 10**11, 10**12, 5 * 10**12):
        assert expected <= stores.get_part_bytes(expected) * stores.MAX_PARTS
        assert stores.get_part_bytes(expected) <= stores.MAX_PART_BYTES

    opened: list[dict[str, int]] = []

    def open_writer(*_arguments: object, **options: int) -> nullcontext[BytesIO]:
        opened.append(options)
        return nullcontext(BytesIO())

    store = BucketStore("s3://bucket", KEYS)
    store._store = MemoryStore()
    monkeypatch.setattr(obstore, "open_writer", open_writer)

    for expected in (0, 10**12, 5 * 10**12):
        with store.create("a.backup", expected):
            pass

    assert [one["buffer_size"] * one["max_concurrency"] >> 20 for one in opened] == [192, 119, 512]


def test_upload_ends_before_it_has_more_parts_than_the_store_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_PARTS", 3)
    store = BucketStore("s3://bucket", KEYS)
    store._store = MemoryStore()

    part = b"x" * stores.MIN_PART_BYTES
    with store.create("most.backup") as out:
        for _ in range(3):
            out.write(part)

    larger = pytest.raises(BackupFailed, match=r"^s3://bucket/more\.backup would be larger")
    with larger, store.create("more.backup") as out:
        for _ in range(4):
            out.write(part)

    assert [(file.name, file.size_bytes) for file in store.list()] == [("most.backup", 3 * len(part))]


def test_partial_file_that_has_gone_does_not_stop_a_backup(tmp_path: Path) -> None:
    (tmp_path / ".b.backup.partial").symlink_to("nowhere")
    store = FolderStore(tmp_path)
    store_backup(store, "a.backup", "own")
    assert [file.name for file in store.list()] == ["a.backup"]


def test_files_that_cannot_be_read_are_never_deleted(tmp_path: Path) -> None:
    found = [build_backup(50, "damaged"), build_backup(51), build_backup(52), build_backup(53)]
    assert list_surplus(found, schedule(tmp_path), NOW) == ["53"]


@pytest.mark.parametrize(
    ("given", "location", "name"),
    [
        ("s3://b", "s3://b", None),
        ("s3://b/p/q", "s3://b/p/q", None),
        ("s3://b/p/x.backup", "s3://b/p", "x.backup"),
        ("/a/b.backup", "/a", "b.backup"),
        ("/a/b/", "/a/b", None),
        ("/a/backups", "/a/backups", None),
        ("/etc/hostname", "/etc", "hostname"),
    ],
)
def test_locations(given: str, location: str, name: str | None) -> None:
    assert split_location(given) == (location, name)


def test_impossible_locations_are_refused() -> None:
    for given in ("s3://", "s3:///x", "https://b/x", "gs://b"):
        with pytest.raises(UserMistake):
            open_store(given, {})
