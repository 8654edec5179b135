"""The steps of one revision's build.

revisions/<id>/source      the source's files
               venv        its virtual environment, unless it has only JavaScript and the layout is split
               node        Node and the JavaScript executor, if the source has JavaScript (node.py)
               built.json  written last: a folder without it is an unfinished build

In the split layout the server of a build runs from the platform's environment, and the virtual environment has the
executor alone. In the combined layout both are in the virtual environment.
"""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from portside.dataplane.builds.bytecode import CompiledModules
from portside.dataplane.builds.commands import kill_leftovers, kill_strays
from portside.dataplane.builds.config import BuildConfig, read_config
from portside.dataplane.builds.environment import Environment
from portside.dataplane.builds.javascript import JavaScript, Scripts
from portside.dataplane.builds.node import (
    NodeTools,
    check_runtime,
    copy_linked,
    is_runtime_current,
    runtime_folder,
    update_runtime,
)
from portside.dataplane.builds.sources import Source
from portside.dataplane.builds.wheel import (
    EXECUTOR,
    SERVER,
    list_wheel_folders,
    pack_wheel,
    packages_folder,
    read_wheel_version,
    server_versions,
    wheel_version,
)
from portside.dataplane.failures import BuildFailed, DeployFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.masking import MaskedOutput
from portside.dataplane.settings import Layout
from portside.kernel.aliases import environment_names
from portside.kernel.disk import NO_RESERVE, DiskReserve, find_shortage
from portside.kernel.files import make_private_dir, write_private
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import timeout

_MARKER = "built.json"
_HANDLER_VARIABLES = frozenset(
    name for section in ("AUTH", "ENCRYPTION", "HTTP", "STORE") for name in environment_names(f"GRAPH_{section}")
)
_LOOK_AT_DISK_EVERY_S = 1.0


class BuildRecord(msgspec.Struct, frozen=True):
    """The content of built.json: the commit (empty for an archive), and the configuration file's path in the source.

    Builds of earlier versions have no layout and are combined, and they lack the author and the subject of the commit.
    """

    commit: str
    config: str
    layout: Layout = Layout.COMBINED
    commit_author: str | None = None
    commit_subject: str | None = None


@dataclass(frozen=True)
class BuildPlaces:
    """The folders that all builds of a listener share."""

    # The platform's own wheels.
    wheels: Path
    # The cache of uv, and the caches of npm and others; None means their defaults.
    cache: Path | None = None
    node_cache: Path | None = None
    # The JavaScript executor, by versions; None means a folder of the build.
    runtimes: Path | None = None
    # Compiled modules of packages; None means that builds share none.
    modules: CompiledModules | None = None


@dataclass(frozen=True)
class BuildRequest:
    """What to build, and where."""

    folder: Path
    source: Source
    # The graph configuration file, relative to the source.
    config_path: str
    places: BuildPlaces
    timeout_s: float
    scripts: Scripts = field(default_factory=Scripts)
    # By their names. The log masks the values.
    secrets: Mapping[str, str] = field(default_factory=dict)
    reserve: DiskReserve = NO_RESERVE
    layout: Layout = Layout.SPLIT
    # Where the history of the source goes, for builds of the same commit when its repository is gone.
    history_folder: Path | None = None


def find_build(folder: Path) -> BuildRecord | None:
    """Return the finished build of a revision's folder, or None."""
    try:
        return msgspec.json.decode((folder / _MARKER).read_bytes(), type=BuildRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def discard_build(folder: Path) -> None:
    """Remove a revision's folder, and kill a build in it that an earlier listener left running."""
    kill_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)


def discard_unfinished(deployments: Path) -> None:
    """At the start of a listener, kill the builds of an earlier one and remove their unfinished folders."""
    kill_strays(deployments)

    for path in [*deployments.glob("*/revisions/*/process"), *deployments.glob("*/revisions/*/source")]:
        folder = path.parent
        if not folder.is_symlink() and find_build(folder) is None:
            discard_build(folder)


