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
from collections.abc import Callable, Mapping
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
_DRAIN_S = 2.0
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
    lines, write_end = _open_lines()
    try:
        process = await _start(command, write_end)
    except OSError as exc:
        lines.close()
        raise BuildFailed(f"{Path(command.argv[0]).name} cannot be run: {exc.strerror}") from exc
    finally:
        os.close(write_end)
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    reading = asyncio.create_task(lines.each(lambda line: tail.append(output.say(line))))
    mark = _mark_of(command.build)
    try:
        _write_mark(mark, process.pid)
        code = await process.wait()
        await _end_of_output(process.pid, command.build, reading)
    finally:
        kill_group(process.pid)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        lines.close()
        await process.wait()
        mark.unlink(missing_ok=True)
    return Outcome(code, list(tail))


async def _start(command: Command, output: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command.argv, cwd=command.cwd, env={**command.env, _BUILD_VARIABLE: str(command.build)},
        start_new_session=True, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
    )  # fmt: skip


async def _end_of_output(group: int, build: Path, reading: asyncio.Task[None]) -> None:
    """Wait for the last line; a program that left something running does not get to keep the build waiting for it."""
    kill_group(group)
    await asyncio.wait({reading}, timeout=_DRAIN_S)
    if not reading.done():
        await asyncio.to_thread(kill_strays, build)
        await asyncio.wait({reading}, timeout=_DRAIN_S)


class _Lines:
    """The output of a program, line by line, from a pipe of our own: its end does not hang on that of the program.

    The loop is not given the pipe as a transport: uvloop closes the descriptor of such a one twice, and the second time
    it may be a file that another thread has just opened.
    """

    def __init__(self, read_end: int) -> None:
        os.set_blocking(read_end, False)
        self._read_end = read_end

    def close(self) -> None:
        """Close the reading end; nobody reads any more."""
        os.close(self._read_end)

    async def _read(self) -> bytes:
        """Return what is there, once something is; nothing at the end."""
        while True:
            await self._readable()
            with contextlib.suppress(BlockingIOError):
                return os.read(self._read_end, _CHUNK)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._read_end, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._read_end)

    async def each(self, on_line: Callable[[str], object]) -> None:
        """Hand on each line until the end.

        A progress bar's carriage returns end lines too, and what is too long ends at a space. A text without any space
        is dropped when it is too long: cut anywhere, a value in it could not be masked.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        while chunk := await self._read():
            *whole, rest = (rest + decoder.decode(chunk)).replace("\r", "\n").split("\n")
            if len(rest) > _MAX_LINE:
                end = rest.rfind(" ")
                whole, rest = ([*whole, rest[:end]], rest[end:]) if end > 0 else (whole, "")
            for line in whole:
                if line.strip():
                    on_line(line.rstrip())
        if rest.strip():
            on_line(rest.rstrip())


def _open_lines() -> tuple[_Lines, int]:
    """Open a pipe: its reading end as lines, its writing end as it is."""
    read_end, write_end = os.pipe()
    return _Lines(read_end), write_end


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
