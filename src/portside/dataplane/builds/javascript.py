"""Installs and builds the JavaScript of a project: its graphs, or the front end of a Python agent.

The package manager is chosen as on LangGraph's platform: the one of the lock file, else the one that `package.json`
names, else npm. It runs in the nearest folder with a lock file, from that of the configuration file up to the source's
root. Without a lock file it runs in the root, or in the folder of the configuration file if only that one has a
package. The build command always runs in the folder of the configuration file.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from portside.dataplane.builds.config import BuildConfig
from portside.dataplane.builds.node import OLDEST_NODE, NodeTools, NodeVersions, PackageManager, find_decisive_lines
from portside.dataplane.failures import BuildFailed

_MAX_BYTES = 1_000_000
_LOCK_FILES = {
    "yarn.lock": "yarn",
    "pnpm-lock.yaml": "pnpm",
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
    "bun.lockb": "bun",
    "bun.lock": "bun",
}
_INSTALLS = {"yarn": "yarn install", "pnpm": "pnpm i", "bun": "bun i", "npm": "npm i"}
_LOCKED_INSTALLS = {
    "yarn": "yarn install --frozen-lockfile",
    "pnpm": "pnpm i --frozen-lockfile",
    "npm": "npm ci",
    "bun": "bun i",
}
# What installs without a version: the major versions that most projects use, by the versions of lock files.
_NEWEST = {"yarn": "1", "pnpm": "10", "bun": "1", "npm": "10"}
# The oldest version of a lock file that a major version of a manager writes, the newest first.
_MANAGERS_BY_LOCK_VERSION = {
    "yarn": ((7, "4"), (5, "3"), (1, "2")),
    "pnpm": ((9, "10"), (6, "8"), (5, "7")),
}
_LOCK_VERSION = re.compile(r"^(?:lockfileVersion|  version): *['\"]?(\d+)", re.MULTILINE)
_NAMED = re.compile(
    r"\^?(?P<name>[a-z]+)(?:@(?P<version>[\^~]?\d[\w.-]*)(?:\+(?P<checksum>[a-z0-9]+\.[A-Za-z0-9+/=]+))?.*)?"
)
_WORD = re.compile(r"[\w-]+")
_NODE = re.compile(r"(?P<sign>\^|~|>=|=|v)? *(?P<major>\d{1,3})(?:\.[\dx*]+){0,2}(?P<or_newer> *(?:-|\|\|).*)?")
_PNPM_PACKAGE = re.compile(r"^\s*-\s*['\"]?([^'\"#\s]+)['\"]?\s*(?:#.*)?$", re.MULTILINE)
_LINKER = re.compile(r"^nodeLinker: *['\"]?(pnpm|node-modules)", re.MULTILINE)


@dataclass(frozen=True)
class Scripts:
    """The commands that a deployment sets for its JavaScript, which replace the default ones."""

    install: str | None = None
    build: str | None = None


def install_command(folder: Path) -> str:
    """Return the command that installs a folder's packages. Raises BuildFailed for an invalid package.json."""
    manager = find_package_manager(folder)
    is_locked = _find_lock_file(folder) is not None
    if manager.package == "@yarnpkg/cli-dist":
        return "yarn install --immutable" if is_locked else "yarn install --no-immutable"

    return (_LOCKED_INSTALLS if is_locked else _INSTALLS)[manager.name]


def find_missing_packages(folder: Path) -> str | None:
    """Return the command that installs the packages of a project, if they are not installed, as a person would run it.

    Raises BuildFailed for an invalid package.json.
    """
    package = _read_package(folder)
    folders = (folder, *folder.parents)
    if not package.get("dependencies") or any((candidate / "node_modules").is_dir() for candidate in folders):
        return None

    root = next((candidate for candidate in folders if _find_lock_file(candidate)), folder)
    return f"{_INSTALLS[find_package_manager(root).name]} in {root}"


def find_workspace(folder: Path) -> Path | None:
    """Return the root of the workspaces that a package may belong to, in the same git repository.

    None if the folder has no package or a lock file of its own. Raises BuildFailed for an invalid package.json.
    """
    if not (folder / "package.json").is_file() or _find_lock_file(folder):
        return None

    repository = next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)
    above = [] if repository is None else [parent for parent in folder.parents if parent.is_relative_to(repository)]
    return next((parent for parent in above if _is_workspace(parent) and _is_member(parent, folder)), None)


def find_package_manager(folder: Path) -> PackageManager:
    """Return the package manager of a folder. Raises BuildFailed for an invalid package.json."""
    package = _read_package(folder)
    lock = _find_lock_file(folder)
    preferred = _find_named_manager(package)
    if lock is None:
        return preferred or PackageManager("npm", _NEWEST["npm"])

    name = _LOCK_FILES[lock]
    if preferred is not None and preferred.name == name:
        return preferred

    return PackageManager(name, _read_lock_version(folder / lock, name))


