"""The support bundle: a report of an installation for support, without its secrets.

`Masks` replaces known values (key files, variables, URLs' passwords, every secret in the database) and texts that look
like keys in everything. If the database cannot be read, logs and states of deployments are left out, because their
secrets are not known then. At the end the whole content is searched for the known values once more.
"""

import base64
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncpg
import httpx2
import msgspec

from portside.audit.entries import record_command
from portside.control.key_rotation import read_all_values
from portside.dataplane.masking import list_masked_forms, mask_credentials
from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import UserMistake
from portside.kernel.logs import SECRET_WORDS
from portside.kernel.version import full_version
from portside.operate.disk_usage import DiskUsage
from portside.operate.doctor import examine
from portside.operate.findings import ExaminedInstallation
from portside.operate.service_checks import OpenDatabase, open_database
from portside.operate.sql import sql

TAIL_BYTES = 500_000
_MASK = "***"
_LOGS = {"postgres.log": "postgres/log", "ingress.log": "logs/ingress.log", "listener.log": "logs/listener.log"}
_TIMEOUT_S = 30.0
_SECRET_NAMES = (*SECRET_WORDS, "key", "credential", "dsn", "passphrase", "cookie")
_SHORTEST = 6
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:lsv2|sk|pk|ghp|gho|ghs|glpat|xox[abpr]|AKIA|hf)[-_A-Z0-9][-_A-Za-z0-9]{14,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"
    r"|(?<=[Bb]earer )[\w.~+/=-]{8,}|(?<=[Bb]asic )[\w+/=-]{8,}",
    re.DOTALL,
)
# `password=…`, `"api_key": "…"`, `X-Api-Key: …`: the value of anything that is named like a secret. The pattern begins
# with the word itself, and what follows it in the name is bounded: otherwise one long word, such as an image in base64,
# would take time that grows with the square of its length.
_NAMED = re.compile(
    r"(?i)((?:password|passwd|secret|token|api[-_]?key|authorization|passphrase|cookie)"
    r"[\w-]{0,60}['\"]?\s{0,9}[=:]\s{0,9})"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&}\"']+)"
)


class Masks:
    """Hides known values and what looks like a key."""

    def __init__(self, values: Iterable[str]) -> None:
        forms: set[str] = set()

        for value in values:
            text = value.strip()
            if len(text) >= _SHORTEST:
                encoded = base64.b64encode(text.encode()).decode().rstrip("=")
                forms |= {text, encoded, json.dumps(text)[1:-1], *list_masked_forms([text])}

        # The longest first: one value may contain another.
        self.forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self.forms))) if forms else None

    def mask(self, text: str) -> str:
        """Return the text without secrets."""
        if self._pattern is not None:
            text = self._pattern.sub(_MASK, text)

        text = _FORMS.sub(_MASK, mask_credentials(text))
        return _NAMED.sub(lambda match: f"{match[1]}{_MASK}", text)

    def holds_secret(self, text: str) -> bool:
        """Whether a known value is in the text."""
        return self._pattern is not None and self._pattern.search(text) is not None