async def build_revision(request: BuildRequest, log: RevisionLog) -> BuildRecord:
    """Build from scratch. Raises BuildFailed after removing the folder; only a crash leaves an unfinished one."""
    output = MaskedOutput(log.add, [*request.secrets.values(), *request.source.secrets], folder=request.folder)
    try:
        if request.folder.exists():
            # Without it no build has begun here, and it would be looked for among all processes of the machine.
            await asyncio.to_thread(discard_build, request.folder)

        make_private_dir(request.folder)
        async with timeout(request.timeout_s):
            record = await _while_disk_has_room(request, partial(_build, request, output))

        write_private(request.folder / _MARKER, msgspec.json.encode(record).decode())
    except BaseException as exc:
        await asyncio.to_thread(discard_build, request.folder)
        failure = _to_build_failure(exc, request, output)
        if failure is None:
            raise

        raise failure from exc

    return record


async def _check_disk(request: BuildRequest) -> None:
    shortage = await asyncio.to_thread(find_shortage, request.folder, request.reserve)
    if shortage is not None:
        raise BuildFailed(
            f"the disk of the listener is nearly full: {shortage}. Make room ('portside disk' shows what takes the "
            "space), and deploy again"
        )


async def _while_disk_has_room(
    request: BuildRequest, build: Callable[[], Coroutine[Any, Any, BuildRecord]]
) -> BuildRecord:
    """Run a build, and stop it when the disk is nearly full. Raises BuildFailed."""
    await _check_disk(request)
    task = asyncio.create_task(build())
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_AT_DISK_EVERY_S)
            if not task.done():
                await _check_disk(request)

        return task.result()
    finally:
        await cancel_and_wait(task)


async def _build(request: BuildRequest, output: MaskedOutput) -> BuildRecord:
    output.write(f"Fetching {request.source.title}")
    checkout = request.source.checkout(request.folder, output)
    commit = await checkout.fetch()
    texts = await checkout.read_commit_texts()
    output.write(f"Building commit {commit}" if commit else "Building")

    config = await asyncio.to_thread(read_config, checkout.files, request.config_path)
    for option in (*config.skipped, *(f"pip_config_file: {name}" for name in config.pip.skipped)):
        output.write(f"Ignored: {option} (only images or pages use it, or uv has no such option)")

    for key, suggestion in config.misspelt.items():
        output.write(f"Ignored: {key} (an unknown key; did you mean {suggestion!r}?)")

    if config.has_javascript or config.has_ui:
        check_runtime()

    # JavaScript first, because a Python package may include the front end that it builds.
    places = request.places
    node = NodeTools(request.folder, output, uv_cache=places.cache, cache=places.node_cache)
    await JavaScript(checkout.files, node).install_and_build(config, request.scripts)

    runtimes = places.runtimes or request.folder / "runtimes"
    if config.has_ui:
        await node.bundle_ui(config.path, runtimes)

    if config.has_javascript:
        await node.add_runtime(runtimes)

    if config.javascript_graphs:
        await node.read_types(config.path.parent, config.javascript_graphs)

    layout, reason = choose_layout(config, request.layout, request.secrets)
    output.write(f"Layout {layout}: {reason}")

    # Variables may name handlers, which are in Python if nothing says otherwise.
    if layout == Layout.COMBINED or config.has_python or not _HANDLER_VARIABLES.isdisjoint(request.secrets):
        content = EXECUTOR if layout == Layout.SPLIT else SERVER
        wheel = await asyncio.to_thread(pack_wheel, places.wheels, content)
        environment = Environment(request.folder, output, cache=places.cache, content=content)
        await environment.create(config, wheel)
        if places.modules is not None:
            await places.modules.link(request.folder)

    await asyncio.to_thread(checkout.keep_history, request.history_folder)
    await asyncio.to_thread(kill_strays, request.folder)
    output.write("Build finished")

    config_path = str(config.path.relative_to(checkout.files.resolve()))
    return BuildRecord(
        commit=commit,
        config=config_path,
        layout=layout,
        commit_author=texts.author,
        commit_subject=texts.subject,
    )