def _find_named_manager(package: dict[str, Any]) -> PackageManager | None:
    """Return the manager that a package.json names, if it is one of those that are known."""
    text = package.get("packageManager")
    if not (isinstance(text, str) and text):
        engine = _get_object(_get_object(package, "devEngines"), "packageManager")
        text = f"{engine.get('name')}@{engine.get('version', '')}"

    match = _NAMED.match(text)
    if match is None or match["name"] not in _INSTALLS:
        return None

    return PackageManager(match["name"], match["version"] or _NEWEST[match["name"]], match["checksum"])


def _read_lock_version(lock: Path, name: str) -> str:
    """Return the major version of a manager that writes such a lock file."""
    versions = _MANAGERS_BY_LOCK_VERSION.get(name, ())
    match = _LOCK_VERSION.search(_read_beginning(lock, 2000)) if versions else None
    if match is None:
        return _NEWEST[name]

    lock_version = int(match[1])
    return next((manager for oldest, manager in versions if lock_version >= oldest), _NEWEST[name])


def _find_lock_file(folder: Path) -> str | None:
    return next((name for name in _LOCK_FILES if (folder / name).is_file()), None)


def find_install_roots(source: Path, config_folder: Path) -> list[Path]:
    """Return the folders to install in, the outermost first.

    The nearest one with a lock file above or in the configuration file's folder, else the source's root if it has a
    package. The folder of the configuration file is another one if it has dependencies that belong to no workspace; it
    is the only one if the root is a workspace that it is no member of.
    """
    folders = [config_folder, *config_folder.parents]
    folders = folders[: folders.index(source) + 1] if source in folders else [config_folder]

    root = next((folder for folder in folders if _find_lock_file(folder)), folders[-1])
    has_own = bool({"dependencies", "devDependencies"} & _read_package(config_folder).keys())
    if has_own and config_folder != root and _is_workspace(root) and not _is_member(root, config_folder):
        return [config_folder]

    roots = [root] if _has_package(root) else []
    belongs_to_root = bool(roots) and (not has_own or _is_workspace(root))
    if config_folder not in roots and _has_package(config_folder) and not belongs_to_root:
        roots.append(config_folder)

    return roots


def _is_workspace(folder: Path) -> bool:
    return "workspaces" in _read_package(folder) or (folder / "pnpm-workspace.yaml").is_file()


def _is_member(root: Path, folder: Path) -> bool:
    """Whether a folder is a package of the workspaces of a root, by the patterns that the root has for them."""
    workspaces = _read_package(root).get("workspaces")
    patterns = workspaces.get("packages") if isinstance(workspaces, dict) else workspaces
    if (root / "pnpm-workspace.yaml").is_file():
        patterns = _PNPM_PACKAGE.findall(_read_beginning(root / "pnpm-workspace.yaml"))

    # The last pattern that matches decides.
    is_member = False
    for pattern in patterns if isinstance(patterns, list) else ():
        if not isinstance(pattern, str):
            continue

        excludes = pattern.startswith("!")
        path = pattern.removeprefix("!").removeprefix("./")
        pattern_parts = tuple(part for part in path.split("/") if part)
        if _matches(folder.relative_to(root).parts, pattern_parts):
            is_member = not excludes

    return is_member


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path matches a pattern, in which `**` stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))

    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _is_ignored_by_workspace(folder: Path, manager: PackageManager) -> bool:
    """Whether a folder is below a workspace of pnpm and no member of it: pnpm would install the workspace instead."""
    if manager.name != "pnpm" or (folder / "pnpm-workspace.yaml").is_file():
        return False

    root = next((parent for parent in folder.parents if (parent / "pnpm-workspace.yaml").is_file()), None)
    return root is not None and not _is_member(root, folder)


def _has_package(folder: Path) -> bool:
    return (folder / "package.json").is_file() or _find_lock_file(folder) is not None


def read_node_versions(folder: Path, node_version: int | None) -> NodeVersions:
    """Return the versions of Node that a configuration file and the package.json of a folder allow.

    Raises BuildFailed if they contradict each other, or if the package requires another engine.
    """
    engines = _read_package(folder).get("engines")
    if engines is not None and (not isinstance(engines, dict) or any(name != "node" for name in engines)):
        names = ", ".join(sorted(map(str, engines))) if isinstance(engines, dict) else repr(engines)
        raise BuildFailed(f"package.json: engines may only name node, not {names}")

    required = str((engines or {}).get("node", "")).strip()
    if node_version is not None:
        if required.isdigit() and int(required) != node_version:
            raise BuildFailed(f"package.json: engines.node requires {required}, but node_version is {node_version}")
        return NodeVersions(node_version, node_version)

    match = _NODE.fullmatch(required)
    if required.isdigit() and int(required) < OLDEST_NODE:
        raise BuildFailed(f"package.json: engines.node requires {required}; Portside needs Node {OLDEST_NODE} or newer")
    if match is None or int(match["major"]) < OLDEST_NODE:
        return NodeVersions()

    major = int(match["major"])
    is_open = match["sign"] == ">=" or match["or_newer"]
    return NodeVersions(oldest=major) if is_open else NodeVersions(major, major)


