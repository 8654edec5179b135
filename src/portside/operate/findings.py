"""The input and the findings of the doctor. A fault stops something that should work; a warning may be intended."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from portside.ingress.options import FrontOptions
from portside.kernel.disk import DiskReserve
from portside.kernel.local_addresses import to_local_url

Level = Literal["ok", "warning", "fault"]


class Finding(msgspec.Struct, frozen=True):
    """What a check found. `do` says what to do about a warning or a fault, and is empty otherwise."""

    check: str
    level: Level
    message: str
    do: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    """All findings, in the order of the checks, and how many are faults and warnings."""

    findings: list[Finding]
    faults: int
    warnings: int


class ExaminedInstallation(msgspec.Struct, frozen=True, kw_only=True):
    """What to examine: a home, and the settings that it runs with. `packages` are those with migrations.

    `problem` is what is wrong with the settings themselves; the other fields then have their defaults.
    """

    home: Path
    key_files: tuple[str, ...] = ("master-key", "api-key", "listener-key", "postgres/password")
    packages: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8700
    front: FrontOptions = FrontOptions()
    is_fronted: bool = True
    """Whether the platform is behind its own front, which needs a Caddy."""
    caddy: str | None = None
    database_url: str | None = None
    max_connections: int | None = None
    has_listener: bool = True
    """Whether deployments are built and run on this machine."""
    reserve: DiskReserve = DiskReserve()
    public_url: str | None = None
    trusted_proxies: str = ""
    oidc_issuer: str | None = None
    rate_limits_file: str | None = None
    model_prices_file: str | None = None
    backup_to: str | None = None
    keeps_wal: bool = False
    """Whether the WAL is archived beside the backups, for point-in-time recovery."""
    store_environment: Mapping[str, str] = {}
    """The variables that name the store of backups and its credentials."""
    problem: str | None = None

    @property
    def url(self) -> str:
        """The address of the platform for programs on this machine."""
        return to_local_url(self.host, self.port)


Check = Callable[[ExaminedInstallation], Iterable[Finding]]
AsyncCheck = Callable[[ExaminedInstallation], AsyncIterator[Finding]]


def fine(check: str, message: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, do: str) -> Finding:
    """Return a finding that may be intended."""
    return Finding(check, "warning", message, do)


def fault(check: str, message: str, do: str) -> Finding:
    """Return a finding that stops something."""
    return Finding(check, "fault", message, do)
