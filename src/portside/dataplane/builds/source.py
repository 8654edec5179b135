"""Where a build's files come from, and how many there may be.

A source is fetched into a folder by its checkout. The kinds are in `git.py` and `archive.py`.
"""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from portside.dataplane.builds.output import Output
from portside.dataplane.failures import BuildFailed

_SIZE_CHECK_S = 0.5


class Checkout(Protocol):
    """A source on its way into a folder; its files are in `files`."""

    files: Path

    async def fetch(self) -> str:
        """Fetch the files; return the commit, empty where there is none. Raises BuildFailed."""

    def forget_history(self) -> None:
        """Remove what only the build had need of."""


class Source(Protocol):
    """What a revision is built from; `title` says so in its log."""

    @property
    def title(self) -> str:
        """What is fetched, in words."""

    @property
    def hidden(self) -> list[str]:
        """What must not show in a log."""

    def checkout(self, folder: Path, output: Output) -> Checkout:
        """Return what fetches the source into a build's folder."""


async def within_size(work: Coroutine[Any, Any, None], folder: Path, max_bytes: int, what: str) -> None:
    """Do work that fills a folder; stop it when the folder outgrows the limit. Raises BuildFailed."""
    watching, working = asyncio.create_task(_watch_size(folder, max_bytes, what)), asyncio.create_task(work)
    try:
        await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        await working
        await asyncio.to_thread(_check_size, folder, max_bytes, what)
    finally:
        for task in (watching, working):
            task.cancel()
        await asyncio.gather(watching, working, return_exceptions=True)


async def _watch_size(folder: Path, max_bytes: int, what: str) -> None:
    while True:
        await asyncio.sleep(_SIZE_CHECK_S)
        await asyncio.to_thread(_check_size, folder, max_bytes, what)


def _check_size(folder: Path, max_bytes: int, what: str) -> None:
    if folder_size(folder) > max_bytes:
        raise too_large(what, max_bytes)


def too_large(what: str, max_bytes: int) -> BuildFailed:
    """Return the failure of a source that is larger than this listener takes."""
    return BuildFailed(f"the {what} is larger than {max_bytes} bytes, the limit of this listener (MAX_SOURCE_BYTES)")


def folder_size(folder: Path) -> int:
    """Return the bytes of all files under a folder; files that vanish meanwhile count nothing."""
    total = 0
    for parent, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - this loop is hot
            except OSError:
                continue
    return total
