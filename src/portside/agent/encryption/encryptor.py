"""Encrypts documents and blobs that are to be stored, and decrypts stored ones.

The project's handlers encrypt if the configuration names them, else AES keys. Decryption accepts everything that it
can read: values from before encryption was configured, under older AES keys, or under AES before there were handlers.

A document is encrypted value by value. Decryption walks it, decrypts AES envelopes on the way, and calls the handler
once for each object that holds envelopes of one context.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple, TypeVar

from portside.agent.encryption.ciphers import AesKeys, EncryptionCalls
from portside.agent.encryption.context import current_context, in_context
from portside.agent.encryption.envelopes import (
    MARK,
    VERSION,
    BlobHead,
    aes_envelope,
    escape_blob,
    escape_document,
    escape_key,
    handler_envelope,
    is_envelope,
    read_aes,
    unescape_key,
    unwrap_blob,
    wrap_blob,
)
from portside.agent.encryption.locations import STRUCTURE, Location, Path, Row, nested_documents, stays_clear
from portside.agent.settings import AgentSettings
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption_handlers import CannotDecrypt, Decrypted
from portside.kernel.codec import load
from portside.kernel.errors import Invalid, UserMistake
from portside.kernel.user_json import dump_user, without_nul

_VARIABLE = "GRAPH_AES_JSON_KEYS"
ALL_KEYS = "*"
# The associated data of every blob that an older version encrypted.
UNBOUND_BLOB = b"blob"
# Handlers know no associated data: the digest of the location is encrypted in front of the plain text instead.
DIGEST_SIZE = 16
# The row of a document that is encrypted only to learn which of its keys would be; it is never stored.
NO_ROW: Row = ("thread", "")
# The keys of an envelope's content, by who encrypted it; without `v` it was written by an older version.
_AES = {"v", "aes"}
_UNBOUND_AES = {"aes", "of"}
_HANDLER = {"v", "value", "of"}
_UNBOUND_HANDLER = {"value", "of"}
Json = dict[str, Any]
T = TypeVar("T")


class Encryptor:
    """Encrypts and decrypts for one server.

    `json_keys` are the keys whose values AES encrypts in documents, or `*` for all of them.
    """

    def __init__(
        self,
        *,
        keys: AesKeys | None = None,
        json_keys: frozenset[str] = frozenset(),
        handlers: EncryptionCalls | None = None,
    ) -> None:
        # Whether to decrypt envelopes of older versions, which are bound to no row. A database that was created since
        # then holds none, and must not accept a client's forgery of one.
        self.accepts_unbound = True
        self._keys = keys
        self._json_keys = json_keys
        self._handlers = handlers
        self._json_handlers = handlers if handlers is not None and handlers.does_json else None
        self._blob_handlers = handlers if handlers is not None and handlers.does_blobs else None

    @property
    def takes_context(self) -> bool:
        """Whether an encryption context has an effect on this server."""
        return self._handlers is not None

    @property
    def keys(self) -> AesKeys | None:
        """The AES keys, if there are any."""
        return self._keys

    @property
    def encrypts_documents(self) -> bool:
        """Whether anything in documents is encrypted."""
        return self._json_handlers is not None or bool(self._json_keys)

    async def gather(self, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Await several calls: concurrently if there are handlers, which may wait for a key service.

        Pass a generator: without handlers each call is created when the one before it is done, which saves a task each.
        """
        if self._handlers is not None:
            return await asyncio.gather(*calls)

        return [await call for call in calls]

    async def derive_context(self, user: Any, header: Json) -> Json:
        """Return the encryption context of a request, from its user and its header. Raises EncryptionFailed."""
        return header if self._handlers is None else await self._handlers.derive_context(user, header)

    async def encrypt_document(self, value: Any, target: ModelField, row: Row) -> Any:
        """Return a document as it is stored in a row. Raises EncryptionFailed."""
        plain = load(without_nul(dump_user(value)))
        if not self.encrypts_documents or plain is None:
            return escape_document(plain)

        location = Location(row, target.field)
        if isinstance(plain, dict):
            return await self._encrypt_object(plain, target, location)

        # A state that is not an object, such as a list of messages.
        if self._json_handlers is not None:
            return (await self._encrypt_by_handler({"value": plain}, target))["value"]

        if ALL_KEYS in self._json_keys or "value" in self._json_keys:
            return self._encrypt_by_aes(plain, location)

        return self._encrypt_named_keys(plain, location)

    async def _encrypt_object(self, plain: Json, target: ModelField, location: Location) -> Json:
        nested = nested_documents(target.field, plain)
        stored = {
            key: escape_document(part) for key, part in plain.items() if key not in nested and stays_clear(*target, key)
        }

        for key in nested:
            stored[key] = await self._encrypt_object(plain[key], ModelField(target.model, key), location.inside(key))

        rest = {key: part for key, part in plain.items() if key not in stored}
        if self._json_handlers is not None:
            stored |= await self._encrypt_by_handler(rest, target)
        elif ALL_KEYS in self._json_keys:
            for key, part in rest.items():
                stored[key] = None if part is None else self._encrypt_by_aes(part, location.at(key))
        else:
            stored |= {key: self._encrypt_part(part, key, location) for key, part in rest.items()}

        return {escape_key(key): stored[key] for key in plain}

    async def _encrypt_by_handler(self, plain: Json, target: ModelField) -> Json:
        assert self._json_handlers is not None  # noqa: S101 - callers check that
        if not plain:
            return {}

        context = current_context()
        encrypted = await self._json_handlers.encrypt_json(target, context, plain)

        stored: Json = {}
        for key, part in plain.items():
            if _is_same(encrypted[key], part):
                stored[key] = escape_document(part)
            else:
                stored[key] = handler_envelope(encrypted[key], target, context)

        return stored

    def _encrypt_part(self, value: Any, key: str, location: Location) -> Any:
        if key in self._json_keys and value is not None:
            return self._encrypt_by_aes(value, location.at(key))

        return self._encrypt_named_keys(value, location.at(key))

    def _encrypt_named_keys(self, value: Any, location: Location) -> Any:
        if isinstance(value, list):
            return [self._encrypt_named_keys(part, location.at(str(index))) for index, part in enumerate(value)]
        if isinstance(value, dict):
            return {escape_key(key): self._encrypt_part(part, key, location) for key, part in value.items()}

        return value

    def _encrypt_by_aes(self, value: Any, location: Location) -> Json:
        assert self._keys is not None  # noqa: S101 - names of keys to encrypt are accepted only beside an AES key
        encrypted = self._keys.encrypt(dump_user(value), location.associated_data)
        return aes_envelope(base64.b64encode(encrypted).decode())

    def decrypt_aes(self, encrypted: bytes, associated_data: bytes) -> Any:
        """Decrypt a value of a document that an AES key encrypted. Raises CannotDecrypt."""
        return load(self._require_aes_keys().decrypt(encrypted, associated_data))

    def renew_aes(self, encrypted: bytes, plain: Any, location: Location) -> Json | None:
        """Return the envelope that replaces one of an older AES key; None if it stays, as it does beside handlers."""
        if self._json_handlers is not None or not self._require_aes_keys().is_older(encrypted):
            return None
        return self._encrypt_by_aes(plain, location)

    async def call_handler(self, target: ModelField, context: Json, stored: Json) -> Decrypted:
        """Have the handler decrypt some keys of an object. Raises CannotDecrypt."""
        if self._handlers is None:
            raise _handlers_missing(target)
        return await self._handlers.decrypt_json(target, context, stored)

    async def encrypt_blob(self, plain: bytes, target: ModelField, binding: bytes) -> bytes:
        """Return a blob as it is stored, bound to its location (`locations`). Raises EncryptionFailed."""
        if not plain:
            return plain

        if self._blob_handlers is not None:
            context = current_context()
            body = await self._blob_handlers.encrypt_blob(target, context, _digest(binding) + plain)
            return wrap_blob(BlobHead(is_aes=False, place=str(target), context=context, is_bound=True), body)

        if self._keys is not None:
            head = BlobHead(is_aes=True, place=str(target), context={}, is_bound=True)
            return wrap_blob(head, self._keys.encrypt(plain, binding))

        return escape_blob(plain)

    async def decrypt_blob(self, stored: bytes, target: ModelField, binding: bytes) -> tuple[bytes, bytes | None]:
        """Return a blob decrypted, and the blob to store in its place, if there is one. Raises CannotDecrypt.

        A handler may want a replacement, and so does ciphertext of an older AES key.
        """
        blob = unwrap_blob(stored)
        if blob is None or not (blob.head.is_bound or self.accepts_unbound):
            return stored, None

        head, body = blob
        if head.is_plain:
            return body, None
        if head.place != str(target):
            raise CannotDecrypt(f"The value stored as {target} was encrypted as {head.place}: it was moved")

        if head.is_aes:
            keys = self._require_aes_keys()
            plain = keys.decrypt(body, binding if head.is_bound else UNBOUND_BLOB)
            is_renewed = self._blob_handlers is None and keys.is_older(body)
            return plain, await self.encrypt_blob(plain, target, binding) if is_renewed else None

        if self._handlers is None:
            raise _handlers_missing(target)

        decrypted = await self._handlers.decrypt_blob(target, head.context, body)
        replacement = None if decrypted.replacement is None else wrap_blob(head, bytes(decrypted.replacement))
        if not head.is_bound:
            return decrypted.plain, replacement
        if not decrypted.plain.startswith(_digest(binding)):
            raise CannotDecrypt(f"The stored value of {target} was encrypted for another row, and was moved here")

        return decrypted.plain[DIGEST_SIZE:], replacement

    async def rebind_blob(self, stored: bytes, target: ModelField, old: bytes, new: bytes) -> bytes:
        """Return a blob bound to another location, unchanged if it does not decrypt. Raises EncryptionFailed."""
        blob = unwrap_blob(stored)
        if blob is None or not blob.head.is_bound or blob.head.is_plain:
            return stored

        try:
            plain, _ = await self.decrypt_blob(stored, target, old)
        except CannotDecrypt:
            return stored

        with in_context(blob.head.context):
            return await self.encrypt_blob(plain, target, new)

    def _require_aes_keys(self) -> AesKeys:
        if self._keys is None:
            raise CannotDecrypt(
                "A stored value was encrypted with an AES key, and this server has none: set GRAPH_AES_KEY"
            )

        return self._keys

    async def refuse_encrypted(self, condition: Any, target: ModelField, loc: list[str | int]) -> None:
        """Refuse to search for what is encrypted: it would never match. Raises Invalid that names the key."""
        if not isinstance(condition, dict) or not condition or not self.encrypts_documents:
            return

        stored = await self.encrypt_document(condition, target, NO_ROW)
        key = find_encrypted_key(stored)
        if key is not None:
            raise Invalid.field([*loc, key], f"{key!r} is encrypted in {target}, so it cannot be searched for")


