"""`portside backup`: take, list, check and restore backups of a platform."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from portside.cli.output import json_option, program, say, show_json, show_table, show_text
from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.backup.container import Passphrase
    from portside.backup.restore import Backup
    from portside.platform.settings import PlatformSettings

PASSPHRASE = "PORTSIDE_BACKUP_PASSPHRASE"  # noqa: S105 - the name of a variable
_REPORT_EVERY_S = 5.0
F = TypeVar("F", bound=Callable[..., Any])


def passphrase_option(command: F) -> F:
    """Add the option that names a file with the passphrase."""
    return click.option(
        "--passphrase-file",
        envvar="PORTSIDE_BACKUP_PASSPHRASE_FILE",
        help=f"File with the passphrase in its first line. [default: {PASSPHRASE}, or a prompt]",
    )(command)


@click.group()
def backup() -> None:
    """Back up a platform, check and restore backups.

    A backup is one encrypted file. It is taken while everything runs, and has all databases, keys and archives. FILE is
    a file, s3://BUCKET/PREFIX/NAME.backup, or a folder or s3://BUCKET/PREFIX for the newest backup there.
    """


@backup.command()
@click.option("--home", help="Folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
@click.option("--to", "target", required=True, help="File, folder or s3://BUCKET/PREFIX for the backup.")
@click.option("--dumps", "as_dumps", is_flag=True, help="Dump the databases; another version of Postgres reads them.")
@passphrase_option
def create(home: str | None, target: str, passphrase_file: str | None, *, as_dumps: bool) -> None:
    """Take a backup; nothing needs to stop."""
    from portside.backup.create import Target, create_backup, new_name
    from portside.backup.stores import open_store, split_location
    from portside.platform.backups import origin_of

    settings = _settings(home)
    passphrase = read_passphrase(passphrase_file, is_new=True)
    passphrase.check_strength()
    location, name = split_location(target)
    store = open_store(location, os.environ)
    name = name or new_name(datetime.now(UTC))

    async def run() -> Any:
        async with origin_of(settings, as_dumps=as_dumps) as origin:
            return await create_backup(origin, Target(store, name, passphrase), BytesRead("copied"))

    made = asyncio.run(run())
    show_text(f"{store.location}/{made.name}")
    say(
        f"{_size(made.size_bytes)}: {len(made.summary.databases)} databases, {made.summary.files} files, "
        f"{_size(made.summary.size_bytes)} before compression; {program()} backup verify checks it"
    )


@backup.command("list")
@click.argument("location")
@json_option
def list_backups(location: str, *, as_json: bool) -> None:
    """List the backups in a folder or s3://BUCKET/PREFIX, newest first; needs no passphrase."""
    from portside.backup.restore import backups_in
    from portside.backup.stores import open_store

    found = backups_in(open_store(location, os.environ))
    if as_json:
        show_json(msgspec.to_builtins(found))
        return
    rows = [
        (one.name, one.problem or f"{one.created_at:%Y-%m-%d %H:%M:%S}Z", _size(one.size_bytes), one.kind, one.version)
        for one in found
    ]
    show_table(("NAME", "TAKEN AT", "SIZE", "KIND", "VERSION"), rows)


@backup.command()
@click.argument("file")
@passphrase_option
def verify(file: str, passphrase_file: str | None) -> None:
    """Check that a backup is complete and unchanged, without writing anything."""
    from portside.backup.restore import verify as verify_backup

    chosen = _find(file, passphrase_file, at=None)
    header, summary = verify_backup(chosen, BytesRead)
    show_text(
        f"{chosen.name} is complete: taken at {header.created_at:%Y-%m-%d %H:%M:%S}Z by Portside {header.version}, "
        f"{len(summary.databases)} databases, {summary.files} files, {_size(summary.size_bytes)}"
    )


@backup.command()
@click.argument("file")
@click.option("--home", required=True, help="New folder for the platform; it must be empty or missing.")
@passphrase_option
def restore(file: str, home: str, passphrase_file: str | None) -> None:
    """Restore a backup into a new home folder, and open its databases and every secret.

    Dumps are restored into the server of DATABASE_URL, whose database must be empty, or into an embedded Postgres.
    """
    from portside.backup.restore import NewHome
    from portside.backup.restore import restore as restore_backup
    from portside.platform.backups import check_restored

    settings = _settings(home)
    chosen = _find(file, passphrase_file, at=None)
    target = NewHome(settings.home_path, settings.database_url or None, check_restored)
    summary = asyncio.run(restore_backup(chosen, target, BytesRead))
    show_text(f"restored {len(summary.databases)} databases and {summary.files} files into {settings.home_path}")
    say(f"start it: {program()} up --home {settings.home_path}")


def _find(file: str, passphrase_file: str | None, at: datetime | None) -> "Backup":
    """Return the backup that a user names, and ask for its passphrase. Raises UserMistake."""
    from portside.backup.restore import Backup, newest
    from portside.backup.stores import open_store, split_location

    location, name = split_location(file)
    store = open_store(location, os.environ)
    if name is None:
        name = newest(store, at)
        say(f"the newest backup there is {name}" if at is None else f"the last backup before that is {name}")
    return Backup(store, name, read_passphrase(passphrase_file, is_new=False))


def read_passphrase(file: str | None, *, is_new: bool) -> "Passphrase":
    """Return the passphrase of the file, of the environment, or of a prompt. Raises UserMistake."""
    from portside.backup.container import Passphrase

    if file is not None:
        try:
            text = Path(file).expanduser().read_text("utf-8").split("\n", 1)[0].strip()
        except (OSError, ValueError) as exc:
            raise UserMistake(f"--passphrase-file: cannot read {file} ({exc})") from exc
    elif (text := os.environ.get(PASSPHRASE, "").strip()) == "":
        text = str(click.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=is_new, err=True))
    if not text:
        raise UserMistake(f"the passphrase is empty; write it to a file, to {PASSPHRASE} or at the prompt")
    return Passphrase(text)


def _settings(home: str | None) -> "PlatformSettings":
    from portside.kernel.settings import load_settings
    from portside.platform.settings import PlatformSettings

    return load_settings(PlatformSettings, os.environ, home=home)


class BytesRead:
    """Says every few seconds how many bytes a phase has gone through."""

    def __init__(self, phase: str) -> None:
        self._phase, self._bytes = phase, 0
        self._said_at = time.monotonic()

    def __call__(self, size: int) -> None:
        """Count bytes."""
        self._bytes += size
        if (now := time.monotonic()) - self._said_at >= _REPORT_EVERY_S:
            self._said_at = now
            say(f"{self._phase}: {_size(self._bytes)}")


def _size(size_bytes: int) -> str:
    size, unit = float(size_bytes), "bytes"
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}" if unit != "bytes" else f"{size_bytes} bytes"
