"""`portside usage`: how many traces were received."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table

PATH = "/api/v1/orgs/current/billing/granular-usage"


@click.command()
@click.option("--days", default=30, show_default=True, type=click.IntRange(1, 3660), help="How far back to look.")
@click.option(
    "--by", type=click.Choice(["project", "workspace", "user", "api_key"]), default="project", show_default=True
)
@click.option("--csv", "as_csv", is_flag=True, help="Print the file that the platform exports.")
@json_option
@connection_options
def usage(platform: Platform, days: int, by: str, *, as_csv: bool, as_json: bool) -> None:
    """Show the traces received, per time bucket."""
    if as_csv:
        click.echo(platform.text(f"{PATH}/export", **_question(platform, days=days, by=by)), nl=False)
        return
    found = fetch_usage(platform, days=days, by=by)
    if as_json:
        show_json(found)
        return
    rows = [(record["time_bucket"][:16], label(record["dimensions"]), record["traces"]) for record in found["usage"]]
    show_table(("FROM", by.upper(), "TRACES"), rows)


def fetch_usage(platform: Platform, *, days: int, by: str) -> dict[str, Any]:
    """Return the usage records of the key's workspace."""
    found: dict[str, Any] = platform.call("GET", PATH, **_question(platform, days=days, by=by))
    return found


def _question(platform: Platform, *, days: int, by: str) -> dict[str, Any]:
    end = datetime.now(UTC) + timedelta(minutes=1)
    return {
        "start_time": (end - timedelta(days=days)).isoformat(),
        "end_time": end.isoformat(),
        "workspace_ids": [platform.call("GET", "/auth")["tenant_id"]],
        "group_by": by,
    }


def label(dimensions: dict[str, str | None]) -> str:
    """Return what a record is about, in words."""
    for key in ("project_name", "workspace_name", "user_email", "api_key_short_key"):
        if dimensions.get(key):
            return str(dimensions[key])
    return "-"
