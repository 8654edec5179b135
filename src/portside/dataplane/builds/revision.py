"""The build of one revision, from fetch to marker.

revisions/<id>/source      the repository's files
               venv        its virtual environment
               built.json  written last: without it the folder is a build that never ended
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from portside.dataplane.builds.commands import kill_marked
from portside.dataplane.builds.config import read_config
from portside.dataplane.builds.environment import Environment
from portside.dataplane.builds.source import Checkout, Source, mask_credentials
from portside.dataplane.builds.wheel import pack_wheel
from portside.dataplane.failures import BuildFailed
from portside.dataplane.logs import RevisionLog
from portside.kernel.files import make_private_dir, write_private


class Built(msgspec.Struct, frozen=True):
    """What a finished build holds: the commit, and the configuration file relative to the source."""

    commit: str
    config: str


@dataclass(frozen=True)
class BuildOrder:
    """What to build, and where."""

    folder: Path
    source: Source
    config_path: str
    wheels: Path
    timeout_s: float


def find_build(folder: Path) -> Built | None:
    """Return the finished build of a revision's folder, or None."""
    try:
        return msgspec.json.decode((folder / "built.json").read_bytes(), type=Built)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def discard_build(folder: Path) -> None:
    """Remove a revision's folder, whatever is in it, and stop a build that an earlier listener left running."""
    kill_marked(folder / "process")
    shutil.rmtree(folder, ignore_errors=True)


async def build_revision(order: BuildOrder, log: RevisionLog) -> Built:
    """Build from nothing. Raises BuildFailed; a folder without a marker is left behind only by a crash."""
    await asyncio.to_thread(discard_build, order.folder)
    make_private_dir(order.folder)
    try:
        async with asyncio.timeout(order.timeout_s):
            built = await _build(order, log)
    except TimeoutError as exc:
        await asyncio.to_thread(discard_build, order.folder)
        raise BuildFailed(f"the build took longer than {order.timeout_s:g} seconds (setting BUILD_TIMEOUT_S)") from exc
    except BaseException:
        await asyncio.to_thread(discard_build, order.folder)
        raise
    write_private(order.folder / "built.json", msgspec.json.encode(built).decode())
    return built


async def _build(order: BuildOrder, log: RevisionLog) -> Built:
    log.add(f"Fetching {mask_credentials(order.source.url)} at {order.source.commit or order.source.ref or 'HEAD'}")
    checkout = Checkout(order.source, order.folder, log.add)
    commit = await checkout.fetch()
    log.add(f"Building commit {commit}")
    config = await asyncio.to_thread(read_config, checkout.files, order.config_path)
    wheel = await asyncio.to_thread(pack_wheel, order.wheels)
    await Environment(order.folder, log.add).make(config, wheel)
    await asyncio.to_thread(checkout.forget_history)
    log.add("Build finished")
    return Built(commit, str(config.path.relative_to(checkout.files.resolve())))
