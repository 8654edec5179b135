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
_COLUMNS = 5
_OFF = "off"
# The counts are of the type int in Postgres.
_MAX = 2**31 - 1
# A pattern of a method alone is more specific than one of any path.
_METHOD_RANK = 10_000


class RequestPattern(msgspec.Struct, frozen=True):
    """One way for a request to belong to a row. A null method or path stands for any."""

    method: str | None
    path: re.Pattern[str] | None
    # Greater for what is more specific.
    rank: int

    def matches(self, method: str, path: str) -> bool:
        """Whether a request matches."""
        return self.method in {None, method} and (self.path is None or self.path.search(path) is not None)


def parse_pattern(text: str) -> RequestPattern:
    """Parse a pattern of the table. Raises UserMistake."""
    words = text.split()
    method = words.pop(0) if words and words[0] in METHODS else None
    if not words and method is not None:
        return RequestPattern(method, path=None, rank=len(text) + _METHOD_RANK)
    if words == ["any"] and method is None:
        return RequestPattern(method=None, path=None, rank=0)

    contains = len(words) == 2 and words[0] == "containing"
    has_one_path = len(words) == 1 or contains
    if not has_one_path or not _PATH.match(words[-1]):
        raise UserMistake(f"Invalid pattern {text!r}: use METHOD, /path, METHOD /path, containing /path, */path or any")

    path = words[-1]
    return RequestPattern(method, _compile_path(path, contains=contains), rank=len(path))


def _compile_path(path: str, *, contains: bool) -> re.Pattern[str]:
    literal = re.escape(path.removeprefix("*")).replace(re.escape("{uuid}"), _UUID)
    if contains:
        return re.compile(literal)
    if path.startswith("*"):
        return re.compile(f"{literal}/?$")
    if path.endswith("{uuid}"):
        return re.compile(f"^{literal}/?$")

    return re.compile(f"^{literal}(?:/|$)")


class Row(msgspec.Struct, frozen=True):
    """A row of the table: a limit for each region, None for off."""

    match: str
    patterns: tuple[RequestPattern, ...]
    identity: CallerIdentity
    limits: dict[Region, Limit | None]
    category: str

    def rank(self, method: str, paths: Collection[str]) -> int | None:
        """Return how specifically the row matches a request, or None if it does not match."""
        ranks = [pattern.rank for pattern in self.patterns for path in paths if pattern.matches(method, path)]
        return max(ranks, default=None)


class Table:
    """The rows of the table, for one region."""

    def __init__(self, rows: Sequence[Row], region: Region) -> None:
        self.rows = rows
        self.region = region

    def find_row(self, method: str, paths: Collection[str], identities: Collection[CallerIdentity]) -> Row | None:
        """Return the most specific row for a request of a caller with these identities, or None.

        `paths` are the request's path with and without its prefix.
        """
        best = None
        best_rank = -1
        for row in self.rows:
            if row.identity not in identities:
                continue

            rank = row.rank(method, paths)
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
        if not line.strip() or line.lstrip().startswith("#"):
            continue

        try:
            rows.append(_parse_row(line))
        except UserMistake as exc:
            raise UserMistake(f"{file or 'table.txt'}, line {number}: {exc}") from exc

    return rows


def format_table(rows: Sequence[Row]) -> str:
    """Format a table so that `read_table` can read it."""
    table = [_format_row(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]

    lines: list[str] = []
    for cells in table:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append(" | ".join(padded).rstrip() + "\n")

    return "".join(lines)


def _format_row(row: Row) -> tuple[str, ...]:
    limits = [_format_limit(row.limits[region]) for region in Region]
    return (row.match, row.identity.value, *limits, row.category)


def _parse_row(line: str) -> Row:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) != _COLUMNS:
        raise UserMistake("a row needs five columns: match | identity | US | EU | category")

    match, identity, us, eu, category = cells
    identities = [member.value for member in CallerIdentity]
    if identity not in identities:
        raise UserMistake(f"Invalid identity {identity!r}: use one of {', '.join(identities)}")

    return Row(
        match=match,
        patterns=tuple(parse_pattern(part.strip()) for part in match.split(",")),
        identity=CallerIdentity(identity),
        limits={Region.US: _parse_limit(us), Region.EU: _parse_limit(eu)},
        category=category,
    )


def _parse_limit(text: str) -> Limit | None:
    if text == _OFF:
        return None

    count, slash, seconds = (part.strip() for part in text.partition("/"))
    if not slash or not (count.isdecimal() and seconds.isdecimal()):
        raise UserMistake(f"Invalid limit {text!r}: use COUNT/SECONDS or off")
    if not (1 <= int(count) <= _MAX and 1 <= int(seconds) <= _MAX):
        raise UserMistake(f"Invalid limit {text!r}: COUNT and SECONDS must be from 1 to {_MAX}")

    return Limit(int(count), int(seconds))


def _format_limit(limit: Limit | None) -> str:
    return _OFF if limit is None else str(limit)
