"""Commands for operators: what takes the disk space, what is wrong, and what somebody who helps needs to know."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from portside.cli.client import Platform, connection_options
from portside.cli.output import indented, json_option, say, show_json, show_table, show_text
from portside.kernel.errors import UserMistake

SHOWN = 30
# The settings of the system's service.
ENVIRONMENT_FILE = Path("/etc/portside/portside.env")


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
    show_text(f"{report['folder']}: {free} free of {total}, {reserve} in reserve")
    if report["shortage"]:
        show_text(f"New data is refused: {report['shortage']}.")
    show_text()
    taken = [each for each in report["taken"] if each["bytes"]]
    rows = [
        (megabytes(each["bytes"]), each["deployment"] or "", each["kind"], each["place"], _dead(each))
        for each in taken[:SHOWN]
    ]
    show_table(("SIZE", "DEPLOYMENT", "KIND", "WHERE", "DEAD ROWS"), rows)
    if len(taken) > SHOWN:
        show_text(f"… and {len(taken) - SHOWN} smaller ones (--json lists all)")
    show_text()
    show_table(("SIZE", "DEPLOYMENT"), [(megabytes(size), name) for name, size in _by_deployment(taken)[:SHOWN]])
    for database in report["databases"]:
        if database["problem"]:
            show_text(f"{database['name']}: {megabytes(database['bytes'])}, not by table: {database['problem']}")


def _dead(taken: dict[str, Any]) -> str:
    from portside.kernel.disk import megabytes

    return megabytes(taken["dead_bytes"]) if taken["dead_bytes"] > taken["bytes"] // 10 else ""


def _by_deployment(taken: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the sums, the largest first; what belongs to no deployment is the platform's."""
    sums = Counter[str]()
    for each in taken:
        sums[each["deployment"] or "(platform)"] += each["bytes"]
    return sums.most_common()


_F = TypeVar("_F", bound=Callable[..., Any])


def installation_options(command: _F) -> _F:
    """Add the options that say which installation is meant; the command gets the argument `given`."""
    from functools import wraps

    @click.option("--home", help="Home folder of the platform. [default: PORTSIDE_HOME or ~/.portside]")
    @click.option("--port", type=click.IntRange(1, 65535), help="Port of the platform. [default: 8700]")
    @click.option(
        "--env-file", type=click.Path(path_type=Path), help=f"File with its settings. [default: {ENVIRONMENT_FILE}]"
    )
    @wraps(command)
    def found(*args: Any, home: str | None, port: int | None, env_file: Path | None, **kwargs: Any) -> Any:
        return command(*args, given=_find(environment(env_file), home=home, port=port), **kwargs)

    return found  # type: ignore[return-value]


class Given(NamedTuple):
    """The installation that a command examines, its settings, and the variables that they were read from."""

    environ: Mapping[str, str]
    settings: Any
    installation: Any


@click.command()
@installation_options
@click.option("--skip", multiple=True, help="Leave out a check, for example registry; may be repeated.")
@click.option("--all", "shows_all", is_flag=True, help="Show also what is well.")
@json_option
def doctor(*, given: Given, skip: tuple[str, ...], shows_all: bool, as_json: bool) -> None:
    """Examine this installation, and say what to do about each problem.

    Run it as the user of the platform, with the settings that it runs with. The exit status is 1 if there are faults;
    warnings do not count.
    """
    import asyncio

    from portside.operate.doctor import examine

    diagnosis = asyncio.run(examine(given.installation, skipped=frozenset(skip)))
    if as_json:
        show_json(msgspec.to_builtins(diagnosis))
    else:
        for finding in diagnosis.findings:
            if shows_all or finding.level != "ok":
                show_text(f"{finding.level:<7}  {finding.check}: {indented(finding.message)}")
                if finding.do:
                    show_text(f"         → {indented(finding.do)}")
        show_text(f"{diagnosis.faults} faults, {diagnosis.warnings} warnings, {len(diagnosis.findings)} findings")
    if diagnosis.faults:
        sys.exit(1)


@click.command("support-bundle")
@installation_options
@click.option("--to", type=click.Path(path_type=Path), help="File to write. [default: portside-support-TIME.tar.gz]")
def support_bundle(*, given: Given, to: Path | None) -> None:
    """Write an archive for somebody who helps: versions, settings, logs, sizes and findings, without secrets.

    Run it as the user of the platform, on its machine.
    """
    import asyncio
    from datetime import UTC, datetime

    from portside.operate.bundle import write_bundle
    from portside.platform.system import settings_in_force

    file = to or Path(f"portside-support-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    missing = asyncio.run(write_bundle(given.installation, settings_in_force(given.settings), given.environ, file))
    for reason in missing:
        say(f"left out: {reason}")
    show_text(f"{file} holds no secret that is known here; look into it before you send it")


def environment(env_file: Path | None) -> dict[str, str]:
    """Return the variables of this process, and of the file of the service. Raises UserMistake for a missing file."""
    file = env_file or ENVIRONMENT_FILE
    found: dict[str, str] = {}
    try:
        text = file.read_text("utf-8")
    except OSError as exc:
        if env_file is not None:
            raise UserMistake(f"--env-file: {file} cannot be read: {exc.strerror}") from exc
        text = ""
    for line in text.splitlines():
        name, is_set, value = line.strip().partition("=")
        if is_set and not name.startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    return {**found, **os.environ}


def _find(environ: Mapping[str, str], **options: Any) -> Given:
    """Return the installation. Wrong settings are a finding of the doctor."""
    from portside.kernel.settings import load_settings
    from portside.platform.app import PACKAGES
    from portside.platform.settings import PlatformSettings
    from portside.platform.system import installation_of

    try:
        settings = load_settings(PlatformSettings, environ, **options)
        return Given(environ, settings, installation_of(settings, PACKAGES))
    except UserMistake as mistake:
        home = {name: environ[name] for name in ("PORTSIDE_HOME",) if name in environ}
        settings = load_settings(PlatformSettings, home, **options)
        return Given(environ, settings, installation_of(settings, PACKAGES, problem=str(mistake)))
