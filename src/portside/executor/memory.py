"""The memory of processes."""

import contextlib
import ctypes
import os
from pathlib import Path


def measure_memory(process: int | str) -> int:
    """Return the bytes of memory of a process that it shares with no files; 0 where the system does not tell."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def return_free_memory() -> None:
    """Give memory that this process has freed back to the system, where the C library can: glibc keeps most of it."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
