"""The home folder of a platform: its lock, its files, and the repository of the example agent."""

import fcntl
import os
import shutil
import stat
import subprocess
from pathlib import Path

import portside
from portside.kernel.errors import UserMistake
from portside.kernel.files import close_to_others, find_holder, make_private_dir, write_private

NAME = "hello-agent"
_IDENTITY = ("-c", "user.name=Portside", "-c", "user.email=portside@localhost", "-c", "commit.gpgsign=false")


def make_repository(target: Path) -> Path:
    """Create the repository of the example agent if it is missing, and return its folder.

    Raises UserMistake without git.
    """
    if (target / ".git").is_dir():
        return target

    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(_find_example(), fresh, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    _git(fresh, "init", "--quiet", "--initial-branch=main")
    _git(fresh, "add", "--all")
    _git(fresh, *_IDENTITY, "commit", "--quiet", "--message", "The hello agent")
    fresh.rename(target)

    return target


def _find_example() -> Path:
    """Return the folder of the example, in an installed package or in a checkout."""
    package = Path(portside.__file__).parent
    for folder in (package / "examples" / NAME, package.parents[1] / "examples" / NAME):
        if (folder / "langgraph.json").is_file():
            return folder

    raise UserMistake("this installation has no example agent; start with --no-example")


def _git(folder: Path, *arguments: str) -> None:
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError as exc:
        raise UserMistake("git is needed to deploy from repositories; install it") from exc

    if process.returncode != 0:
        raise UserMistake(f"git {arguments[0]} failed: {process.stderr.strip()}")


class Home:
    """A platform's folder. Only one platform uses it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> None:
        """Lock the home until this process ends. Raises UserMistake, with the process that holds the lock."""
        try:
            make_private_dir(self.path)
            if self._is_ours():
                close_to_others(self.path)
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
    def is_in_use(self) -> bool:
        """Whether a platform runs in this home now."""
        return find_holder(self.path / "platform.lock") is not None

    def _is_ours(self) -> bool:
        """Whether the folder is an existing home, or is empty but for what file systems make.

        A folder with other files, or one that several users share, such as /tmp, is not.
        """
        if self.path.stat().st_mode & stat.S_ISVTX:
            return False
        if (self.path / "platform.lock").exists():
            return True

        return all(entry.name == "lost+found" for entry in self.path.iterdir())

    @property
    def address(self) -> Path:
        """The file with the address of the platform on this machine, for commands without `--url`."""
        return self.path / "address"

    @property
    def api_key(self) -> Path:
        """The file of the first API key."""
        return self.path / "api-key"

    @property
    def listener_key(self) -> Path:
        """The file of the API key of the platform's own listener."""
        return self.path / "listener-key"

    @property
    def master_key(self) -> Path:
        """The file of the key that encrypts secrets."""
        return self.path / "master-key"

    @property
    def archives(self) -> Path:
        """The folder of uploaded source archives."""
        return self.path / "archives"

    @property
    def example(self) -> Path:
        """The git repository of the example agent."""
        return self.path / "examples" / "hello-agent"

    @property
    def example_done(self) -> Path:
        """Exists once the example was deployed and has answered a request."""
        return self.path / "examples" / "hello-agent.done"

    @property
    def listener_log(self) -> Path:
        """The log file of the listener."""
        return self.path / "logs" / "listener.log"

    def keep_key(self, path: Path, key: str) -> None:
        """Write a key file that only its owner can read."""
        write_private(path, key + "\n")


def read_key(path: Path) -> str | None:
    """Return the key in a file, or None if there is no such file."""
    try:
        return path.read_text("utf-8").strip() or None
    except OSError:
        return None
