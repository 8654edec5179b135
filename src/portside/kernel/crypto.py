"""Secrets at rest: AES-256-GCM under a key file that only its owner can read.

A sealed value is `version ‖ key id ‖ nonce ‖ ciphertext`; the owner row's id is bound in as associated data, so that a
sealed value moved to another row does not open.
"""

import base64
import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from portside.kernel.errors import UserMistake
from portside.kernel.files import write_private

_VERSION = b"\x01"
_KEY_SIZE, _KEY_ID_SIZE, _NONCE_SIZE = 32, 4, 12


class SecretBox:
    """Seals and opens secrets with one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._key_id = hashlib.sha256(b"key id" + key).digest()[:_KEY_ID_SIZE]

    @classmethod
    def from_file(cls, path: Path) -> "SecretBox":
        """Read the key file, or make it with mode 0600. Raises UserMistake when it is damaged."""
        if not path.exists():
            write_private(path, base64.b64encode(os.urandom(_KEY_SIZE)).decode() + "\n")
        try:
            key = base64.b64decode(path.read_bytes().strip(), validate=True)
        except ValueError:
            key = b""
        if len(key) != _KEY_SIZE:
            raise UserMistake(f"{path} does not hold a base64 key of {_KEY_SIZE} bytes")
        return cls(key)

    def seal(self, plain: bytes, owner: str) -> bytes:
        """Encrypt for the row `owner`."""
        nonce = os.urandom(_NONCE_SIZE)
        return _VERSION + self._key_id + nonce + self._cipher.encrypt(nonce, plain, owner.encode())

    def open(self, sealed: bytes, owner: str) -> bytes:
        """Decrypt what was sealed for the row `owner`. Raises UserMistake for another key, row or a changed value."""
        if sealed[:1] != _VERSION or sealed[1 : 1 + _KEY_ID_SIZE] != self._key_id:
            raise UserMistake("a secret was sealed with another master key; restore that key file")
        nonce = sealed[1 + _KEY_ID_SIZE :][:_NONCE_SIZE]
        try:
            return self._cipher.decrypt(nonce, sealed[1 + _KEY_ID_SIZE + _NONCE_SIZE :], owner.encode())
        except (InvalidTag, ValueError) as exc:
            raise UserMistake("a sealed secret was changed or moved; it cannot be opened") from exc
