"""The program of executors for graphs in JavaScript: Node with what `executor-js/` of the repository builds."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from portside.kernel.errors import UserMistake

PROGRAM = "main.mjs"
BUILT = Path(__file__).parents[2] / "executor_js"
"""The folder of the package with the built program, and the list of the packages that it needs for TypeScript."""
# The system ends the process with its parent: a node that never yields reads no link.
_END_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(0)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class ProgramCommand(NamedTuple):
    """How to start a program: its arguments, variables beside those of the server, and the folder that it needs."""

    arguments: list[str]
    variables: Mapping[str, str]
    folder: Path | None


def javascript_command(*, node: Path, runtime: Path, project: Path, parent: int) -> ProgramCommand:
    """Return the command of an executor for JavaScript graphs; `--socket PATH` is added to it.

    `node` is the program, of version 20 or newer. `runtime` is a copy of `BUILT` with its packages installed;
    JavaScript needs none of them, TypeScript does. `project` is the folder of the configuration file, and `parent` the
    id of the process that starts it.
    """
    arguments = [str(node), str(runtime / PROGRAM)]
    if sys.platform == "linux":
        arguments = [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(parent), *arguments]
    return ProgramCommand(arguments, {"NODE_NO_WARNINGS": "1"}, project)


def find_node(given: str | None) -> Path:
    """Return the program Node: the given one, or that of the PATH. Raises UserMistake."""
    found = shutil.which(given or "node")
    if found is None:
        raise UserMistake(
            f"EXECUTOR_NODE names {given}, which is no program"
            if given
            else "the project has JavaScript graphs, and Node is not installed; install Node 20 or newer"
        )
    return Path(found)


def find_runtime(given: str | None) -> Path:
    """Return the folder of the built program. Raises UserMistake if it is not there."""
    folder = Path(given) if given else BUILT
    if not (folder / PROGRAM).is_file():
        raise UserMistake(
            f"{folder} has no {PROGRAM}, which executes JavaScript graphs; "
            + ("correct EXECUTOR_JAVASCRIPT" if given else "build it with “make install”")
        )
    return folder
