"""Plans an upgrade of an installation: what it will do, and what prevents it. Also records the upgrades of a home.

The program that runs this is the new version, and the databases are compared with its migrations.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import UUID

import msgspec

from portside.backup.databases import list_platform_databases
from portside.backup.history import get_last_backup
from portside.kernel.clock import now
from portside.kernel.db import Database, Record
from portside.kernel.disk import find_shortage, measure, megabytes
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.errors import DependencyUnavailable, UserMistake
from portside.kernel.files import write_private
from portside.kernel.migrations import find_missing, find_pending, is_migrated
from portside.kernel.version import full_version
from portside.operate.findings import ExaminedInstallation, Finding, fault, fine, warning
from portside.operate.machine_checks import find_lock_holder
from portside.operate.service_checks import open_database
from portside.operate.sql import sql

# A scan or an index of a table takes a second for this many rows on one slow core.
ROWS_PER_S = 200_000
_RECENT = timedelta(hours=24)
_AGENT = "portside.agent"
_UPGRADES = "upgrades.json"
_KEPT = 50


class Upgrade(msgspec.Struct, kw_only=True):
    """An upgrade of a home folder: between which versions, and the backup that was taken before, if one was."""

    at: datetime
    before: str | None
    after: str
    backup: str | None


def read_upgrades(home: Path) -> list[Upgrade]:
    """Return the upgrades of a home folder, newest first."""
    try:
        return msgspec.json.decode((home / _UPGRADES).read_bytes(), type=list[Upgrade])
    except (FileNotFoundError, msgspec.MsgspecError):
        return []


def record_upgrade(home: Path, upgrade: Upgrade) -> None:
    """Add an upgrade, before it begins."""
    upgrades = [upgrade, *read_upgrades(home)][:_KEPT]
    write_private(home / _UPGRADES, msgspec.json.encode(upgrades).decode())


class PendingChanges(msgspec.Struct, kw_only=True):
    """What will be applied to a database: `package/file`. `rows` are those of the tables that the files may read."""

    database: str
    deployment: str | None
    pending: list[str]
    rows: int = 0
    seconds: float = 0.0
    one_way: list[str] = []
    """The migrations on which the version before does not run, with the reasons."""


class AgentChange(msgspec.Struct, kw_only=True):
    """What becomes of an agent's server: `replaced` now, or `kept` until its next revision."""

    name: str
    server_version: str | None
    becomes: Literal["replaced", "kept"]


class UpgradePlan(msgspec.Struct, kw_only=True):
    """What an upgrade will do. It cannot be done if one of the findings is a fault."""

    before: str | None
    after: str
    databases: list[PendingChanges]
    agents: list[AgentChange]
    findings: list[Finding]

    @property
    def is_possible(self) -> bool:
        """Whether nothing prevents it."""
        return all(finding.level != "fault" for finding in self.findings)


class RunningPlatform(msgspec.Struct, frozen=True):
    """What the running platform says of itself: its version and the settings that are set.

    One without `can_hand_over` cannot be replaced in its own process.
    """

    version: str
    settings: frozenset[str] = frozenset()
    can_hand_over: bool = False


async def plan_upgrade(
    installation: ExaminedInstallation, running: RunningPlatform | None, known_settings: Collection[str]
) -> UpgradePlan:
    """Return what an upgrade to this version will do."""
    plan = UpgradePlan(
        before=None if running is None else running.version, after=full_version(), databases=[], agents=[], findings=[]
    )

    if installation.problem is not None:
        plan.findings.append(
            fault("settings", installation.problem, "correct the variable or the option that it names")
        )

    plan.findings += _check_platform(installation, running)
    plan.findings += _check_settings(running, known_settings)
    plan.findings += await asyncio.to_thread(_check_postgres, installation)
    async for finding in _check_databases(installation, plan):
        plan.findings.append(finding)

    plan.findings += await asyncio.to_thread(lambda: [*_check_disk(installation), *_check_backup(installation)])
    return plan


def _check_platform(installation: ExaminedInstallation, running: RunningPlatform | None) -> list[Finding]:
    if running is not None:
        if running.can_hand_over:
            return [fine("platform", f"{running.version} runs; its agents continue while it is replaced")]

        do = "deploy nothing meanwhile; if it is a service, run 'portside service install' instead of this"
        return [warning("platform", f"{running.version} runs, which cannot be replaced in place: it is stopped", do)]

    if find_lock_holder(installation.home) is None:
        return [warning("platform", "it does not run", "start it with this version after the backup: portside up")]

    return [
        fault("platform", f"it runs, but {installation.url} does not answer", "name its port with --port; see its log")
    ]


