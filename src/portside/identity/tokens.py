"""What is stored of keys and logins: they are random and long, so a plain hash is enough."""

import hashlib


def hash_token(token: str) -> bytes:
    """Return the hash by which a key or login is found."""
    return hashlib.sha256(token.encode()).digest()
