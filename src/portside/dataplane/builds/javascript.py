"""Installing and building the JavaScript of a project, with the programs that are on the machine.

What installs is found as the contract says (7.2): by the lock file, else by what `package.json` names, else npm. It
runs at the top of the source; where nothing of Node's is there, beside the configuration file. The build command runs
beside the configuration file. No Node and no package manager is ever downloaded.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from portside.dataplane.builds.commands import Command, Outcome, minimal_environment, run
from portside.dataplane.builds.config import BuildConfig
from portside.dataplane.builds.output import Output
from portside.dataplane.failures import BuildFailed

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
    """The commands that a deployment gives for its JavaScript instead of those that are found."""

    install: str | None = None
    build: str | None = None


def install_command(folder: Path) -> str:
    """Return the command that installs what a folder needs. Raises BuildFailed for a bad package.json."""
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


def install_root(source: Path, beside: Path) -> Path:
    """Return where to install: the top of the source, or beside the configuration file if only that has a package."""
    names = ("package.json", *_LOCK_FILES)
    if any((source / name).is_file() for name in names) or not any((beside / name).is_file() for name in names):
        return source
    return beside


def check_engines(folder: Path, major: int) -> None:
    """Refuse a package.json that asks for an engine that is not this Node. Raises BuildFailed."""
    engines = _read_package(folder).get("engines")
    if engines is None:
        return
    if not isinstance(engines, dict) or any(name != "node" for name in engines):
        named = ", ".join(sorted(map(str, engines))) if isinstance(engines, dict) else repr(engines)
        raise BuildFailed(f"package.json: engines may only name node, not {named}")
    asked = str(engines.get("node", ""))
    if asked.isdigit() and int(asked) != major:
        raise BuildFailed(f"package.json: engines.node asks for {asked}, and Node {major} is installed on this machine")


@dataclass(frozen=True)
class JavaScript:
    """The JavaScript of one build; `folder` is the build's."""

    folder: Path
    source: Path
    output: Output

    async def make(self, config: BuildConfig, scripts: Scripts) -> None:
        """Install, then build where there is a command for it. Raises BuildFailed."""
        if not (config.wants_node or scripts.install or scripts.build):
            return
        beside = config.path.parent
        root = self.source if scripts.install else install_root(self.source, beside)
        major = await self._node_major()
        if config.node_version is not None and config.node_version != major:
            raise BuildFailed(f"node_version {config.node_version} is not installed on this machine; Node {major} is")
        check_engines(root, major)
        if scripts.install or any((root / name).is_file() for name in ("package.json", *_LOCK_FILES)):
            await self._run(scripts.install or install_command(root), root, "install_command")
        if scripts.build:
            await self._run(scripts.build, beside, "build_command")

    async def _node_major(self) -> int:
        outcome = await self._shell("node --version", self.source, self.output.silent())
        text = outcome.tail[-1].strip().lstrip("v").split(".")[0] if outcome.tail else ""
        if outcome.code != 0 or not text.isdigit():
            raise BuildFailed("the project has JavaScript, and Node is not installed on this machine")
        if int(text) < _OLDEST_NODE:
            raise BuildFailed(f"the project has JavaScript, and Node {text} is too old; {_OLDEST_NODE} is the oldest")
        return int(text)

    async def _run(self, command: str, folder: Path, what: str) -> None:
        program = command.partition(" ")[0]
        if what == "install_command" and program in {*_INSTALLS, "npm"} and not shutil.which(program):
            raise BuildFailed(f"the project installs with {program}, which is not installed on this machine")
        self.output.say(f"Running {command}")
        outcome = await self._shell(command, folder, self.output)
        if outcome.code != 0:
            last = "\n".join(outcome.tail[-10:])
            raise BuildFailed(f"{command!r} ({what}) {outcome.ending}: {last}")

    async def _shell(self, command: str, folder: Path, output: Output) -> Outcome:
        environment = _environment(os.environ, self.folder)
        return await run(Command(["/bin/sh", "-c", command], folder, environment, self.folder), output)


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
