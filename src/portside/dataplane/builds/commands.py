"""Running the programs of a build: their output line by line, and none of them left behind.

A program leads a process group of its own, which is killed when its build is cancelled. Its mark is kept in a file
meanwhile, so that a listener that was itself killed finds it at its next start.
"""

import asyncio
import codecs
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from portside.dataplane.failures import BuildFailed
from portside.dataplane.processes import ProcessMark, kill_group

_CHUNK = 65_536
_MAX_LINE = 8000
_TAIL_LINES = 30

# What a program may see of the listener's environment: how to reach the network, and nothing secret of ours.
_PASSED_ON = frozenset({
    "PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy",
})  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A program to run: its arguments, where, and its whole environment."""

    argv: list[str]
    cwd: Path
    env: Mapping[str, str]
    mark: Path


@dataclass(frozen=True)
class Outcome:
    """How a program ended, with the last lines it wrote."""

    code: int
    tail: list[str]


def minimal_environment(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the few variables that any program is given, and `more`."""
    passed = {name: value for name, value in environ.items() if name in _PASSED_ON}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **passed, **more}


async def run(command: Command, on_line: Callable[[str], None]) -> Outcome:
    """Run a program to its end, handing each line of its output on. Raises BuildFailed when it cannot be started."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv, cwd=command.cwd, env=command.env, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
    except OSError as exc:
        raise BuildFailed(f"{Path(command.argv[0]).name} cannot be run: {exc.strerror}") from exc
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        _write_mark(command.mark, process.pid)
        async for line in _lines(process):
            tail.append(line)
            on_line(line)
        code = await process.wait()
    finally:
        # Also after a good end: a program that left something running in its group does not get to keep it.
        kill_group(process.pid)
        await process.wait()
        command.mark.unlink(missing_ok=True)
    return Outcome(code, list(tail))


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    """Yield lines of bounded length; a progress bar's carriage returns end lines too."""
    assert process.stdout is not None  # noqa: S101 - narrows the type
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while chunk := await process.stdout.read(_CHUNK):
        *whole, rest = (rest + decoder.decode(chunk)).replace("\r", "\n").split("\n")
        if len(rest) > _MAX_LINE:
            whole, rest = [*whole, rest], ""
        for line in whole:
            if line.strip():
                yield line.rstrip()[:_MAX_LINE]
    if rest.strip():
        yield rest.rstrip()


def kill_marked(mark: Path) -> None:
    """Kill the program whose mark an earlier listener left behind."""
    try:
        msgspec.json.decode(mark.read_bytes(), type=ProcessMark).kill_group()
    except (FileNotFoundError, msgspec.MsgspecError):
        return
    mark.unlink(missing_ok=True)


def _write_mark(mark: Path, pid: int) -> None:
    process = ProcessMark.of(pid)
    if process is not None:
        mark.write_bytes(msgspec.json.encode(process))
