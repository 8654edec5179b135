"""`portside backup`: take, list, check and restore backups of a platform."""

import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from portside.cli.output import (
    CommandGroup,
    get_program,
    json_option,
    say,
    say_if_interrupted,
    show_json,
    show_table,
    show_text,
)
from portside.cli.service import read_environment
from portside.kernel import interruption
from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.backup.container import Header, Passphrase
    from portside.backup.history import Attempt
    from portside.backup.listing import TimeSpan
    from portside.backup.restore import Backup
    from portside.backup.stores import Store
    from portside.platform.settings import PlatformSettings

PASSPHRASE = "PORTSIDE_BACKUP_PASSPHRASE"  # noqa: S105 - the name of a variable
PASSPHRASE_FILE = "PORTSIDE_BACKUP_PASSPHRASE_FILE"  # noqa: S105 - the same
_REPORT_EVERY_S = 5.0
F = TypeVar("F", bound=Callable[..., Any])


def passphrase_option(command: F) -> F:
    """Add the option that names a file with the passphrase."""
    return click.option(
        "--passphrase-file",
        help=f"File with the passphrase in its first line. [default: {PASSPHRASE_FILE}, {PASSPHRASE}, or a prompt]",
    )(command)


@click.group(cls=CommandGroup)
def backup() -> None:
    """Back up a platform, check and restore backups.

    A backup is one encrypted file. It is taken while everything runs, and has all databases, keys and archives. FILE is
    a file, s3://BUCKET/PREFIX/NAME.backup, or a folder or s3://BUCKET/PREFIX for the newest backup there.
    """


