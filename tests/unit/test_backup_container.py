"""The encrypted file of a backup opens with its passphrase, as a whole and unchanged, or not at all."""

import io
from datetime import UTC, datetime

import msgspec
import pytest
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from portside.backup import container
from portside.backup.container import (
    CHUNK_BYTES,
    MAGIC,
    BackupRefused,
    EncryptedReader,
    EncryptedWriter,
    Header,
    Passphrase,
    new_salt,
    read_header,
)
from portside.kernel.errors import UserMistake

RIGHT = Passphrase("correct horse battery")
SALT = new_salt()
STORED_CHUNK = CHUNK_BYTES + 16


def header() -> Header:
    return Header(
        kind="data",
        created_at=datetime(2030, 1, 2, tzinfo=UTC),
        version="0.1.0",
        postgres=18,
        installation="i",
        salt=SALT,
        scrypt_log_n=14,
    )


def encrypt(plain: bytes, *, is_closed: bool = True) -> bytes:
    file = io.BytesIO()
    writer = EncryptedWriter(file, header(), RIGHT)
    for start in range(0, len(plain), 300_000):
        writer.write(plain[start : start + 300_000])

    if is_closed:
        writer.close()
        assert writer.size_bytes == len(file.getvalue())

    return file.getvalue()


def decrypt(file: bytes) -> bytes:
    return EncryptedReader(io.BytesIO(file), RIGHT).read()


def find_first_chunk(file: bytes) -> int:
    """Where the first chunk begins."""
    return len(MAGIC) + 4 + int.from_bytes(file[len(MAGIC) : len(MAGIC) + 4], "big") + 32


def pattern(size: int) -> bytes:
    return bytes(range(256)) * (size // 256) + bytes(range(size % 256))


@pytest.fixture(scope="module")
def three() -> bytes:
    """A file with two full chunks and a short one."""
    return encrypt(pattern(2 * CHUNK_BYTES + 1000))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_everything_comes_back(size: int) -> None:
    plain = pattern(size)
    file = encrypt(plain)
    assert decrypt(file) == plain
    assert size < 50 or plain[:50] not in file
    assert read_header(io.BytesIO(file)).created_at == datetime(2030, 1, 2, tzinfo=UTC)


def test_two_files_of_one_plain_text_share_nothing() -> None:
    first = encrypt(b"x" * 100)
    second = encrypt(b"x" * 100)
    assert first[find_first_chunk(first) :] != second[find_first_chunk(second) :]


def test_wrong_passphrase_is_refused_by_name() -> None:
    with pytest.raises(BackupRefused, match="passphrase does not open"):
        EncryptedReader(io.BytesIO(encrypt(b"x")), Passphrase("correct horse batterz"))


@pytest.mark.parametrize("lost", [1, 500, 1016, 1017, STORED_CHUNK, STORED_CHUNK + 1016, 2 * STORED_CHUNK + 1016])
def test_torn_file_is_refused(three: bytes, lost: int) -> None:
    """1016 bytes are the last chunk: without it the file ends where a chunk does."""
    with pytest.raises(BackupRefused, match="torn"):
        decrypt(three[:-lost])


def test_unfinished_file_is_refused() -> None:
    for size in (0, 10, CHUNK_BYTES, 2 * CHUNK_BYTES + 5):
        with pytest.raises(BackupRefused, match="torn"):
            decrypt(encrypt(pattern(size), is_closed=False))


@pytest.fixture
def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive keys with nearly no work, whatever the header says, for tests of hundreds of files."""

    def derive_quickly(*, salt: bytes, length: int, n: int, r: int, p: int) -> Scrypt:
        return Scrypt(salt=salt, length=length, n=2, r=r, p=p)

    monkeypatch.setattr(container, "Scrypt", derive_quickly)


@pytest.mark.usefixtures("quick_keys")
def test_every_length_of_a_short_file_is_refused() -> None:
    whole = encrypt(b"hello")
    for length in range(len(whole)):
        with pytest.raises(BackupRefused):
            decrypt(whole[:length])


@pytest.mark.usefixtures("quick_keys")
def test_every_changed_byte_of_a_short_file_is_refused() -> None:
    whole = encrypt(b"hello")
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        with pytest.raises(BackupRefused):
            decrypt(bytes(changed))


def test_moved_repeated_and_appended_chunks_are_refused(three: bytes) -> None:
    begin = find_first_chunk(three)
    head = three[:begin]
    first = three[begin:][:STORED_CHUNK]
    second = three[begin + STORED_CHUNK :][:STORED_CHUNK]
    last = three[begin + 2 * STORED_CHUNK :]
    assert decrypt(head + first + second + last) == pattern(2 * CHUNK_BYTES + 1000)

    for forged in (
        second + first + last,
        first + last,
        second + last,
        first + first + second + last,
        last,
        first + second + last + last,
        first + second + last + b"x",
    ):
        with pytest.raises(BackupRefused):
            decrypt(head + forged)


def test_nothing_is_returned_of_a_damaged_chunk(three: bytes) -> None:
    changed = bytearray(three)
    changed[find_first_chunk(three) + STORED_CHUNK + 5] ^= 1
    reader = EncryptedReader(io.BytesIO(bytes(changed)), RIGHT)
    assert reader.read(CHUNK_BYTES) == pattern(CHUNK_BYTES)

    with pytest.raises(BackupRefused, match="damaged: its bytes after 1 MB"):
        reader.read(1)


def test_another_format_names_the_version_that_made_it() -> None:
    text = msgspec.json.encode({"format": 2, "version": "7.0.0", "something": "new"})
    file = MAGIC + len(text).to_bytes(4, "big") + text + bytes(32)
    with pytest.raises(BackupRefused, match=r"another version of Portside \(7\.0\.0\)"):
        decrypt(file)


def test_other_files_are_refused() -> None:
    for other in (b"", b"PK\x03\x04", bytes(1000), MAGIC, MAGIC + b"\xff\xff\xff\xff" + bytes(100)):
        with pytest.raises(BackupRefused):
            decrypt(other)


def test_guesses_at_a_passphrase_are_costly() -> None:
    """128 MB and half a second for each; the backups of other tests are cheaper."""
    made = Header(
        kind="data", created_at=datetime(2030, 1, 2, tzinfo=UTC), version="1", postgres=18, installation="i", salt=SALT
    )
    assert made.scrypt_log_n == 17


def test_costly_headers_are_refused() -> None:
    """A file must not make scrypt take gigabytes."""
    expensive = header()
    expensive.scrypt_log_n = 40

    text = msgspec.json.encode(expensive)
    with pytest.raises(BackupRefused, match="header was changed"):
        decrypt(MAGIC + len(text).to_bytes(4, "big") + text + bytes(32))


def test_short_passphrases_protect_no_new_backup() -> None:
    with pytest.raises(UserMistake, match="at least 12"):
        Passphrase("too short").check_strength()
    RIGHT.check_strength()
