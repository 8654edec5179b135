"""A source in a git repository, which is not trusted.

git runs without prompts, without the machine's configuration and in an environment of its own; only well-known
transports are allowed. The address travels in the environment, because other users can see arguments. git never sees a
user name or password in an address: it asks a helper for them, which reads them from the environment and answers for
the repository's own host alone. So no command line and no file on disk holds them. Submodules are fetched level by
level: a submodule that came over the network cannot name a folder of this machine.
"""

import asyncio
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from portside.dataplane.builds.commands import BuildCommand, minimal_environment, run
from portside.dataplane.builds.sources import CommitTexts, run_within_size
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput, mask_credentials
from portside.kernel.files import make_private_dir
from portside.kernel.shortening import shorten_line
from portside.listener_api import MAX_COMMIT_TEXT, Secret

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NETWORK = "git:http:https:ssh"
ANYWHERE = f"file:{NETWORK}"
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
[http]
	lowSpeedLimit = 1000
	lowSpeedTime = 60
[core]
	hooksPath = /dev/null
[advice]
	detachedHead = false
"""
_USER = "PORTSIDE_GIT_USERNAME"
_PASSWORD = "PORTSIDE_GIT_PASSWORD"  # noqa: S105 - the name of a variable
# `printf` is a shell builtin, so no command line has the values.
_HELPER = f"""\
[credential "%s"]
	helper = "!f() {{ test \\"$1\\" = get && printf 'username=%%s\\\\npassword=%%s\\\\n' \
\\"${_USER}\\" \\"${_PASSWORD}\\"; }}; f"
"""
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SUBMODULE = re.compile(r"[-+ U]?[0-9a-f]{40,64} (?P<path>.+)")
_MAX_SUBMODULE_DEPTH = 5
_MAX_SUBMODULES = 100
_NO_REF = "couldn't find remote ref"
_SHOWN_REFS = 20
_MAX_REFS = 10_000
_SILENT = MaskedOutput(lambda _line: None)
# git cuts both texts, because a line that is too long is not read. What it leaves is longer than the limit.
_COMMIT_TEXTS = "--format=author %<(1000,trunc)%an%nsubject %<(1000,trunc)%s"


@dataclass(frozen=True)
class Git:
    """git for one build: the repository's address and its credential."""

    address: str
    secret: Secret | None
    build: Path
    output: MaskedOutput
    files: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", self.build / "source")
        if self.secret is not None and _CONTROL.search(self.secret.name + self.secret.value):
            raise BuildFailed("the repository's user name or password contains a control character")

    async def run(
        self, folder: Path, *arguments: str, output: MaskedOutput | None = None, allowed: str = ANYWHERE
    ) -> list[str]:
        """Run one command in a folder and return its last lines; `allowed` are the transports. Raises BuildFailed."""
        environment = minimal_environment(
            os.environ,
            HOME=str(self.build),
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=str(self._configuration()),
            GIT_ALLOW_PROTOCOL=allowed,
            GIT_TERMINAL_PROMPT="0",
            GIT_ASKPASS="false",
            GIT_NO_LAZY_FETCH="1",
            GIT_SSH_COMMAND="ssh -oBatchMode=yes",
            LC_ALL="C",  # Error messages are parsed, so they must be in English.
            **self._origin(folder),
            **({} if self.secret is None else {_USER: self.secret.name, _PASSWORD: self.secret.value}),
        )

        command = BuildCommand(["git", "-c", "protocol.ext.allow=never", *arguments], folder, environment, self.build)
        outcome = await run(command, output or self.output)
        if outcome.code != 0:
            raise BuildFailed(_find_reason(outcome.tail) or f"git {arguments[0]} {outcome.exit}")

        return outcome.tail

    def remove_configuration(self) -> None:
        """Remove the configuration file."""
        (self.build / "gitconfig").unlink(missing_ok=True)

    def _configuration(self) -> Path:
        path = self.build / "gitconfig"
        host = "" if self.secret is None else _HELPER % "/".join(self.address.split("/", 3)[:3])
        path.write_text(_CONFIGURATION + host)
        return path

    def _origin(self, folder: Path) -> dict[str, str]:
        """Return the variables that set the origin of the main repository; submodules have their own."""
        if folder != self.files:
            return {}

        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "remote.origin.url",
            "GIT_CONFIG_VALUE_0": self.address,
        }