def find_encrypted_key(stored: Any) -> str | None:
    """Return the first key of a stored document whose value is encrypted, if there is one."""
    if isinstance(stored, list):
        for part in stored:
            key = find_encrypted_key(part)
            if key is not None:
                return key

    if isinstance(stored, dict):
        for name, part in stored.items():
            key = unescape_key(str(name)) if is_envelope(part) else find_encrypted_key(part)
            if key is not None:
                return key

    return None


def _handlers_missing(target: ModelField) -> CannotDecrypt:
    return CannotDecrypt(
        f"The stored value of {target} was encrypted by a handler: configure encryption.path, which this server lacks"
    )


def _digest(binding: bytes) -> bytes:
    return hashlib.blake2b(binding, digest_size=DIGEST_SIZE).digest()


def _is_same(encrypted: Any, plain: Any) -> bool:
    # True == 1 in Python; a handler that returns the one for the other has changed the value.
    return type(encrypted) is type(plain) and bool(encrypted == plain)


class Replacement(NamedTuple):
    """An envelope to replace: its path in the document, the stored envelope, and the new one."""

    path: Path
    old: Json
    new: Json


class _Position(NamedTuple):
    """The position of a stored value: its path, its location, and the location where an object in it begins."""

    path: Path
    location: Location
    inside: Location

    def at(self, key: str) -> "_Position":
        """Return the position of the value of a stored key."""
        plain = unescape_key(key)
        return _Position((*self.path, key), self.inside.at(plain), self.inside.inside(plain))


