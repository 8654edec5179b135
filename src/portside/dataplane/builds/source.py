"""Fetching a repository with the git command, as a program that trusts nothing it is given.

git runs without prompts, without the machine's configuration and in an environment of its own; only the well-known
transports are allowed. The address travels in the environment, because arguments are visible to other users.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from portside.dataplane.builds.commands import Command, minimal_environment, run
from portside.dataplane.failures import BuildFailed

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_SIZE_CHECK_S = 0.5
_CONFIGURATION = """\
[safe]
	directory = *
[protocol]
	allow = never
[protocol "file"]
	allow = always
[protocol "git"]
	allow = always
[protocol "http"]
	allow = always
[protocol "https"]
	allow = always
[protocol "ssh"]
	allow = always
[core]
	hooksPath = /dev/null
[advice]
	detachedHead = false
"""


@dataclass(frozen=True)
class Source:
    """Which commit of which repository; a commit that is known already wins over the ref."""

    url: str
    ref: str | None
    commit: str | None
    max_bytes: int


class Checkout:
    """One repository on its way into a folder."""

    def __init__(self, source: Source, folder: Path, on_line: Callable[[str], None]) -> None:
        self._source, self._folder, self._on_line = source, folder, on_line
        self.files = folder / "source"

    async def fetch(self) -> str:
        """Fetch and check out; return the commit. Raises BuildFailed with what git said."""
        self.files.mkdir(parents=True)
        await self._git("init", "--quiet", "--template=")
        watch = asyncio.create_task(self._watch_size())
        work = asyncio.create_task(self._fetch())
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            await work
            self._check_size()
        finally:
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)
        return (await self._git("rev-parse", "--verify", "HEAD", quiet=True))[-1]

    def forget_history(self) -> None:
        """Remove git's own folder, which the running agent has no need of."""
        shutil.rmtree(self.files / ".git", ignore_errors=True)

    async def _fetch(self) -> None:
        commit = self._source.commit or self._source.ref or ""
        if _COMMIT.fullmatch(commit):
            await self._fetch_commit(commit)
            await self._git("checkout", "--quiet", "--detach", commit)
            return
        ref = commit if commit.startswith("refs/") else f"refs/heads/{commit}"
        if commit:
            await self._git("check-ref-format", ref, explain=f"{commit!r} is not a valid branch or tag")
        await self._git("fetch", "--depth=1", "--no-tags", "--", "origin", ref if commit else "HEAD")
        await self._git("checkout", "--quiet", "--detach", "FETCH_HEAD")

    async def _fetch_commit(self, commit: str) -> None:
        """Ask for the one commit; servers that only hand out refs are asked for all of them."""
        try:
            await self._git("fetch", "--depth=1", "--no-tags", "--", "origin", commit)
        except BuildFailed:
            await self._git("fetch", "--no-tags", "--", "origin", "+refs/heads/*:refs/remotes/origin/*")
            await self._git("fetch", "--no-tags", "--", "origin", "+refs/tags/*:refs/tags/*")

    async def _git(self, *arguments: str, explain: str = "", quiet: bool = False) -> list[str]:
        configuration = self._folder / "gitconfig"
        configuration.write_text(_CONFIGURATION)
        environment = minimal_environment(
            os.environ,
            HOME=str(self._folder),
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=str(configuration),
            GIT_CONFIG_COUNT="1",
            GIT_CONFIG_KEY_0="remote.origin.url",
            GIT_CONFIG_VALUE_0=self._source.url,
            GIT_ALLOW_PROTOCOL="file:git:http:https:ssh",
            GIT_TERMINAL_PROMPT="0",
            GIT_ASKPASS="false",
            GIT_NO_LAZY_FETCH="1",
            GIT_SSH_COMMAND="ssh -oBatchMode=yes",
        )
        argv = ["git", "-c", "protocol.ext.allow=never", *arguments]
        command = Command(argv, self.files, environment, self._folder / "process")
        outcome = await run(command, _say_nothing if quiet else self._say)
        if outcome.code != 0:
            raise BuildFailed(explain or _reason(outcome.tail) or f"git {arguments[0]} ended with {outcome.code}")
        return outcome.tail

    def _say(self, line: str) -> None:
        self._on_line(mask_credentials(line))

    async def _watch_size(self) -> None:
        while True:
            await asyncio.sleep(_SIZE_CHECK_S)
            await asyncio.to_thread(self._check_size)

    def _check_size(self) -> None:
        if folder_size(self.files) > self._source.max_bytes:
            raise BuildFailed(
                f"the repository is larger than {self._source.max_bytes} bytes, the limit of this listener "
                "(setting MAX_SOURCE_BYTES)"
            )


def mask_credentials(text: str) -> str:
    """Hide the user and password in the addresses of a text."""
    return _CREDENTIALS.sub("***@", text)


def folder_size(folder: Path) -> int:
    """Return the bytes of all files under a folder; files that vanish meanwhile count nothing."""
    total = 0
    for parent, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - this loop is hot
            except OSError:
                continue
    return total


def _say_nothing(_line: str) -> None:
    """Keep a line out of the log."""


def _reason(tail: list[str]) -> str:
    said = [line for line in tail if line.startswith(("fatal:", "error:", "remote:", "ERROR:"))]
    return mask_credentials("; ".join(said or tail[-3:]))
