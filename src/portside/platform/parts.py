"""The parts of the platform that several packages share."""

from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from portside.audit.recording import Recorder
from portside.control.scope import DesiredChanges
from portside.identity import first_start
from portside.identity.authentication import Authenticator, SessionRules
from portside.ingress.front import Front
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.disk import DiskWatch
from portside.kernel.http.health import HealthChecks
from portside.kernel.http.proxies import Network, read_networks
from portside.kernel.large_reads import ReadBudget
from portside.kernel.modules import Module
from portside.limits.callers import Callers
from portside.limits.table import Table, read_table
from portside.limits.windows import Windows
from portside.platform.backups import BackupTasks, build_backup_tasks
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings
from portside.tracing.quotas import Quotas

Problem = Callable[[], str | None]


class RateLimitParts(NamedTuple):
    """The parts of the rate limits: who may do what, who asks, and what was used."""

    table: Table
    callers: Callers
    windows: Windows


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What a platform is opened with. `problems` say why a program that other code supervises is down."""

    home: Home
    settings: PlatformSettings
    database_url: str
    front: Front | None
    problems: MutableMapping[str, Problem]
    modules: Sequence[Module[Any]]


@dataclass(frozen=True, kw_only=True)
class PlatformParts:
    """The parts of the platform that several packages share."""

    installation: Installation
    db: Database
    box: SecretBox
    disk: DiskWatch
    workspace_id: UUID
    """The workspace that the first start made."""
    authenticator: Authenticator
    trusted_proxies: list[Network]
    changes: DesiredChanges
    quotas: Quotas
    read_budget: ReadBudget
    windows: Windows
    rate_limits: RateLimitParts | None
    backups: BackupTasks
    problems: MutableMapping[str, Problem]
    """Those of the installation, which may become more, and of backups."""
    health: HealthChecks
    recorder: Recorder


async def build_parts(installation: Installation, db: Database, box: SecretBox, disk: DiskWatch) -> PlatformParts:
    """Return the parts of a platform. Raises UserMistake for settings that do not fit together."""
    settings = installation.settings
    authenticator = Authenticator(db, _build_session_rules(settings))
    trusted_proxies = read_networks(settings.trusted_proxies)
    windows = Windows(db)
    backups = build_backup_tasks(settings, installation.database_url)
    problems = ChainMap(backups.problems, installation.problems)

    return PlatformParts(
        installation=installation,
        db=db,
        box=box,
        disk=disk,
        workspace_id=await first_start.get_first_workspace(db),
        authenticator=authenticator,
        trusted_proxies=trusted_proxies,
        changes=DesiredChanges(),
        quotas=Quotas(db),
        read_budget=ReadBudget(settings.answer_max_bytes, settings.large_reads_max_bytes),
        windows=windows,
        rate_limits=_build_rate_limits(settings, Callers(authenticator, trusted_proxies), windows),
        backups=backups,
        problems=problems,
        health=HealthChecks({"postgres": db.is_alive}, ChainMap({"disk": lambda: disk.shortage}, problems)),
        recorder=Recorder(db, trusted_proxies),
    )


def _build_session_rules(settings: PlatformSettings) -> SessionRules:
    return SessionRules(timedelta(hours=settings.session_lifetime_hours), timedelta(hours=settings.session_idle_hours))


def _build_rate_limits(settings: PlatformSettings, callers: Callers, windows: Windows) -> RateLimitParts | None:
    """Return the parts of the rate limits; None without any. Raises UserMistake for an invalid table."""
    if not settings.rate_limits:
        return None

    file = Path(settings.rate_limits_file) if settings.rate_limits_file else None
    return RateLimitParts(Table(read_table(file), settings.region), callers, windows)
