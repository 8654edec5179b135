"""Encryption of secrets with the master key.

Secrets are encrypted at rest and bound to their row.
"""

import base64
import os
import stat

import pytest

from portside.kernel.crypto import SecretBox, begin_rotation, end_rotation
from portside.kernel.errors import UserMistake

ROW, OTHER_ROW = "deployment-1", "deployment-2"


@pytest.fixture
def box() -> SecretBox:
    return SecretBox(os.urandom(32))


@pytest.mark.parametrize("plain", [b"", b"hunter2", b"\0" * 100_000])
def test_sealed_value_opens_for_its_row(box, plain: bytes) -> None:
    sealed = box.seal(plain, ROW)
    assert box.open(sealed, ROW) == plain
    assert sealed != box.seal(plain, ROW), "two seals of one value must not look alike"


def test_sealed_value_does_not_contain_the_secret(box) -> None:
    assert b"hunter2" not in box.seal(b"hunter2", ROW)


def test_sealed_value_does_not_open_for_another_row(box) -> None:
    with pytest.raises(UserMistake, match="changed or moved"):
        box.open(box.seal(b"x", ROW), OTHER_ROW)


def test_changed_or_truncated_value_does_not_open(box) -> None:
    sealed = box.seal(b"secret", ROW)
    for place in range(len(sealed)):
        changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        for bad in (changed, sealed[:place]):
            with pytest.raises(UserMistake):
                box.open(bad, ROW)


def test_errors_distinguish_another_key_from_a_changed_value(box) -> None:
    with pytest.raises(UserMistake, match="another master key"):
        SecretBox(os.urandom(32)).open(box.seal(b"x", ROW), ROW)


def test_key_file_is_private_and_reused(tmp_path) -> None:
    path = tmp_path / "new" / "master-key"
    sealed = SecretBox.from_file(path).seal(b"x", ROW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretBox.from_file(path).open(sealed, ROW) == b"x"


@pytest.mark.parametrize(
    "text", ["", "not base64!", "\ud83d", *(base64.b64encode(b"k" * n).decode() for n in (16, 31, 33))]
)
def test_damaged_key_file_is_refused_and_unchanged(tmp_path, text: str) -> None:
    path = tmp_path / "master-key"
    path.write_bytes(text.encode("utf-16-le", "surrogatepass") if text == "\ud83d" else text.encode())
    before = path.read_bytes()
    with pytest.raises(UserMistake, match="base64 key of 32 bytes"):
        SecretBox.from_file(path)
    assert path.read_bytes() == before


def test_rotation_opens_with_both_keys_and_seals_with_the_new_one(tmp_path) -> None:
    path = tmp_path / "master-key"
    before = SecretBox.from_file(path)
    old = before.seal(b"old", ROW)
    rotating = begin_rotation(path)
    new = rotating.seal(b"new", ROW)
    assert (rotating.open(old, ROW), rotating.open(new, ROW)) == (b"old", b"new")
    assert SecretBox.from_file(path).open(old, ROW) == b"old", "a platform that starts meanwhile opens both"
    with pytest.raises(UserMistake, match="another master key"):
        before.open(new, ROW)
    assert begin_rotation(path).key_id == rotating.key_id, "begun again it goes on with the same key"
    end_rotation(path)
    after = SecretBox.from_file(path)
    assert after.open(new, ROW) == b"new"
    with pytest.raises(UserMistake, match="another master key"):
        after.open(old, ROW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
