"""One virtual environment for each revision, made and filled by uv.

The platform's own wheel and the project's dependencies are resolved together, so that what does not fit is found here.
No interpreter is ever downloaded: the version a project asks for must be installed on the machine. What was installed
once comes out of uv's cache as links, so that an environment of the same packages is made in about a second.
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from portside.dataplane.builds.commands import Command, Outcome, minimal_environment, run
from portside.dataplane.builds.config import BuildConfig, UvSource
from portside.dataplane.builds.output import Output
from portside.dataplane.failures import BuildFailed

_VERSION = re.compile(r"(?:cpython|pypy)-(?P<minor>\d+\.\d+)")


def python_of(folder: Path) -> Path:
    """Return the interpreter of a revision's folder."""
    return folder / "venv" / "bin" / "python"


@dataclass(frozen=True)
class Environment:
    """The virtual environment of one revision's folder."""

    folder: Path
    output: Output

    async def make(self, config: BuildConfig, wheel: Path) -> None:
        """Make the environment and install into it. Raises BuildFailed."""
        interpreter = await self._interpreter(config.python_version)
        made = await self._uv(config, "venv", "--no-project", "--python", interpreter, str(self.folder / "venv"))
        if made.code != 0:
            raise BuildFailed(f"the virtual environment cannot be made: {' '.join(made.tail[-3:])}")
        requirements = [part for file in config.requirements for part in ("-r", str(file))]
        projects = [part for folder in config.projects for part in ("--editable", str(folder))]
        cwd = config.path.parent
        if config.uv is not None:
            requirements, cwd = ["-r", str(await self._locked(config, config.uv))], config.uv.root
        # In a file: arguments are visible to other users, and a requirement may be an address with a token in it.
        if config.packages:
            packages = self.folder / "packages.txt"
            packages.write_text("".join(f"{package}\n" for package in config.packages))
            requirements += ["-r", str(packages)]
        installed = await self._uv(
            config, "pip", "install", "--python", str(python_of(self.folder)), *requirements, *projects,
            "--", str(wheel), cwd=cwd,
        )  # fmt: skip
        if installed.code != 0:
            raise BuildFailed(f"the dependencies cannot be installed: {_error(installed)}")

    async def _locked(self, config: BuildConfig, source: UvSource) -> Path:
        """Write what the lock file names as a list of requirements."""
        path = self.folder / "locked.txt"
        package = [] if source.package is None else ["--package", source.package]
        # Without a package uv takes the member of the workspace that the configuration file lies in.
        cwd = source.root if source.package else config.path.parent
        outcome = await self._uv(
            config, "export", "--frozen", "--no-dev", "--no-hashes", "--no-header", "--no-annotate", "--quiet",
            "--python", str(python_of(self.folder)), *package, "--output-file", str(path), cwd=cwd,
        )  # fmt: skip
        if outcome.code != 0:
            raise BuildFailed(f"uv.lock cannot be read: {_error(outcome)}")
        return path

    async def _interpreter(self, version: str | None) -> str:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        if version is None or version == running:
            return str(getattr(sys, "_base_executable", sys.executable))
        silent = self.output.silent()
        found = await self._uv(None, "python", "find", "--no-project", "--system", version, output=silent)
        if found.code != 0 or not found.tail:
            listed = await self._uv(None, "python", "list", "--only-installed", output=silent)
            there = {running, *(match["minor"] for line in listed.tail if (match := _VERSION.match(line)))}
            raise BuildFailed(
                f"python_version {version} is not installed on this machine; there is "
                + ", ".join(sorted(there, key=lambda minor: [int(part) for part in minor.split(".")]))
            )
        return found.tail[-1]

    async def _uv(
        self, config: BuildConfig | None, *arguments: str, cwd: Path | None = None, output: Output | None = None
    ) -> Outcome:
        environment = {
            **minimal_environment(os.environ),
            **{name: value for name, value in os.environ.items() if name.startswith("UV_")},
            **({} if config is None else config.pip.variables),
            "HOME": os.environ.get("HOME", str(self.folder)),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_PROGRESS": "1",
            "NO_COLOR": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }
        command = Command([find_uv_bin(), *arguments], cwd or self.folder, environment, self.folder)
        return await run(command, output or self.output)


def _error(outcome: Outcome) -> str:
    """Return what uv said from its error mark on, the lines before it being progress; or how it ended."""
    tail = outcome.tail
    marked = [
        number for number, line in enumerate(tail) if line.lstrip().startswith(("error:", "\N{MULTIPLICATION SIGN}"))
    ]
    if outcome.code < 0 or not tail:
        return f"uv {outcome.ending}"
    return "\n".join(tail[marked[0] :] if marked else tail[-10:])
