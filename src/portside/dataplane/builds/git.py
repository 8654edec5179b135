"""Fetching a repository, its submodules too; the git command itself is in `git_command.py`.

Submodules are fetched level by level, each with the rules of the repository that names them: one that came over the
network cannot name a folder of this machine. Their host is told the repository's credential only where it is the same.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from portside.dataplane.builds.git_command import ANYWHERE, NETWORK, Git, address_of, is_local
from portside.dataplane.builds.output import Output, mask_credentials
from portside.dataplane.builds.source import within_size
from portside.dataplane.failures import BuildFailed
from portside.dataplane.types import Secret

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SUBMODULE = re.compile(r"[-+ U]?[0-9a-f]{40,64} (?P<path>.+)")
_MAX_SUBMODULE_DEPTH = 5
_MAX_SUBMODULES = 100
_SILENT = Output(lambda _line: None)


@dataclass(frozen=True)
class GitSource:
    """Which commit of which repository; a commit that is known already wins over the ref.

    `credential` is a user name and a password or token for the repository's host. The address may hold them instead.
    """

    url: str
    ref: str | None
    commit: str | None
    max_bytes: int
    credential: Secret | None = None

    @property
    def title(self) -> str:
        """The repository and what is fetched of it."""
        return f"{mask_credentials(self.url)} at {self.commit or self.ref or 'HEAD'}"

    @property
    def hidden(self) -> list[str]:
        """The password, or the user name where that is all there is: then it is a token."""
        _address, secret = address_of(self.url, self.credential)
        return [] if secret is None else [secret.value or secret.name]

    def checkout(self, folder: Path, output: Output) -> "GitCheckout":
        """Return what fetches the repository."""
        return GitCheckout(self, folder, output)


class GitCheckout:
    """One repository on its way into a folder."""

    def __init__(self, source: GitSource, folder: Path, output: Output) -> None:
        address, secret = address_of(source.url, source.credential)
        self._source, self._git = source, Git(address, secret, folder, output)
        self._submodules: list[Path] = []
        self.files = self._git.files

    async def fetch(self) -> str:
        """Fetch and check out, submodules too; return the commit. Raises BuildFailed with what git said."""
        self.files.mkdir(parents=True)
        await self._git.run(self.files, "init", "--quiet", "--template=")
        await within_size(self._fetch(), self.files, self._source.max_bytes, "repository")
        return (await self._git.run(self.files, "rev-parse", "--verify", "HEAD", output=_SILENT))[-1]

    def forget_history(self) -> None:
        """Remove what git keeps, which the running agent has no need of."""
        self._git.forget()
        shutil.rmtree(self.files / ".git", ignore_errors=True)
        for folder in self._submodules:
            (folder / ".git").unlink(missing_ok=True)

    async def _fetch(self) -> None:
        commit = self._source.commit or self._source.ref or ""
        if _COMMIT.fullmatch(commit):
            await self._fetch_commit(commit)
            await self._git.run(self.files, "checkout", "--quiet", "--detach", commit)
        else:
            ref = commit if commit.startswith("refs/") else f"refs/heads/{commit}"
            if commit:
                await self._check_ref(commit, ref)
            await self._git.run(
                self.files, "fetch", "--depth=1", "--no-tags", "--", "origin", ref if commit else "HEAD"
            )
            await self._git.run(self.files, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        await self._fetch_submodules(self.files, self._git.address, 1)

    async def _check_ref(self, name: str, ref: str) -> None:
        try:
            await self._git.run(self.files, "check-ref-format", ref)
        except BuildFailed as exc:
            raise BuildFailed(f"{name!r} is not a valid branch or tag") from exc

    async def _fetch_commit(self, commit: str) -> None:
        """Ask for the one commit; servers that only hand out refs are asked for all of them."""
        try:
            await self._git.run(self.files, "fetch", "--depth=1", "--no-tags", "--", "origin", commit)
        except BuildFailed:
            await self._git.run(self.files, "fetch", "--no-tags", "--", "origin", "+refs/heads/*:refs/remotes/origin/*")
            await self._git.run(self.files, "fetch", "--no-tags", "--", "origin", "+refs/tags/*:refs/tags/*")

    async def _fetch_submodules(self, folder: Path, address: str, depth: int) -> None:
        """Fetch what the repository in a folder, fetched from an address, names as its submodules, and theirs."""
        if not (folder / ".gitmodules").is_file():
            return
        paths = await self._submodule_paths(folder)
        if not paths:
            return
        if depth > _MAX_SUBMODULE_DEPTH:
            raise BuildFailed(f"submodules are nested more than {_MAX_SUBMODULE_DEPTH} deep")
        self._submodules += [folder / path for path in paths]
        if len(self._submodules) > _MAX_SUBMODULES:
            raise BuildFailed(f"the repository has more than {_MAX_SUBMODULES} submodules")
        allowed = ANYWHERE if is_local(address) else NETWORK
        await self._git.run(folder, "submodule", "--quiet", "update", "--init", "--depth=1", allowed=allowed)
        for path in paths:
            below = folder / path
            if not (below / ".git").exists():
                continue  # One that its repository marks as not to be fetched.
            found = await self._git.run(below, "config", "--get", "remote.origin.url", output=_SILENT)
            await self._fetch_submodules(below, found[-1], depth + 1)

    async def _submodule_paths(self, folder: Path) -> list[str]:
        found: list[str] = []
        await self._git.run(folder, "submodule", "status", output=Output(found.append, max_lines=_MAX_SUBMODULES + 1))
        return [match["path"] for line in found if (match := _SUBMODULE.fullmatch(line))]
