"""The virtual environment of a revision, which uv creates and fills.

uv resolves the platform's own wheel together with the project's dependencies, so a conflict shows up in the build. uv
downloads an interpreter that the project needs and the machine lacks, unless UV_PYTHON_DOWNLOADS forbids it. Packages
that were installed before are linked from uv's cache, so a second environment with the same packages takes about a
second.
"""

import asyncio
import contextlib
import os
import platform
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from portside.dataplane.builds.commands import BuildCommand, CommandOutcome, minimal_environment, run
from portside.dataplane.builds.config import BuildConfig, FoundLock, UvSource
from portside.dataplane.builds.conflicts import (
    explain_conflict,
    find_missing_build_system,
    find_missing_requirement,
    read_pins,
)
from portside.dataplane.builds.pyproject import is_allowed, list_suitable_versions
from portside.dataplane.builds.wheel import NAME, SERVER, WheelContent, list_requirements
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput

_INTERPRETER = re.compile(r"cpython-(?P<version>\d+\.\d+\.\d+)-\S+\s+(?P<path>.+?)(?: -> .*)?")
# How uv begins the first line of an error.
_ERROR_BEGINNINGS = ("error:", "\N{MULTIPLICATION SIGN}")
_REGISTRY = re.compile(r'^source = \{ registry = "(https?://[^"]+)" \}$', re.MULTILINE)


def list_platform_pins(content: WheelContent, project_pins: Collection[str]) -> list[str]:
    """Return the versions of what the platform's wheel requires, and that in turn, as the platform itself has them.

    Packages that the project has pinned are left out.
    """
    versions: dict[str, str] = {}
    queue = [Requirement(line) for line in list_requirements(distribution(NAME), content)]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in versions or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue

        with contextlib.suppress(PackageNotFoundError):
            package = distribution(name)
            versions[name] = package.version
            queue += [Requirement(line) for line in package.requires or ()]

    return sorted(f"{name}=={version}" for name, version in versions.items() if name not in project_pins)


def python_path(folder: Path) -> Path:
    """Return the interpreter of a revision's folder."""
    return folder / "venv" / "bin" / "python"


@dataclass(frozen=True)
class _Inputs:
    """What is installed: requirements files, of which some are exported lock files, and projects in place."""

    files: list[Path]
    projects: list[Path]
    # The folder from which relative paths in the files count.
    cwd: Path
    locks: list[Path] = field(default_factory=list)
    # Whether the lock files name the version of everything that the project needs.
    is_locked: bool = False


