"""Backups of a platform: what is copied of its home and database, and the check of a restored one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from portside.backup.create import Origin
from portside.control.secrets import open_all
from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.errors import UserMistake
from portside.kernel.migrations import migrate
from portside.platform.app import PACKAGES, check_home, check_key
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings


@asynccontextmanager
async def origin_of(settings: PlatformSettings, *, as_dumps: bool) -> AsyncIterator[Origin]:
    """Yield the platform of a home folder, running or not; its embedded Postgres runs during the block.

    Raises UserMistake if there is no platform.
    """
    home = settings.home_path
    check_home(Home(home))
    if settings.database_url:
        yield Origin(home, settings.database_url, "dumps")
        return
    embedded = EmbeddedPostgres(home, connections=settings.postgres_max_connections)
    if not (embedded.data / "PG_VERSION").exists():
        raise UserMistake(f"{home} has no embedded Postgres; set DATABASE_URL as for the platform")
    try:
        yield Origin(home, await asyncio.to_thread(embedded.acquire), "dumps" if as_dumps else "data")
    finally:
        await asyncio.to_thread(embedded.release)


async def check_restored(url: str, home: Path) -> None:
    """Open a restored database as the platform does at its start, and every secret in it. Raises UserMistake."""
    db = await Database.connect(url)
    try:
        await migrate(db, PACKAGES)
        await open_all(db, await check_key(db, Home(home)))
    finally:
        await db.close()