@dataclass(frozen=True)
class JavaScript:
    """The JavaScript of one build, with the folder of its source."""

    source: Path
    tools: NodeTools

    async def install_and_build(self, config: BuildConfig, scripts: Scripts) -> bool:
        """Install, then run the build command if there is one. Return whether there is any. Raises BuildFailed."""
        config_folder = config.path.parent
        install = scripts.install or config.install_command
        build = scripts.build or config.build_command
        self._refuse_commands(config, install, build)

        if not (config.has_javascript or config.has_ui or config.node_version is not None or install or build):
            return False

        source = self.source.resolve()
        roots = [source] if install else find_install_roots(source, config_folder)
        await self.tools.install(read_node_versions(roots[0] if roots else config_folder, config.node_version))

        # A package of a workspace is managed as its root says.
        managers = {folder: find_package_manager(folder) for folder in (*roots, config_folder)}
        project_managers = {manager.name: manager for manager in reversed(managers.values())}
        for root in roots:
            command = install or install_command(root)
            if _is_ignored_by_workspace(root, managers[root]) and not install:
                command += " --ignore-workspace"

            await self._prepare(command, project_managers, root)
            variables = await self._variables(managers[root], root)

            # Two installations of yarn 1 break each other's entries in their cache.
            is_classic = managers[root].is_classic_yarn
            async with self.tools.alone("yarn") if is_classic else contextlib.nullcontext():
                await self._run(command, root, "install_command", variables)

        if build:
            await self._prepare(build, project_managers, config_folder)
            root = roots[0] if roots else config_folder
            await self._run(build, config_folder, "build_command", await self._variables(managers[root], root))

        return True

    async def _prepare(self, command: str, project_managers: Mapping[str, PackageManager], folder: Path) -> None:
        """Provide the package managers that a command names, in the project's own versions."""
        for name in dict.fromkeys(_WORD.findall(command)):
            if name in _INSTALLS:
                await self.tools.add_manager(project_managers.get(name, PackageManager(name, _NEWEST[name])), folder)

    async def _variables(self, manager: PackageManager, root: Path) -> dict[str, str]:
        """Return the variables that the commands of a project's package manager need."""
        if manager.package == "@yarnpkg/cli-dist":
            return await self._yarn_variables(root)
        return self.tools.pnpm_variables if manager.name == "pnpm" else {}

    async def _yarn_variables(self, root: Path) -> dict[str, str]:
        """Return what a newer yarn does not know: npm's registry, and that Node must find packages by itself."""
        registry = await self.tools.registry(root)
        settings = root / ".yarnrc.yml"
        text = _read_beginning(settings) if settings.is_file() else ""

        return {
            **({} if _LINKER.search(text) else {"YARN_NODE_LINKER": "node-modules"}),
            **({"YARN_NPM_REGISTRY_SERVER": registry} if registry and "npmRegistryServer" not in text else {}),
        }

    def _refuse_commands(self, config: BuildConfig, install: str | None, build: str | None) -> None:
        """Refuse a command in a project without JavaScript. Raises BuildFailed."""
        folders = (self.source, config.path.parent)
        has_any = config.has_javascript or config.node_version is not None
        if has_any or any(_has_package(folder) for folder in folders):
            return

        for name, command in (("install_command", install), ("build_command", build)):
            if command:
                raise BuildFailed(
                    f"source_config.{name} is for JavaScript, and the project has none: there is no package.json, and "
                    "the configuration file has no node_version. Remove the command"
                )

    async def _run(self, command: str, folder: Path, field: str, variables: Mapping[str, str]) -> None:
        self.tools.output.write(f"Running {command}")
        outcome = await self.tools.run(["/bin/sh", "-c", command], folder, variables=variables)
        if outcome.code != 0:
            raise BuildFailed(f"{command!r} ({field}) {outcome.exit}: {find_decisive_lines(outcome)}")


def _read_package(folder: Path) -> dict[str, Any]:
    path = folder / "package.json"
    if not path.is_file():
        return {}
    if path.stat().st_size > _MAX_BYTES:
        raise BuildFailed(f"package.json: larger than {_MAX_BYTES} bytes")

    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BuildFailed(f"package.json: {exc}") from exc


def _read_beginning(path: Path, characters: int = _MAX_BYTES) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(characters)


def _get_object(parent: dict[str, Any], name: str) -> dict[str, Any]:
    child = parent.get(name)
    return child if isinstance(child, dict) else {}
