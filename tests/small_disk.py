"""A disk that is really full when it is full: a file system of a few megabytes in memory."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

needs_small_disk = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


class SmallDisk:
    """A mounted file system, and one file that takes all of its free space."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no free byte."""
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    def fill_up_to(self, free_bytes: int) -> None:
        """Leave so many bytes free."""
        found = os.statvfs(self.path)
        with self._filler.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(1, found.f_bavail * found.f_frsize - free_bytes))

    def empty(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a disk of some megabytes at an empty folder, which is made if it is missing."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], check=True, timeout=30)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=30)