def split_credential(url: str, credential: Secret | None) -> tuple[str, Secret | None]:
    """Return an address without credentials, and its credential: the one in the address, else the given one.

    Only http has passwords: with other transports a user name stays in the address, and a password is dropped.
    """
    parts = _split_url(url)
    if parts is None or not parts.netloc:
        return url, None

    userinfo, _, host = parts.netloc.rpartition("@")
    name, _, password = userinfo.partition(":")
    if parts.scheme not in {"http", "https"}:
        netloc = f"{name}@{host}" if name else host
        return parts._replace(netloc=netloc).geturl(), None

    secret = Secret(unquote(name), unquote(password)) if userinfo else credential
    return parts._replace(netloc=host).geturl(), secret


def is_local(url: str) -> bool:
    """Whether an address is a folder on this machine."""
    return url.startswith("file:") or ("://" not in url and not re.match(r"[^/]+:", url))


def _split_url(url: str) -> SplitResult | None:
    try:
        return urlsplit(url) if "://" in url else None
    except ValueError as exc:
        raise BuildFailed(f"the repository's address cannot be read: {exc}") from exc


def _find_reason(tail: list[str]) -> str:
    errors = [line for line in tail if line.startswith(("fatal:", "error:", "remote:", "ERROR:"))]
    return "; ".join(errors or tail[-3:])


def _clean_text(text: str | None) -> str | None:
    """Return a text of a commit as one printable line; None if nothing is left of it."""
    printable = "".join(character if character.isprintable() else " " for character in text or "")
    return shorten_line(" ".join(printable.split()), MAX_COMMIT_TEXT) or None


@dataclass(frozen=True)
class GitSource:
    """A commit of a git repository; a known `commit` overrides the `ref`.

    `credential` is a user name and a password or token for the repository's host, unless the URL has one. `history` is
    a .git folder with the commit, from an earlier build: then nothing is fetched.
    """

    url: str
    ref: str | None
    commit: str | None
    max_bytes: int
    credential: Secret | None = None
    history: Path | None = None

    @property
    def title(self) -> str:
        """The repository and the commit or ref."""
        return f"{mask_credentials(self.url)} at {self.commit or self.ref or 'HEAD'}"

    @property
    def secrets(self) -> list[str]:
        """The password; or the user name if that is all there is, because then it is a token."""
        _address, secret = split_credential(self.url, self.credential)
        return [] if secret is None else [secret.value or secret.name]

    def checkout(self, folder: Path, output: MaskedOutput) -> "GitCheckout":
        """Return the checkout that fetches the repository."""
        return GitCheckout(self, folder, output)


