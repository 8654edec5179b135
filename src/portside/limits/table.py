"""The table of limits: read from text, asked for the row of a request, and written as text again.

`table.txt` is the documented one (spec: Limits); an operator may bring another file of the same form.
"""

from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from portside.kernel.errors import UserMistake
from portside.limits.patterns import Pattern, read_pattern
from portside.limits.types import Identity, Limit, Region

_COLUMNS = 5
_OFF = "off"
_MOST = 2**31 - 1


class Row(msgspec.Struct, frozen=True):
    """One limit for each region; None is off."""

    match: str
    patterns: tuple[Pattern, ...]
    identity: Identity
    limits: dict[Region, Limit | None]
    category: str

    def rank(self, method: str, paths: Collection[str]) -> int | None:
        """Return how specifically the row speaks of a request, or None when it does not."""
        fitting = (pattern.rank for pattern in self.patterns for path in paths if pattern.fits(method, path))
        return max(fitting, default=None)


class Table:
    """The rows that hold in one region."""

    def __init__(self, rows: Sequence[Row], region: Region) -> None:
        self.rows, self.region = rows, region

    def row(self, method: str, paths: Collection[str], identities: Collection[Identity]) -> Row | None:
        """Return the most specific row for a request of a caller with these identities.

        `paths` are the ways in which the request's path can be read.
        """
        best, best_rank = None, -1
        for row in self.rows:
            rank = row.rank(method, paths) if row.identity in identities else None
            if rank is not None and rank > best_rank:
                best, best_rank = row, rank
        return best


def read_table(file: Path | None = None) -> list[Row]:
    """Read the documented table, or an operator's. Raises UserMistake that names the line."""
    try:
        text = file.read_text("utf-8") if file else files("portside.limits").joinpath("table.txt").read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UserMistake(f"the rate limits in {file} cannot be read: {exc}") from exc
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                rows.append(_read_row(line))
            except UserMistake as exc:
                raise UserMistake(f"{file or 'table.txt'}, line {number}: {exc}") from exc
    return rows


def write_table(rows: Sequence[Row]) -> str:
    """Write a table in the form that `read_table` reads."""
    cells = [(row.match, row.identity.value, *(_show(row.limits[r]) for r in Region), row.category) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(_COLUMNS)] if cells else []
    return "".join(
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in cells
    )


def _read_row(line: str) -> Row:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) != _COLUMNS:
        raise UserMistake("a row has five columns: match | identity | US | EU | category")
    match, identity, us, eu, category = cells
    if identity not in {i.value for i in Identity}:
        raise UserMistake(f"{identity!r} is no identity; write {', '.join(i.value for i in Identity)}")
    patterns = tuple(read_pattern(part.strip()) for part in match.split(","))
    limits = {Region.US: _read_limit(us), Region.EU: _read_limit(eu)}
    return Row(match, patterns, Identity(identity), limits, category)


def _read_limit(text: str) -> Limit | None:
    if text == _OFF:
        return None
    count, slash, seconds = (part.strip() for part in text.partition("/"))
    if not slash or not (count.isdecimal() and seconds.isdecimal()):
        raise UserMistake(f"{text!r} is no limit; write count/seconds, or off")
    if not (1 <= int(count) <= _MOST and 1 <= int(seconds) <= _MOST):
        raise UserMistake(f"{text!r} is out of range: count and seconds are at least 1")
    return Limit(int(count), int(seconds))


def _show(limit: Limit | None) -> str:
    return _OFF if limit is None else str(limit)
