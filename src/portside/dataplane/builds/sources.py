"""Where the files of a build come from, and how large they may be.

`git.py` has git repositories, `archive.py` uploaded archives. Neither is trusted.
"""

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from portside.kernel.tasks import cancel_and_wait

_SIZE_CHECK_S = 0.5


@dataclass(frozen=True)
class CommitTexts:
    """What people recognize a commit by: the name of its author, and the first line of its message."""

    author: str | None = None
    subject: str | None = None


class Checkout(Protocol):
    """The checkout of a source into a folder; `files` is where its files are."""

    files: Path

    async def fetch(self) -> str:
        """Fetch the files; return the commit, or "" for a source without one. Raises BuildFailed."""

    async def read_commit_texts(self) -> CommitTexts:
        """Return the texts of the commit that was fetched; a source without a commit has none."""

    def keep_history(self, history_folder: Path | None) -> None:
        """Move what the source can be checked out from again to a folder, if one is given, and remove the rest."""


class Source(Protocol):
    """What a revision is built from; the build log shows its `title`."""

    @property
    def title(self) -> str:
        """A description of the source for the log."""

    @property
    def secrets(self) -> list[str]:
        """The values that the log must mask."""

    def checkout(self, folder: Path, output: MaskedOutput) -> Checkout:
        """Return the checkout of the source into a build's folder."""


async def run_within_size(work: Coroutine[Any, Any, None], folder: Path, max_bytes: int, what: str) -> None:
    """Run work that fills a folder; cancel it when the folder exceeds the limit. Raises BuildFailed."""
    watching = asyncio.create_task(_watch_size(folder, max_bytes, what))
    filling = asyncio.create_task(work)
    try:
        await asyncio.wait({watching, filling}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()

        await filling
        await asyncio.to_thread(_check_size, folder, max_bytes, what)
    finally:
        await cancel_and_wait(watching, filling)


async def _watch_size(folder: Path, max_bytes: int, what: str) -> None:
    while True:
        await asyncio.sleep(_SIZE_CHECK_S)
        await asyncio.to_thread(_check_size, folder, max_bytes, what)


def _check_size(folder: Path, max_bytes: int, what: str) -> None:
    if folder_size(folder) > max_bytes:
        raise too_large(what, max_bytes)


def too_large(what: str, max_bytes: int) -> BuildFailed:
    """Return the failure for a source that is too large."""
    return BuildFailed(
        f"the {what} is larger than {max_bytes} bytes, the limit of this listener (setting MAX_SOURCE_BYTES)"
    )


def folder_size(folder: Path) -> int:
    """Return the total size of all files in a folder in bytes; files that vanish meanwhile are ignored."""
    total = 0

    for parent, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - this loop is hot
            except OSError:
                continue

    return total