class ExecutorFiles:
    """The executor in a split build: this platform's, or the earlier one while servers of an earlier version remain."""

    def __init__(self, build: Path, dataplane: Path) -> None:
        self._build = build.resolve()
        self._dataplane = dataplane
        self._earlier = self._build / "earlier-executor"
        self._lock = asyncio.Lock()

    async def update(self) -> None:
        """Install this platform's executor, and keep the earlier one. Raises DeployFailed."""
        async with self._lock:
            try:
                if not (await is_wheel_current(self._build) and await is_runtime_current(self._build)):
                    _server, executors = await asyncio.to_thread(server_versions, has_javascript=True)
                    await asyncio.to_thread(self._keep, executors)

                await update_wheel(self._build, self._dataplane / "wheels")
                await update_runtime(self._build, self._dataplane)
            except (BuildFailed, OSError) as exc:
                raise DeployFailed(f"this version's executor cannot be installed: {exc}") from exc

    async def restore_previous(self) -> None:
        """Install the earlier executor again."""
        async with self._lock:
            await asyncio.to_thread(self._restore_previous)

    def _keep(self, version: str) -> None:
        """Keep the executor that this version replaces, once: an update that failed may have changed a part of it."""
        kept_for = self._earlier / "kept-for"
        if kept_for.exists() and kept_for.read_text("utf-8") == version:
            return

        shutil.rmtree(self._earlier, ignore_errors=True)
        self._earlier.mkdir()

        for package_folder in list_wheel_folders(self._build / "venv"):
            shutil.copytree(package_folder, self._earlier / package_folder.name)

        if (runtime := runtime_folder(self._build)).is_dir():
            copy_linked(runtime, self._earlier / "runtime")

        kept_for.write_text(version, "utf-8")

    def _restore_previous(self) -> None:
        wheel_folders = [folder for folder in self._earlier.glob("portside*") if folder.is_dir()]
        if wheel_folders:
            venv = self._build / "venv"
            for folder in list_wheel_folders(venv):
                shutil.rmtree(folder)

            for folder in wheel_folders:
                target = packages_folder(venv) / folder.name
                # An update that failed half way leaves a package of which pip knows nothing.
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(folder, target)

        runtime = self._earlier / "runtime"
        if runtime.is_dir():
            copy_linked(runtime, runtime_folder(self._build))


async def is_wheel_current(folder: Path) -> bool:
    """Whether a split build has this platform's executor, or needs none in Python."""
    venv = folder / "venv"
    return not venv.is_dir() or await asyncio.to_thread(wheel_version, EXECUTOR) == read_wheel_version(venv)


async def update_wheel(folder: Path, wheels: Path) -> None:
    """Install this platform's executor in a split build with Python, unless it is there. Raises BuildFailed."""
    if await is_wheel_current(folder):
        return

    wheel = await asyncio.to_thread(pack_wheel, wheels, EXECUTOR)
    await Environment(folder, MaskedOutput(lambda _line: None)).replace_wheel(wheel)


def choose_layout(config: BuildConfig, default: Layout, secrets: Mapping[str, str]) -> tuple[Layout, str]:
    """Return the layout of a build, and why."""
    if default == Layout.COMBINED:
        return Layout.COMBINED, "the agent server is installed beside the project (setting DEPLOYMENT_LAYOUT)"
    if wants_one_process(secrets):
        return Layout.COMBINED, "the agent server is installed beside the project, because EXECUTORS is 0"

    if config.has_web_app and not secrets.get("EXECUTORS", "").strip():
        # Its lifespan may prepare objects of modules that the graphs use, which takes one process.
        return Layout.COMBINED, "http.app and graphs may share objects; set the secret EXECUTORS=1 if they do not"

    return Layout.SPLIT, "the agent server runs from the platform's environment, and graphs in one of their own"


def wants_one_process(secrets: Mapping[str, str]) -> bool:
    """Whether a revision's variables ask for graphs in the server's own process."""
    executors = secrets.get("EXECUTORS", "").strip()
    return executors != "" and not executors.strip("0")


def _to_build_failure(exc: BaseException, request: BuildRequest, output: MaskedOutput) -> BuildFailed | None:
    """Return the failure that the user reads; None for an error that is not the build's, such as a cancellation."""
    match exc:
        case BuildFailed():
            return BuildFailed(output.mask(str(exc)))
        case TimeoutError():
            return BuildFailed(f"the build took longer than {request.timeout_s:g} seconds (setting BUILD_TIMEOUT_S)")
        case OSError():
            return BuildFailed(f"the build stopped because of a system error: {exc.strerror or exc}")
        case _:
            return None
