"""The ciphers: AES keys of the environment, or the handlers of the project (`langgraph_sdk.Encryption`)."""

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Protocol

from portside.agent.encryption.envelopes import AES_VERSION
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption_handlers import CannotDecrypt, Decrypted
from portside.kernel.errors import UserMistake

Json = dict[str, Any]
SIZES = (16, 24, 32)
_ID_SIZE = 4
_NONCE_SIZE = 12


class AesKeys:
    """AES-GCM under the keys of the environment, of 16, 24 or 32 bytes: the first one encrypts, all of them decrypt.

    Ciphertext is `version ‖ key id ‖ nonce ‖ AES-GCM output`. The location is bound as associated data, so a value of
    one field or row does not decrypt as that of another.
    """

    def __init__(self, *keys: bytes) -> None:
        # Loading `cryptography` takes time that servers without a key need not spend.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._decrypt_errors = (InvalidTag, ValueError)
        self._ciphers = {_derive_key_id(key): AESGCM(key) for key in keys}
        self._first = next(iter(self._ciphers))

    @classmethod
    def parse(cls, text: str) -> "AesKeys":
        """Parse one key, or several separated by commas. Raises UserMistake, which does not repeat the keys."""
        parts = [part.strip().encode() for part in text.split(",")]
        if all(len(part) in SIZES for part in parts):
            return cls(*parts)

        if len(text.encode()) in SIZES:
            # One key that has a comma in it.
            return cls(text.encode())

        raise UserMistake(
            "GRAPH_AES_KEY must be a key of 16, 24 or 32 bytes, or several of them separated by commas: the first one "
            "encrypts, all of them decrypt"
        )

    @property
    def older_starts(self) -> list[bytes]:
        """The first bytes of ciphertext of all keys but the first."""
        return [AES_VERSION + key_id for key_id in self._ciphers if key_id != self._first]

    def is_older(self, encrypted: bytes) -> bool:
        """Whether another key than the first one encrypted a value."""
        return encrypted[1 : 1 + _ID_SIZE] != self._first

    def encrypt(self, plain: bytes, associated_data: bytes) -> bytes:
        """Encrypt a value under the first key."""
        nonce = os.urandom(_NONCE_SIZE)
        return AES_VERSION + self._first + nonce + self._ciphers[self._first].encrypt(nonce, plain, associated_data)

    def decrypt(self, encrypted: bytes, associated_data: bytes) -> bytes:
        """Decrypt a value. Raises CannotDecrypt for an unknown key, other associated data, or a changed value."""
        version = encrypted[:1]
        key_id = encrypted[1 : 1 + _ID_SIZE]
        rest = encrypted[1 + _ID_SIZE :]

        cipher = self._ciphers.get(key_id)
        if version != AES_VERSION or cipher is None:
            key_ids = ", ".join(other_id.hex() for other_id in self._ciphers)
            raise CannotDecrypt(
                f"A stored value was encrypted with the AES key {key_id.hex()}, which this server does not have: add "
                f"that key to GRAPH_AES_KEY, after the ones that are there ({key_ids})"
            )

        try:
            return cipher.decrypt(rest[:_NONCE_SIZE], rest[_NONCE_SIZE:], associated_data)
        except self._decrypt_errors as exc:
            raise CannotDecrypt(
                f"A value that was stored under the AES key {key_id.hex()} does not decrypt: it was changed, or moved "
                "to another field or row"
            ) from exc


def _derive_key_id(key: bytes) -> bytes:
    """Return the id of a key for errors and stored values; it does not reveal the key."""
    return hashlib.sha256(b"aes key id" + key).digest()[:_ID_SIZE]


class EncryptionCalls(Protocol):
    """The project's handlers, which are called where the project's code runs (`executor/encryption_handlers.py`)."""

    @property
    def does_json(self) -> bool:
        """Whether documents are encrypted by handlers."""
        ...

    @property
    def does_blobs(self) -> bool:
        """Whether blobs are encrypted by handlers."""
        ...

    async def derive_context(self, user: Any, metadata: Json) -> Json:
        """Have the handler derive the context of a request from its user. Raises EncryptionFailed."""
        ...

    async def encrypt_json(self, target: ModelField, metadata: Mapping[str, Any], plain: Json) -> Json:
        """Encrypt a document. Raises EncryptionFailed, also if the handler adds or removes keys."""
        ...

    async def decrypt_json(self, target: ModelField, metadata: Mapping[str, Any], stored: Json) -> Decrypted:
        """Decrypt a document. Raises CannotDecrypt."""
        ...

    async def encrypt_blob(self, target: ModelField, metadata: Mapping[str, Any], plain: bytes) -> bytes:
        """Encrypt a blob. Raises EncryptionFailed."""
        ...

    async def decrypt_blob(self, target: ModelField, metadata: Mapping[str, Any], stored: bytes) -> Decrypted:
        """Decrypt a blob. Raises CannotDecrypt."""
        ...
