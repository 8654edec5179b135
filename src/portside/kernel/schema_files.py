"""The files of a package that make its tables and SQL functions; `migrations.py` applies them.

A package has up to two folders:

- `migrations/0001_baseline.sql`, `0002_what.sql`, …: tables, indexes and triggers. Each file is applied once and
  recorded with a checksum.
- `functions/*.sql`: functions and views, as `create or replace`. `order.txt` lists the files in the order of their
  dependencies. Those above the line `(migrations)` are applied before the migrations, because tables use them
  (generated columns, defaults, indexes, triggers). `revision.txt`, written by `make generate`, contains a number that
  grows with every change, and the checksum of all files.

Whether older versions of the program run on what the files make is declared. A migration says it in a line, with the
reason: `-- Older versions run: …` or `-- Older versions are refused: …`. The third word in `revision.txt` is the oldest
revision of the functions whose programs can call today's.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import pairwise

# The line in order.txt that stands for the migrations.
TABLES = "(migrations)"
OLDER_VERSIONS_RUN = "run"
_DECLARATION = re.compile(r"^-- Older versions (run|are refused): (.+)$", re.MULTILINE)
# The tables of statements that read each row. Adding a column with a constant default reads none, but counts too.
_TABLES_USED = re.compile(
    r"\b(?:alter table|update|delete from|from|join|index \w+ on)\s+(?:only\s+)?(\w+)", re.IGNORECASE
)
# Statements begin in the first column; those in the body of a function do not.
_CREATED = re.compile(
    r"^(create|drop) (?:or replace )?(?:unlogged |constraint )?(table|view|function|trigger|unique index|index) "
    r"(?:if (?:not )?exists )?(\w+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Migration:
    """One SQL file of a package."""

    package: str
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the file's text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def tables(self) -> set[str]:
        """The names of the tables that the file may read or write as a whole."""
        return set(_TABLES_USED.findall(self.sql))

    @property
    def older_versions(self) -> str | None:
        """The declaration of the file: "run", or the reason why older versions are refused; None without one."""
        declaration = _DECLARATION.search(self.sql)
        if declaration is None:
            return None

        verb, reason = declaration.groups()
        return OLDER_VERSIONS_RUN if verb == OLDER_VERSIONS_RUN else reason.rstrip(".")


@dataclass(frozen=True)
class FunctionFiles:
    """The SQL functions and views of a package: name and text of each file, before and after the migrations.

    `oldest` is the oldest revision whose programs can call them.
    """

    package: str
    revision: int
    oldest: int = 0
    before: tuple[tuple[str, str], ...] = ()
    after: tuple[tuple[str, str], ...] = ()

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of all files, in their order."""
        digest = hashlib.sha256()
        for name, sql in (*self.before, (TABLES, ""), *self.after):
            digest.update(f"{name}\0{len(sql)}\0{sql}".encode())

        return digest.hexdigest()

    @property
    def created(self) -> list[tuple[str, str]]:
        """Kind and name of the functions and views, without their parameters."""
        return _find_created(sql for _, sql in (*self.before, *self.after))

    @property
    def names_in_tables(self) -> set[str]:
        """The names of the functions that come before the migrations, because tables use them."""
        return {name for _, name in _find_created(sql for _, sql in self.before)}


def read_migrations(package: str) -> list[Migration]:
    """Read a package's migrations in order. Raises ValueError if two have the same number."""
    name = _shorten(package)
    migrations: list[Migration] = []
    for file in files(package).joinpath("migrations").iterdir():
        if match := re.match(r"(\d+)_.*\.sql$", file.name):
            migration = Migration(package=name, number=int(match[1]), name=file.name, sql=file.read_text("utf-8"))
            migrations.append(migration)

    migrations.sort(key=lambda migration: migration.number)
    for former, latter in pairwise(migrations):
        if former.number == latter.number:
            raise ValueError(
                f"{package}/migrations: {former.name} and {latter.name} have the same number; renumber one"
            )

    return migrations


def read_functions(package: str) -> FunctionFiles:
    """Read a package's function files. Raises ValueError if order.txt does not name exactly the files there are."""
    folder = files(package).joinpath("functions")
    if not folder.is_dir():
        return FunctionFiles(_shorten(package), 0)

    lines = folder.joinpath("order.txt").read_text("utf-8").splitlines()
    order = [line for line in lines if line and not line.startswith("#")]
    names = [file.name for file in folder.iterdir() if file.name.endswith(".sql")]
    if sorted([*names, TABLES]) != sorted(order):
        raise ValueError(f"{package}/functions/order.txt must name {TABLES} and each .sql file of its folder once")

    # The words are the revision, the checksum, and the oldest revision; older files have no third one.
    words = folder.joinpath("revision.txt").read_text("utf-8").split()
    revision = int(words[0])
    oldest = int(words[2]) if len(words) > 2 else revision

    texts = {name: folder.joinpath(name).read_text("utf-8") for name in names}
    tables = order.index(TABLES)
    return FunctionFiles(
        package=_shorten(package),
        revision=revision,
        oldest=oldest,
        before=tuple((name, texts[name]) for name in order[:tables]),
        after=tuple((name, texts[name]) for name in order[tables + 1 :]),
    )


def list_created(migrations: Iterable[Migration]) -> list[tuple[str, str]]:
    """Return kind and name of the tables, views, functions, triggers and unique indexes that migrations leave."""
    return _find_created(migration.sql for migration in migrations)


def _find_created(texts: Iterable[str]) -> list[tuple[str, str]]:
    created: dict[tuple[str, str], None] = {}
    for text in texts:
        for verb, kind, name in _CREATED.findall(text):
            if verb == "drop":
                created_kind = "unique index" if kind == "index" else kind
                created.pop((created_kind, name), None)
            elif kind != "index":
                created[kind, name] = None

    return list(created)


def _shorten(package: str) -> str:
    return package.rsplit(".", 1)[-1]
