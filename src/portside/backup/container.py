"""The encrypted file of a backup: a header that anybody can read, and chunks that only the passphrase opens.

    magic ‖ length of the header ‖ header (JSON) ‖ HMAC of all that ‖ chunk ‖ chunk ‖ … ‖ last chunk

scrypt makes a key of the passphrase and the salt of the header, and HKDF makes the keys of this one file from it.
Chunks are encrypted with AES-256-GCM. The nonce of a chunk is its number and whether it is the last one, so chunks that
were altered, moved, repeated or cut off at the end do not decrypt.

Readers and writers hold one chunk in memory. `contents.py` defines what the chunks hold.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from portside.kernel.errors import UserMistake

FORMAT = 1
MAGIC = b"PORTSIDE BACKUP\n"
CHUNK_BYTES = 1 << 20
MIN_PASSPHRASE = 12
# 2^17 blocks of 1 KB: 128 MB of memory and about half a second for each guess.
SCRYPT_LOG_N = 17
_TAG_BYTES = 16
_KEY_BYTES = 32
_MAC_BYTES = 32
_SALT_BYTES = 32
_MAX_HEADER_BYTES = 1 << 20
Kind = Literal["data", "dumps", "wal"]


class BackupRefused(UserMistake):
    """A backup cannot be read: a wrong passphrase, a damaged file, or a newer version."""


class Header(msgspec.Struct, kw_only=True):
    """The part of a backup that is not encrypted.

    `kind` says whether it holds a data folder of the embedded Postgres, dumps, or one segment of its WAL. `migrations`
    are the last ones of each package in the platform's database. `wal_name` is the name of a segment.
    """

    format: int = FORMAT
    kind: Kind
    created_at: datetime
    version: str
    postgres: int
    installation: str
    salt: bytes
    scrypt_log_n: Annotated[int, msgspec.Meta(ge=14, le=20)] = SCRYPT_LOG_N
    file_id: bytes = b""
    migrations: dict[str, int] = {}
    wal_name: str | None = msgspec.field(default=None, name="log_name")


class ByteSource(Protocol):
    """A stream of bytes to read."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes, and none at the end."""
        ...


class Sink(Protocol):
    """A stream of bytes to write."""

    def write(self, data: bytes, /) -> object:
        """Write all the bytes."""
        ...


class Passphrase:
    """A passphrase, and the keys that scrypt made of it, so that each salt costs half a second only once."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._keys: dict[tuple[bytes, int], bytes] = {}

    @classmethod
    def from_file(cls, file: str, source: str) -> "Passphrase":
        """Return the passphrase in the first line of a file. Raises UserMistake, which names the option or setting."""
        try:
            text = Path(file).expanduser().read_text("utf-8").split("\n", 1)[0].strip()
        except (OSError, ValueError) as exc:
            raise UserMistake(f"{source}: cannot read {file} ({exc})") from exc

        if not text:
            raise UserMistake(f"{source}: the first line of {file} is empty; write the passphrase there")

        return cls(text)

    def check_strength(self) -> None:
        """Raise UserMistake if it is too short to protect a new backup."""
        if len(self._text) < MIN_PASSPHRASE:
            raise UserMistake(f"the passphrase is too short: use at least {MIN_PASSPHRASE} characters")

    def derive_keys(self, header: Header) -> tuple[bytes, bytes]:
        """Return the keys of one file: of its header's HMAC, and of its chunks."""
        cache_key = (header.salt, header.scrypt_log_n)
        if cache_key not in self._keys:
            derivation = Scrypt(salt=header.salt, length=_KEY_BYTES, n=1 << header.scrypt_log_n, r=8, p=1)
            self._keys[cache_key] = derivation.derive(self._text)

        derivation_of_file = HKDF(algorithm=SHA256(), length=2 * _KEY_BYTES, salt=header.file_id, info=MAGIC)
        both = derivation_of_file.derive(self._keys[cache_key])
        return both[:_KEY_BYTES], both[_KEY_BYTES:]


def new_salt() -> bytes:
    """Return a random salt. Files with one salt share the costly step for one passphrase."""
    return os.urandom(_SALT_BYTES)


class EncryptedWriter:
    """Writes an encrypted file. Without `close` the file has no last chunk, and is refused as torn."""

    def __init__(self, out: Sink, header: Header, passphrase: Passphrase) -> None:
        header.file_id = os.urandom(_SALT_BYTES)
        mac_key, key = passphrase.derive_keys(header)
        text = msgspec.json.encode(header)
        start = MAGIC + len(text).to_bytes(4, "big") + text

        out.write(start + _compute_mac(mac_key, start))
        self._out = out
        self._cipher = AESGCM(key)
        self._buffer = bytearray()
        self._number = 0
        self.size_bytes = len(start) + _MAC_BYTES

    def write(self, data: bytes) -> int:
        """Encrypt and write all but the last bytes, up to one chunk: only `close` knows that a chunk is the last."""
        self._buffer += data
        while len(self._buffer) > CHUNK_BYTES:
            self._write_chunk(bytes(self._buffer[:CHUNK_BYTES]), is_last=False)
            del self._buffer[:CHUNK_BYTES]

        return len(data)

    def flush(self) -> None:
        """Do nothing: a chunk is written when it is full. Compressors call this."""

    def close(self) -> None:
        """Write the last chunk; the underlying file stays open."""
        self._write_chunk(bytes(self._buffer), is_last=True)
        self._buffer.clear()

    def _write_chunk(self, plain: bytes, *, is_last: bool) -> None:
        encrypted = self._cipher.encrypt(_build_nonce(self._number, is_last=is_last), plain, None)
        self._out.write(encrypted)
        self.size_bytes += len(encrypted)
        self._number += 1


