"""Running the programs of a build: their output line by line, and none of them left behind.

A program leads a process group of its own, which is killed when its build is cancelled. Its mark is kept in a file
meanwhile, so that a listener that was itself killed finds it at its next start. What moved to another group is found by
the variable that all programs of a build inherit, where the system shows the environment of processes (Linux).
"""

import asyncio
import codecs
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from portside.dataplane.builds.output import Output
from portside.dataplane.failures import BuildFailed
from portside.dataplane.processes import ProcessMark, ending, kill_group

_CHUNK = 65_536
_MAX_LINE = 8000
_TAIL_LINES = 30
_BUILD_VARIABLE = "PORTSIDE_BUILD"
_STRAY_ROUNDS = 20
_PROCESSES = Path("/proc")

# What a program may see of the listener's environment: how to reach the network, and nothing secret of ours.
_PASSED_ON = frozenset({
    "PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy",
})  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A program to run: its arguments, where, its whole environment, and the folder of the build it belongs to."""

    argv: list[str]
    cwd: Path
    env: Mapping[str, str]
    build: Path


@dataclass(frozen=True)
class Outcome:
    """How a program ended, with the last lines it wrote."""

    code: int
    tail: list[str]

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        hint = "; the machine may be out of memory" if self.code == -signal.SIGKILL else ""
        return ending(self.code) + hint


def minimal_environment(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the few variables that any program is given, and `more`."""
    passed = {name: value for name, value in environ.items() if name in _PASSED_ON}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **passed, **more}


async def run(command: Command, output: Output) -> Outcome:
    """Run a program to its end, handing each line of its output on. Raises BuildFailed when it cannot be started."""
    environment = {**command.env, _BUILD_VARIABLE: str(command.build)}
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv, cwd=command.cwd, env=environment, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
    except OSError as exc:
        raise BuildFailed(f"{Path(command.argv[0]).name} cannot be run: {exc.strerror}") from exc
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    mark = _mark_of(command.build)
    try:
        _write_mark(mark, process.pid)
        async for line in _lines(process):
            tail.append(output.say(line))
        code = await process.wait()
    finally:
        # Also after a good end: a program that left something running in its group does not get to keep it.
        kill_group(process.pid)
        await process.wait()
        mark.unlink(missing_ok=True)
    return Outcome(code, list(tail))


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    """Yield lines; a progress bar's carriage returns end lines too, and what is too long ends at a space.

    A text without any space is dropped when it is too long: cut anywhere, a value in it could not be masked.
    """
    assert process.stdout is not None  # noqa: S101 - narrows the type
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while chunk := await process.stdout.read(_CHUNK):
        *whole, rest = (rest + decoder.decode(chunk)).replace("\r", "\n").split("\n")
        if len(rest) > _MAX_LINE:
            end = rest.rfind(" ")
            whole, rest = ([*whole, rest[:end]], rest[end:]) if end > 0 else (whole, "")
        for line in whole:
            if line.strip():
                yield line.rstrip()
    if rest.strip():
        yield rest.rstrip()


def kill_left_behind(build: Path) -> None:
    """Kill what still runs for a build: the program an earlier listener began, and what left its group."""
    mark = _mark_of(build)
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        msgspec.json.decode(mark.read_bytes(), type=ProcessMark).kill_group()
    mark.unlink(missing_ok=True)
    kill_strays(build)


def kill_strays(folder: Path) -> None:
    """Kill every process of a build in a folder or below it."""
    # Again until none is found: one of them may have started another meanwhile.
    for _round in range(_STRAY_ROUNDS):
        found = _strays(folder)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _strays(folder: Path) -> list[int]:
    prefix = f"{_BUILD_VARIABLE}={folder}".encode()
    found = []
    for entry in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(variable == prefix or variable.startswith(prefix + b"/") for variable in variables):
                found.append(int(entry.name))
    return found


def _mark_of(build: Path) -> Path:
    return build / "process"


def _write_mark(mark: Path, pid: int) -> None:
    process = ProcessMark.of(pid)
    if process is not None:
        mark.write_bytes(msgspec.json.encode(process))
