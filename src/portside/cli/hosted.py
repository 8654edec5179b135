"""The hosted API: `portside usage`, `portside limits` and `portside allowlist`."""

from pathlib import Path

import click

from portside.cli.client import USAGE, Platform, build_usage_query, connection_options
from portside.cli.output import json_option, show_json, show_table, show_text
from portside.limits.table import format_table, read_table
from portside.limits.types import Region

EGRESS: dict[Region, tuple[str, ...]] = {
    Region.US: (
        "34.59.65.97",
        "34.67.51.221",
        "34.46.212.37",
        "34.132.150.88",
        "35.188.222.201",
        "34.58.194.127",
        "34.59.97.173",
        "104.198.162.55",
    ),
    Region.EU: (
        "34.13.192.67",
        "34.147.105.64",
        "34.90.22.166",
        "34.147.36.213",
        "34.32.137.113",
        "34.91.238.184",
        "35.204.101.241",
        "35.204.48.32",
    ),
}
INGRESS: dict[Region, tuple[str, ...]] = {
    Region.US: ("34.8.121.39", "34.107.251.234"),
    Region.EU: ("34.95.92.214", "34.13.73.122"),
}


@click.command()
@click.option("--days", default=30, show_default=True, type=click.IntRange(1, 3660), help="Number of days to count.")
@click.option(
    "--by", type=click.Choice(["project", "workspace", "user", "api_key"]), default="project", show_default=True
)
@click.option("--csv", "as_csv", is_flag=True, help="Print the platform's CSV export.")
@json_option
@connection_options
def usage(platform: Platform, days: int, by: str, *, as_csv: bool, as_json: bool) -> None:
    """Show the number of received traces per time bucket."""
    if as_csv:
        show_text(platform.text(f"{USAGE}/export", **build_usage_query(platform, days=days, by=by)), end="")
        return

    report = platform.call("GET", USAGE, **build_usage_query(platform, days=days, by=by))
    if as_json:
        show_json(report)
        return

    rows = [
        (record["time_bucket"][:16], get_usage_label(record["dimensions"]), record["traces"])
        for record in report["usage"]
    ]
    show_table(("FROM", by.upper(), "TRACES"), rows)


def get_usage_label(dimensions: dict[str, str | None]) -> str:
    """Return the name in a record's dimensions."""
    for key in ("project_name", "workspace_name", "user_email", "api_key_short_key"):
        if dimensions.get(key):
            return str(dimensions[key])

    return "-"


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def limits(file: Path | None) -> None:
    """Check and show the rate limits in FILE, or the documented ones.

    The output is a valid file for the setting RATE_LIMITS_FILE: change counts, write `off`, remove rows.
    """
    show_text("# match | identity | US | EU | category")
    show_text(format_table(read_table(file)), end="")


@click.command()
@click.option("--region", type=click.Choice([region.value for region in Region]), help="Only this region.")
@json_option
def allowlist(region: str | None, *, as_json: bool) -> None:
    """Show the addresses that the hosted service sends from (egress) and receives on (ingress).

    These are the documented addresses of the hosted service, for clients that still use it. A platform of your own uses
    the addresses of its machine.
    """
    regions = [Region(region)] if region else list(Region)
    addresses = {r.value: {"egress": EGRESS[r], "ingress": INGRESS[r]} for r in regions}
    if as_json:
        show_json(addresses)
        return

    rows = [
        (name, direction, address)
        for name, by_direction in addresses.items()
        for direction, region_addresses in by_direction.items()
        for address in region_addresses
    ]
    show_table(("REGION", "DIRECTION", "ADDRESS"), rows)
