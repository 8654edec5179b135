"""The stored form of encrypted values. All of it is data at rest: it can be extended, but not changed.

In a document each encrypted value is stored in an envelope of its own, an object with the one key `__sealed__`. SQL can
therefore merge documents key by key, and search the clear values beside them. A client's key `__sealed__` is stored as
`__sealed__~`, and `__sealed__~` as `__sealed__~~`: a client's document never has the key of an envelope, at any depth,
whatever SQL merges or cuts off.

An envelope with `"v": 2` is bound to its location (`locations`); one without was written by an older version.

An encrypted blob begins with a mark and a head, which names what encrypted it and in which context.
"""

import base64
from typing import Any, NamedTuple

import msgspec

from portside.agent.sql.declarations import ModelField

MARK = "__sealed__"
VERSION = 2
AES_VERSION = b"\x01"
# Version, key id, nonce and tag (`AesKeys`).
_MIN_AES_SIZE = 33
_ESCAPE = "~"
_BLOB_MARK = b"\x00portside\x00sealed"
_blobs = msgspec.msgpack.Encoder()


class BlobHead(msgspec.Struct, array_like=True):
    """The clear head of an encrypted blob. A handler needs its `context` for decryption.

    `place` is the model and the field of the blob, for example `checkpoint.values`; a blob is decrypted only as that.
    A client's blob that looks like an encrypted one is stored in clear, behind a head with an empty `place`.
    """

    is_aes: bool
    place: str
    context: dict[str, Any]
    is_bound: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the blob is stored in clear."""
        return not self.is_aes and not self.place


PLAIN_HEAD = BlobHead(is_aes=False, place="", context={}, is_bound=True)


class EncryptedBlob(NamedTuple):
    """An encrypted blob, split."""

    head: BlobHead
    body: bytes


def is_envelope(value: Any) -> bool:
    """Whether a value has the form of an envelope; it may still be data."""
    return isinstance(value, dict) and len(value) == 1 and MARK in value


def aes_envelope(text: str) -> dict[str, Any]:
    """Return the envelope of a value that an AES key encrypted, in base64."""
    return {MARK: {"v": VERSION, "aes": text}}


def handler_envelope(value: Any, target: ModelField, context: dict[str, Any]) -> dict[str, Any]:
    """Return the envelope of a value that a handler encrypted."""
    content: dict[str, Any] = {"v": VERSION, "value": value, "of": str(target)}
    return {MARK: content | ({"context": context} if context else {})}


def read_aes(text: Any) -> bytes | None:
    """Return the ciphertext in an AES envelope; None for a value of another form."""
    try:
        encrypted = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        return None

    return encrypted if encrypted.startswith(AES_VERSION) and len(encrypted) >= _MIN_AES_SIZE else None


def escape_key(key: str) -> str:
    """Return a client's key as it is stored."""
    return key + _ESCAPE if key.startswith(MARK) and _is_reserved(key) else key


def unescape_key(key: str) -> str:
    """Return a stored key as the client wrote it."""
    return key[:-1] if key.startswith(MARK) and key.endswith(_ESCAPE) and _is_reserved(key) else key


def _is_reserved(key: str) -> bool:
    return not key[len(MARK) :].strip(_ESCAPE)


def escape_document(value: Any) -> Any:
    """Return a clear value as it is stored, so that nothing in it is taken for an envelope."""
    if isinstance(value, dict):
        return {escape_key(key): escape_document(part) for key, part in value.items()}
    return [escape_document(part) for part in value] if isinstance(value, list) else value


def wrap_blob(head: BlobHead, body: bytes) -> bytes:
    """Return the stored form of a blob."""
    encoded = _blobs.encode(head)
    return _BLOB_MARK + len(encoded).to_bytes(4, "big") + encoded + body


def escape_blob(plain: bytes) -> bytes:
    """Return a clear blob as it is stored, so that it is not taken for an encrypted one."""
    return wrap_blob(PLAIN_HEAD, plain) if plain.startswith(_BLOB_MARK) else plain


def unwrap_blob(stored: bytes) -> EncryptedBlob | None:
    """Split a stored blob; None for one that was stored in clear."""
    if not stored.startswith(_BLOB_MARK):
        return None

    start = len(_BLOB_MARK) + 4
    end = start + int.from_bytes(stored[start - 4 : start], "big")
    try:
        return EncryptedBlob(msgspec.msgpack.decode(stored[start:end], type=BlobHead), stored[end:])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