def _check_settings(running: RunningPlatform | None, known_settings: Collection[str]) -> list[Finding]:
    names = running.settings if running else frozenset[str]()
    unknown = sorted(names - set(known_settings))
    if not unknown:
        return [fine("settings", "no setting in use was renamed or removed")]

    return [
        warning("settings", f"{name} is set, and this version has no such setting", "CHANGELOG.md says what it became")
        for name in unknown
    ]


def _check_postgres(installation: ExaminedInstallation) -> list[Finding]:
    if installation.database_url is not None:
        return []

    try:
        engine = EmbeddedPostgres(installation.home)
        engine.check_program()
        engine.check_data()
    except UserMistake as exc:
        return [fault("postgres", str(exc), "follow the message; nothing was changed")]

    return [fine("postgres", "the embedded Postgres keeps its major version")]


async def _check_databases(installation: ExaminedInstallation, plan: UpgradePlan) -> AsyncIterator[Finding]:
    """Examine every database, and add what will change to the plan."""
    try:
        async with open_database(installation) as platform_database:
            if platform_database is None:
                do = "there is nothing to upgrade: start this version with 'portside up'"
                yield fault("database", "there is no database of this home yet", do)
                return

            names: dict[str, str] = {}
            for row in await platform_database.db.fetch(sql.serving_revisions):
                names[f"agent_{UUID(str(row['id'])).hex}"] = row["name"]
                plan.agents.append(await asyncio.to_thread(_plan_agent, installation.home, row))

            for number, database in enumerate(await list_platform_databases(platform_database.url)):
                # The first one is the platform's.
                packages = list(installation.packages) if number == 0 else [_AGENT]
                schema = None if number == 0 else "portside"
                db = await Database.connect(_build_url(platform_database.url, database.name), max_size=1, schema=schema)
                try:
                    changes = await _find_changes(db, packages, database.name, names.get(database.name))
                finally:
                    await db.close()

                if changes is not None:
                    plan.databases.append(changes)
    except (UserMistake, DependencyUnavailable) as exc:
        yield fault("database", str(exc), "follow the message; nothing was changed")
        return

    one_way = sorted({reason for pending in plan.databases for reason in pending.one_way})
    if one_way:
        yield warning(
            "way-back",
            f"the version before does not run afterwards: {'; '.join(one_way)}",
            "the way back is the backup that is taken before",
        )
    else:
        yield fine("way-back", "the version before runs on what this one changes")


def _build_url(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{quote(database)}"))


async def _find_changes(
    db: Database, packages: list[str], database: str, deployment: str | None
) -> PendingChanges | None:
    """Return what will be applied to a database, or None. Raises UserMistake for one that will be refused."""
    if not await is_migrated(db):
        return None  # A deployment that has never served.

    pending = await find_pending(db, packages)
    if not pending:
        return None

    migrations = await find_missing(db, packages)
    counts = {row["name"]: int(row["number"]) for row in await db.fetch(sql.row_counts)}
    rows = sum(counts.get(table, 0) for migration in migrations for table in migration.tables)

    one_way = [
        f"{migration.package}/{migration.name} ({migration.older_versions or 'it does not say that they run'})"
        for migration in migrations
        if migration.older_versions != "run"
    ]

    return PendingChanges(
        database=database, deployment=deployment, pending=pending, rows=rows, seconds=rows / ROWS_PER_S, one_way=one_way
    )


class _BuildLayout(msgspec.Struct):
    layout: str = "combined"


def _plan_agent(home: Path, row: Record) -> AgentChange:
    folder = home / "dataplane" / "deployments" / str(row["id"]) / "revisions" / str(row["active_revision_id"])
    try:
        layout = msgspec.json.decode((folder / "built.json").read_bytes(), type=_BuildLayout).layout
    except (OSError, msgspec.MsgspecError):
        layout = "combined"

    version = None if row["server_version"] is None else str(row["server_version"])
    return AgentChange(
        name=str(row["name"]), server_version=version, becomes="replaced" if layout == "split" else "kept"
    )


def _check_disk(installation: ExaminedInstallation) -> list[Finding]:
    shortage = find_shortage(installation.home, installation.reserve)
    if shortage is not None:
        return [fault("disk", shortage, "make room: 'portside disk' shows what takes the space")]

    space = measure(installation.home)
    return [fine("disk", f"{megabytes(space.free)} free of {megabytes(space.total)}")]


def _check_backup(installation: ExaminedInstallation) -> list[Finding]:
    backup = get_last_backup(installation.home).succeeded
    if backup is None:
        return [warning("backup", "there is no backup", "'portside upgrade' takes one: --backup-to, or BACKUP_TO")]

    age = now() - backup.ended_at
    text = f"the last one is {age.total_seconds() / 3600:.1f} hours old: {backup.location}/{backup.name}"
    if age > _RECENT:
        return [warning("backup", text, "'portside upgrade' takes one, unless --no-backup")]

    return [fine("backup", text)]
