"""The build of one revision, from fetch to marker.

revisions/<id>/source      the source's files
               venv        its virtual environment
               built.json  written last: without it the folder is a build that never ended
"""

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from portside.dataplane.builds.commands import kill_left_behind, kill_strays
from portside.dataplane.builds.config import read_config
from portside.dataplane.builds.environment import Environment
from portside.dataplane.builds.javascript import JavaScript, Scripts
from portside.dataplane.builds.output import Output
from portside.dataplane.builds.source import Source
from portside.dataplane.builds.wheel import pack_wheel
from portside.dataplane.failures import BuildFailed
from portside.dataplane.logs import RevisionLog
from portside.kernel.files import make_private_dir, write_private

_MARKER = "built.json"


class Built(msgspec.Struct, frozen=True):
    """What a finished build holds: the commit (empty for an archive), and the configuration file in the source."""

    commit: str
    config: str


@dataclass(frozen=True)
class BuildOrder:
    """What to build, and where; `hidden` are the values that must not show in the log."""

    folder: Path
    source: Source
    config_path: str
    wheels: Path
    timeout_s: float
    scripts: Scripts = field(default_factory=Scripts)
    hidden: list[str] = field(default_factory=list)


def find_build(folder: Path) -> Built | None:
    """Return the finished build of a revision's folder, or None."""
    try:
        return msgspec.json.decode((folder / _MARKER).read_bytes(), type=Built)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def discard_build(folder: Path) -> None:
    """Remove a revision's folder, whatever is in it, and stop a build that an earlier listener left running."""
    kill_left_behind(folder)
    shutil.rmtree(folder, ignore_errors=True)


def discard_unfinished(deployments: Path) -> None:
    """At the start of a listener: stop what builds of an earlier one still run, and remove what they left undone."""
    kill_strays(deployments)
    for marked in [*deployments.glob("*/revisions/*/process"), *deployments.glob("*/revisions/*/source")]:
        folder = marked.parent
        if not folder.is_symlink() and find_build(folder) is None:
            discard_build(folder)


async def build_revision(order: BuildOrder, log: RevisionLog) -> Built:
    """Build from nothing. Raises BuildFailed; a folder without a marker is left behind only by a crash."""
    output = Output(log.add, [*order.hidden, *order.source.hidden])
    try:
        await asyncio.to_thread(discard_build, order.folder)
        make_private_dir(order.folder)
        async with asyncio.timeout(order.timeout_s):
            built = await _build(order, output)
        write_private(order.folder / _MARKER, msgspec.json.encode(built).decode())
    except BaseException as exc:
        await asyncio.to_thread(discard_build, order.folder)
        if (failure := _failure(exc, order, output)) is not None:
            raise failure from exc
        raise
    return built


async def _build(order: BuildOrder, output: Output) -> Built:
    output.say(f"Fetching {order.source.title}")
    checkout = order.source.checkout(order.folder, output)
    commit = await checkout.fetch()
    output.say(f"Building commit {commit}" if commit else "Building")
    config = await asyncio.to_thread(read_config, checkout.files, order.config_path)
    for skipped in (*config.skipped, *(f"pip_config_file: {name}" for name in config.pip.skipped)):
        output.say(f"Skipped: {skipped} (it is for images, or uv cannot be told)")
    # A front end first: a Python package may take in what it makes.
    await JavaScript(order.folder, checkout.files, output).make(config, order.scripts)
    wheel = await asyncio.to_thread(pack_wheel, order.wheels)
    await Environment(order.folder, output).make(config, wheel)
    await asyncio.to_thread(checkout.forget_history)
    await asyncio.to_thread(kill_strays, order.folder)
    output.say("Build finished")
    return Built(commit, str(config.path.relative_to(checkout.files.resolve())))


def _failure(exc: BaseException, order: BuildOrder, output: Output) -> BuildFailed | None:
    """Put into words what ends a build for its owner; None for anything else."""
    match exc:
        case BuildFailed():
            return BuildFailed(output.mask(str(exc)))
        case TimeoutError():
            return BuildFailed(f"the build took longer than {order.timeout_s:g} seconds (setting BUILD_TIMEOUT_S)")
        case OSError():
            return BuildFailed(f"the build cannot go on: {exc.strerror or exc}")
        case _:
            return None
