"""What commands do with a platform that is stopped, or was just restored."""

from pathlib import Path

from portside.audit.entries import record_operation
from portside.control.deployments import move_repositories
from portside.control.key_rotation import open_all
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.migrations import migrate
from portside.platform.home import Home
from portside.platform.master_key import check_key, rotate_stopped
from portside.platform.modules import PACKAGES


async def check_restored(url: str, home: Path) -> None:
    """Open a restored database as the platform does at its start, and every secret in it. Raises UserMistake."""
    db = await Database.connect(url)
    try:
        await migrate(db, PACKAGES)
        await open_all(db, await check_key(db, Home(home)))
        await record_operation(db, "backup.restore")
    finally:
        await db.close()


async def move_paths(url: str, before: str, after: str) -> None:
    """Let the paths in a restored database lead into the new home folder."""
    db = await Database.connect(url)
    try:
        await move_repositories(db, before, after)
    finally:
        await db.close()


def check_home(home: Home) -> None:
    """Raise UserMistake if the folder is not the home of a platform."""
    if not home.master_key.is_file():
        raise UserMistake(f"there is no {home.master_key}; name the platform's folder with --home")


async def rotate_master_key(home: Home, database_url: str) -> int:
    """Encrypt every secret with a new master key while the platform is stopped, and return their number.

    The caller holds the home's lock. Raises UserMistake if the key file is damaged or is another database's.
    """
    db = await Database.connect(database_url)
    try:
        await migrate(db, PACKAGES)
        reencrypted = await rotate_stopped(db, home)
        await record_operation(db, "master_key.rotate", name=f"{reencrypted} secrets")
    finally:
        await db.close()

    return reencrypted