class _HandlerEnvelope(NamedTuple):
    """An envelope of a handler, and the slot that its decrypted value goes to."""

    slot: Any
    envelope: Json
    path: Path


class _HandlerCall(NamedTuple):
    """The envelopes of one object that were encrypted in one context."""

    target: ModelField
    context: Json
    decrypted: Any
    """The copy of the object that gets the decrypted values."""
    clear: Json
    """The clear values beside the envelopes."""
    envelopes: list[_HandlerEnvelope]


async def decrypt_document(encryptor: Encryptor, stored: Any, location: Location) -> tuple[Any, list[Replacement]]:
    """Return a document decrypted, and the envelopes to replace. Raises CannotDecrypt.

    What only looks like an envelope is data: it was stored before encryption was configured.
    """
    return await _decrypt_at(encryptor, stored, _Position((), location, location))


async def decrypt_part(encryptor: Encryptor, stored: Any, document: Location, key: str) -> Any:
    """Return what a document stores under a key, decrypted. Raises CannotDecrypt."""
    return (await _decrypt_at(encryptor, stored, _Position((), document.at(key), document.inside(key))))[0]


async def _decrypt_at(encryptor: Encryptor, stored: Any, position: _Position) -> tuple[Any, list[Replacement]]:
    decryption = _Decryption(encryptor)
    # The document may be one envelope itself: a state that is not an object.
    decrypted: Json = {}
    decryption.decrypt_slot(decrypted, "value", {"value": stored}, position)
    await encryptor.gather(decryption.call_handler(call) for call in decryption.calls.values())

    return decrypted["value"], decryption.replacements