@backup.command()
@click.option("--home", help="Folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
@click.option("--to", "target", required=True, help="File, folder or s3://BUCKET/PREFIX for the backup.")
@click.option(
    "--dumps", "as_dumps", is_flag=True, help="Store SQL dumps, which other versions of Postgres can restore."
)
@passphrase_option
def create(home: str | None, target: str, passphrase_file: str | None, *, as_dumps: bool) -> None:
    """Take a backup; nothing needs to stop."""
    from portside.backup.stores import open_store, split_location

    environ = read_environment(None, home)
    settings = _load_settings(environ, home)
    passphrase = read_passphrase(passphrase_file, environ, is_new=True)
    location, name = split_location(target)
    attempt = _take_backup(settings, open_store(location, environ), name, passphrase, as_dumps=as_dumps)

    show_text(f"{attempt.location}/{attempt.name}")


@backup.command("run")
@click.option("--home", help="Folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
def run_scheduled(home: str | None) -> None:
    """Take the scheduled backup now, and delete those that are no longer kept.

    The platform calls this command. Location, passphrase and what is kept are settings: BACKUP_TO and others.
    """
    from portside.backup.schedule import prune
    from portside.backup.stores import open_store
    from portside.platform.backups import build_schedule, load_passphrase

    environ = read_environment(None, home)
    settings = _load_settings(environ, home)

    schedule = build_schedule(settings)
    passphrase = load_passphrase(settings)
    if schedule is None or passphrase is None:
        raise UserMistake("set BACKUP_TO and PORTSIDE_BACKUP_PASSPHRASE_FILE, as for the platform")

    store = open_store(schedule.location, environ)
    attempt = _take_backup(settings, store, None, passphrase, is_scheduled=True)
    deleted = prune(store, schedule)
    show_text(f"{attempt.location}/{attempt.name}")
    say(f"{deleted} older files were deleted")


def _take_backup(
    settings: "PlatformSettings", store: "Store", name: str | None, passphrase: "Passphrase", **how: bool
) -> "Attempt":
    """Take a backup, and say how large it is. Raises UserMistake."""
    from portside.platform.backups import take_backup

    with say_if_interrupted("the backup was interrupted; no file is left of it"):
        result, attempt = take_backup(
            settings, store, name=name, passphrase=passphrase, progress=BytesRead("copied"), **how
        )

    say(
        f"{_format_size(result.size_bytes)}: {len(result.summary.databases)} databases, {result.summary.files} files, "
        f"{_format_size(result.summary.size_bytes)} before compression; {get_program()} backup verify checks it"
    )

    return attempt


@backup.command()
@click.option("--home", help="Folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
@json_option
def status(home: str | None, *, as_json: bool) -> None:
    """Show the last backup of a platform, the times that can be restored, and whether a backup failed since.

    The exit status is 1 if one failed.
    """
    from portside.backup.history import get_last_backup

    environ = read_environment(None, home)
    settings = _load_settings(environ, home)

    history = get_last_backup(settings.home_path)
    restorable = _list_restorable_spans(settings, environ) if settings.backup_point_in_time else None
    if as_json:
        show_json({**msgspec.to_builtins(history), "restorable": msgspec.to_builtins(restorable or [])})
    elif history.succeeded is None:
        show_text("there is no backup yet")
    else:
        last = history.succeeded
        show_text(f"{last.ended_at:%Y-%m-%d %H:%M:%S}Z  {last.location}/{last.name}")

    if restorable is not None and not as_json:
        for span in restorable:
            show_text(f"any time can be restored {span}")

        if not restorable:
            show_text("no time but those of backups can be restored yet: the WAL has to follow a backup")

    if history.failed is not None:
        raise UserMistake(
            f"the backup of {history.failed.started_at:%Y-%m-%d %H:%M:%S}Z failed: {history.failed.error}"
        )


def _list_restorable_spans(settings: "PlatformSettings", environ: Mapping[str, str]) -> "list[TimeSpan]":
    from portside.backup.listing import join_spans, list_restorable_backups
    from portside.backup.stores import open_store

    return join_spans(list_restorable_backups(open_store(settings.backup_to or "", environ)))


@backup.command("list")
@click.argument("location", required=False)
@click.option("--home", help="Folder of the platform, for its settings. [default: PORTSIDE_HOME or ~/.portside]")
@json_option
def list_backups(location: str | None, home: str | None, *, as_json: bool) -> None:
    """List the backups in a folder or s3://BUCKET/PREFIX, newest first; needs no passphrase.

    Without LOCATION it lists where the platform's scheduled backups go (BACKUP_TO).
    """
    from portside.backup.listing import list_stored_backups
    from portside.backup.stores import open_store

    environ = read_environment(None, home)
    store = open_store(location or _scheduled_location(environ, home), environ)

    entries = list_stored_backups(store)
    if as_json:
        show_json(msgspec.to_builtins(entries))
        return

    if not entries:
        show_text(f"there is no backup in {store.location}")
        return

    rows = [
        (
            entry.name,
            entry.problem or f"{entry.created_at:%Y-%m-%d %H:%M:%S}Z",
            _format_size(entry.size_bytes),
            entry.kind,
            entry.version,
        )
        for entry in entries
    ]

    show_table(("NAME", "TAKEN AT", "SIZE", "KIND", "VERSION"), rows)


@backup.command()
@click.argument("file", required=False)
@click.option("--home", help="Folder of the platform, for its settings. [default: PORTSIDE_HOME or ~/.portside]")
@click.option("--restore", "is_tried", is_flag=True, help="Also restore it into a temporary folder and count the rows.")
@passphrase_option
def verify(file: str | None, home: str | None, passphrase_file: str | None, *, is_tried: bool) -> None:
    """Check that a backup and the WAL after it are complete and unchanged, without writing anything.

    Without FILE it checks the newest scheduled backup of the platform (BACKUP_TO). With --restore its databases are
    recovered in a temporary folder (TMPDIR), and every secret is decrypted as a check; the platform's audit log has an
    entry about that, if there is a platform.
    """
    from portside.backup.restore import try_restore
    from portside.backup.restore import verify as verify_backup
    from portside.platform.backups import record_trial
    from portside.platform.maintenance import check_restored

    environ = read_environment(None, home)
    backup = _find_backup(file or _scheduled_location(environ, home), passphrase_file, environ, at=None)
    header, summary = verify_backup(backup, BytesRead)

    show_text(
        f"{backup.name} is complete: taken at {header.created_at:%Y-%m-%d %H:%M:%S}Z by Portside {header.version}, "
        f"{len(summary.databases)} databases, {summary.files} files, {_format_size(summary.size_bytes)}"
    )

    _verify_wal(backup, header)

    if is_tried:
        with say_if_interrupted("the check was interrupted; nothing is left of it"):
            interruption.run(record_trial(_load_settings(environ, home), backup.name))
            rows = interruption.run(try_restore(backup, check_restored, BytesRead))

        show_text("it was restored, and every secret opens:")
        show_table(("DATABASE", "ROWS"), sorted(rows.items()))


def _verify_wal(backup: "Backup", header: "Header") -> None:
    """Check the WAL that follows a backup, if one does. Raises UserMistake, with the names of damaged files."""
    from portside.backup.restore import verify_wal

    wal = verify_wal(backup, header, BytesRead)
    if wal is None:
        return

    if wal.damaged:
        for reason in wal.damaged.values():
            show_text(reason, err=True)

        raise UserMistake(
            f"the WAL after {backup.name} is damaged: {', '.join(wal.damaged)}. No time after the first of them can be "
            "restored with this backup; take a new one, from which the WAL counts anew"
        )

    show_text(f"{wal.files} files of WAL after it are complete: any time can be restored {wal.span}")


@backup.command()
@click.argument("file")
@click.option("--home", required=True, help="New folder for the platform; it must be empty or missing.")
@click.option("--at", "time", help="Time such as 2030-01-31T12:00:00Z; FILE is a location with an archived WAL.")
@passphrase_option
def restore(file: str, home: str, time: str | None, passphrase_file: str | None) -> None:
    """Restore a backup into a new home folder; start its databases and decrypt every secret as a check.

    With --at the data is as it was at that second (point-in-time recovery), if BACKUP_POINT_IN_TIME was on.

    Dumps are restored into the server of DATABASE_URL, whose database must be empty, or into an embedded Postgres.
    """
    from portside.backup.restore import NewHome
    from portside.backup.restore import restore as restore_backup
    from portside.platform.maintenance import check_restored, move_paths

    environ = read_environment(None, home)
    settings = _load_settings(environ, home)
    at = None if time is None else parse_past_time(time)

    backup = _find_backup(file, passphrase_file, environ, at=at)
    target = NewHome(
        path=settings.home_path,
        url=settings.database_url or None,
        check=check_restored,
        at=at,
        move=move_paths,
    )

    with say_if_interrupted("the restore was interrupted; nothing is left of it"):
        summary = interruption.run(restore_backup(backup, target, BytesRead))

    show_text(f"restored {len(summary.databases)} databases and {summary.files} files into {settings.home_path}")
    say(f"start it: {get_program()} up --home {settings.home_path}")


def parse_past_time(text: str) -> datetime:
    """Return an ISO 8601 time in the past, by default in UTC. Raises UserMistake."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UserMistake(f"--at: invalid time {text}; write it like 2030-01-31T12:00:00Z") from None

    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)

    if time > datetime.now(UTC):
        raise UserMistake(f"--at: {text} is in the future")

    return time


def _find_backup(
    file: str, passphrase_file: str | None, environ: Mapping[str, str], *, at: datetime | None
) -> "Backup":
    """Return the backup that a user names, and ask for its passphrase. Raises UserMistake."""
    from portside.backup.listing import choose_backup, choose_newest_backup
    from portside.backup.restore import Backup
    from portside.backup.stores import open_store, split_location

    location, name = split_location(file)
    store = open_store(location, environ)
    if name is None:
        if at is None:
            name = choose_newest_backup(store)
            say(f"the newest backup there is {name}")
        else:
            name = choose_backup(store, at)
            say(f"the last backup before that is {name}")

    return Backup(store, name, read_passphrase(passphrase_file, environ, is_new=False))


def read_passphrase(file: str | None, environ: Mapping[str, str], *, is_new: bool) -> "Passphrase":
    """Return the passphrase of the file, of the variables, or of a prompt. Raises UserMistake."""
    from portside.backup.container import Passphrase

    if file is not None:
        return Passphrase.from_file(file, "--passphrase-file")
    if passphrase_file := environ.get(PASSPHRASE_FILE):
        return Passphrase.from_file(passphrase_file, PASSPHRASE_FILE)

    text = environ.get(PASSPHRASE, "").strip()
    if not text:
        if not sys.stdin.isatty():
            raise UserMistake(f"the backup needs a passphrase: --passphrase-file FILE, or the variable {PASSPHRASE}")
        text = str(click.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=is_new, err=True))

    if not text:
        raise UserMistake(f"the passphrase is empty; write it to a file, to {PASSPHRASE} or at the prompt")

    return Passphrase(text)


def _scheduled_location(environ: Mapping[str, str], home: str | None) -> str:
    """Return where the scheduled backups of a platform go. Raises UserMistake."""
    location = _load_settings(environ, home).backup_to
    if location is None:
        raise UserMistake("name a location; without one, the platform's settings must have BACKUP_TO (see --home)")

    return location


def _load_settings(environ: Mapping[str, str], home: str | None) -> "PlatformSettings":
    from portside.kernel.settings import load_settings
    from portside.platform.settings import PlatformSettings

    return load_settings(PlatformSettings, environ, home=home)


class BytesRead:
    """Says every few seconds how many bytes a phase has gone through."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self._bytes = 0
        self._said_at = time.monotonic()

    def __call__(self, size: int) -> None:
        """Count bytes."""
        self._bytes += size
        now = time.monotonic()
        if now - self._said_at >= _REPORT_EVERY_S:
            self._said_at = now
            say(f"{self._phase}: {_format_size(self._bytes)}")


def _format_size(size_bytes: int) -> str:
    size = float(size_bytes)
    unit = "bytes"

    for larger_unit in ("KB", "MB", "GB", "TB"):
        if size < 1000:
            break

        size = size / 1000
        unit = larger_unit

    return f"{size:.1f} {unit}" if unit != "bytes" else f"{size_bytes} bytes"
