"""The home folder of a platform: who uses it, and the files in it that people look for."""

import fcntl
import os
from pathlib import Path

from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir, write_private


class Home:
    """A platform's folder. Only one platform uses it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> None:
        """Take the home for this process until it ends. Raises UserMistake that names the process that has it."""
        try:
            make_private_dir(self.path)
            self._lock = os.open(self.path / "platform.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise UserMistake(f"cannot use {self.path} as home: {exc.strerror}; choose another with --home") from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 32, 0).decode().strip()
            raise UserMistake(
                f"another platform (process {holder or 'unknown'}) is using {self.path}; "
                "stop it, or choose another folder with --home"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @property
    def api_key(self) -> Path:
        """The file of the first API key."""
        return self.path / "api-key"

    @property
    def listener_key(self) -> Path:
        """The file of the key that the platform's own listener works with."""
        return self.path / "listener-key"

    @property
    def master_key(self) -> Path:
        """The file of the key that seals secrets."""
        return self.path / "master-key"

    @property
    def archives(self) -> Path:
        """The source archives that were uploaded."""
        return self.path / "archives"

    @property
    def example(self) -> Path:
        """The git repository of the example agent."""
        return self.path / "examples" / "hello-agent"

    @property
    def example_done(self) -> Path:
        """Marks that the example was deployed and has answered once."""
        return self.path / "examples" / "hello-agent.done"

    @property
    def listener_log(self) -> Path:
        """What the listener says."""
        return self.path / "logs" / "listener.log"

    def keep_key(self, path: Path, key: str) -> None:
        """Write a key file that only its owner can read."""
        write_private(path, key + "\n")


def read_key(path: Path) -> str | None:
    """Return the key in a file, or None when there is none."""
    try:
        return path.read_text("utf-8").strip() or None
    except OSError:
        return None
