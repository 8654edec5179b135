"""A database of another server that may not grow beyond a size: new data is refused from 95 % of it on."""

from pathlib import Path
from typing import Any

import pytest

from portside.kernel.disk import WATCHED_FOLDER, read_notice
from portside.operate.database_limit import DatabaseLimit


class Databases:
    """Stands in for the databases of a server."""

    size = 0

    async def fetchval(self, _query: Any) -> int:
        return self.size


@pytest.mark.parametrize(("size", "is_full"), [(0, False), (950, False), (951, True), (2000, True)])
async def test_notice_is_there_while_the_databases_are_nearly_full(tmp_path: Path, size: int, *, is_full: bool) -> None:
    databases: Any = Databases()
    limit = DatabaseLimit(databases, tmp_path, 1000)
    databases.size = size
    for _ in range(2):
        assert (await limit.activate()).did == {"full": int(is_full)}

    notice = read_notice(tmp_path / WATCHED_FOLDER)
    assert (notice is not None and "DATABASE_MAX_BYTES" in notice) is is_full

    databases.size = 900
    await limit.activate()
    assert read_notice(tmp_path / WATCHED_FOLDER) is None


async def test_notice_can_be_read_by_agents_of_other_users(tmp_path: Path) -> None:
    databases: Any = Databases()
    databases.size = 1000
    await DatabaseLimit(databases, tmp_path, 1000).activate()
    (notice,) = (tmp_path / WATCHED_FOLDER).iterdir()
    assert notice.stat().st_mode & 0o777 == 0o644


async def test_without_a_limit_nothing_is_refused(tmp_path: Path) -> None:
    databases: Any = Databases()
    databases.size = 10**12
    await DatabaseLimit(databases, tmp_path, 1000).activate()
    assert (await DatabaseLimit(databases, tmp_path, 0).activate()).did == {"full": 0}
    assert read_notice(tmp_path / WATCHED_FOLDER) is None
