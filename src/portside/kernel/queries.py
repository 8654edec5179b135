"""Named SQL: every statement lives in a room's `sql/*.sql` and is reached by its name.

A file holds blocks that start with `-- name: claim_runs`; parameters are written `:run_id` and passed by keyword.
"""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

_NAME = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_COMMENT = re.compile(r"--[^\n]*")


class Query:
    """One statement: its name, its SQL with numbered parameters, and the parameters' names in that order."""

    __slots__ = ("_text", "name", "parameters", "sql")
    parameters: tuple[str, ...]
    sql: str

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text

    def __getattr__(self, name: str) -> Any:
        """Read the statement when it is used first: no program uses all of a room, and it should start soon."""
        if name not in {"parameters", "sql"}:
            raise AttributeError(name)
        names: list[str] = []

        def number(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        self.sql = _PARAMETER.sub(number, _COMMENT.sub("", self._text)).strip()
        self.parameters = tuple(names)
        return getattr(self, name)

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """Order keyword values as the statement wants them. Raises TypeError when names are missing or unknown."""
        if len(values) != len(self.parameters):
            raise TypeError(f"query {self.name} takes {self.parameters}, got {tuple(values)}")
        try:
            return [values[name] for name in self.parameters]
        except KeyError as missing:
            raise TypeError(f"query {self.name} lacks {missing}") from None


class Queries:
    """The statements of one room, as attributes."""

    def __init__(self, package: str) -> None:
        self._queries: dict[str, Query] = {}
        for file in sorted(files(package).joinpath("sql").iterdir(), key=lambda f: f.name):
            if file.name.endswith(".sql"):
                self._read(file.read_text("utf-8"), f"{package}/{file.name}")

    def _read(self, text: str, where: str) -> None:
        marks = list(_NAME.finditer(text))
        for mark, after in zip(marks, [*marks[1:], None], strict=True):
            name = mark[1]
            if name in self._queries:
                raise ValueError(f"{where}: query {name} is defined twice")
            self._queries[name] = Query(name, text[mark.end() : after.start() if after else len(text)])

    def __getattr__(self, name: str) -> Query:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"no query named {name}") from None

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())
