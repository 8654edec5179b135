"""Encryption of secrets with the master key.

Secrets are encrypted at rest and bound to their row.
"""

import base64
import os
import stat

import pytest

from portside.kernel.crypto import SecretBox, begin_rotation, end_rotation, merge_key_files, with_previous_keys
from portside.kernel.errors import UserMistake

ROW = "deployment-1"
OTHER_ROW = "deployment-2"


@pytest.fixture
def box() -> SecretBox:
    return SecretBox(os.urandom(32))


@pytest.mark.parametrize("plain", [b"", b"hunter2", b"\0" * 100_000])
def test_encrypted_value_decrypts_for_its_row(box, plain: bytes) -> None:
    encrypted = box.encrypt(plain, ROW)
    assert box.decrypt(encrypted, ROW) == plain
    assert encrypted != box.encrypt(plain, ROW), "two encryptions of one value must not look alike"


def test_encrypted_value_does_not_contain_the_secret(box) -> None:
    assert b"hunter2" not in box.encrypt(b"hunter2", ROW)


def test_encrypted_value_does_not_decrypt_for_another_row(box) -> None:
    with pytest.raises(UserMistake, match="changed or moved"):
        box.decrypt(box.encrypt(b"x", ROW), OTHER_ROW)


def test_changed_or_truncated_value_does_not_open(box) -> None:
    encrypted = box.encrypt(b"secret", ROW)
    for place in range(len(encrypted)):
        changed = encrypted[:place] + bytes([encrypted[place] ^ 1]) + encrypted[place + 1 :]
        for bad in (changed, encrypted[:place]):
            with pytest.raises(UserMistake):
                box.decrypt(bad, ROW)


def test_errors_distinguish_another_key_from_a_changed_value(box) -> None:
    with pytest.raises(UserMistake, match="another master key"):
        SecretBox(os.urandom(32)).decrypt(box.encrypt(b"x", ROW), ROW)


def test_key_file_is_private_and_reused(tmp_path) -> None:
    path = tmp_path / "new" / "master-key"
    encrypted = SecretBox.from_file(path).encrypt(b"x", ROW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretBox.from_file(path).decrypt(encrypted, ROW) == b"x"


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


def test_rotation_decrypts_with_both_keys_and_encrypts_with_the_new_one(tmp_path) -> None:
    path = tmp_path / "master-key"
    before = SecretBox.from_file(path)
    old = before.encrypt(b"old", ROW)
    rotating = begin_rotation(path)
    new = rotating.encrypt(b"new", ROW)
    assert (rotating.decrypt(old, ROW), rotating.decrypt(new, ROW)) == (b"old", b"new")
    assert SecretBox.from_file(path).decrypt(old, ROW) == b"old", "a platform that starts meanwhile decrypts both"

    with pytest.raises(UserMistake, match="another master key"):
        before.decrypt(new, ROW)

    assert begin_rotation(path).key_id == rotating.key_id, "begun again it goes on with the same key"
    end_rotation(path)
    after = SecretBox.from_file(path)
    assert after.decrypt(new, ROW) == b"new"

    with pytest.raises(UserMistake, match="another master key"):
        after.decrypt(old, ROW)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_of_all_earlier_rotations_are_kept(tmp_path) -> None:
    path = tmp_path / "master-key"
    keys = [SecretBox.from_file(path).keys[0]]
    assert with_previous_keys(path) is None
    for _ in range(3):
        keys.insert(0, begin_rotation(path).keys[0])
        end_rotation(path)

    box = with_previous_keys(path)
    assert box is not None
    assert (box.keys, box.key_id) == (tuple(keys), SecretBox(keys[0]).key_id)


def test_merged_key_files_encrypt_with_the_newer_one() -> None:
    assert merge_key_files(b"new\nboth\n", b"both\nold\n") == b"new\nboth\nold\n"
    assert merge_key_files(b"same\n", b"same\n") == b"same\n"
