"""Builds that the user's cache keeps by the hash of their sources, so that a second checkout costs nothing."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "portside"
HASH_FILE = ".sources"
KEPT = 5


class CannotBuildError(Exception):
    """A program or package that the build needs is missing, or the build failed; the message says what to do."""


@dataclass(frozen=True)
class KeptBuilds:
    """The builds of one application. `result` is a file that every finished build has."""

    name: str
    result: str

    @property
    def folder(self) -> Path:
        """Where the builds are, and whatever else the application keeps."""
        return CACHE / self.name

    def install(self, target: Path, digest: str, build: Callable[[Path], None]) -> None:
        """Put the build of these sources into a folder. Without one in the cache, `build` makes the folder it is given.

        Raises whatever `build` raises; nothing has changed then.
        """
        if _read_hash(target) == digest:
            return

        with self.lock():
            files = self.folder / digest / "static"
            if not (files / self.result).is_file():
                self._make(files, build)

            _replace(target, files, digest)
            self._drop_old_builds()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep two commands from building at the same time."""
        import fcntl

        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make(self, files: Path, build: Callable[[Path], None]) -> None:
        files.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=files.parent) as folder:
            built = Path(folder, "static")
            build(built)
            shutil.rmtree(files, ignore_errors=True)
            built.rename(files)

    def _drop_old_builds(self) -> None:
        builds = sorted((each.parent for each in self.folder.glob("*/static")), key=lambda each: each.stat().st_mtime)
        for old in builds[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _read_hash(target: Path) -> str | None:
    try:
        return (target / HASH_FILE).read_text("utf-8").strip()
    except FileNotFoundError:
        return None


def _replace(target: Path, source: Path, digest: str) -> None:
    """Swap the files in; a platform that runs reads the old ones or the new ones."""
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".static-"))
    shutil.copytree(source, fresh, dirs_exist_ok=True)
    fresh.chmod(0o755)
    (fresh / HASH_FILE).write_text(f"{digest}\n", "utf-8")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
