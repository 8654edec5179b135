"""Passwords: stored so that whoever reads the database cannot try many, compared without telling how far they agree."""

import asyncio
import hashlib
import hmac
import secrets
from concurrent.futures import ThreadPoolExecutor

from portside.kernel.errors import TooManyRequests

_SALT_BYTES, _HASH_BYTES = 16, 32
# 64 MB and about a tenth of a second: what OWASP asks of scrypt.
_COST = {"n": 2**16, "r": 8, "p": 1}
_MEMORY_BYTES = 2**27
# So that a flood of logins neither fills the memory nor keeps others from the threads that everything shares.
AT_ONCE, WAITING_AT_MOST = 2, 20


class TooManyLogins(TooManyRequests):
    """Too many passwords are being checked right now; try again in a moment."""

    code = "too_many_logins"


class _Desk:
    """The few threads that passwords are checked in."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "passwords")
        self._under_way = 0

    async def derive(self, password: str, salt: bytes) -> bytes:
        if self._under_way >= AT_ONCE + WAITING_AT_MOST:
            raise TooManyLogins(headers={"Retry-After": "1"})
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _derive, password, salt)
        finally:
            self._under_way -= 1


_desk = _Desk()


async def hash_password(password: str) -> bytes:
    """Return what is stored of a password. Raises TooManyLogins."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + await _desk.derive(password, salt)


async def is_password(password: str, stored: bytes | None) -> bool:
    """Whether a password is the stored one; takes as long where none is stored. Raises TooManyLogins."""
    salt = (stored or bytes(_SALT_BYTES))[:_SALT_BYTES]
    derived = await _desk.derive(password, salt)
    return hmac.compare_digest(derived, (stored or bytes(_SALT_BYTES + _HASH_BYTES))[_SALT_BYTES:])


def _derive(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, maxmem=_MEMORY_BYTES, dklen=_HASH_BYTES, **_COST)