def list_secret_values(environ: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are named like secrets, and the passwords of URLs."""
    values: list[str] = []

    for name, value in environ.items():
        if any(word in name.lower() for word in _SECRET_NAMES):
            values += [value, *value.split(",")]

        try:
            parts = urlsplit(value)
        except ValueError:
            continue

        values += [part for part in (parts.password, unquote(parts.password or "")) if part]

    return values


class Bundle:
    """The files of a bundle, masked as they are added."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._files: dict[str, str] = {}

    def add_text(self, name: str, text: str) -> None:
        """Add a file."""
        self._files[name] = self._masks.mask(text)

    def add(self, name: str, value: Any) -> None:
        """Add a file of JSON; strings are masked one by one, so that it stays JSON."""
        plain = self._mask(msgspec.to_builtins(value, str_keys=True))
        self._files[name] = json.dumps(plain, indent=2, default=str) + "\n"

    def add_log(self, name: str, file: Path) -> None:
        """Add the end of a log file, if there is one."""
        try:
            with file.open("rb") as stream:
                start = max(0, file.stat().st_size - TAIL_BYTES)
                stream.seek(start)
                text = stream.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return

        # The first line may be cut within a secret, whose rest would not be recognized.
        self.add_text(name, text.partition("\n")[2] if start else text)

    def _mask(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._masks.mask(value)
        if isinstance(value, dict):
            return {self._masks.mask(str(key)): self._mask(item) for key, item in value.items()}

        return [self._mask(item) for item in value] if isinstance(value, list | tuple) else value

    def write(self, file: Path) -> None:
        """Write the archive, for this user alone. Raises UserMistake if the file exists or a secret is left."""
        for name, text in self._files.items():
            if self._masks.holds_secret(text) or self._masks.holds_secret(name):
                raise UserMistake(f"{name} still holds a secret, so no bundle was written; please report this")

        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as exc:
            raise UserMistake(f"cannot write {file}: {exc.strerror}; choose another file with --to") from exc

        with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for name, text in self._files.items():
                content = text.encode()
                entry = tarfile.TarInfo(f"{file.name.partition('.')[0]}/{name}")
                entry.size = len(content)
                entry.mtime = int(time.time())
                entry.mode = 0o600

                archive.addfile(entry, io.BytesIO(content))


async def write_bundle(
    installation: ExaminedInstallation, settings: Any, environ: Mapping[str, str], file: Path
) -> list[str]:
    """Write a support bundle, and return what had to be left out. Raises UserMistake.

    `settings` are those in force, already without secrets; `environ` is the environment that the platform runs with.
    """
    reasons: list[str] = []
    values = [*list_secret_values(environ), *_read_secret_values(installation)]
    async with _open_if_possible(installation, reasons) as database:
        may_show_deployments = False

        if database is not None:
            master_key = installation.home / "master-key"
            try:
                if master_key.exists():
                    values += await read_all_values(database.db, SecretBox.from_file(master_key))
                    may_show_deployments = True
            except (UserMistake, asyncpg.PostgresError) as exc:
                reasons.append(f"logs and states of deployments: their secrets cannot be read to be masked ({exc})")

        bundle = Bundle(Masks(values))
        bundle.add("versions.json", _get_versions())
        bundle.add("settings.json", settings)

        if database is not None:
            await record_command(database.db, "support_bundle.create", file.name)
            await _add_disk_usage(bundle, installation, database, reasons)

        if database is not None and may_show_deployments:
            bundle.add("deployments.json", [dict(row) for row in await database.db.fetch(sql.states_of_deployments)])
            for log in sorted((installation.home / "dataplane" / "deployments").glob("*/logs/*.log")):
                bundle.add_log(f"logs/deployments/{log.parent.parent.name}/{log.name}", log)

    skipped = frozenset[str]() if may_show_deployments else frozenset({"deployments"})
    bundle.add("doctor.json", await examine(installation, skipped=skipped))

    if may_show_deployments:
        # The listener writes what builds and servers print, and Postgres the values of statements that fail.
        for name, path in _LOGS.items():
            bundle.add_log(f"logs/{name}", installation.home / path)

    await _add_health(bundle, installation, reasons)
    bundle.add("left-out.json", reasons)
    bundle.write(file)
    return reasons


async def _add_health(bundle: Bundle, installation: ExaminedInstallation, reasons: list[str]) -> None:
    for name, path in (("health.json", "/ok"), ("metrics.txt", "/metrics")):
        text = await _fetch(f"{installation.url}{path}")
        if text is None:
            reasons.append(f"{path}: the platform does not answer")
        else:
            bundle.add_text(name, text)


async def _add_disk_usage(
    bundle: Bundle, installation: ExaminedInstallation, database: OpenDatabase, reasons: list[str]
) -> None:
    disk_usage = DiskUsage(database.db, database.url, installation.home, installation.reserve)
    try:
        bundle.add("disk.json", await disk_usage.report(None))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        # A database of a start that failed may have no tables yet.
        reasons.append(f"disk.json: {exc}")


@asynccontextmanager
async def _open_if_possible(
    installation: ExaminedInstallation, reasons: list[str]
) -> AsyncIterator[OpenDatabase | None]:
    """Open the database; add to `reasons` why it cannot be opened, and yield None."""
    opening = open_database(installation)
    try:
        database = await opening.__aenter__()
    except UserMistake as exc:
        reasons.append(f"everything that is in the database: {exc}")
        yield None
        return

    try:
        yield database
    finally:
        await opening.__aexit__(None, None, None)


def _read_secret_values(installation: ExaminedInstallation) -> list[str]:
    """Return the contents of the key files, and the passwords of the deployments' databases."""
    files = [installation.home / name for name in installation.key_files]
    files += (installation.home / "dataplane" / "deployments").glob("*/database-password")
    values: list[str] = []

    for file in files:
        try:
            values += file.read_text("utf-8").split()
        except OSError:
            continue

    return values


def _get_versions() -> dict[str, Any]:
    return {
        "portside": full_version(),
        "python": sys.version,
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "made_at": now().isoformat(),
    }


async def _fetch(url: str) -> str | None:
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S) as client:
            return (await client.get(url)).text
    except httpx2.HTTPError:
        return None