@dataclass(frozen=True)
class Environment:
    """The virtual environment of one revision's folder."""

    folder: Path
    output: MaskedOutput
    # The folder of uv's package cache; None means uv's default.
    cache: Path | None = None
    # What the platform's own wheel has.
    content: WheelContent = SERVER

    async def create(self, config: BuildConfig, wheel: Path) -> None:
        """Create the environment and install into it. Raises BuildFailed."""
        interpreter = await self._find_interpreter(config)
        outcome = await self._run_uv(config, "venv", "--no-project", "--python", interpreter, str(self.folder / "venv"))
        if outcome.code != 0:
            raise BuildFailed(f"the virtual environment cannot be created: {' '.join(outcome.tail[-3:])}")

        inputs = await self._list_inputs(config)
        outcome = await self._install(config, inputs, wheel)
        # Lock files that the configuration does not ask for (`source.kind`) are only used if they fit.
        may_go_without_locks = bool(inputs.locks) and config.uv is None

        if outcome.code != 0 and may_go_without_locks and _has_no_solution(outcome):
            self.output.write(
                "The versions of uv.lock do not go together with what else is needed: installing what pyproject.toml "
                "asks for"
            )

            inputs = self._list_inputs_without_locks(config)
            outcome = await self._install(config, inputs, wheel)

        if outcome.code != 0:
            reason = (
                find_missing_build_system(config)
                or await self._explain_conflict(config, inputs)
                or find_missing_requirement(outcome.tail, config)
            )

            raise BuildFailed(f"the dependencies cannot be installed: {reason or describe_uv_error(outcome)}")

    async def _list_inputs(self, config: BuildConfig) -> _Inputs:
        """Return what to install: what lock files list with its hashes, and everything else that the project names."""
        inputs = self._list_inputs_without_locks(config)
        if config.uv is not None:
            requirements = await self._export_lock(config, config.uv)
            return replace(
                inputs,
                files=[requirements, *inputs.files],
                cwd=config.uv.root,
                locks=[requirements],
                is_locked=not inputs.files,
            )

        locks: list[Path] = []
        locked_folders: set[Path] = set()
        for number, lock in enumerate(config.found_locks):
            path = self.folder / f"locked-{number}.txt"
            if await self._export_found_lock(lock, path):
                locks.append(path)
                locked_folders.add(lock.project)

        return replace(
            inputs, files=[*locks, *inputs.files], locks=locks, is_locked=has_only_locked(config, locked_folders)
        )

    def _list_inputs_without_locks(self, config: BuildConfig) -> _Inputs:
        files = [*config.requirements]

        # In a file, because other users can see arguments, and a requirement may be a URL with a token.
        if config.packages:
            packages = self.folder / "packages.txt"
            packages.write_text("".join(f"{package}\n" for package in config.packages))
            files.append(packages)

        return _Inputs(files=files, projects=config.projects, cwd=config.path.parent)

    async def _install(self, config: BuildConfig, inputs: _Inputs, wheel: Path) -> CommandOutcome:
        """Install; beside lock files with the platform's own versions of what its wheel needs, if that is possible.

        What is locked, with its hashes, is the same from uv's cache as from an index, so no index is asked then.
        """
        files = [part for file in inputs.files for part in ("-r", str(file))]
        projects = [part for folder in inputs.projects for part in ("--editable", str(folder))]

        install = ["pip", "install", "--python", str(python_path(self.folder)), *files, *projects]
        if not inputs.locks:
            return await self._run_uv(config, *install, "--", str(wheel), cwd=inputs.cwd)

        constraints = await asyncio.to_thread(self._write_constraints, inputs.locks)
        constrained = ["--constraint", str(constraints)]

        if inputs.is_locked:
            lines: list[str] = []
            outcome = await self._run_uv(
                config,
                *install,
                "--offline",
                *constrained,
                "--",
                str(wheel),
                cwd=inputs.cwd,
                output=self.output.held(lines),
            )
            if outcome.code == 0:
                for line in lines:
                    self.output.write(line)

                return outcome

        outcome = await self._run_uv(config, *install, *constrained, "--", str(wheel), cwd=inputs.cwd)
        if outcome.code != 0:
            self.output.write("Trying again with other versions of what only the platform's own wheel requires")
            outcome = await self._run_uv(config, *install, "--", str(wheel), cwd=inputs.cwd)

        return outcome

    async def _export_found_lock(self, lock: FoundLock, path: Path) -> bool:
        """Write what a lock file lists that was found beside a project. False if it does not fit the pyproject.toml.

        uv compares the two without a network. Packages in folders are left out: they are installed in place.
        """
        outcome = await self._run_uv(
            None,
            "export",
            "--locked",
            "--offline",
            "--no-default-groups",
            "--no-emit-project",
            "--no-emit-workspace",
            "--no-emit-local",
            "--no-header",
            "--no-annotate",
            "--quiet",
            "--python",
            str(python_path(self.folder)),
            "--output-file",
            str(path),
            cwd=lock.project,
            variables=await asyncio.to_thread(_read_index, lock.file),
            output=self.output.silent(),
        )
        if outcome.code != 0:
            self.output.write(
                f"{lock.name} does not fit its pyproject.toml and is not used: installing what pyproject.toml asks for"
            )
            return False

        self.output.write(f"Installing the versions of {lock.name}, with its hashes")
        return True

    def _write_constraints(self, locks: Sequence[Path]) -> Path:
        """Pin what the platform's wheel needs beside lock files, so that two builds of one commit are equal."""
        project_pins = {name for lock in locks for name in read_pins(lock.read_text("utf-8").splitlines())}
        path = self.folder / "beside-the-lock.txt"
        path.write_text("".join(f"{line}\n" for line in list_platform_pins(self.content, project_pins)), "utf-8")
        return path

    async def replace_wheel(self, wheel: Path) -> None:
        """Install another version of the platform's wheel, without its dependencies. Raises BuildFailed."""
        outcome = await self._run_uv(
            None,
            "pip",
            "install",
            "--offline",
            "--no-deps",
            "--reinstall",
            "--python",
            str(python_path(self.folder)),
            "--",
            str(wheel),
        )
        if outcome.code != 0:
            raise BuildFailed(f"the platform's wheel cannot be installed: {describe_uv_error(outcome)}")

    async def _explain_conflict(self, config: BuildConfig, inputs: _Inputs) -> str | None:
        """Explain a conflict of the project with the agent server; None when something else is wrong."""
        projects = self.folder / "projects.txt"
        projects.write_text("".join(f"-e {folder}\n" for folder in config.projects))
        lists = [str(file) for file in inputs.files]
        silent = self.output.silent()

        alone = await self._run_uv(
            config,
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--annotation-style",
            "line",
            "--python",
            str(python_path(self.folder)),
            "--output-file",
            str(self.folder / "alone.txt"),
            *lists,
            str(projects),
            cwd=inputs.cwd,
            output=silent,
        )
        if alone.code != 0:
            return None

        names = {self.folder / "packages.txt": config.path.name, **dict.fromkeys(inputs.locks, "uv.lock")}
        pins = read_pins((self.folder / "alone.txt").read_text().splitlines())
        reason = explain_conflict(pins, list_requirements(distribution(NAME), self.content), names)

        return reason and f"{reason}. Change these requirements. The build log has the output of uv"

    async def _export_lock(self, config: BuildConfig, source: UvSource) -> Path:
        """Export the lock file to a requirements file."""
        path = self.folder / "locked.txt"
        package = [] if source.package is None else ["--package", source.package]

        # Without a package, uv exports the workspace member of its working folder.
        cwd = source.root if source.package else config.path.parent
        outcome = await self._run_uv(
            config,
            "export",
            "--frozen",
            "--no-dev",
            "--no-header",
            "--no-annotate",
            "--quiet",
            "--python",
            str(python_path(self.folder)),
            *package,
            "--output-file",
            str(path),
            cwd=cwd,
        )
        if outcome.code != 0:
            raise BuildFailed(f"uv.lock cannot be exported: {describe_uv_error(outcome)}")

        return path

    async def _find_interpreter(self, config: BuildConfig) -> str:
        """Return the interpreter: the listener's own if it fits, else an installed one, else one that uv downloads.

        Without a wanted patch, another patch of the same minor version does.
        """
        version = config.python_version or ""
        minor = ".".join(version.split(".")[:2])
        exact = f"=={minor}.*" if version == minor else f"=={version}"
        specifier = _join_specifiers(exact if version else "", config.requires_python)
        interpreter = await self._find_installed(specifier)
        if interpreter is not None:
            return interpreter

        download = version or list_suitable_versions(specifier)[0]
        self.output.write(f"Python {download} is not on this machine; uv downloads it")
        await self._run_uv(None, "python", "install", download, may_download=True)

        interpreter = await self._find_installed(specifier)
        if interpreter is not None:
            return interpreter

        if version != minor:
            interpreter = await self._find_installed(_join_specifiers(f"=={minor}.*", config.requires_python))

        if interpreter is not None:
            self.output.write(
                f"Python {version} could not be downloaded: another patch of Python {minor} is used, {interpreter}"
            )
            return interpreter

        requirement = f"{download} ({config.requires_python})" if config.requires_python else download
        versions = {platform.python_version()}
        versions |= {version for version, _path in await self._list_installed(">=3")}
        has = ", ".join(sorted(versions, key=_parse_version))

        raise BuildFailed(
            f"the project needs Python {requirement}, which the listener's machine does not have and could not "
            f"download: run 'uv python install {download}' there, or change python_version or requires-python. It has "
            f"Python {has}"
        )

    async def _find_installed(self, specifier: str) -> str | None:
        """Return the listener's own interpreter if it fits, else an installed one, else None."""
        if is_allowed(platform.python_version(), specifier):
            return str(getattr(sys, "_base_executable", sys.executable))

        interpreters = await self._list_installed(specifier)
        return interpreters[0][1] if interpreters else None

    async def _list_installed(self, specifier: str) -> list[tuple[str, str]]:
        """Return version and path of installed interpreters that fit: oldest minor version first, its newest patch."""
        pyenv_folders = await asyncio.to_thread(_list_pyenv_folders)
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, pyenv_folders)])
        outcome = await self._run_uv(
            None, "python", "list", "--only-installed", specifier, output=self.output.silent(), variables={"PATH": path}
        )

        interpreters = [
            (match["version"], str(self.folder / match["path"]))
            for line in outcome.tail
            if (match := _INTERPRETER.fullmatch(line)) and is_allowed(match["version"], specifier)
        ]

        def get_order(interpreter: tuple[str, str]) -> tuple[int, int, int]:
            major, minor, patch = _parse_version(interpreter[0])
            return major, minor, -patch

        return sorted(interpreters, key=get_order)

    async def _run_uv(
        self,
        config: BuildConfig | None,
        *arguments: str,
        cwd: Path | None = None,
        output: MaskedOutput | None = None,
        may_download: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> CommandOutcome:
        variables = {
            **({} if config is None else config.pip.variables),
            **(variables or {}),
            **({} if may_download else {"UV_PYTHON_DOWNLOADS": "never"}),
        }

        command = uv_command(arguments, self.folder, self.cache, variables)
        return await run(command if cwd is None else replace(command, cwd=cwd), output or self.output)


def uv_command(
    arguments: Sequence[str], build: Path, cache: Path | None, variables: Mapping[str, str] | None = None
) -> BuildCommand:
    """Return the command that runs uv in the folder of a build. A cache of None is uv's own."""
    environment = {
        **minimal_environment(os.environ),
        **{name: value for name, value in os.environ.items() if name.startswith("UV_")},
        **(variables or {}),
        "HOME": os.environ.get("HOME", str(build)),
        **({} if cache is None else {"UV_CACHE_DIR": str(cache)}),
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }

    return BuildCommand([find_uv_bin(), *arguments], build, environment, build)


def has_only_locked(config: BuildConfig, locked_folders: Collection[Path]) -> bool:
    """Whether a project needs nothing but the projects in these folders, whose lock files are used."""
    has_free_requirements = any(file.name != "pyproject.toml" for file in config.requirements)
    if config.packages or has_free_requirements:
        return False

    folders = [*config.projects, *(file.parent for file in config.requirements)]
    return all(folder in locked_folders for folder in folders)


def _list_pyenv_folders() -> list[Path]:
    """Return where pyenv keeps interpreters: of those on the PATH it shows only the ones that somebody selected."""
    root = os.environ.get("PYENV_ROOT") or Path(os.environ.get("HOME", "/"), ".pyenv")
    return sorted(Path(root).glob("versions/*/bin"))


def _join_specifiers(*specifiers: str) -> str:
    return ",".join(specifier for specifier in specifiers if specifier)


def _has_no_solution(outcome: CommandOutcome) -> bool:
    """Whether uv found no versions that go together; other failures, such as a false hash, are no reason to go on."""
    output = " ".join(" ".join(outcome.tail).split())
    return "No solution found" in output or "conflicting URLs" in output


def _read_index(lock: Path) -> dict[str, str]:
    """Return uv's variable for the index of a lock file, so that a mirror of this machine does not make it differ."""
    indexes = set(_REGISTRY.findall(lock.read_text("utf-8", "replace")))
    return {"UV_DEFAULT_INDEX": indexes.pop(), "UV_INDEX": ""} if len(indexes) == 1 else {}


def _parse_version(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def describe_uv_error(outcome: CommandOutcome) -> str:
    """Return the output of uv from its first error line on; without one, its last lines or how it ended."""
    tail = outcome.tail
    if outcome.code < 0 or not tail:
        return f"uv {outcome.exit}"

    for number, line in enumerate(tail):
        if line.lstrip().startswith(_ERROR_BEGINNINGS):
            return "\n".join(tail[number:])

    return "\n".join(tail[-10:])
