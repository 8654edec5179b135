"""`portside audit`: who changed what, and who read a secret."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from portside.cli.client import F, Platform, connection_options
from portside.cli.output import CommandGroup, json_option, show_json, show_table, show_text
from portside.kernel.errors import UserMistake


def _filters(command: F) -> F:
    """Add the options that filter entries."""
    options: list[Callable[[F], F]] = [
        click.option("--actor", help="An email, a short key, an address, or the id of a user, key or session."),
        click.option("--action", help="An action, such as deployment.delete, or the part before its dot."),
        click.option("--object", "object_", help="The id or the name of the object."),
        click.option(
            "--outcome", type=click.Choice(["ok", "refused", "failed"]), help="Only entries with this outcome."
        ),
        click.option("--since", type=click.DateTime(), help="From this time on (UTC)."),
        click.option("--until", type=click.DateTime(), help="Before this time (UTC)."),
    ]

    for option in reversed(options):
        command = option(command)

    return command


def _build_query(options: dict[str, Any]) -> dict[str, str]:
    """Return the filters of the command line as a query of the API."""
    names = {"object_": "object", "since": "start_time", "until": "end_time"}
    query: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, datetime):
            query[names.get(name, name)] = value.replace(tzinfo=UTC).isoformat()
        elif value is not None:
            query[names.get(name, name)] = value

    return query


def _path(platform: Platform) -> str:
    """Return the path of the whole log, or of the part of a workspace that the command line names."""
    return "/workspaces/current/audit-log" if platform.workspace else "/audit-log"


@click.group(cls=CommandGroup)
def audit() -> None:
    """List and export the audit log, check that it is intact."""


@audit.command("list")
@_filters
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Number of entries.")
@json_option
@connection_options
def list_entries(platform: Platform, *, limit: int, as_json: bool, **options: Any) -> None:
    """List entries of the audit log, newest first."""
    page = platform.call("GET", _path(platform), limit=limit, **_build_query(options))
    if as_json:
        show_json(page["items"])
        return

    rows = [
        (
            entry["at"][:19],
            entry["user_email"] or entry["short_key"] or entry["actor_kind"],
            entry["address"] or "",
            entry["action"],
            entry["object_name"] or " ".join(entry["object_ids"][:1]),
            ", ".join(entry["fields"])[:40],
            entry["outcome"],
        )
        for entry in page["items"]
    ]

    show_table(("TIME (UTC)", "ACTOR", "ADDRESS", "ACTION", "OBJECT", "FIELDS", "OUTCOME"), rows)


@audit.command("export")
@_filters
@click.option("--format", "kind", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@connection_options
def export_entries(platform: Platform, *, kind: str, **options: Any) -> None:
    """Write all entries to standard output, newest first."""
    for text in platform.stream_lines(f"{_path(platform)}/export", format=kind, **_build_query(options)):
        show_text(text)


@audit.command()
@click.option("--expect", nargs=2, type=(int, str), metavar="NUMBER HASH", help="What an earlier check printed.")
@json_option
@connection_options
def verify(platform: Platform, *, expect: tuple[int, str] | None, as_json: bool) -> None:
    """Check that no entry was changed or removed since it was written; exit status 1 if one was.

    With --expect, also check that the log still begins with what an earlier check saw.
    """
    verification = platform.call("GET", "/audit-log/verification")
    if as_json:
        show_json(verification)

    if verification["broken_at"] is not None:
        raise UserMistake(f"entry {verification['broken_at']} does not fit the entries before it: the log was changed")

    if expect is not None:
        number, expected_hash = expect
        entries = platform.call("GET", "/audit-log", cursor=number + 1, limit=1)["items"]
        if not entries or (entries[0]["seq"], entries[0]["hash"]) != (number, expected_hash):
            raise UserMistake(f"entry {number} is missing or has another hash: the log was replaced, or it has expired")

    if not as_json:
        last = f"{verification['last_seq']} {verification['last_hash']}"
        show_text(f"{verification['entries']} entries are intact; the last is {last}")
