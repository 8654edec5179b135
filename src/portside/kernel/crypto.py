"""Encryption of secrets at rest: AES-256-GCM with keys from a file that only its owner can read.

An encrypted value is `version ‖ key id ‖ nonce ‖ ciphertext`. The id of the owner row is the associated data, so a
value that is moved to another row cannot be decrypted.
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
_KEY_SIZE = 32
_KEY_ID_SIZE = 4
_NONCE_SIZE = 12


class SecretBox:
    """Encrypts with one key, and decrypts with that key and older ones."""

    def __init__(self, key: bytes, *older: bytes) -> None:
        self.use_keys(key, *older)

    def use_keys(self, key: bytes, *older: bytes) -> None:
        """Encrypt with another key from now on, and decrypt with all of these."""
        # The ciphers first: other threads may encrypt meanwhile.
        keys = (key, *older)
        self._ciphers = {_compute_key_id(item): AESGCM(item) for item in keys}
        self.keys = keys
        self.key_id = _compute_key_id(key)

    @classmethod
    def from_file(cls, path: Path) -> "SecretBox":
        """Read the key file, or create it with mode 0600. Raises UserMistake if it is damaged."""
        if not path.exists():
            _write_keys(path, os.urandom(_KEY_SIZE))
        return cls(*_read_keys(path))

    def encrypt(self, plain: bytes, owner: str) -> bytes:
        """Encrypt for the row `owner`."""
        nonce = os.urandom(_NONCE_SIZE)
        ciphertext = self._ciphers[self.key_id].encrypt(nonce, plain, owner.encode())
        return _VERSION + self.key_id + nonce + ciphertext

    def decrypt(self, encrypted: bytes, owner: str) -> bytes:
        """Decrypt a value of the row `owner`. Raises UserMistake if the key, the row or the value is wrong."""
        cipher = self._ciphers.get(encrypted[1 : 1 + _KEY_ID_SIZE])
        if encrypted[:1] != _VERSION or cipher is None:
            raise UserMistake(
                f"the secret of {owner} was encrypted with another master key; restore the key file of this database"
            )

        nonce = encrypted[1 + _KEY_ID_SIZE :][:_NONCE_SIZE]
        try:
            return cipher.decrypt(nonce, encrypted[1 + _KEY_ID_SIZE + _NONCE_SIZE :], owner.encode())
        except (InvalidTag, ValueError) as exc:
            raise UserMistake(
                f"the encrypted secret of {owner} was changed or moved to another row; restore it from a backup"
            ) from exc


def begin_rotation(path: Path) -> SecretBox:
    """Add a new key to the file, or continue an interrupted rotation. Both keys decrypt until `end_rotation`.

    Raises UserMistake if the file is damaged.
    """
    keys = _read_keys(path)
    if len(keys) == 1:
        keys = [os.urandom(_KEY_SIZE), *keys]
        _write_keys(path, *keys)

    return SecretBox(*keys)


def end_rotation(path: Path) -> SecretBox:
    """Move all keys but the newest to the file of previous keys, and return the box that is left.

    A previous key protects nothing any more. It is kept for backups of the database from its time.
    """
    newest, *older = _read_keys(path)
    if older:
        previous_keys = dict.fromkeys([*older, *_read_previous_keys(path)])
        _write_keys(previous_file(path), *previous_keys)

    _write_keys(path, newest)
    return SecretBox(newest)


def with_previous_keys(path: Path) -> SecretBox | None:
    """Return a box that also decrypts with the previous keys, or None if there are none. Raises UserMistake."""
    older = _read_previous_keys(path)
    return SecretBox(*_read_keys(path), *older) if older else None


def previous_file(path: Path) -> Path:
    """Return the file of the keys that a key file had before."""
    return path.with_name(f"{path.name}.previous")


def _read_previous_keys(path: Path) -> list[bytes]:
    file = previous_file(path)
    return _read_keys(file) if file.exists() else []


def merge_key_files(newer: bytes, older: bytes) -> bytes:
    """Return a key file that has the keys of both, those of the newer one first."""
    lines = dict.fromkeys([*newer.split(), *older.split()])
    return b"".join(line + b"\n" for line in lines)


def _read_keys(path: Path) -> list[bytes]:
    """Return the keys of a file; the first one encrypts."""
    try:
        keys = [base64.b64decode(line, validate=True) for line in path.read_bytes().split()]
    except ValueError:
        keys = []

    if not keys or any(len(key) != _KEY_SIZE for key in keys):
        raise UserMistake(f"{path} does not hold a base64 key of {_KEY_SIZE} bytes; restore it from a backup")

    return keys


def _write_keys(path: Path, *keys: bytes) -> None:
    write_private(path, "".join(base64.b64encode(key).decode() + "\n" for key in keys))


def _compute_key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"key id" + key).digest()[:_KEY_ID_SIZE]
