"""Programs of a build: all output arrives, on both event loops, and descriptors are closed once."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from portside.dataplane.builds.commands import (
    BuildCommand,
    CommandOutcome,
    _LineReader,
    _open_line_reader,
    minimal_environment,
    run,
)
from portside.dataplane.masking import MaskedOutput

PATIENCE_S = 60
either_loop = pytest.mark.parametrize("runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def run_script(runs: Callable[..., Any], folder: Path, script: str, said: list[str]) -> CommandOutcome:
    async def bounded() -> CommandOutcome:
        command = BuildCommand(["sh", "-c", script], folder, minimal_environment(os.environ), folder)
        async with asyncio.timeout(PATIENCE_S):
            return await run(command, MaskedOutput(said.append))

    outcome: CommandOutcome = runs(bounded())
    return outcome


@either_loop
def test_every_output_line_arrives(runs: Callable[..., Any], tmp_path: Path):
    said: list[str] = []
    script = (
        "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i; done; printf 'half\\rrest'; echo oops >&2; exit 3"
    )
    outcome = run_script(runs, tmp_path, script, said)
    assert outcome.code == 3
    assert said == [*(f"line {number}" for number in range(1, 5001)), "half", "restoops"]

    assert outcome.tail == said[-30:]


def test_a_line_that_is_too_long_is_split_at_a_space_or_left_out(tmp_path: Path):
    """Cut in the middle of a secret it could not be masked."""
    said: list[str] = []
    script = (
        "head -c 40000 /dev/zero | tr '\\0' ' ' | sed 's/ /word /g'; echo; head -c 300000 /dev/zero | tr '\\0' x; echo"
    )
    run_script(asyncio.run, tmp_path, f"{script}; echo next", said)

    assert said[-1] == "next"
    assert sum(line.count("word") for line in said) > 1000
    assert sum(line.count("x") for line in said[:-1]) <= 8000


async def test_the_end_of_a_word_whose_beginning_was_left_out_is_left_out_too(monkeypatch: pytest.MonkeyPatch):
    """It could be the second half of a secret."""
    x = b"x" * 9000
    pieces = [x + b"sec", b"re", b"t\nnext\n", b"a " + x, x + b"sec", b"ret b\n", b" " + x, b"ret\rc"]

    async def read(_lines: _LineReader) -> bytes:
        return pieces.pop(0) if pieces else b""

    monkeypatch.setattr(_LineReader, "_read", read)
    lines, write_end = _open_line_reader()
    os.close(write_end)
    said: list[str] = []
    await lines.read_lines(said.append)
    lines.close()

    assert said == ["next", "a", " b", "c"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
@either_loop
def test_run_leaves_no_descriptor_open(runs: Callable[..., Any], tmp_path: Path):
    run_script(runs, tmp_path, "true", [])
    before = open_pipes()
    run_script(runs, tmp_path, "echo x; sleep 60 & exit 0", [])
    assert open_pipes() - before == set()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
def test_cancelled_start_leaves_no_descriptor_open(tmp_path: Path):
    async def start_and_cancel() -> None:
        command = BuildCommand(["sleep", "600"], tmp_path, minimal_environment(os.environ), tmp_path)
        starting = asyncio.create_task(run(command, MaskedOutput(lambda _line: None)))

        # The first step starts the program, and waits for the event loop to know it.
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert starting.cancelled()

    run_script(asyncio.run, tmp_path, "true", [])
    before = open_pipes()
    asyncio.run(start_and_cancel())
    assert open_pipes() - before == set()


def open_pipes() -> set[str]:
    """Return the pipes that this process has open; other descriptors are opened and closed by other threads, too."""
    found = set[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(descriptor.readlink()))

    return {name for name in found if name.startswith("pipe:")}


def test_pipe_is_never_a_loop_transport(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Uvloop closes the descriptor of a pipe twice, and in between another thread may have opened a file."""

    def refuse(*_arguments: object) -> None:
        raise AssertionError("uvloop reads the pipe")

    monkeypatch.setattr(uvloop.Loop, "connect_read_pipe", refuse)
    said: list[str] = []
    assert run_script(uvloop.run, tmp_path, "echo x", said).code == 0
    assert said == ["x"]
