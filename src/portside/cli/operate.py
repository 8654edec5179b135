"""Commands for operators: what takes the disk space."""

from collections import Counter
from typing import Any

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json, show_table, show_text

SHOWN = 30


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
