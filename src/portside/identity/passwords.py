"""Passwords: stored so that whoever reads the database cannot try many, compared without telling how far they agree."""

import asyncio
import hashlib
import hmac
import secrets

_SALT_BYTES, _HASH_BYTES = 16, 32
# 64 MB and about a tenth of a second: what OWASP asks of scrypt.
_COST = {"n": 2**16, "r": 8, "p": 1}
_MEMORY_BYTES = 2**27


async def hash_password(password: str) -> bytes:
    """Return what is stored of a password."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + await asyncio.to_thread(_derive, password, salt)


async def is_password(password: str, stored: bytes | None) -> bool:
    """Whether a password is the stored one; takes as long where none is stored."""
    salt = (stored or bytes(_SALT_BYTES))[:_SALT_BYTES]
    derived = await asyncio.to_thread(_derive, password, salt)
    return hmac.compare_digest(derived, (stored or bytes(_SALT_BYTES + _HASH_BYTES))[_SALT_BYTES:])


def _derive(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, maxmem=_MEMORY_BYTES, dklen=_HASH_BYTES, **_COST)