class _Decryption:
    """One document during its decryption: the handler calls to make, and where their results go."""

    def __init__(self, encryptor: Encryptor) -> None:
        self.replacements: list[Replacement] = []
        self.calls: dict[tuple[int, str], _HandlerCall] = {}
        self._encryptor = encryptor

    def decrypt_slot(self, decrypted: Any, slot: Any, siblings: Any, position: _Position) -> None:
        """Put the value of a slot of an object or a list into the same slot of a copy; handlers fill theirs later."""
        part = siblings[slot]
        content = part[MARK] if is_envelope(part) else None
        plain_slot = unescape_key(slot) if isinstance(slot, str) else slot
        if not isinstance(content, dict):
            decrypted[plain_slot] = self._walk(part, position)
            return

        encrypted = self._find_aes(content, position)
        if encrypted is not None:
            ciphertext, associated_data = encrypted
            plain = self._encryptor.decrypt_aes(ciphertext, associated_data)
            decrypted[plain_slot] = plain

            new = self._encryptor.renew_aes(ciphertext, plain, position.location)
            if new is not None:
                self.replacements.append(Replacement(position.path, part, new))
            return

        target = self._find_target(content, position)
        if target is not None:
            # Set at once, so that keys stay in their order.
            decrypted[plain_slot] = None
            envelope = _HandlerEnvelope(plain_slot, part, position.path)
            self._get_call(decrypted, siblings, target, content).envelopes.append(envelope)
        elif content.keys() == {"plain"} and self._encryptor.accepts_unbound:
            decrypted[plain_slot] = {MARK: self._walk(content["plain"], position)}
        else:
            decrypted[plain_slot] = self._walk(part, position)

    def _walk(self, value: Any, position: _Position) -> Any:
        if isinstance(value, list):
            items: list[Any] = [None] * len(value)
            # A nested document is an object: paths through a list continue the outer document.
            position = position._replace(inside=position.location)
            for index, part in enumerate(value):
                if isinstance(part, (dict, list)):
                    self.decrypt_slot(items, index, value, position.at(str(index)))
                else:
                    items[index] = part

            return items

        if not isinstance(value, dict):
            return value

        decrypted: Json = {}
        for key, part in value.items():
            if isinstance(part, (dict, list)):
                self.decrypt_slot(decrypted, key, value, position.at(key))
            else:
                decrypted[unescape_key(key)] = part

        return decrypted

    def _find_aes(self, content: Json, position: _Position) -> tuple[bytes, bytes] | None:
        """Return the ciphertext of an AES envelope and its associated data; None for anything else."""
        is_bound = content.keys() == _AES and content["v"] == VERSION
        if not is_bound and not (self._encryptor.accepts_unbound and content.keys() == _UNBOUND_AES):
            return None
        if (encrypted := read_aes(content["aes"])) is None:
            return None

        location = position.location
        if is_bound:
            return encrypted, location.associated_data

        keys = {location.path[-1] if location.path else "value"}
        if not position.inside.path:
            keys.add("value")

        if not isinstance(content["of"], str) or content["of"] not in keys:
            raise CannotDecrypt(f"The value stored in {location.field} was encrypted for another key: it was moved")

        return encrypted, str(content["of"]).encode()

    def _find_target(self, content: Json, position: _Position) -> ModelField | None:
        """Return the model's field that a handler encrypted an envelope for; None if it is no such envelope.

        Raises CannotDecrypt for an envelope that was moved.
        """
        keys = content.keys() - {"context"}
        is_bound = keys == _HANDLER and content["v"] == VERSION
        if not is_bound and not (self._encryptor.accepts_unbound and keys == _UNBOUND_HANDLER):
            return None

        of = content["of"]
        context = content.get("context", {})
        if not isinstance(of, str) or "." not in of or not isinstance(context, dict):
            return None

        target = ModelField.parse(of)
        if not position.location.accepts(target) and not position.inside.accepts(target):
            raise CannotDecrypt(
                f"The value stored in {position.location.field} was encrypted as {target}: it was moved"
            )

        return target

    def _get_call(self, decrypted: Any, siblings: Any, target: ModelField, content: Json) -> _HandlerCall:
        context = content.get("context") or {}
        name = (id(decrypted), json.dumps([str(target), context], sort_keys=True))
        if name not in self.calls:
            stored = siblings.items() if isinstance(siblings, dict) else ()
            clear = {unescape_key(key): part for key, part in stored if not is_envelope(part)}
            self.calls[name] = _HandlerCall(target, context, decrypted=decrypted, clear=clear, envelopes=[])

        return self.calls[name]

    async def call_handler(self, call: _HandlerCall) -> None:
        """Have the handler decrypt the envelopes of an object; it is also given the clear values beside them."""
        values = {str(item.slot): item.envelope[MARK]["value"] for item in call.envelopes}
        decrypted = await self._encryptor.call_handler(call.target, call.context, call.clear | values)
        for item in call.envelopes:
            key = str(item.slot)
            call.decrypted[item.slot] = decrypted.plain[key]

            new = (decrypted.replacement or {}).get(key, values[key])
            if new != values[key]:
                envelope = handler_envelope(new, call.target, call.context)
                self.replacements.append(Replacement(item.path, item.envelope, envelope))


def build_encryptor(
    settings: AgentSettings, handlers: EncryptionCalls | None = None, name: str = "encryption.path"
) -> Encryptor | None:
    """Return the encryptor of a server; None if the settings and `handlers` name no cipher. Raises UserMistake."""
    names = frozenset(part.strip() for part in (settings.graph_aes_json_keys or "").split(",")) - {""}
    keys = AesKeys.parse(settings.graph_aes_key) if settings.graph_aes_key else None
    if names and keys is None:
        raise UserMistake(f"{_VARIABLE} names what to encrypt, but there is no key: set GRAPH_AES_KEY")
    if names and handlers is not None and handlers.does_json:
        raise UserMistake(f"{_VARIABLE} and the handler encrypt.json of {name} would both encrypt documents; keep one")

    reserved = sorted(names & STRUCTURE)
    if reserved and ALL_KEYS not in names:
        raise UserMistake(f"{_VARIABLE} names {', '.join(reserved)}, which the server itself has to read; remove them")

    if keys is None and handlers is None:
        return None

    return Encryptor(keys=keys, json_keys=names, handlers=handlers)
