"""What encrypts: AES keys of the environment, or the handlers of the project (`langgraph_sdk.Encryption`).

Handlers are always called on the server's event loop, because clients of a key service may belong to one loop. What
they return and raise is checked here.
"""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from portside.agent.encryption.envelopes import AES_VERSION
from portside.agent.encryption.errors import CannotDecrypt, EncryptionFailed
from portside.agent.sql.declarations import ModelField
from portside.kernel.errors import PortsideError, UserMistake

if TYPE_CHECKING:
    # Older SDKs have no encryption, and then none of this is called.
    from langgraph_sdk.encryption.types import EncryptionContext

T = TypeVar("T")
Json = dict[str, Any]
SIZES = (16, 24, 32)
_ID_SIZE, _NONCE_SIZE = 4, 12
HANDLER_TIMEOUT_S = 30.0


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
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
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

    def encrypt(self, plain: bytes, associated_data: bytes) -> bytes:
        """Encrypt a value under the first key."""
        nonce = os.urandom(_NONCE_SIZE)
        return AES_VERSION + self._first + nonce + self._ciphers[self._first].encrypt(nonce, plain, associated_data)

    def decrypt(self, encrypted: bytes, associated_data: bytes) -> bytes:
        """Decrypt a value. Raises CannotDecrypt for an unknown key, other associated data, or a changed value."""
        version, key_id, rest = encrypted[:1], encrypted[1 : 1 + _ID_SIZE], encrypted[1 + _ID_SIZE :]
        cipher = self._ciphers.get(key_id)
        if version != AES_VERSION or cipher is None:
            known = ", ".join(each.hex() for each in self._ciphers)
            raise CannotDecrypt(
                f"What is stored was encrypted with the AES key {key_id.hex()}, which this server does not have: add "
                f"that key to GRAPH_AES_KEY, after the ones that are there ({known})"
            )
        try:
            return cipher.decrypt(rest[:_NONCE_SIZE], rest[_NONCE_SIZE:], associated_data)
        except self._decrypt_errors as exc:
            raise CannotDecrypt(
                f"What is stored under the AES key {key_id.hex()} does not decrypt: it was changed, or moved to "
                "another field or row"
            ) from exc


def _id_of(key: bytes) -> bytes:
    """Return the id of a key for errors and stored values; it does not reveal the key."""
    return hashlib.sha256(b"aes key id" + key).digest()[:_ID_SIZE]


class Decrypted(NamedTuple):
    """What a handler decrypted, and what it wants stored in place of the ciphertext, if anything."""

    plain: Any
    replacement: Any = None


