"""Commands for operators: the use of the disk, the doctor and the support bundle."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from portside.cli.client import Platform, connection_options, read_address
from portside.cli.output import indent, json_option, say, show_json, show_table, show_text
from portside.cli.service import read_environment
from portside.kernel import interruption
from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.operate.findings import ExaminedInstallation, Finding
    from portside.platform.settings import PlatformSettings

F = TypeVar("F", bound=Callable[..., Any])

SHOWN_ROWS = 30
# What the doctor says of these is of use although all is well.
ALWAYS_SHOWN = frozenset({"capacity"})


@click.command()
@connection_options
@json_option
def disk(*, platform: Platform, as_json: bool) -> None:
    """Show what takes the disk space of the platform, by deployment and kind of data."""
    from portside.kernel.disk import megabytes

    report = platform.call("GET", "/system/disk")
    if as_json:
        show_json(report)
        return

    free, total, reserve = (megabytes(report[name]) for name in ("free_bytes", "total_bytes", "reserve_bytes"))
    entries = [entry for entry in report["taken"] if entry["bytes"]]
    show_text(f"{report['folder']}: {free} free of {total}, {reserve} in reserve")
    show_text(f"Portside takes {megabytes(sum(entry['bytes'] for entry in entries))}")

    if report["shortage"]:
        show_text(f"New data is refused: {report['shortage']}.")

    show_text()
    rows = [
        (megabytes(entry["bytes"]), entry["deployment"] or "", entry["kind"], entry["place"], _format_dead(entry))
        for entry in entries[:SHOWN_ROWS]
    ]
    show_table(("SIZE", "DEPLOYMENT", "KIND", "WHERE", "DEAD ROWS"), rows)
    if len(entries) > SHOWN_ROWS:
        show_text(f"… and {len(entries) - SHOWN_ROWS} smaller ones (--json lists all)")

    show_text()
    sums = _sum_by_deployment(entries)[:SHOWN_ROWS]
    show_table(("SIZE", "DEPLOYMENT"), [(megabytes(size), name) for name, size in sums])

    for database in report["databases"]:
        if database["problem"]:
            show_text(f"{database['name']}: {megabytes(database['bytes'])}, not by table: {database['problem']}")


def _format_dead(entry: dict[str, Any]) -> str:
    """Return the size of a table's dead rows if they are more than a tenth of it."""
    from portside.kernel.disk import megabytes

    return megabytes(entry["dead_bytes"]) if entry["dead_bytes"] > entry["bytes"] // 10 else ""


def _sum_by_deployment(entries: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the sums, the largest first; what belongs to no deployment is the platform's."""
    sums = Counter[str]()
    for entry in entries:
        sums[entry["deployment"] or "(platform)"] += entry["bytes"]

    return sums.most_common()


def installation_options(command: F) -> F:
    """Add the options that say which installation is meant; the command gets the argument `target`."""
    from functools import wraps

    @click.option("--home", help="Home folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
    @click.option(
        "--port", type=click.IntRange(1, 65535), help="Port of the platform. [default: its last one, or 8700]"
    )
    @click.option(
        "--env-file",
        type=click.Path(path_type=Path),
        help="File with its settings. [default: that of the service, for its home]",
    )
    @wraps(command)
    def located(*args: Any, home: str | None, port: int | None, env_file: Path | None, **kwargs: Any) -> Any:
        return command(
            *args, target=_find_installation(read_environment(env_file, home), home=home, port=port), **kwargs
        )

    return located  # type: ignore[return-value]


class InstallationOptions(NamedTuple):
    """The installation that a command examines, its settings, and the variables that they were read from."""

    environ: Mapping[str, str]
    settings: "PlatformSettings"
    installation: "ExaminedInstallation"


@click.command()
@installation_options
@click.option("--skip", multiple=True, help="Leave out a check, for example registry; may be repeated.")
@click.option("--all", "shows_all", is_flag=True, help="Show passed checks too.")
@json_option
def doctor(*, target: InstallationOptions, skip: tuple[str, ...], shows_all: bool, as_json: bool) -> None:
    """Examine this installation, and say what to do about each problem.

    Run it as the user of the platform, with the settings that it runs with. The exit status is 1 if there are faults;
    warnings do not count.
    """
    from portside.operate.doctor import examine

    diagnosis = interruption.run(examine(target.installation, skipped=frozenset(skip)))
    if as_json:
        show_json(msgspec.to_builtins(diagnosis))
    else:
        for finding in diagnosis.findings:
            if shows_all or finding.level != "ok" or finding.check in ALWAYS_SHOWN:
                show_finding(finding)

        well = len(diagnosis.findings) - diagnosis.faults - diagnosis.warnings
        show_text(f"faults: {diagnosis.faults}, warnings: {diagnosis.warnings}, checks that found all well: {well}")

    if diagnosis.faults:
        sys.exit(1)


@click.command("support-bundle")
@installation_options
@click.option("--to", type=click.Path(path_type=Path), help="File to write. [default: portside-support-TIME.tar.gz]")
def support_bundle(*, target: InstallationOptions, to: Path | None) -> None:
    """Write an archive for support: versions, settings, logs, sizes and findings, without secrets.

    Run it as the user of the platform, on its machine.
    """
    from portside.operate.bundle import write_bundle
    from portside.platform.system import list_settings_in_force

    file = to or Path(f"portside-support-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    reasons = interruption.run(
        write_bundle(target.installation, list_settings_in_force(target.settings), target.environ, file)
    )
    for reason in reasons:
        say(f"left out: {reason}")

    show_text(f"{file} holds no secret that is known here; look into it before you send it")


def _find_installation(environ: Mapping[str, str], **options: Any) -> InstallationOptions:
    """Return the installation. Wrong settings are a finding of the doctor."""
    from portside.kernel.settings import load_settings
    from portside.platform.modules import PACKAGES
    from portside.platform.settings import PlatformSettings
    from portside.platform.system import build_installation

    try:
        settings = load_settings(PlatformSettings, environ, **options)
        if options["port"] is None and "PORTSIDE_PORT" not in environ:
            port = urlsplit(read_address(str(settings.home_path))).port
            settings = load_settings(PlatformSettings, environ, **{**options, "port": port})

        return InstallationOptions(environ, settings, build_installation(settings, PACKAGES, environ=environ))
    except UserMistake as mistake:
        home = {name: environ[name] for name in ("PORTSIDE_HOME",) if name in environ}
        settings = load_settings(PlatformSettings, home, **options)
        return InstallationOptions(environ, settings, build_installation(settings, PACKAGES, problem=str(mistake)))


def show_finding(finding: "Finding") -> None:
    """Print a finding of the doctor, and what to do about it."""
    show_text(f"{finding.level:<7}  {finding.check}: {indent(finding.message)}")
    if finding.do:
        show_text(f"         → {indent(finding.do)}")
