"""The table of rate limits: parse it, find the row of a request, and format it.

`table.txt` has the limits that LangSmith documents; operators can set another file of the same form.
"""

import re
from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from portside.kernel.errors import UserMistake
from portside.limits.types import CallerIdentity, Limit, Region

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# With or without hyphens, as routes read it.
_UUID = r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"
_PATH = re.compile(r"^(\*?/[A-Za-z0-9_.~/{}-]+)$")


class RequestPattern(msgspec.Struct, frozen=True):
    """One way for a request to belong to a row. `rank` is greater for what is more specific."""

    method: str | None
    path: re.Pattern[str] | None
    rank: int

    def fits(self, method: str, path: str) -> bool:
        """Whether a request matches."""
        return self.method in {None, method} and (self.path is None or self.path.search(path) is not None)


def read_pattern(text: str) -> RequestPattern:
    """Parse a pattern of the table. Raises UserMistake."""
    words = text.split()
    method = words.pop(0) if words and words[0] in METHODS else None
    if not words and method is not None:
        return RequestPattern(method, None, len(text) + 10_000)
    if words == ["any"] and method is None:
        return RequestPattern(None, None, 0)

    contains = len(words) == 2 and words[0] == "containing"
    if not words or len(words) > 1 + contains or not _PATH.match(words[-1]):
        raise UserMistake(f"Invalid pattern {text!r}: use METHOD, /path, METHOD /path, containing /path, */path or any")

    return RequestPattern(method, _expression(words[-1], contains=contains), len(words[-1]))


def _expression(path: str, *, contains: bool) -> re.Pattern[str]:
    literal = re.escape(path.removeprefix("*")).replace(re.escape("{uuid}"), _UUID)
    if contains:
        return re.compile(literal)
    if path.startswith("*"):
        return re.compile(f"{literal}/?$")
    if path.endswith("{uuid}"):
        return re.compile(f"^{literal}/?$")

    return re.compile(f"^{literal}(?:/|$)")


_COLUMNS = 5
_OFF = "off"
# The counts are of the type int in Postgres.
_MAX = 2**31 - 1


class Row(msgspec.Struct, frozen=True):
    """A row of the table: a limit for each region, None for off."""

    match: str
    patterns: tuple[RequestPattern, ...]
    identity: CallerIdentity
    limits: dict[Region, Limit | None]
    category: str

    def rank(self, method: str, paths: Collection[str]) -> int | None:
        """Return how specifically the row matches a request, or None if it does not match."""
        fitting = (pattern.rank for pattern in self.patterns for path in paths if pattern.fits(method, path))
        return max(fitting, default=None)


class Table:
    """The rows of the table, for one region."""

    def __init__(self, rows: Sequence[Row], region: Region) -> None:
        self.rows = rows
        self.region = region

    def row(self, method: str, paths: Collection[str], identities: Collection[CallerIdentity]) -> Row | None:
        """Return the most specific row for a request of a caller with these identities.

        `paths` are the request's path with and without its prefix.
        """
        best = None
        best_rank = -1
        for row in self.rows:
            rank = row.rank(method, paths) if row.identity in identities else None
            if rank is not None and rank > best_rank:
                best = row
                best_rank = rank

        return best


def read_table(file: Path | None = None) -> list[Row]:
    """Read the documented table, or an operator's file. Raises UserMistake with the line number."""
    try:
        text = file.read_text("utf-8") if file else files("portside.limits").joinpath("table.txt").read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UserMistake(f"cannot read the rate limits in {file}: {exc}") from exc

    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                rows.append(_read_row(line))
            except UserMistake as exc:
                raise UserMistake(f"{file or 'table.txt'}, line {number}: {exc}") from exc

    return rows


def write_table(rows: Sequence[Row]) -> str:
    """Format a table so that `read_table` can read it."""
    cells = [(row.match, row.identity.value, *(_show(row.limits[r]) for r in Region), row.category) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(_COLUMNS)] if cells else []
    return "".join(
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in cells
    )


def _read_row(line: str) -> Row:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) != _COLUMNS:
        raise UserMistake("a row needs five columns: match | identity | US | EU | category")

    match, identity, us, eu, category = cells
    if identity not in {i.value for i in CallerIdentity}:
        raise UserMistake(f"Invalid identity {identity!r}: use one of {', '.join(i.value for i in CallerIdentity)}")

    patterns = tuple(read_pattern(part.strip()) for part in match.split(","))
    limits = {Region.US: _read_limit(us), Region.EU: _read_limit(eu)}
    return Row(match, patterns, CallerIdentity(identity), limits, category)


def _read_limit(text: str) -> Limit | None:
    if text == _OFF:
        return None

    count, slash, seconds = (part.strip() for part in text.partition("/"))
    if not slash or not (count.isdecimal() and seconds.isdecimal()):
        raise UserMistake(f"Invalid limit {text!r}: use COUNT/SECONDS or off")
    if not (1 <= int(count) <= _MAX and 1 <= int(seconds) <= _MAX):
        raise UserMistake(f"Invalid limit {text!r}: COUNT and SECONDS must be from 1 to {_MAX}")

    return Limit(int(count), int(seconds))


def _show(limit: Limit | None) -> str:
    return _OFF if limit is None else str(limit)
