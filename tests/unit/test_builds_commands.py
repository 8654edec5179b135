"""Programs of a build: what they write is read whole, on either event loop, and descriptors are closed once."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from portside.dataplane.builds.commands import Command, Outcome, minimal_environment, run
from portside.dataplane.builds.output import Output

PATIENCE_S = 60
either_loop = pytest.mark.parametrize("runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def outcome_of(runs: Callable[..., Any], folder: Path, script: str, said: list[str]) -> Outcome:
    async def bounded() -> Outcome:
        command = Command(["sh", "-c", script], folder, minimal_environment(os.environ), folder)
        async with asyncio.timeout(PATIENCE_S):
            return await run(command, Output(said.append))

    outcome: Outcome = runs(bounded())
    return outcome


@either_loop
def test_every_line_of_a_program_arrives(runs: Callable[..., Any], tmp_path: Path):
    said: list[str] = []
    script = (
        "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i; done; printf 'half\\rrest'; echo oops >&2; exit 3"
    )
    outcome = outcome_of(runs, tmp_path, script, said)
    assert outcome.code == 3
    assert said == [*(f"line {number}" for number in range(1, 5001)), "half", "restoops"]
    assert outcome.tail == said[-30:]


@either_loop
def test_a_program_leaves_no_descriptor_open(runs: Callable[..., Any], tmp_path: Path):
    outcome_of(runs, tmp_path, "true", [])
    before = len(list(Path("/dev/fd").iterdir()))
    outcome_of(runs, tmp_path, "echo x; sleep 60 & exit 0", [])
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_no_descriptor_is_given_to_what_closes_it_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Uvloop does that to a pipe that it reads; a file that another thread opens in between is closed with it."""

    def refuse(*_arguments: object) -> None:
        raise AssertionError("uvloop reads the pipe")

    monkeypatch.setattr(uvloop.Loop, "connect_read_pipe", refuse)
    said: list[str] = []
    assert outcome_of(uvloop.run, tmp_path, "echo x", said).code == 0
    assert said == ["x"]
