"""AES-GCM under the keys that the environment names: the first one seals, all of them open.

A sealed value is `version ‖ key id ‖ nonce ‖ ciphertext`. What it is of is bound in as associated data, so that the
value of one field does not open as that of another one.
"""

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from portside.agent.encryption.errors import CannotDecrypt
from portside.kernel.errors import UserMistake

SIZES = (16, 24, 32)
_VERSION = b"\x01"
_ID_SIZE, _NONCE_SIZE = 4, 12


class AesKeys:
    """Keys of 16, 24 or 32 bytes."""

    def __init__(self, *keys: bytes) -> None:
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
        self._first = next(iter(self._ciphers))

    @classmethod
    def parse(cls, text: str) -> "AesKeys":
        """Read one key, or several separated by commas. Raises UserMistake, which does not repeat them."""
        parts = [part.strip().encode() for part in text.split(",")]
        if all(len(part) in SIZES for part in parts):
            return cls(*parts)
        if len(text.encode()) in SIZES:
            return cls(text.encode())
        raise UserMistake(
            "GRAPH_AES_KEY must be a key of 16, 24 or 32 bytes, or several of them separated by commas: the first one "
            "encrypts, all of them decrypt"
        )

    def seal(self, plain: bytes, of: str) -> bytes:
        """Encrypt a value of the field `of`."""
        nonce = os.urandom(_NONCE_SIZE)
        return _VERSION + self._first + nonce + self._ciphers[self._first].encrypt(nonce, plain, of.encode())

    def open(self, sealed: bytes, of: str) -> bytes:
        """Decrypt a value of the field `of`. Raises CannotDecrypt for another key, field, or a changed value."""
        version, key_id, rest = sealed[:1], sealed[1 : 1 + _ID_SIZE], sealed[1 + _ID_SIZE :]
        cipher = self._ciphers.get(key_id)
        if version != _VERSION or cipher is None:
            raise CannotDecrypt(
                f"What is stored was encrypted with the AES key {key_id.hex()}, which this server does not have: add "
                f"that key to GRAPH_AES_KEY, after the ones that are there ({', '.join(self.ids)})"
            )
        try:
            return cipher.decrypt(rest[:_NONCE_SIZE], rest[_NONCE_SIZE:], of.encode())
        except (InvalidTag, ValueError) as exc:
            raise CannotDecrypt(
                f"What is stored under the AES key {key_id.hex()} does not decrypt: it was changed, or moved to "
                "another field"
            ) from exc

    @property
    def ids(self) -> list[str]:
        """What the keys are called in errors; no key can be told from its id."""
        return [key_id.hex() for key_id in self._ciphers]


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"aes key id" + key).digest()[:_ID_SIZE]
