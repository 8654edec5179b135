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
def test_what_was_sealed_opens_for_its_row(box, plain: bytes) -> None:
    sealed = box.seal(plain, ROW)
    assert box.open(sealed, ROW) == plain
    assert sealed != box.seal(plain, ROW), "two seals of one value must not look alike"


def test_the_sealed_value_does_not_show_the_secret(box) -> None:
    assert b"hunter2" not in box.seal(b"hunter2", ROW)


def test_a_value_that_was_moved_to_another_row_does_not_open(box) -> None:
    with pytest.raises(UserMistake, match="changed or moved"):
        box.open(box.seal(b"x", ROW), OTHER_ROW)


def test_no_changed_byte_and_no_cut_goes_unnoticed(box) -> None:
    sealed = box.seal(b"secret", ROW)
    for place in range(len(sealed)):
        changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        for bad in (changed, sealed[:place]):
            with pytest.raises(UserMistake):
                box.open(bad, ROW)


def test_another_key_is_told_from_a_changed_value(box) -> None:
    with pytest.raises(UserMistake, match="another master key"):
        SecretBox(os.urandom(32)).open(box.seal(b"x", ROW), ROW)


def test_the_key_file_is_private_and_kept(tmp_path) -> None:
    path = tmp_path / "new" / "master-key"
    sealed = SecretBox.from_file(path).seal(b"x", ROW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretBox.from_file(path).open(sealed, ROW) == b"x"


@pytest.mark.parametrize(
    "text", ["", "not base64!", "\ud83d", *(base64.b64encode(b"k" * n).decode() for n in (16, 31, 33))]
)
def test_a_damaged_key_file_is_refused_and_left_alone(tmp_path, text: str) -> None:
    path = tmp_path / "master-key"
    path.write_bytes(text.encode("utf-16-le", "surrogatepass") if text == "\ud83d" else text.encode())
    before = path.read_bytes()
    with pytest.raises(UserMistake, match="base64 key of 32 bytes"):
        SecretBox.from_file(path)
    assert path.read_bytes() == before


def test_while_keys_are_rotated_both_open_and_the_new_one_seals(tmp_path) -> None:
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
