"""Hashes and checks passwords, as scrypt hashes with a salt."""

import asyncio
import functools
import hashlib
import hmac
import secrets
from concurrent.futures import ThreadPoolExecutor

from portside.kernel.errors import TooManyRequests

_SALT_BYTES = 16
_HASH_BYTES = 32
# 64 MB and about 0.1 seconds, as OWASP recommends for scrypt.
_COST = {"n": 2**16, "r": 8, "p": 1}
_MEMORY_BYTES = 2**27
# A flood of logins must not exhaust the memory, nor the default thread pool that everything shares.
MAX_CONCURRENT = 2
MAX_WAITING = 20


class TooManyLogins(TooManyRequests):
    """Too many passwords are being checked right now; try again in a moment."""

    code = "too_many_logins"


class _PasswordWorkers:
    """The thread pool that hashes passwords, with a limit on waiting calls."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT, "passwords")
        self._in_progress = 0

    async def derive(self, password: str, salt: bytes) -> bytes:
        if self._in_progress >= MAX_CONCURRENT + MAX_WAITING:
            raise TooManyLogins(headers={"Retry-After": "1"})

        self._in_progress += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _derive, password, salt)
        finally:
            self._in_progress -= 1


@functools.cache
def _get_workers() -> _PasswordWorkers:
    return _PasswordWorkers()


async def hash_password(password: str) -> bytes:
    """Return the salted hash of a password. Raises TooManyLogins."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + await _get_workers().derive(password, salt)


async def verify_password(password: str, password_hash: bytes | None) -> bool:
    """Whether a password matches its stored hash; takes as long without one. Raises TooManyLogins."""
    if password_hash is None:
        password_hash = bytes(_SALT_BYTES + _HASH_BYTES)

    salt = password_hash[:_SALT_BYTES]
    derived = await _get_workers().derive(password, salt)
    return hmac.compare_digest(derived, password_hash[_SALT_BYTES:])


def _derive(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, maxmem=_MEMORY_BYTES, dklen=_HASH_BYTES, **_COST)
