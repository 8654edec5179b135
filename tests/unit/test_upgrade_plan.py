"""What the plan of an upgrade says: a running platform, settings that went, backups that are old, and the way back."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portside.backup.history import Attempt, record_attempt
from portside.kernel.clock import now
from portside.kernel.schema_files import Migration
from portside.operate import upgrade
from portside.operate.findings import ExaminedInstallation, Finding, fault, fine, warning
from portside.operate.upgrade import RunningPlatform, Upgrade, UpgradePlan, read_upgrades, record_upgrade


def take_backup(home: Path, age: timedelta, **result: Any) -> None:
    at = now() - age
    given: dict[str, Any] = {"location": "/mnt", "name": "a.backup", "is_scheduled": True}
    record_attempt(home, Attempt(started_at=at, ended_at=at, **given, **result))


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_backup_of_the_last_day_is_recent(tmp_path: Path) -> None:
    installation = ExaminedInstallation(home=tmp_path)
    assert levels(upgrade._check_backup(installation)) == ["warning"]
    take_backup(tmp_path, timedelta(hours=25), size_bytes=1)
    assert levels(upgrade._check_backup(installation)) == ["warning"]
    take_backup(tmp_path, timedelta(hours=23), size_bytes=1)
    take_backup(tmp_path, timedelta(hours=1), error="no room")
    (found,) = upgrade._check_backup(installation)
    assert (found.level, "23.0 hours old: /mnt/a.backup" in found.message) == ("ok", True)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the lock of a home, as a platform does."""
    with (home / "platform.lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_platform_that_cannot_be_asked_prevents_the_upgrade(tmp_path: Path) -> None:
    installation = ExaminedInstallation(home=tmp_path)
    assert levels(upgrade._check_platform(installation, None)) == ["warning"], "it does not run"
    with locked(tmp_path):
        assert levels(upgrade._check_platform(installation, None)) == ["fault"]
        assert levels(upgrade._check_platform(installation, RunningPlatform("1.0.0"))) == ["warning"]
        assert levels(upgrade._check_platform(installation, RunningPlatform("1.0.0", can_hand_over=True))) == ["ok"]


def test_settings_that_the_version_does_not_know_are_named() -> None:
    running = RunningPlatform("1.0.0", settings=frozenset({"OLD_NAME", "LOG_JSON"}))
    (found,) = upgrade._check_settings(running, {"LOG_JSON", "LOG_LEVEL"})
    assert (found.level, "OLD_NAME" in found.message) == ("warning", True)
    assert levels(upgrade._check_settings(running, {"LOG_JSON", "OLD_NAME"})) == ["ok"]
    assert levels(upgrade._check_settings(None, set())) == ["ok"]


@pytest.mark.parametrize(
    ("found", "is_possible"),
    [([fine("a", "b")], True), ([fine("a", "b"), warning("a", "b", "c")], True), ([fault("a", "b", "c")], False)],
)
def test_only_a_fault_prevents_an_upgrade(found: list[Finding], *, is_possible: bool) -> None:
    plan = UpgradePlan(before="1", after="2", databases=[], agents=[], findings=found)
    assert plan.is_possible is is_possible


@pytest.mark.parametrize(
    ("built", "becomes"),
    [
        ('{"layout": "split"}', "replaced"),
        ('{"layout": "combined"}', "kept"),
        # A build of an early version, one that is damaged, and one that is lost.
        ("{}", "kept"),
        ('{"layout"', "kept"),
        (None, "kept"),
    ],
)
def test_only_a_server_that_is_not_part_of_its_build_is_replaced(
    tmp_path: Path, built: str | None, becomes: str
) -> None:
    row: Any = {"id": "d", "active_revision_id": "r", "name": "bot", "server_version": None}
    folder = tmp_path / "dataplane" / "deployments" / "d" / "revisions" / "r"
    folder.mkdir(parents=True)
    if built is not None:
        (folder / "built.json").write_text(built)

    assert upgrade._plan_agent(tmp_path, row).becomes == becomes


class Tables:
    """Stands in for a database with tables and their numbers of rows."""

    async def fetch(self, _query: Any) -> list[dict[str, Any]]:
        return [{"name": "runs", "number": 600_000}, {"name": "threads", "number": 5}]


async def test_way_back_ends_with_a_migration_that_does_not_say_that_older_versions_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(number: int, declaration: str = "") -> Migration:
        return Migration("agent", number, f"{number:04}_x.sql", f"{declaration}alter table runs add column x int;")

    missing = [
        build(1, "-- Older versions run: the column may be null.\n"),
        build(2, "-- Older versions are refused: the column is renamed.\n"),
        build(3),
    ]

    async def return_missing(_db: Any, _packages: Any) -> list[Migration]:
        return missing

    async def return_names(_db: Any, _packages: Any) -> list[str]:
        return [f"agent/{migration.name}" for migration in missing]

    async def is_migrated(_db: Any) -> bool:
        return True

    monkeypatch.setattr(upgrade, "is_migrated", is_migrated)
    monkeypatch.setattr(upgrade, "find_pending", return_names)
    monkeypatch.setattr(upgrade, "find_missing", return_missing)
    tables: Any = Tables()
    changes = await upgrade._find_changes(tables, ["portside.agent"], "agent_1", "bot")
    assert changes is not None
    assert changes.one_way == [
        "agent/0002_x.sql (the column is renamed)",
        "agent/0003_x.sql (it does not say that they run)",
    ]
    assert (changes.database, changes.deployment, len(changes.pending)) == ("agent_1", "bot", 3)
    assert (changes.rows, changes.seconds) == (1_800_000, 9)

    missing.clear()
    assert await upgrade._find_changes(tables, ["portside.agent"], "agent_1", "bot") is None


def test_upgrades_are_kept_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "_KEPT", 2)
    assert read_upgrades(tmp_path) == []
    upgrades = [Upgrade(at=now(), before=None, after=str(number), backup=None) for number in range(3)]
    for each in upgrades:
        record_upgrade(tmp_path, each)

    assert [each.after for each in read_upgrades(tmp_path)] == ["2", "1"]
    assert msgspec.structs.replace(read_upgrades(tmp_path)[0], at=upgrades[2].at) == upgrades[2]
