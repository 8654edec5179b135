"""Files that must appear whole and private."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600 so that it appears at once and whole, or not at all."""
    content = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def make_private_dir(path: Path) -> Path:
    """Make a folder (and its parents) that only its owner can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
