"""What commands print: JSON for scripts, aligned columns for people."""

import json
from collections.abc import Sequence
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under headings, each column as wide as it needs."""
    table = [list(headings), *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def say(line: str) -> None:
    """Show progress, beside what scripts read."""
    click.echo(f"· {line}", err=True)