class GitCheckout:
    """Fetches a repository into a folder."""

    def __init__(self, source: GitSource, folder: Path, output: MaskedOutput) -> None:
        address, secret = split_credential(source.url, source.credential)
        self._source = source
        self._git = Git(address=address, secret=secret, build=folder, output=output)
        self._submodules: list[Path] = []
        self.files = self._git.files

    async def fetch(self) -> str:
        """Fetch and check out, with submodules; return the commit. Raises BuildFailed with git's error."""
        if self._source.history is not None and await self._check_out_history(self._source.history):
            return self._source.commit or ""

        self.files.mkdir(parents=True)
        await self._git.run(self.files, "init", "--quiet", "--template=")
        await run_within_size(self._fetch(), self.files, self._source.max_bytes, "repository")

        return (await self._git.run(self.files, "rev-parse", "--verify", "HEAD", output=_SILENT))[-1]

    async def read_commit_texts(self) -> CommitTexts:
        """Return the author and the subject of the commit, without control characters and secrets; None if unreadable.

        The .git folder may be that of an earlier build, so git gets no credential here.
        """
        lines: list[str] = []
        git = replace(self._git, secret=None)
        output = MaskedOutput(lines.append, max_lines=2)
        try:
            await git.run(self.files, "log", "-1", "--no-show-signature", _COMMIT_TEXTS, output=output)
        except BuildFailed as exc:
            self._git.output.write(f"The author and the subject of the commit cannot be read: {exc}")
            return CommitTexts()

        texts = dict(self._git.output.mask(line).partition(" ")[::2] for line in lines)
        return CommitTexts(author=_clean_text(texts.get("author")), subject=_clean_text(texts.get("subject")))

    def keep_history(self, history_folder: Path | None) -> None:
        """Move the .git folder, which the running agent does not need, to another place, or remove it."""
        self._git.remove_configuration()
        history = self.files / ".git"
        if history_folder is not None and history.is_dir():
            # Names the repository's address, and is of no further use.
            (history / "FETCH_HEAD").unlink(missing_ok=True)
            shutil.rmtree(history_folder, ignore_errors=True)
            make_private_dir(history_folder.parent)
            history.rename(history_folder)

        shutil.rmtree(history, ignore_errors=True)

        for folder in self._submodules:
            (folder / ".git").unlink(missing_ok=True)

    async def _check_out_history(self, history: Path) -> bool:
        """Check the commit out from a .git folder that an earlier build kept; return whether that was possible.

        The project's own code ran beside that folder, so git gets no credential here.
        """
        git = self._git
        self._git = replace(self._git, secret=None)
        try:
            self.files.mkdir(parents=True)
            await asyncio.to_thread(shutil.copytree, history, self.files / ".git", symlinks=True)
            await self._git.run(self.files, "checkout", "--quiet", "--force", "--detach", self._source.commit or "")
            fetching = self._fetch_submodules(self.files, git.address, 1)

            await run_within_size(fetching, self.files, self._source.max_bytes, "repository")
        except (BuildFailed, OSError, shutil.Error) as exc:
            git.output.write(f"The copy of this commit from an earlier build cannot be used: {exc}")
            await asyncio.to_thread(shutil.rmtree, self.files, ignore_errors=True)
            self._submodules = []
            return False
        finally:
            self._git = git

        git.output.write("Using the copy of this commit from an earlier build")
        return True

    async def _fetch(self) -> None:
        commit = self._source.commit or self._source.ref or ""
        if _COMMIT.fullmatch(commit):
            await self._fetch_commit(commit)
            await self._git.run(self.files, "checkout", "--quiet", "--detach", commit)
        else:
            ref = commit if commit.startswith("refs/") else f"refs/heads/{commit}"
            if commit:
                await self._check_ref(commit, ref)

            await self._fetch_ref(ref if commit else "HEAD")
            await self._git.run(self.files, "checkout", "--quiet", "--detach", "FETCH_HEAD")

        await self._fetch_submodules(self.files, self._git.address, 1)

    async def _check_ref(self, name: str, ref: str) -> None:
        try:
            await self._git.run(self.files, "check-ref-format", ref)
        except BuildFailed as exc:
            raise BuildFailed(f"{name!r} is not a valid branch or tag") from exc

    async def _fetch_ref(self, ref: str) -> None:
        """Fetch a branch, a tag or HEAD. Raises BuildFailed, for a missing ref with a list of the existing ones."""
        try:
            await self._git.run(self.files, "fetch", "--depth=1", "--no-tags", "--", "origin", ref)
        except BuildFailed as exc:
            if _NO_REF not in str(exc):
                raise
            raise BuildFailed(await self._describe_missing(ref)) from exc

    async def _describe_missing(self, ref: str) -> str:
        if ref.startswith("refs/tags/"):
            kind, names, folder = "tag", "tags", "refs/tags/"
        else:
            kind, names, folder = "branch", "branches", "refs/heads/"

        lines: list[str] = []
        output = MaskedOutput(lines.append, max_lines=_MAX_REFS)

        await self._git.run(self.files, "ls-remote", "--refs", "--", "origin", f"{folder}*", output=output)
        refs = [line.partition("\t")[2].removeprefix(folder) for line in lines if "\t" in line]
        if not refs:
            return f"the repository has no {names}" if ref != "HEAD" else "the repository has no commits"

        more = f" and {len(refs) - _SHOWN_REFS} more" if len(refs) > _SHOWN_REFS else ""
        lack = "no default branch" if ref == "HEAD" else f"no {kind} {ref.removeprefix(folder)!r}"
        return f"the repository has {lack}; its {names} are {', '.join(refs[:_SHOWN_REFS])}{more}"

    async def _fetch_commit(self, commit: str) -> None:
        """Fetch one commit; a server that only serves refs is asked for all of them."""
        try:
            await self._git.run(self.files, "fetch", "--depth=1", "--no-tags", "--", "origin", commit)
        except BuildFailed:
            await self._git.run(self.files, "fetch", "--no-tags", "--", "origin", "+refs/heads/*:refs/remotes/origin/*")
            await self._git.run(self.files, "fetch", "--no-tags", "--", "origin", "+refs/tags/*:refs/tags/*")

    async def _fetch_submodules(self, folder: Path, address: str, depth: int) -> None:
        """Fetch the submodules of the repository in a folder, which came from this address, and their submodules."""
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
                continue  # The repository marks this submodule as not to be fetched.

            lines = await self._git.run(below, "config", "--get", "remote.origin.url", output=_SILENT)
            await self._fetch_submodules(below, lines[-1], depth + 1)

    async def _submodule_paths(self, folder: Path) -> list[str]:
        lines: list[str] = []
        await self._git.run(
            folder, "submodule", "status", output=MaskedOutput(lines.append, max_lines=_MAX_SUBMODULES + 1)
        )
        return [match["path"] for line in lines if (match := _SUBMODULE.fullmatch(line))]
