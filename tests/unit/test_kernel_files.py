import os
import stat

import pytest

from portside.kernel.files import make_private_dir, write_private


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_are_private_whatever_the_umask(tmp_path, open_umask) -> None:
    write_private(tmp_path / "a" / "key", "text\n")
    assert (tmp_path / "a" / "key").read_text() == "text\n"
    assert stat.S_IMODE((tmp_path / "a" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(make_private_dir(tmp_path / "b").stat().st_mode) == 0o700


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    with path.open() as reader:
        write_private(path, "new")
        assert reader.read() == "old", "who had it open goes on reading the old file"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_private(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
