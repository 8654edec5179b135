"""Private files, written atomically; locks; rotation of log files; and the limit of open file descriptors.

A process without a free descriptor cannot open a file, start a program or connect to the database. So the limit is
raised as far as the system allows, and a part of it is reserved: client connections cannot use it.
"""

import contextlib
import fcntl
import os
import pwd
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from portside.kernel.errors import UserMistake

# Used where the system has no limit. No process needs more.
MAX_DESCRIPTORS = 1_048_576
MIN_RESERVED = 128


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors to the hard one, and return it. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return get_descriptor_limit()

    # Some systems refuse their own hard limit; then the old limit stays.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

    return get_descriptor_limit()


def get_descriptor_limit() -> int:
    """Return how many descriptors this process may have open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def get_connection_limit() -> int:
    """Return the limit of client connections: a quarter of the descriptors is reserved for everything else."""
    limit = get_descriptor_limit()
    return max(1, limit - max(MIN_RESERVED, limit // 4))


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600, atomically: readers see the whole file or none."""
    content = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

        temporary.replace(path)
    except BaseException:
        # On a full disk. It may hold a part of a secret, and nothing else would remove it.
        temporary.unlink(missing_ok=True)
        raise


def make_private_dir(path: Path) -> Path:
    """Create a folder, and its parents, that only its owner can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def close_to_others(folder: Path) -> None:
    """Let only this user enter a folder.

    The mode of a folder that belongs to somebody else, such as the root of a mounted volume, cannot be changed. It
    stays: what is put into it is private by itself. Raises UserMistake if everybody may write to it, because then
    others can replace what is in it.
    """
    try:
        folder.chmod(0o700)
    except PermissionError:
        status = folder.stat()
        if status.st_mode & stat.S_IWOTH:
            raise UserMistake(
                f"{folder} belongs to the user {get_user_name(status.st_uid)}, and everybody may write to it; "
                f"name a folder in it instead, which is kept private: {folder / 'portside'}"
            ) from None


def get_user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def locked(path: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of a file during the block, and create the file if it is missing.

    Another program, or another call in this one, waits meanwhile; without `waits` it raises BlockingIOError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        operation = fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def find_holder(path: Path) -> int | None:
    """Return the process id that a locked file contains: 0 if it contains none, None if nobody holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)

    return None


@contextlib.contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """Yield a path of a Unix socket that fits the limit of about 100 bytes: it names the folder by a descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short_folder = Path(f"/proc/self/fd/{descriptor}")
        if not short_folder.exists():
            short_folder = folder

        yield str(short_folder / name)
    finally:
        os.close(descriptor)


def rotate(path: Path) -> None:
    """Copy a log file to `NAME.1` and truncate it. Processes that append to it continue at its new beginning.

    Lines that a process writes between the copy and the truncation are lost.
    """
    copy = path.with_name(f"{path.name}.1")
    shutil.copyfile(path, copy)
    copy.chmod(0o600)
    os.truncate(path, 0)


def rotate_beyond(path: Path, limit_bytes: int) -> bool:
    """Rotate a file if it exists and is larger than the limit, and return whether it was."""
    try:
        if path.stat().st_size <= limit_bytes:
            return False
    except FileNotFoundError:
        return False

    rotate(path)
    return True
