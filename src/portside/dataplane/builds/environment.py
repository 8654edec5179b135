"""One virtual environment for each revision, made and filled by uv.

The platform's own wheel and the project's dependencies are resolved together, so that what does not fit is found here.
No interpreter is ever downloaded: the version a project asks for must be installed on the machine.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from portside.dataplane.builds.commands import Command, Outcome, minimal_environment, run
from portside.dataplane.builds.config import BuildConfig
from portside.dataplane.failures import BuildFailed


def python_of(folder: Path) -> Path:
    """Return the interpreter of a revision's folder."""
    return folder / "venv" / "bin" / "python"


@dataclass(frozen=True)
class Environment:
    """The virtual environment of one revision's folder."""

    folder: Path
    on_line: Callable[[str], None]

    async def make(self, config: BuildConfig, wheel: Path) -> None:
        """Make the environment and install into it. Raises BuildFailed."""
        interpreter = await self._interpreter(config.python_version)
        made = await self._uv("venv", "--no-project", "--python", interpreter, str(self.folder / "venv"))
        if made.code != 0:
            raise BuildFailed(f"the virtual environment cannot be made: {' '.join(made.tail[-3:])}")
        requirements = [part for file in config.requirements for part in ("-r", str(file))]
        installed = await self._uv(
            "pip", "install", "--python", str(python_of(self.folder)), *requirements,
            "--", str(wheel), *config.packages, cwd=config.path.parent,
        )  # fmt: skip
        if installed.code != 0:
            raise BuildFailed(f"the dependencies cannot be installed: {_error(installed.tail)}")

    async def _interpreter(self, version: str | None) -> str:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        if version is None or version == running:
            return str(getattr(sys, "_base_executable", sys.executable))
        found = await self._uv("python", "find", "--no-project", "--system", version)
        if found.code != 0 or not found.tail:
            raise BuildFailed(
                f"python_version {version} is not installed on this machine; install it, or ask for {running}"
            )
        return found.tail[-1]

    async def _uv(self, *arguments: str, cwd: Path | None = None) -> Outcome:
        environment = minimal_environment(
            os.environ,
            **{name: value for name, value in os.environ.items() if name.startswith("UV_")},
            HOME=os.environ.get("HOME", str(self.folder)),
            UV_PYTHON_DOWNLOADS="never",
            UV_NO_PROGRESS="1",
            NO_COLOR="1",
            GIT_TERMINAL_PROMPT="0",
        )
        command = Command([find_uv_bin(), *arguments], cwd or self.folder, environment, self.folder / "process")
        return await run(command, self.on_line)


def _error(tail: list[str]) -> str:
    """Return what uv said from its error mark on; the lines before it are progress."""
    marked = [
        number for number, line in enumerate(tail) if line.lstrip().startswith(("error:", "\N{MULTIPLICATION SIGN}"))
    ]
    return "\n".join(tail[marked[0] :] if marked else tail[-10:])
