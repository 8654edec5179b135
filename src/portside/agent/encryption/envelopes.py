"""How what is sealed looks where it is stored.

In a document each sealed value stands in an envelope of its own, an object with the one key `__sealed__`. So documents
can be merged key by key in SQL, and what is in clear beside them can be searched. What a client sends that looks like
an envelope is put into one that says it is plain, so nobody can pass ciphertext off as their own.

A sealed blob begins with a mark, with who sealed it, and with the context that it was sealed in.
"""

from typing import Any, NamedTuple

import msgspec

from portside.agent.encryption.handlers import Place

MARK = "__sealed__"
_BLOB_MARK = b"\x00portside\x00sealed"
_blobs = msgspec.msgpack.Encoder()


class BlobHead(msgspec.Struct, array_like=True):
    """What is told in clear of a sealed blob: AES needs nothing, a handler its context."""

    is_aes: bool
    place: str
    context: dict[str, Any]


class SealedBlob(NamedTuple):
    """A sealed blob taken apart."""

    head: BlobHead
    body: bytes


def is_envelope(value: Any) -> bool:
    """Whether a value is an envelope, or looks like one."""
    return isinstance(value, dict) and len(value) == 1 and MARK in value


def aes_envelope(text: str, of: str) -> dict[str, Any]:
    """Put what an AES key sealed into an envelope."""
    return {MARK: {"aes": text, "of": of}}


def handler_envelope(sealed: Any, place: Place, context: dict[str, Any]) -> dict[str, Any]:
    """Put what a handler sealed into an envelope."""
    told: dict[str, Any] = {"value": sealed, "of": str(place)}
    return {MARK: told | ({"context": context} if context else {})}


def harmless(value: Any) -> Any:
    """Return a value that is stored in clear so that it is not taken for an envelope, however deep down."""
    if isinstance(value, dict):
        plain = {key: harmless(part) for key, part in value.items()}
        return {MARK: {"plain": plain[MARK]}} if is_envelope(plain) else plain
    return [harmless(part) for part in value] if isinstance(value, list) else value


def wrap_blob(head: BlobHead, body: bytes) -> bytes:
    """Write a sealed blob."""
    written = _blobs.encode(head)
    return _BLOB_MARK + len(written).to_bytes(4, "big") + written + body


def unwrap_blob(stored: bytes) -> SealedBlob | None:
    """Take a stored blob apart; None for one that was stored in clear."""
    if not stored.startswith(_BLOB_MARK):
        return None
    start = len(_BLOB_MARK) + 4
    end = start + int.from_bytes(stored[start - 4 : start], "big")
    return SealedBlob(msgspec.msgpack.decode(stored[start:end], type=BlobHead), stored[end:])
