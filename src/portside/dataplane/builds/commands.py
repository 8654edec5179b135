"""Runs the programs of a build, passes their output on line by line, and leaves none of them running.

A program leads its own process group, which is killed when the build is cancelled. A file has the program's identity
meanwhile: if the listener is killed, the next one finds the program there. Processes that moved to another group are
found by a variable that all programs of a build inherit, on systems that show the environment of processes (Linux).
"""

import asyncio
import codecs
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from portside.dataplane.processes import ProcessIdentity, kill_group, kill_processes
from portside.kernel.supervision import describe_exit
from portside.kernel.tasks import cancel_and_wait

_CHUNK = 65_536
_MAX_LINE = 8000
_END_OF_WORD = re.compile(r"[ \n]")
_TAIL_LINES = 30
_BUILD_VARIABLE = "PORTSIDE_BUILD"
_DRAIN_S = 2.0

# Variables of the listener that a program may see: those about the network, and none that is secret.
_PASSED_ON = frozenset(
    {
        "PATH",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    }
)


@dataclass(frozen=True)
class BuildCommand:
    """A program to run: its arguments, folder and whole environment, and the folder of its build."""

    argv: list[str]
    cwd: Path
    env: Mapping[str, str]
    build: Path


@dataclass(frozen=True)
class CommandOutcome:
    """How a program ended, and its last lines of output."""

    code: int
    tail: list[str]

    @property
    def exit(self) -> str:
        """A description of how the program ended."""
        hint = "; the machine may be out of memory" if self.code == -signal.SIGKILL else ""
        return describe_exit(self.code) + hint


def minimal_environment(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the few variables that every program gets, and `more`."""
    inherited = {name: value for name, value in environ.items() if name in _PASSED_ON}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **inherited, **more}


async def run(command: BuildCommand, output: MaskedOutput) -> CommandOutcome:
    """Run a program to its end and pass each line of its output on. Raises BuildFailed when it cannot be started."""
    lines, write_end = _open_line_reader()
    try:
        process = await _start(command, write_end)
    except BaseException as exc:
        lines.close()
        if isinstance(exc, OSError):
            name = Path(command.argv[0]).name
            raise BuildFailed(f"{name} cannot be started on the listener's machine: {exc.strerror}") from exc

        raise
    finally:
        os.close(write_end)

    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    reading = asyncio.create_task(lines.read_lines(lambda line: tail.append(output.write(line))))
    process_file = _process_file(command.build)
    try:
        _record_process(process_file, process.pid)
        code = await process.wait()
        await _wait_for_end_of_output(process.pid, command.build, reading)
    finally:
        kill_group(process.pid)
        await cancel_and_wait(reading)
        lines.close()
        await process.wait()
        process_file.unlink(missing_ok=True)

    return CommandOutcome(code, list(tail))


async def _start(command: BuildCommand, output: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command.argv,
        cwd=command.cwd,
        env={**command.env, _BUILD_VARIABLE: str(command.build)},
        start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )


async def _wait_for_end_of_output(group: int, build: Path, reading: asyncio.Task[None]) -> None:
    """Wait for the last line. Processes that the program left running hold the pipe open, so they are killed."""
    kill_group(group)
    await asyncio.wait({reading}, timeout=_DRAIN_S)
    if not reading.done():
        await asyncio.to_thread(kill_strays, build)
        await asyncio.wait({reading}, timeout=_DRAIN_S)


class _LineReader:
    """Reads the output of a program line by line from the listener's own pipe.

    The pipe is not a transport of the event loop: uvloop closes the descriptor of a pipe transport twice, and by the
    second time it may belong to a file that another thread has just opened.
    """

    def __init__(self, read_end: int) -> None:
        os.set_blocking(read_end, False)
        self._read_end = read_end

    def close(self) -> None:
        """Close the read end."""
        os.close(self._read_end)

    async def _read(self) -> bytes:
        """Return the next bytes as soon as there are any; empty at the end of the output."""
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

    async def read_lines(self, on_line: Callable[[str], object]) -> None:
        """Pass each line to `on_line` until the end of the output.

        The carriage returns of a progress bar end lines too. A line that is too long is split at a space. A word that
        is too long is dropped: cut in the middle of a secret, it could not be masked.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        is_in_dropped_word = False
        while chunk := await self._read():
            text = decoder.decode(chunk).replace("\r", "\n")
            if is_in_dropped_word:
                if (end_of_word := _END_OF_WORD.search(text)) is None:
                    continue

                text = text[end_of_word.start() :]
                is_in_dropped_word = False

            *whole, rest = (rest + text).split("\n")
            if len(rest) > _MAX_LINE:
                end = rest.rfind(" ")
                if end > 0:
                    whole.append(rest[:end])
                    rest = rest[end:]
                else:
                    rest = ""
                    is_in_dropped_word = True

            for line in whole:
                if line.strip():
                    on_line(line.rstrip())

        if rest.strip():
            on_line(rest.rstrip())


def _open_line_reader() -> tuple[_LineReader, int]:
    """Open a pipe; return a reader for its read end, and its write end."""
    read_end, write_end = os.pipe()
    return _LineReader(read_end), write_end


def kill_leftovers(build: Path) -> None:
    """Kill the program of a build that an earlier listener started, and the processes that left its group."""
    process_file = _process_file(build)
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        msgspec.json.decode(process_file.read_bytes(), type=ProcessIdentity).kill_group()

    process_file.unlink(missing_ok=True)
    kill_strays(build)


def kill_strays(folder: Path) -> None:
    """Kill every process of the builds in a folder or below it."""
    kill_processes(_BUILD_VARIABLE, folder)


def _process_file(build: Path) -> Path:
    return build / "process"


def _record_process(process_file: Path, pid: int) -> None:
    process = ProcessIdentity.find(pid)
    if process is not None:
        process_file.write_bytes(msgspec.json.encode(process))
