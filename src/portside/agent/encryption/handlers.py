"""The project's own encryption: the handlers of a `langgraph_sdk.Encryption`.

They are called on one event loop, that of the server, whoever asks: clients of a key service may belong to one loop.
What they raise and what they return is checked here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from langgraph_sdk.encryption import Encryption
from langgraph_sdk.encryption.types import EncryptionContext

from portside.agent.encryption.errors import CannotDecrypt, EncryptionFailed
from portside.kernel.errors import PortsideError, UserMistake

T = TypeVar("T")
Json = dict[str, Any]
WITHIN_S = 30.0


class Place(NamedTuple):
    """What a value is of: a model and one of its fields."""

    model: str
    field: str

    def __str__(self) -> str:
        return f"{self.model}.{self.field}"

    @classmethod
    def named(cls, name: str) -> "Place":
        """Read a place that was written with `str`."""
        return cls(*name.split(".", 1))


class Opened(NamedTuple):
    """What a handler decrypted, and what it wants stored instead of what it was given, if anything."""

    plain: Any
    replacement: Any = None


class Handlers:
    """The handlers of one project. Make it on the loop that they are to be called on.

    Raises UserMistake for what is no Encryption, and for one that encrypts and does not decrypt, or the other way.
    """

    def __init__(self, given: object, name: str) -> None:
        if not isinstance(given, Encryption):
            raise UserMistake(f"{name} must be a langgraph_sdk.Encryption, but it is a {type(given).__name__}")
        self._json = (given.get_json_encryptor(), given.get_json_decryptor())
        self._blob = (given._blob_encryptor, given._blob_decryptor)  # noqa: SLF001 - the SDK names them for servers
        self._context = given._context_handler  # noqa: SLF001 - the same
        for kind, pair in (("json", self._json), ("blob", self._blob)):
            if (pair[0] is None) != (pair[1] is None):
                raise UserMistake(f"{name} must have both encrypt.{kind} and decrypt.{kind}, or neither")
        self._home = asyncio.get_running_loop()

    @property
    def does_json(self) -> bool:
        """Whether documents are encrypted by handlers."""
        return self._json[0] is not None

    @property
    def does_blobs(self) -> bool:
        """Whether blobs are encrypted by handlers."""
        return self._blob[0] is not None

    async def context(self, user: Any, metadata: Json) -> Json:
        """Let the handler derive the context of a request from who asks. Raises EncryptionFailed."""
        handler = self._context
        if handler is None:
            return metadata
        made = await self._call("the context handler", lambda: handler(user, EncryptionContext(metadata=metadata)))
        checked: Json = _checked(made, dict, "the context handler")
        return checked

    async def encrypt_json(self, place: Place, metadata: Mapping[str, Any], plain: Json) -> Json:
        """Encrypt a document. Raises EncryptionFailed, also where keys come or go."""
        handler = self._json[0]
        assert handler is not None  # noqa: S101 - callers ask `does_json` first
        made: Json = _checked(
            await self._call("encrypt.json", lambda: handler(_context(place, metadata), dict(plain))), dict,
            "encrypt.json",
        )  # fmt: skip
        if made.keys() != plain.keys():
            changed = ", ".join(sorted(map(str, made.keys() ^ plain.keys())))
            raise EncryptionFailed(f"encrypt.json must keep the keys of {place}; it added or removed {changed}")
        return made

    async def decrypt_json(self, place: Place, metadata: Mapping[str, Any], sealed: Json) -> Opened:
        """Decrypt a document. Raises CannotDecrypt."""
        made = await self._open("decrypt.json", self._json[1], _context(place, metadata), sealed)
        if not isinstance(made.plain, dict) or not made.plain.keys() >= sealed.keys():
            raise CannotDecrypt(f"decrypt.json must return {place} with all the keys it was given")
        return made

    async def encrypt_blob(self, place: Place, metadata: Mapping[str, Any], plain: bytes) -> bytes:
        """Encrypt a blob. Raises EncryptionFailed."""
        handler = self._blob[0]
        assert handler is not None  # noqa: S101 - callers ask `does_blobs` first
        made = await self._call("encrypt.blob", lambda: handler(_context(place, metadata), plain))
        return bytes(_checked(made, (bytes, bytearray), "encrypt.blob"))

    async def decrypt_blob(self, place: Place, metadata: Mapping[str, Any], sealed: bytes) -> Opened:
        """Decrypt a blob. Raises CannotDecrypt."""
        made = await self._open("decrypt.blob", self._blob[1], _context(place, metadata), sealed)
        if not isinstance(made.plain, bytes):
            raise CannotDecrypt("decrypt.blob must return bytes")
        return made

    async def _open(self, what: str, handler: Any, context: EncryptionContext, sealed: Any) -> Opened:
        if handler is None:
            place = Place(str(context.model), str(context.field))
            raise CannotDecrypt(f"{place} was encrypted by a handler, and this server has no {what}")
        return _opened(await self._call(what, lambda: handler(context, sealed), CannotDecrypt))

    async def _call(
        self, what: str, call: Callable[[], Awaitable[T]], failure: type[PortsideError] = EncryptionFailed
    ) -> T:
        async def work() -> T:
            async with asyncio.timeout(WITHIN_S):
                return await call()

        try:
            if asyncio.get_running_loop() is self._home:
                return await work()
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._home))
        except TimeoutError as exc:
            raise failure(f"{what} gave no answer within {WITHIN_S:.0f} s") from exc
        except Exception as exc:
            # What it says may hold what it was given.
            raise failure(f"{what} raised {type(exc).__name__}") from exc


def _context(place: Place, metadata: Mapping[str, Any]) -> EncryptionContext:
    return EncryptionContext(model=place.model, field=place.field, metadata=dict(metadata))


def _opened(made: Any) -> Opened:
    """Read what a decryptor returned; older SDKs know no replacements."""
    if hasattr(made, "plaintext") and hasattr(made, "replacement"):
        return Opened(made.plaintext, made.replacement)
    return Opened(made)


def _checked(made: Any, kind: Any, what: str) -> Any:
    if not isinstance(made, kind):
        raise EncryptionFailed(f"{what} returned a {type(made).__name__}")
    return made
