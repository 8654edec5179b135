"""Installs and builds the JavaScript of a project with programs of this machine; none is ever downloaded.

The contract (7.2) sets the package manager: the one of the lock file, else the one that `package.json` names, else npm.
It runs in the root of the source or, without a package there, in the folder of the configuration file. The build
command always runs in the folder of the configuration file.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from portside.dataplane.builds.commands import BuildCommand, CommandOutcome, minimal_environment, run
from portside.dataplane.builds.config import BuildConfig
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput

_MAX_BYTES = 1_000_000
_OLDEST_NODE = 20
_LOCK_FILES = {
    "yarn.lock": "yarn install --frozen-lockfile",
    "pnpm-lock.yaml": "pnpm i --frozen-lockfile",
    "package-lock.json": "npm ci",
    "bun.lockb": "bun i",
}
_INSTALLS = {"yarn": "yarn install", "pnpm": "pnpm i", "bun": "bun i"}
_DEFAULT_INSTALL = "npm i"
_PASSED_ON = ("npm_config_", "NPM_CONFIG_", "YARN_", "BUN_", "PNPM_", "NODE_EXTRA_CA_CERTS")


@dataclass(frozen=True)
class Scripts:
    """The commands that a deployment sets for its JavaScript, which replace the default ones."""

    install: str | None = None
    build: str | None = None


def install_command(folder: Path) -> str:
    """Return the command that installs a folder's packages. Raises BuildFailed for an invalid package.json."""
    for name, command in _LOCK_FILES.items():
        if (folder / name).is_file():
            return command
    package = _read_package(folder)
    named = package.get("packageManager")
    if isinstance(named, str) and named:
        manager: object = named.lstrip("^").split("@")[0]
    else:
        manager = _below(_below(package, "devEngines"), "packageManager").get("name")
    return _INSTALLS.get(str(manager), _DEFAULT_INSTALL)


def install_root(source: Path, config_folder: Path) -> Path:
    """Return the folder to install in: the source's root, or `config_folder` if only that has a package."""
    return source if _has_package(source) or not _has_package(config_folder) else config_folder


def _has_package(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("package.json", *_LOCK_FILES))


def check_engines(folder: Path, major: int) -> None:
    """Refuse a package.json that requires another engine or another Node. Raises BuildFailed."""
    engines = _read_package(folder).get("engines")
    if engines is None:
        return
    if not isinstance(engines, dict) or any(name != "node" for name in engines):
        named = ", ".join(sorted(map(str, engines))) if isinstance(engines, dict) else repr(engines)
        raise BuildFailed(f"package.json: engines may only name node, not {named}")
    required = str(engines.get("node", ""))
    if required.isdigit() and int(required) != major:
        raise BuildFailed(
            f"package.json: engines.node requires {required}, but the listener's machine has Node {major}"
        )


@dataclass(frozen=True)
class JavaScript:
    """The JavaScript of one build; `folder` is the folder of the build."""

    folder: Path
    source: Path
    output: MaskedOutput

    async def install_and_build(self, config: BuildConfig, scripts: Scripts) -> None:
        """Install, then run the build command if there is one. Raises BuildFailed."""
        config_folder = config.path.parent
        self._refuse_scripts(config, scripts)
        if config.node_version is None and not (scripts.install or scripts.build):
            return
        root = self.source if scripts.install else install_root(self.source, config_folder)
        major = await self._node_major()
        if config.node_version is not None and config.node_version != major:
            raise BuildFailed(
                f"node_version {config.node_version}: the listener's machine has Node {major}; install the other one "
                "there, or change node_version"
            )
        check_engines(root, major)
        if scripts.install or _has_package(root):
            await self._run(scripts.install or install_command(root), root, "install_command")
        if scripts.build:
            await self._run(scripts.build, config_folder, "build_command")

    def _refuse_scripts(self, config: BuildConfig, scripts: Scripts) -> None:
        """Refuse a command in a project without JavaScript. Raises BuildFailed."""
        folders = (self.source, config.path.parent)
        if config.node_version is not None or any(_has_package(folder) for folder in folders):
            return
        for name, command in (("install_command", scripts.install), ("build_command", scripts.build)):
            if command:
                raise BuildFailed(
                    f"source_config.{name} is for JavaScript, and the project has none: there is no package.json, and "
                    "the configuration file has no node_version. Remove the command"
                )

    async def _node_major(self) -> int:
        outcome = await self._shell("node --version", self.source, self.output.silent())
        text = outcome.tail[-1].strip().lstrip("v").split(".")[0] if outcome.tail else ""
        if outcome.code != 0 or not text.isdigit():
            raise BuildFailed(
                "the project has JavaScript, but Node is not installed on the listener's machine; install it there"
            )
        if int(text) < _OLDEST_NODE:
            raise BuildFailed(f"the project needs Node {_OLDEST_NODE} or newer; the listener's machine has Node {text}")
        return int(text)

    async def _run(self, command: str, folder: Path, field: str) -> None:
        program = command.partition(" ")[0]
        if field == "install_command" and program in {*_INSTALLS, "npm"} and not shutil.which(program):
            raise BuildFailed(
                f"the project installs with {program}, which the listener's machine does not have; install it there"
            )
        self.output.write(f"Running {command}")
        outcome = await self._shell(command, folder, self.output)
        if outcome.code != 0:
            last = "\n".join(outcome.tail[-10:])
            raise BuildFailed(f"{command!r} ({field}) {outcome.exit}: {last}")

    async def _shell(self, command: str, folder: Path, output: MaskedOutput) -> CommandOutcome:
        environment = _environment(os.environ, self.folder)
        return await run(BuildCommand(["/bin/sh", "-c", command], folder, environment, self.folder), output)


def _environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    return {
        **minimal_environment(environ),
        **{name: value for name, value in environ.items() if name.startswith(_PASSED_ON)},
        "HOME": environ.get("HOME", str(folder)),
        "CI": "1",
        "NO_COLOR": "1",
        "NO_UPDATE_NOTIFIER": "1",
        "npm_config_audit": "false",
        "npm_config_fund": "false",
        "npm_config_progress": "false",
    }


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


def _below(parent: dict[str, Any], name: str) -> dict[str, Any]:
    child = parent.get(name)
    return child if isinstance(child, dict) else {}
