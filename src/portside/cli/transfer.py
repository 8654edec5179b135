"""`portside import`: carry data over from another server.

Keys are read from the environment or typed, never from arguments, which other users of the machine can see.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from portside.cli.client import F, Platform, connection_options, load_authorities
from portside.cli.output import CommandGroup, json_option, say, show_json, show_table
from portside.kernel.errors import UserMistake
from portside.kernel.files import write_private

if TYPE_CHECKING:
    from portside.transfer.report import Report
    from portside.transfer.server import RemoteServer

SOURCE_KEY = "IMPORT_SOURCE_API_KEY"
SOURCE_AUTHORIZATION = "IMPORT_SOURCE_AUTHORIZATION"
TARGET_KEY = "IMPORT_TARGET_API_KEY"
TARGET_AUTHORIZATION = "IMPORT_TARGET_AUTHORIZATION"
REPORT_FILE = "import-report.json"
# Something could not be carried; the report names it.
INCOMPLETE = 3


@click.group(cls=CommandGroup, name="import")
def import_group() -> None:
    """Carry data over from another server; started again after an interruption, it goes on."""


def _transfer_options(kinds: str) -> Callable[[F], F]:
    """Add the options that all imports have."""

    def add(command: F) -> F:
        for option in (
            click.option("--from", "source_url", required=True, metavar="URL", help="The address of the source."),
            click.option("--only", metavar="KINDS", help=f"Carry only these, separated by commas: {kinds}."),
            click.option("--skip", metavar="KINDS", help="Carry all but these."),
            click.option(
                "--report",
                "report_file",
                type=click.Path(dir_okay=False, path_type=Path),
                default=REPORT_FILE,
                show_default=True,
                help="Write what was and was not carried into this file.",
            ),
            json_option,
        ):
            command = option(command)

        return command

    return add


@import_group.command("agent")
@_transfer_options("assistants, threads, crons, store")
@click.option("--to", "target_url", required=True, metavar="URL", help="The address of the deployment to carry to.")
@click.option("--start-crons", is_flag=True, help="Let crons run that run at the source; otherwise they are paused.")
def import_agent(  # noqa: PLR0913 - one parameter for each option
    *,
    source_url: str,
    target_url: str,
    only: str | None,
    skip: str | None,
    report_file: Path,
    as_json: bool,
    start_crons: bool,
) -> None:
    """Carry assistants, threads, crons and store items from one agent server to another.

    The keys are read from IMPORT_SOURCE_API_KEY and IMPORT_TARGET_API_KEY, or asked for; empty means none. Servers with
    their own authentication get IMPORT_SOURCE_AUTHORIZATION and IMPORT_TARGET_AUTHORIZATION as the header
    Authorization.
    """
    from portside.transfer.kinds import AGENT_KINDS, select_kinds

    kinds = select_kinds(AGENT_KINDS, only, skip)
    source = _open("source", source_url, _read_headers("source", SOURCE_KEY, SOURCE_AUTHORIZATION))
    target = _open("target", target_url, _read_headers("target", TARGET_KEY, TARGET_AUTHORIZATION))
    _carry(kinds, source, target, report_file, as_json=as_json, starts_crons=start_crons)


@import_group.command("langsmith")
@_transfer_options("datasets, prompts, feedback-configs, projects, annotation-queues")
@click.option("--from-workspace", metavar="ID", help="The id of the source's workspace, for a key of several.")
@connection_options
def import_langsmith(  # noqa: PLR0913 - one parameter for each option
    platform: Platform,
    *,
    source_url: str,
    only: str | None,
    skip: str | None,
    report_file: Path,
    as_json: bool,
    from_workspace: str | None,
) -> None:
    """Carry datasets, prompts, annotation queues and projects with their runs from a server with LangSmith's API.

    The source's key is read from IMPORT_SOURCE_API_KEY, or asked for. Imported traces are not billed, so this platform
    wants the login or the key of an administrator of the organization.
    """
    from portside.transfer.kinds import LANGSMITH_KINDS, select_kinds

    kinds = select_kinds(LANGSMITH_KINDS, only, skip)
    headers = _read_headers("source", SOURCE_KEY, SOURCE_AUTHORIZATION)
    if from_workspace is not None:
        headers["X-Tenant-Id"] = from_workspace

    # Asks who the caller is, so that a wrong key is found before anything is carried.
    platform.call("GET", "/auth")
    source = _open("source", source_url, headers)
    target = _open("target", platform.url, platform.headers)
    _carry(kinds, source, target, report_file, as_json=as_json)


def _read_headers(role: str, key_name: str, authorization_name: str) -> dict[str, str]:
    """Return the headers with the credentials for a server; without a terminal and a variable there are none."""
    if authorization := os.environ.get(authorization_name):
        return {"Authorization": authorization}

    key = os.environ.get(key_name)
    if key is None and sys.stdin.isatty():
        key = str(click.prompt(f"API key of the {role} (empty for none)", default="", hide_input=True, err=True))

    return {"X-Api-Key": key.strip()} if key and key.strip() else {}


def _open(role: str, url: str, headers: dict[str, str]) -> "RemoteServer":
    from portside.transfer.server import RemoteServer

    for value in headers.values():
        if not (value.isascii() and value.isprintable()):
            raise UserMistake(f"the key of the {role} holds a character that no key has; copy it again")

    if not url.startswith(("http://", "https://")):
        raise UserMistake(f"{url} is not the address of a server, such as https://agents.example.com")

    return RemoteServer(role, url, headers, say=say, trust=load_authorities(os.environ) or True)


def _carry(  # noqa: PLR0913 - one transfer, and how its result is shown
    kinds: Sequence[str],
    source: "RemoteServer",
    target: "RemoteServer",
    report_file: Path,
    *,
    as_json: bool,
    starts_crons: bool = False,
) -> None:
    from portside.transfer.kinds import carry
    from portside.transfer.report import Report

    report = Report(say)
    with contextlib.closing(source), contextlib.closing(target), _written(report, report_file):
        carry(kinds, source, target, report, starts_crons=starts_crons)

    if as_json:
        show_json(report.to_document())
    else:
        _show(report, report_file)

    if report.has_failures:
        raise _Incomplete(f"not everything was carried; {report_file} names it, and another start tries it again")


class _Incomplete(UserMistake):
    """Something could not be carried."""

    exit_code = INCOMPLETE


@contextlib.contextmanager
def _written(report: "Report", file: Path) -> Iterator[None]:
    """Write the report at the end of the block, however it ends: names of items are for their owner alone."""
    try:
        yield
    finally:
        write_private(file, json.dumps(report.to_document(), indent=2) + "\n")


def _show(report: "Report", file: Path) -> None:
    rows = [(kind, counts.carried, counts.present, counts.failed) for kind, counts in report.counts.items()]
    show_table(("KIND", "CARRIED", "THERE ALREADY", "NOT CARRIED"), rows)

    for entry in report.failures[:20]:
        say(f"not carried: {entry['kind']} {entry['item']}: {entry['reason']}")
    for entry in report.notes[:20]:
        say(f"carried with a change: {entry['kind']} {entry['item']}: {entry['reason']}")

    rest = len(report.failures[20:]) + len(report.notes[20:])
    if rest:
        say(f"{rest} more are named in {file}")