class EncryptionHandlers:
    """The handlers of one project. Create it on the loop that they are to be called on.

    Raises UserMistake for an object that is not an Encryption, and for one that encrypts without decrypting or vice
    versa.
    """

    def __init__(self, given: object, name: str) -> None:
        from langgraph_sdk.encryption import Encryption

        if not isinstance(given, Encryption):
            raise UserMistake(f"{name} must be a langgraph_sdk.Encryption, but it is a {type(given).__name__}")
        self._json = (given.get_json_encryptor(), given.get_json_decryptor())
        self._blob = (given._blob_encryptor, given._blob_decryptor)  # noqa: SLF001 - the SDK names them for servers
        self._context = given._context_handler  # noqa: SLF001 - the same
        for kind, pair in (("json", self._json), ("blob", self._blob)):
            if (pair[0] is None) != (pair[1] is None):
                raise UserMistake(f"{name} must have both encrypt.{kind} and decrypt.{kind}, or neither")
        self._loop = asyncio.get_running_loop()

    @property
    def does_json(self) -> bool:
        """Whether documents are encrypted by handlers."""
        return self._json[0] is not None

    @property
    def does_blobs(self) -> bool:
        """Whether blobs are encrypted by handlers."""
        return self._blob[0] is not None

    async def context(self, user: Any, metadata: Json) -> Json:
        """Have the handler derive the context of a request from its user. Raises EncryptionFailed."""
        handler = self._context
        if handler is None:
            return metadata
        given = _context(None, metadata)
        made = await self._call("the context handler", lambda: handler(user, given))
        checked: Json = _checked(made, dict, "the context handler")
        return checked

    async def encrypt_json(self, target: ModelField, metadata: Mapping[str, Any], plain: Json) -> Json:
        """Encrypt a document. Raises EncryptionFailed, also if the handler adds or removes keys."""
        handler = self._json[0]
        assert handler is not None  # noqa: S101 - callers check `does_json`
        made: Json = _checked(
            await self._call("encrypt.json", lambda: handler(_context(target, metadata), dict(plain))), dict,
            "encrypt.json",
        )  # fmt: skip
        if made.keys() != plain.keys():
            changed = ", ".join(sorted(map(str, made.keys() ^ plain.keys())))
            raise EncryptionFailed(f"encrypt.json must keep the keys of {target}; it added or removed {changed}")
        return made

    async def decrypt_json(self, target: ModelField, metadata: Mapping[str, Any], stored: Json) -> Decrypted:
        """Decrypt a document. Raises CannotDecrypt."""
        made = await self._decrypt("decrypt.json", self._json[1], _context(target, metadata), stored)
        if not isinstance(made.plain, dict) or not made.plain.keys() >= stored.keys():
            raise CannotDecrypt(f"decrypt.json must return {target} with all the keys it was given")
        return made

    async def encrypt_blob(self, target: ModelField, metadata: Mapping[str, Any], plain: bytes) -> bytes:
        """Encrypt a blob. Raises EncryptionFailed."""
        handler = self._blob[0]
        assert handler is not None  # noqa: S101 - callers check `does_blobs`
        made = await self._call("encrypt.blob", lambda: handler(_context(target, metadata), plain))
        return bytes(_checked(made, (bytes, bytearray), "encrypt.blob"))

    async def decrypt_blob(self, target: ModelField, metadata: Mapping[str, Any], stored: bytes) -> Decrypted:
        """Decrypt a blob. Raises CannotDecrypt."""
        made = await self._decrypt("decrypt.blob", self._blob[1], _context(target, metadata), stored)
        if not isinstance(made.plain, bytes):
            raise CannotDecrypt("decrypt.blob must return bytes")
        return made

    async def _decrypt(self, name: str, handler: Any, context: "EncryptionContext", stored: Any) -> Decrypted:
        if handler is None:
            target = ModelField(str(context.model), str(context.field))
            raise CannotDecrypt(f"{target} was encrypted by a handler, and this server has no {name}")
        return _decrypted(await self._call(name, lambda: handler(context, stored), CannotDecrypt))

    async def _call(
        self, name: str, call: Callable[[], Awaitable[T]], failure: type[PortsideError] = EncryptionFailed
    ) -> T:
        async def timed() -> T:
            async with asyncio.timeout(HANDLER_TIMEOUT_S):
                return await call()

        try:
            if asyncio.get_running_loop() is self._loop:
                return await timed()
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(timed(), self._loop))
        except TimeoutError as exc:
            raise failure(f"{name} did not return within {HANDLER_TIMEOUT_S:.0f} s") from exc
        except Exception as exc:
            # The message of the exception may hold the plain text, so it is not repeated.
            raise failure(f"{name} raised {type(exc).__name__}") from exc


def _context(target: ModelField | None, metadata: Mapping[str, Any]) -> "EncryptionContext":
    from langgraph_sdk.encryption.types import EncryptionContext

    if target is None:
        return EncryptionContext(metadata=dict(metadata))
    return EncryptionContext(model=target.model, field=target.field, metadata=dict(metadata))


def _decrypted(made: Any) -> Decrypted:
    """Read what a decryptor returned; in older SDKs it returns no replacements."""
    if hasattr(made, "plaintext") and hasattr(made, "replacement"):
        return Decrypted(made.plaintext, made.replacement)
    return Decrypted(made)


def _checked(made: Any, kind: Any, name: str) -> Any:
    if not isinstance(made, kind):
        raise EncryptionFailed(f"{name} returned a {type(made).__name__}")
    return made
