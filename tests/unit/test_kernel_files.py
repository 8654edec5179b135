"""Files are private, replaced atomically and rotated above a limit."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from portside.kernel.files import make_private_dir, rotate_beyond, write_private


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_write_private_ignores_the_umask(tmp_path, open_umask) -> None:
    write_private(tmp_path / "a" / "key", "text\n")
    assert (tmp_path / "a" / "key").read_text() == "text\n"
    assert stat.S_IMODE((tmp_path / "a" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(make_private_dir(tmp_path / "b").stat().st_mode) == 0o700


def test_write_private_replaces_the_file_atomically(tmp_path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)

    with path.open() as reader:
        write_private(path, "new")
        assert reader.read() == "old", "a reader that has it open still reads the old file"

    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_old_file(tmp_path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_private(path, "\ud800")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_that_fails_on_the_disk_leaves_no_part_of_it(tmp_path, monkeypatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(tmp_path / "key", "secret")

    assert list(tmp_path.iterdir()) == []


def test_file_above_the_limit_is_rotated_while_it_is_written(tmp_path: Path):
    file = tmp_path / "log"
    older = tmp_path / "log.1"
    assert not rotate_beyond(file, 10)

    with file.open("ab", buffering=0) as writer:
        writer.write(b"0123456789")
        assert not rotate_beyond(file, 10)
        writer.write(b"!")
        assert rotate_beyond(file, 10)
        writer.write(b"next")
        assert (file.read_bytes(), older.read_bytes()) == (b"next", b"0123456789!")
        writer.write(b"-and-more")

        assert rotate_beyond(file, 10)

    assert (file.read_bytes(), older.read_bytes()) == (b"", b"next-and-more")
    assert older.stat().st_mode & 0o777 == 0o600


PRINT_LIMITS = """
import resource
from portside.kernel.files import get_connection_limit, raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE), get_connection_limit())
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connections"), [(256, 4096, 3072), (4096, 4096, 3072), (256, 256, 128), (100, 100, 1)]
)
def test_descriptor_limit_is_raised_and_leaves_a_reserve(soft: int, hard: int, connections: int):
    program = PRINT_LIMITS.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == [str(hard), str(hard), str(hard), str(connections)]
