"""The package caches that builds share, and the limit of their size."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from uv import find_uv_bin

from portside.dataplane.builds.commands import minimal_environment
from portside.dataplane.builds.sources import folder_size
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import wait_at_most

log = get_logger(__name__)
_VARIABLE = "UV_CACHE_DIR"
_PRUNE_WITHIN_S = 300.0


def cache_folder(dataplane: Path) -> Path:
    """Return the folder of uv's cache."""
    return Path(os.environ.get(_VARIABLE) or dataplane / "uv-cache")


def node_cache_folder(dataplane: Path) -> Path:
    """Return the folder of the caches of npm, yarn, pnpm and bun."""
    return dataplane / "node-cache"


def modules_folder(dataplane: Path) -> Path:
    """Return the folder of the compiled modules of packages."""
    return dataplane / "compiled-modules"


async def is_cache_too_large(dataplane: Path, limit_bytes: int) -> bool:
    """Whether the package caches are together larger than the limit; builds may run meanwhile."""
    return await _sum_of_sizes(_limited_folders(dataplane)) > limit_bytes


def _limited_folders(dataplane: Path) -> list[Path]:
    own_folders = [node_cache_folder(dataplane), modules_folder(dataplane)]
    return own_folders if os.environ.get(_VARIABLE) else [*own_folders, cache_folder(dataplane)]


async def limit_cache(dataplane: Path, limit_bytes: int) -> None:
    """Shrink the package caches when they are together larger than the limit; no build may run meanwhile.

    Unused entries of uv are pruned first. If that is not enough the larger cache is emptied, then the other one:
    builds keep their own links to the files, or copies. With UV_CACHE_DIR set uv's cache is the operator's, and is
    neither counted nor removed.
    """
    folders = _limited_folders(dataplane)
    if await _sum_of_sizes(folders) <= limit_bytes:
        return

    if not os.environ.get(_VARIABLE):
        before = await _sum_of_sizes(folders)
        await _prune(cache_folder(dataplane))
        log.info("a build cache was pruned", cache="uv-cache", freed_bytes=before - await _sum_of_sizes(folders))

    sizes = {folder: await asyncio.to_thread(folder_size, folder) for folder in folders}
    for folder in sorted(folders, key=sizes.__getitem__, reverse=True):
        if (size := await _sum_of_sizes(folders)) > limit_bytes:
            log.info("emptying a build cache", cache=folder.name, bytes=size, limit_bytes=limit_bytes)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _sum_of_sizes(folders: Sequence[Path]) -> int:
    return sum([await asyncio.to_thread(folder_size, folder) for folder in folders])


async def _prune(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        find_uv_bin(),
        "cache",
        "prune",
        "--cache-dir",
        str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=minimal_environment(os.environ, HOME=str(folder)),
    )

    try:
        await wait_at_most(_PRUNE_WITHIN_S, process.wait())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
