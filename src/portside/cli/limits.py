"""`portside limits`: the table of rate limits."""

from pathlib import Path

import click

from portside.limits.table import read_table, write_table


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def limits(file: Path | None) -> None:
    """Show the documented rate limits, or those of FILE once they have been checked.

    What is printed is what the setting RATE_LIMITS_FILE takes: change counts, write `off`, leave rows out.
    """
    click.echo("# match | identity | US | EU | category")
    click.echo(write_table(read_table(file)), nl=False)