class EncryptedReader:
    """Reads an encrypted file from its beginning. Everything that it returns was authenticated."""

    def __init__(self, source: ByteSource, passphrase: Passphrase) -> None:
        self.header, start, mac = _read_start(source)
        mac_key, key = passphrase.derive_keys(self.header)
        verifier = HMAC(mac_key, SHA256())
        verifier.update(start)

        try:
            verifier.verify(mac)
        except InvalidSignature as exc:
            raise BackupRefused(
                "the passphrase does not open this backup; if the passphrase is right, the beginning of the file was "
                "changed"
            ) from exc

        self._source = source
        self._cipher = AESGCM(key)
        self._plain = memoryview(b"")
        self._number = 0
        self._is_at_end = False
        self._next = _read_exactly(source, CHUNK_BYTES + _TAG_BYTES)

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, and none at the end. Raises BackupRefused for a damaged or torn file."""
        if size < 0:
            return b"".join(iter(lambda: self.read(CHUNK_BYTES), b""))

        while not self._plain and not self._is_at_end:
            self._plain = memoryview(self._read_chunk())

        data = self._plain[:size]
        self._plain = self._plain[size:]
        return bytes(data)

    def _read_chunk(self) -> bytes:
        chunk = self._next
        self._next = _read_exactly(self._source, CHUNK_BYTES + _TAG_BYTES)

        self._is_at_end = not self._next
        try:
            plain = self._cipher.decrypt(_build_nonce(self._number, is_last=self._is_at_end), chunk, None)
        except (InvalidTag, ValueError) as exc:
            raise BackupRefused(self._explain_damage(chunk)) from exc

        self._number += 1
        return plain

    def _explain_damage(self, chunk: bytes) -> str:
        """Return why a chunk does not decrypt."""
        if self._is_at_end and (len(chunk) < CHUNK_BYTES + _TAG_BYTES or self._is_inner(chunk)):
            return "the backup is torn or damaged: it ends without its last part; copy or take it again"
        return f"the backup is damaged: its bytes after {self._number} MB were changed, moved or lost"

    def _is_inner(self, chunk: bytes) -> bool:
        """Whether a chunk is intact, but not marked as the last one: the file was cut off behind it."""
        try:
            self._cipher.decrypt(_build_nonce(self._number, is_last=False), chunk, None)
        except (InvalidTag, ValueError):
            return False

        return True


def read_header(source: ByteSource) -> Header:
    """Return the header of a backup, which is not authenticated yet. Raises BackupRefused."""
    return _read_start(source)[0]


def _read_start(source: ByteSource) -> tuple[Header, bytes, bytes]:
    """Return the header, the bytes that its HMAC protects, and the HMAC. Raises BackupRefused."""
    start = _read_exactly(source, len(MAGIC) + 4)
    if start[: len(MAGIC)] != MAGIC or len(start) < len(MAGIC) + 4:
        raise BackupRefused("this file is not a Portside backup; name a file that 'portside backup create' wrote")

    length = int.from_bytes(start[len(MAGIC) :], "big")
    text = _read_exactly(source, min(length, _MAX_HEADER_BYTES))
    mac = _read_exactly(source, _MAC_BYTES)
    if len(text) < length or len(mac) < _MAC_BYTES:
        raise BackupRefused("the backup is truncated: it ends within its header; copy or take it again")

    try:
        fields = msgspec.json.decode(text, type=dict[str, object])
        if isinstance(fields.get("format"), int) and fields["format"] != FORMAT:
            raise BackupRefused(
                f"this backup was made by another version of Portside ({fields.get('version')}), with format "
                f"{fields['format']}; this version reads format {FORMAT}"
            )

        return msgspec.convert(fields, Header, strict=True), start + text, mac
    except msgspec.MsgspecError as exc:
        raise BackupRefused("the backup is damaged: its header was changed") from exc


def _build_nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\x01" if is_last else b"\x00")


def _compute_mac(key: bytes, data: bytes) -> bytes:
    hmac = HMAC(key, SHA256())
    hmac.update(data)
    return hmac.finalize()


def _read_exactly(source: ByteSource, size: int) -> bytes:
    """Read so many bytes, or all that are left."""
    parts = []
    rest = size
    while rest and (part := bytes(source.read(rest))):
        parts.append(part)
        rest -= len(part)

    return b"".join(parts)
