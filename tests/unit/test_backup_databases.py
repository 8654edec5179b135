"""How programs of Postgres get a password, and how a restore that failed takes back what it made."""

from typing import Any

import asyncpg
import pytest

from portside.backup import databases
from portside.backup.databases import DatabaseConnection


@pytest.mark.parametrize(
    ("url", "database", "dsn", "password"),
    [
        ("postgresql://me:p%40ss@db:5433/one?x=1", None, "postgresql://me@db:5433/one?x=1", "p@ss"),
        ("postgres://me:p%40ss@/one?host=/run/x", "a b", "postgresql://me@/a%20b?host=/run/x", "p@ss"),
        ("postgresql://me@db/one", None, "postgresql://me@db/one", None),
        ("postgresql://db/one", None, "postgresql://db/one", None),
    ],
)
def test_password_is_in_no_argument_of_a_program(
    monkeypatch: pytest.MonkeyPatch, url: str, database: str | None, dsn: str, password: str | None
) -> None:
    """Every user of the machine sees the arguments of a process."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    access = DatabaseConnection.from_url(url, database)
    assert (access.dsn, access.environment.get("PGPASSWORD")) == (dsn, password)


class Server:
    """Executes statements, and refuses one of them."""

    def __init__(self, refused: str) -> None:
        self.executed: list[str] = []
        self._refused = refused

    async def execute(self, statement: str) -> None:
        self.executed.append(statement)
        if statement == self._refused:
            raise asyncpg.PostgresError("it is in use")


async def test_failed_restore_is_taken_back_from_its_end() -> None:
    """A role owns its database, so the database goes first; what is refused does not keep the rest."""
    statements = ["drop role one", "drop database one", "drop role two", "drop database two"]
    server: Any = Server("drop database two")
    await databases._undo(server, statements)
    assert server.executed == statements[::-1]


async def test_object_of_somebody_else_is_not_taken_back() -> None:
    """What could not be created is not ours."""
    undo: list[str] = []
    server: Any = Server("create role one login")
    with pytest.raises(asyncpg.PostgresError):
        await databases._create(server, "role one login", undo, "drop role one")

    await databases._create(server, "role two login", undo, "drop role two")
    assert undo == ["drop role two"]
