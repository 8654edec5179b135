"""Output of commands: JSON for scripts, aligned columns for people.

All output goes through this module. Logs, names and reasons come from others and may contain control characters, which
a terminal would execute; they are escaped. Colours are removed.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import click

from portside.kernel.escaping import escape_controls

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class CommandGroup(click.Group):
    """A group of commands, which its help lists with whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands that are not hidden."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(1000))
                    for name, command in commands
                    if command and not command.hidden
                ]
            )


def show_text(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a text, with `err` on standard error. Characters that the terminal's encoding lacks are escaped."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    click.echo(escape(text).encode(encoding, "backslashreplace").decode(encoding) + end, err=err, nl=False)


def escape(text: str) -> str:
    """Return a text that is safe for a terminal; newlines and tabs stay."""
    return escape_controls(_COLOURS.sub("", text), keep_newlines=True)


def indent(text: str) -> str:
    """Indent the second and later lines of a foreign text, so that they do not look like output of the command."""
    return text.replace("\n", "\n    ")


def confirm(question: str) -> None:
    """Ask for confirmation, and abort the command without it."""
    click.confirm(escape(question), abort=True)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    # json.dumps escapes all other control and non-ASCII characters.
    click.echo(json.dumps(value, indent=2).replace("\x7f", r"\u007f"))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under headings, each column as wide as it needs."""
    table = [list(headings), *([("" if cell is None else _to_cell(str(cell))) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    for row in table:
        show_text("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def say(line: str) -> None:
    """Print a progress line on standard error, so that scripts can read standard output."""
    show_text(f"· {indent(line)}", err=True)


@contextlib.contextmanager
def say_if_interrupted(line: str) -> Iterator[None]:
    """Say what the block leaves if it is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        say(line)
        raise


def get_program() -> str:
    """Return this program in the form in which a user calls it in a shell, for example commands."""
    return quote(sys.argv[0]) if Path(sys.argv[0]).name == "portside" else "portside"


def _to_cell(text: str) -> str:
    return escape_controls(_COLOURS.sub("", text))
