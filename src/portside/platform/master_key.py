"""The master key: whether it belongs to the database, and replacing it while the platform runs or is stopped.

A rotation adds a new key to the file, which encrypts from then on, and encrypts every stored value again. The older key
stays in the file until no value uses it; so the process may be killed at any point, and continues after its next start.
Then the older key moves to `master-key.previous`, for backups of the database from its time.
"""

import asyncio
from datetime import datetime, timedelta

import msgspec

from portside.control.key_rotation import check_master_key, reencrypt
from portside.kernel.clock import now
from portside.kernel.crypto import SecretBox, begin_rotation, end_rotation, with_previous_keys
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.platform.home import Home

log = get_logger(__name__)
# A request may have encrypted a value with the older key, and store it later. None takes that long.
REMOVE_AFTER = timedelta(minutes=10)


async def check_key(db: Database, home: Home) -> SecretBox:
    """Return the SecretBox for this database. Raises UserMistake if the home has the master key of another one.

    A database from before a rotation is encrypted again, if its key was kept.
    """
    box = SecretBox.from_file(home.master_key)
    try:
        await check_master_key(db, box)
    except UserMistake as exc:
        if not await _adopt_older(db, home):
            raise UserMistake(
                f"{home.master_key} does not decrypt the secrets of this database: it is the key of another platform, "
                "or an older one. Restore the file that was saved with this database, or name the right one with "
                "DATABASE_URL"
            ) from exc

    return box


async def _adopt_older(db: Database, home: Home) -> bool:
    """Encrypt a database of a previous key with the current one; return whether there is such a key."""
    both = with_previous_keys(home.master_key)
    if both is None:
        return False

    try:
        await check_master_key(db, both)
    except UserMistake:
        return False

    log.warning("this database was encrypted with a previous master key", reencrypted=await reencrypt(db, both))
    return True


async def rotate_stopped(db: Database, home: Home) -> int:
    """Rotate at once, and return the number of values. The platform is stopped, and the caller holds the home's lock.

    Raises UserMistake if the key file is damaged or does not decrypt the secrets of this database.
    """
    await check_key(db, home)
    reencrypted = await reencrypt(db, begin_rotation(home.master_key))
    end_rotation(home.master_key)
    return reencrypted


class RotationState(msgspec.Struct):
    """A rotation in progress: how many values were encrypted again, and when the older key is removed."""

    reencrypted: int
    older_key_until: datetime


class KeyRotation(Task):
    """Replaces the master key of a running platform, and completes rotations that were interrupted."""

    every_s = 30.0

    def __init__(self, db: Database, home: Home, box: SecretBox) -> None:
        super().__init__()
        self._db = db
        self._file = home.master_key
        self._box = box
        self._lock = asyncio.Lock()

    async def begin(self) -> RotationState:
        """Begin a rotation, or continue one. From then on values are encrypted with the new key.

        Raises UserMistake if the key file is damaged.
        """
        async with self._lock:
            box = await asyncio.to_thread(begin_rotation, self._file)
            self._box.use_keys(*box.keys)
            reencrypted = await reencrypt(self._db, self._box)
            return RotationState(reencrypted, await self._get_removal_time())

    async def activate(self) -> Status:
        """End a rotation when nothing uses the older key any more."""
        async with self._lock:
            if len(self._box.keys) == 1:
                return Status()

            reencrypted = await reencrypt(self._db, self._box)
            if reencrypted == 0 and await self._get_removal_time() <= now():
                box = await asyncio.to_thread(end_rotation, self._file)
                self._box.use_keys(*box.keys)
                log.warning("the master key was rotated; the older one is in master-key.previous")

        return Status({"reencrypted": reencrypted})

    async def _get_removal_time(self) -> datetime:
        status = await asyncio.to_thread(self._file.stat)
        return datetime.fromtimestamp(status.st_mtime, now().tzinfo) + REMOVE_AFTER
