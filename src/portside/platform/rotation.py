"""Changing the master key of a platform that is stopped.

The key file holds both keys until nothing is sealed with the old one any more. Killed at any point, the platform starts
with whatever the file holds, and doing it again goes on where it ended.
"""

from portside.control.resealing import reseal
from portside.kernel.crypto import begin_rotation, end_rotation
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.migrations import migrate
from portside.platform.app import ROOMS
from portside.platform.home import Home


def check_home(home: Home) -> None:
    """Raises UserMistake where no platform has its home."""
    if not home.master_key.is_file():
        raise UserMistake(f"there is no {home.master_key}; name the platform's folder with --home")


async def rotate_master_key(home: Home, database_url: str) -> int:
    """Seal every secret with a new master key; return how many there were. The caller holds the home's lock.

    Raises UserMistake for a key file that is damaged, and for secrets that it does not open.
    """
    db = await Database.connect(database_url)
    try:
        await migrate(db, ROOMS)
        resealed = await reseal(db, begin_rotation(home.master_key))
    finally:
        await db.close()
    end_rotation(home.master_key)
    return resealed
