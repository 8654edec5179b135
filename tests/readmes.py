"""The READMEs of the examples, followed as a reader does: their commands run, and print what the READMEs show."""

import asyncio
import runpy
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient

EXAMPLES = Path(__file__).parents[1] / "examples"
# Where `portside dev` and the platform listen in the READMEs.
AGENT = "http://127.0.0.1:2024"
PLATFORM = "http://127.0.0.1:8700"


class Block(NamedTuple):
    """A fenced block of a README, and the heading that it stands below."""

    heading: str
    language: str
    text: str


def read_blocks(folder: Path) -> list[Block]:
    """Return the fenced blocks of a README."""
    blocks: list[Block] = []
    heading = ""
    lines = iter((folder / "README.md").read_text("utf-8").splitlines())
    for line in lines:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("```"):
            blocks.append(Block(heading, line.removeprefix("```"), "".join(_read_until_fence(lines))))

    return blocks


def _read_until_fence(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line == "```":
            return
        yield f"{line}\n"


def find_command(folder: Path, start: str) -> list[str]:
    """Return the arguments of the one command of a README that begins so."""
    (command,) = [
        line
        for block in read_blocks(folder)
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith(start)
    ]
    return shlex.split(command)


class Reader:
    """Somebody who follows a README in this process, with other addresses than those in it."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, addresses: Mapping[str, str], **variables: str
    ) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._addresses = addresses
        self._names: dict[str, Any] = {"print": self._print, **variables}
        self._variables = variables
        self._printed: list[str] = []

    async def follow(self, *headings: str) -> None:
        """Run what stands below these headings. It must print what the README shows."""
        # A block without a language has what only a person does.
        blocks = [block for block in read_blocks(self._folder) if block.heading in headings and block.language]
        assert {block.heading for block in blocks} == set(headings)

        try:
            for block in blocks:
                await self._follow_block(block)
        finally:
            _close_clients(self._names)

        assert self._printed == []
        assert [block for block in blocks if block.language == "text"]

    async def _follow_block(self, block: Block) -> None:
        """Run a program or commands, or compare what they printed."""
        if block.language != "text":
            await self._run_in_thread(block)
            return

        printed = "\n".join(self._printed) + "\n"
        assert printed == block.text, f"{self._folder.name} prints\n{printed}and not\n{block.text}"
        self._printed.clear()

    async def _run_in_thread(self, block: Block) -> None:
        """Run a block while the loop of this thread serves the server that it asks."""
        result: Future[None] = Future()

        def run() -> None:
            try:
                self._run(block)
            except BaseException as exc:  # noqa: BLE001 - the test raises it
                result.set_exception(exc)
            else:
                result.set_result(None)

        # A program that waits for ever must not keep this process from its end.
        threading.Thread(target=run, daemon=True).start()
        await asyncio.wrap_future(result)

    def _run(self, block: Block) -> None:
        text = block.text
        for written, address in self._addresses.items():
            text = text.replace(written, address)

        if block.language == "python":
            exec(compile(text, str(self._folder / "README.md"), "exec"), self._names)
            return

        assert block.language == "sh", block
        for line in text.splitlines():
            self._run_command(line)

    def _run_command(self, line: str) -> None:
        for name, value in self._variables.items():
            line = line.replace(f"${name}", value)

        program, *arguments = shlex.split(line)
        if program == "export":
            for argument in arguments:
                self._monkeypatch.setenv(*argument.split("=", 1))
            return

        # Importing what the programs import takes a second in a process of their own.
        assert program == "python", line
        self._monkeypatch.setattr(sys, "argv", arguments)
        _close_clients(runpy.run_path(str(self._folder / arguments[0]), {"print": self._print}, "__main__"))

    def _print(self, *values: object) -> None:
        self._printed.append(" ".join(map(str, values)))


def _close_clients(names: Mapping[str, object]) -> None:
    """Close the connections that a program leaves to its end."""
    for value in names.values():
        if isinstance(value, (SyncLangGraphClient, httpx.Client)):
            value.close()
