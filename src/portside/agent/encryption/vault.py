"""The vault: seals what is to be stored, and opens what was.

What a configuration names writes: the handlers of the project, else AES keys. Whatever is readable is read: what was
stored in clear before, under older AES keys, or by AES before there were handlers.
"""

import base64
from typing import TYPE_CHECKING, Any

from portside.agent.encryption.context import current_context
from portside.agent.encryption.documents import documents_in, stays_clear
from portside.agent.encryption.envelopes import (
    MARK,
    BlobHead,
    aes_envelope,
    handler_envelope,
    harmless,
    is_envelope,
    unwrap_blob,
    wrap_blob,
)
from portside.agent.encryption.errors import CannotDecrypt
from portside.agent.encryption.handlers import Handlers, Opened, Place
from portside.kernel.codec import dump_user, load, without_nul
from portside.kernel.errors import Invalid

if TYPE_CHECKING:
    from portside.agent.encryption.keys import AesKeys

ALL_KEYS = "*"
BLOB_OF = "blob"
Json = dict[str, Any]


class Vault:
    """Encrypts and decrypts for one server. `json_keys` are the names of what AES encrypts in documents, or `*`."""

    def __init__(
        self,
        *,
        keys: "AesKeys | None" = None,
        json_keys: frozenset[str] = frozenset(),
        handlers: Handlers | None = None,
    ) -> None:
        self._keys = keys
        self._json_keys = json_keys
        self._handlers = handlers
        self._json_handlers = handlers if handlers is not None and handlers.does_json else None
        self._blob_handlers = handlers if handlers is not None and handlers.does_blobs else None

    @property
    def takes_context(self) -> bool:
        """Whether an encryption context means anything here."""
        return self._handlers is not None

    @property
    def seals_documents(self) -> bool:
        """Whether anything in documents is encrypted."""
        return self._json_handlers is not None or bool(self._json_keys)

    async def context(self, user: Any, given: Json) -> Json:
        """Return the context of a request, by who asks and by what was sent. Raises EncryptionFailed."""
        return given if self._handlers is None else await self._handlers.context(user, given)

    async def seal_document(self, value: Any, place: Place) -> Any:
        """Return a document as it is stored. Raises EncryptionFailed."""
        plain = load(without_nul(dump_user(value)))
        if not self.seals_documents or plain is None:
            return harmless(plain)
        if isinstance(plain, dict) and not is_envelope(plain):
            return await self._seal_keys(plain, place)
        # A state that is no object, such as a list of messages.
        return (await self._seal_keys({"value": plain}, place))["value"]

    async def _seal_keys(self, plain: Json, place: Place) -> Json:
        within = documents_in(place.field, plain)
        sealed = {key: harmless(part) for key, part in plain.items() if key not in within and stays_clear(*place, key)}
        for key in within:
            sealed[key] = await self._seal_keys(plain[key], Place(place.model, key))
        rest = {key: part for key, part in plain.items() if key not in sealed}
        sealed |= await self._seal_by_handler(rest, place) if self._json_handlers else self._seal_by_keys(rest)
        return {key: sealed[key] for key in plain}

    async def _seal_by_handler(self, plain: Json, place: Place) -> Json:
        assert self._json_handlers is not None  # noqa: S101 - it is called only then
        if not plain:
            return {}
        context = current_context()
        made = await self._json_handlers.encrypt_json(place, context, plain)
        return {
            key: harmless(part) if _is_same(made[key], part) else handler_envelope(made[key], place, context)
            for key, part in plain.items()
        }

    def _seal_by_keys(self, plain: Json) -> Json:
        if ALL_KEYS in self._json_keys:
            return {key: part if part is None else self._aes(part, key) for key, part in plain.items()}
        sealed: Json = self._seal_named(plain)
        return sealed

    def _seal_named(self, value: Any, *, is_top: bool = True) -> Any:
        if isinstance(value, list):
            return [self._seal_named(part, is_top=False) for part in value]
        if not isinstance(value, dict):
            return value
        sealed = {
            key: self._aes(part, key) if key in self._json_keys and part is not None
            else self._seal_named(part, is_top=False)
            for key, part in value.items()
        }  # fmt: skip
        return {MARK: {"plain": sealed[MARK]}} if is_envelope(sealed) and not is_top else sealed

    def _aes(self, value: Any, key: str) -> Json:
        assert self._keys is not None  # noqa: S101 - keys are there where names are
        return aes_envelope(base64.b64encode(self._keys.seal(dump_user(value), key)).decode(), key)

    def open_aes(self, told: Json) -> Any:
        """Open an envelope that an AES key sealed. Raises CannotDecrypt."""
        try:
            return load(self.aes_keys().open(base64.b64decode(told["aes"]), told["of"]))
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise CannotDecrypt("A document holds an envelope that is damaged") from exc

    async def ask_handler(self, place: Place, context: Json, sealed: Json) -> Opened:
        """Have the handler decrypt some keys of a document. Raises CannotDecrypt."""
        if self._handlers is None:
            raise CannotDecrypt(
                f"What is stored as {place} was encrypted by a handler, and this server has no encryption.path"
            )
        return await self._handlers.decrypt_json(place, context, sealed)

    async def seal_blob(self, plain: bytes, place: Place) -> bytes:
        """Return a blob as it is stored. Raises EncryptionFailed."""
        if not plain:
            return plain
        if self._blob_handlers is not None:
            context = current_context()
            made = await self._blob_handlers.encrypt_blob(place, context, plain)
            return wrap_blob(BlobHead(is_aes=False, place=str(place), context=context), made)
        if self._keys is not None:
            head = BlobHead(is_aes=True, place=str(place), context={})
            return wrap_blob(head, self._keys.seal(plain, BLOB_OF))
        return plain

    async def open_blob(self, stored: bytes) -> tuple[bytes, bytes | None]:
        """Return a blob as it was, and what is to be stored instead of it, if anything. Raises CannotDecrypt."""
        found = unwrap_blob(stored)
        if found is None:
            return stored, None
        head, body = found
        if head.is_aes:
            return self.aes_keys().open(body, BLOB_OF), None
        if self._handlers is None:
            raise CannotDecrypt(
                f"What is stored as {head.place} was encrypted by a handler, and this server has no encryption.path"
            )
        opened = await self._handlers.decrypt_blob(Place.named(head.place), head.context, body)
        replacement = None if opened.replacement is None else wrap_blob(head, bytes(opened.replacement))
        return opened.plain, replacement

    def aes_keys(self) -> "AesKeys":
        """Return the AES keys. Raises CannotDecrypt where there are none."""
        if self._keys is None:
            raise CannotDecrypt(
                "What is stored was encrypted with an AES key, and this server has none: set GRAPH_AES_KEY"
            )
        return self._keys

    async def refuse_sealed(self, wanted: Any, place: Place, loc: list[str | int]) -> None:
        """Refuse to look for what is encrypted: it would never be found. Raises Invalid that names the key."""
        if not isinstance(wanted, dict) or not wanted or not self.seals_documents:
            return
        sealed = await self.seal_document(wanted, place)
        if (key := sealed_key(sealed)) is not None:
            raise Invalid.field([*loc, key], f"{key!r} is encrypted in {place}, so it cannot be searched for")


def sealed_key(document: Any) -> str | None:
    """Return the first key of a document whose value is sealed, if there is one."""
    if isinstance(document, list):
        return next((key for part in document if (key := sealed_key(part)) is not None), None)
    if not isinstance(document, dict):
        return None
    for key, part in document.items():
        if is_envelope(part):
            if "plain" not in part[MARK]:
                return str(key)
        elif (found := sealed_key(part)) is not None:
            return found
    return None


def _is_same(made: Any, plain: Any) -> bool:
    return type(made) is type(plain) and bool(made == plain)
