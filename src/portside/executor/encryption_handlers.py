"""The project's encryption handlers (`encryption.path`, a `langgraph_sdk.Encryption`).

Handlers are always called on one event loop, because clients of a key service may belong to one. What they return and
raise is checked here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from portside.executor.handler_calls import HANDLER_TIMEOUT_S
from portside.executor.imports import add_to_path, import_object
from portside.executor.project import Project
from portside.executor.versions import ENCRYPTION
from portside.kernel.errors import PortsideError, UserMistake
from portside.kernel.timeouts import timeout

if TYPE_CHECKING:
    # Older SDKs have no encryption, and then none of this is called.
    from langgraph_sdk.encryption.types import EncryptionContext

T = TypeVar("T")
Json = dict[str, Any]


class CannotDecrypt(PortsideError):
    """A stored value cannot be decrypted with the keys of this server."""

    code = "cannot_decrypt"


class EncryptionFailed(PortsideError):
    """The encryption handler of the project failed; nothing was stored."""

    code = "encryption_failed"


class DocumentField(Protocol):
    """The model and the field that a document belongs to; as text it is both, such as `thread.metadata`."""

    @property
    def model(self) -> str:
        """The model, such as `thread`."""
        ...

    @property
    def field(self) -> str:
        """The field, such as `metadata`."""
        ...


class Decrypted(NamedTuple):
    """The result of a handler: the decrypted value, and a new ciphertext to store in place of the old one, if any."""

    plain: Any
    replacement: Any = None


class EncryptionHandlers:
    """The handlers of one project. Create it on the loop that they are to be called on.

    Raises UserMistake for an object that is not an Encryption, and for one that encrypts without decrypting or vice
    versa.
    """

    def __init__(self, encryption: object, name: str) -> None:
        from langgraph_sdk.encryption import Encryption

        if not isinstance(encryption, Encryption):
            raise UserMistake(f"{name} must be a langgraph_sdk.Encryption, but it is a {type(encryption).__name__}")

        self._json = (encryption.get_json_encryptor(), encryption.get_json_decryptor())
        self._blob = (encryption._blob_encryptor, encryption._blob_decryptor)  # noqa: SLF001 - the SDK names them for servers
        self._context = encryption._context_handler  # noqa: SLF001 - the same

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

    async def derive_context(self, user: Any, metadata: Json) -> Json:
        """Have the handler derive the context of a request from its user. Raises EncryptionFailed."""
        handler = self._context
        if handler is None:
            return metadata

        handler_context = _build_context(None, metadata)
        returned = await self._call("the context handler", lambda: handler(user, handler_context))
        checked: Json = _check_type(returned, dict, "the context handler")

        return checked

    async def encrypt_json(self, target: DocumentField, metadata: Mapping[str, Any], plain: Json) -> Json:
        """Encrypt a document. Raises EncryptionFailed, also if the handler adds or removes keys."""
        handler = self._json[0]
        assert handler is not None  # noqa: S101 - callers check `does_json`
        encrypted: Json = _check_type(
            await self._call("encrypt.json", lambda: handler(_build_context(target, metadata), dict(plain))),
            dict,
            "encrypt.json",
        )
        if encrypted.keys() != plain.keys():
            changed_names = ", ".join(sorted(map(str, encrypted.keys() ^ plain.keys())))
            raise EncryptionFailed(f"encrypt.json must keep the keys of {target}; it added or removed {changed_names}")

        return encrypted

    async def decrypt_json(self, target: DocumentField, metadata: Mapping[str, Any], encrypted: Json) -> Decrypted:
        """Decrypt a document. Raises CannotDecrypt."""
        decrypted = await self._decrypt("decrypt.json", self._json[1], _build_context(target, metadata), encrypted)
        if not isinstance(decrypted.plain, dict) or not decrypted.plain.keys() >= encrypted.keys():
            raise CannotDecrypt(f"decrypt.json must return {target} with all the keys it was given")

        return decrypted

    async def encrypt_blob(self, target: DocumentField, metadata: Mapping[str, Any], plain: bytes) -> bytes:
        """Encrypt a blob. Raises EncryptionFailed."""
        handler = self._blob[0]
        assert handler is not None  # noqa: S101 - callers check `does_blobs`
        returned = await self._call("encrypt.blob", lambda: handler(_build_context(target, metadata), plain))
        return bytes(_check_type(returned, (bytes, bytearray), "encrypt.blob"))

    async def decrypt_blob(self, target: DocumentField, metadata: Mapping[str, Any], encrypted: bytes) -> Decrypted:
        """Decrypt a blob. Raises CannotDecrypt."""
        decrypted = await self._decrypt("decrypt.blob", self._blob[1], _build_context(target, metadata), encrypted)
        if not isinstance(decrypted.plain, bytes):
            raise CannotDecrypt("decrypt.blob must return bytes")

        return decrypted

    async def _decrypt(self, name: str, handler: Any, context: "EncryptionContext", encrypted: Any) -> Decrypted:
        if handler is None:
            target = f"{context.model}.{context.field}"
            raise CannotDecrypt(f"{target} was encrypted by a handler, and this server has no {name}")

        return _read_decrypted(await self._call(name, lambda: handler(context, encrypted), CannotDecrypt))

    async def _call(
        self, name: str, call: Callable[[], Awaitable[T]], failure: type[PortsideError] = EncryptionFailed
    ) -> T:
        async def timed() -> T:
            async with timeout(HANDLER_TIMEOUT_S):
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


def load_encryption(project: Project, path: str) -> EncryptionHandlers:
    """Import the project's handlers; call it on the loop that they are to be called on. Raises UserMistake."""
    ENCRYPTION.require()
    encryption = import_object(project, "encryption", path, roots=add_to_path(project))
    return EncryptionHandlers(encryption, f"{project.file}: encryption.path ({path})")


def _build_context(target: DocumentField | None, metadata: Mapping[str, Any]) -> "EncryptionContext":
    from langgraph_sdk.encryption.types import EncryptionContext

    if target is None:
        return EncryptionContext(metadata=dict(metadata))

    return EncryptionContext(model=target.model, field=target.field, metadata=dict(metadata))


def _read_decrypted(returned: Any) -> Decrypted:
    """Read what a decryptor returned; in older SDKs it returns no replacements."""
    if hasattr(returned, "plaintext") and hasattr(returned, "replacement"):
        return Decrypted(returned.plaintext, returned.replacement)
    return Decrypted(returned)


def _check_type(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, kind):
        needed = "a dict" if kind is dict else "bytes"
        raise EncryptionFailed(f"{name} returned a {type(value).__name__}; it must return {needed}")

    return value
