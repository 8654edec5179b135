"""Where the files of a build come from: a git repository or an uploaded archive.

Neither is trusted. git runs without prompts, without the machine's configuration and in an environment of its own; only
well-known transports are allowed. The address travels in the environment, because other users can see arguments. git
never sees a user name or password in an address: it asks a helper for them, which reads them from the environment and
answers for the repository's own host alone. So no command line and no file on disk holds them. Submodules are fetched
level by level: a submodule that came over the network cannot name a folder of this machine.

An archive is a gzipped tar. Only regular files and folders below the target folder are unpacked, with plain modes.
Links, devices and everything else are refused, and so are archives that are too large in total, in their number of
entries, in the length of a path, or in their own headers. Sizes are counted while the data is unpacked.
"""

import asyncio
import gzip
import os
import re
import shutil
import tarfile
import threading
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast
from urllib.parse import SplitResult, unquote, urlsplit

from portside.dataplane.builds.commands import BuildCommand, minimal_environment, run
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput, mask_credentials
from portside.kernel.files import make_private_dir
from portside.listener_api import Secret

_SIZE_CHECK_S = 0.5


class Checkout(Protocol):
    """The checkout of a source into a folder; `files` is where its files are."""

    files: Path

    async def fetch(self) -> str:
        """Fetch the files; return the commit, or "" for a source without one. Raises BuildFailed."""

    def keep_history(self, history_folder: Path | None) -> None:
        """Move what the source can be checked out from again to a folder, if one is given, and remove the rest."""


class Source(Protocol):
    """What a revision is built from; the build log shows its `title`."""

    @property
    def title(self) -> str:
        """A description of the source for the log."""

    @property
    def hidden(self) -> list[str]:
        """The values that the log must mask."""

    def checkout(self, folder: Path, output: MaskedOutput) -> Checkout:
        """Return the checkout of the source into a build's folder."""


async def within_size(work: Coroutine[Any, Any, None], folder: Path, max_bytes: int, what: str) -> None:
    """Run work that fills a folder; cancel it when the folder exceeds the limit. Raises BuildFailed."""
    watching = asyncio.create_task(_watch_size(folder, max_bytes, what))
    filling = asyncio.create_task(work)
    try:
        await asyncio.wait({watching, filling}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()

        await filling
        await asyncio.to_thread(_check_size, folder, max_bytes, what)
    finally:
        for task in (watching, filling):
            task.cancel()
        await asyncio.gather(watching, filling, return_exceptions=True)


async def _watch_size(folder: Path, max_bytes: int, what: str) -> None:
    while True:
        await asyncio.sleep(_SIZE_CHECK_S)
        await asyncio.to_thread(_check_size, folder, max_bytes, what)


def _check_size(folder: Path, max_bytes: int, what: str) -> None:
    if folder_size(folder) > max_bytes:
        raise too_large(what, max_bytes)


def too_large(what: str, max_bytes: int) -> BuildFailed:
    """Return the failure for a source that is too large."""
    return BuildFailed(
        f"the {what} is larger than {max_bytes} bytes, the limit of this listener (setting MAX_SOURCE_BYTES)"
    )


def folder_size(folder: Path) -> int:
    """Return the total size of all files in a folder in bytes; files that vanish meanwhile are ignored."""
    total = 0

    for parent, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - this loop is hot
            except OSError:
                continue

    return total


Download = Callable[[Path], Awaitable[None]]

_MAX_ENTRIES = 100_000
_MAX_PATH = 1024
_MAX_NAME = 255
# The most that is read at once. tarfile asks for more only to read the header of a malicious entry.
_READ_BYTES = 256 * 1024


@dataclass(frozen=True)
class ArchiveSource:
    """An uploaded archive; `download` writes it to a file."""

    download: Download
    max_bytes: int

    @property
    def title(self) -> str:
        """A description of the source for the log."""
        return "the uploaded archive"

    @property
    def hidden(self) -> list[str]:
        """No value: an archive has no credentials."""
        return []

    def checkout(self, folder: Path, _output: MaskedOutput) -> "ArchiveCheckout":
        """Return the checkout that downloads and unpacks the archive."""
        return ArchiveCheckout(self, folder)


class ArchiveCheckout:
    """Downloads an archive and unpacks it into a folder."""

    def __init__(self, source: ArchiveSource, folder: Path) -> None:
        self._source = source
        self._archive = folder / "source.tar.gz"
        self.files = folder / "source"

    async def fetch(self) -> str:
        """Download and unpack the archive; it has no commit. Raises BuildFailed."""
        await self._source.download(self._archive)
        await unpack(self._archive, self.files, self._source.max_bytes)
        self._archive.unlink()
        return ""

    def keep_history(self, history_folder: Path | None) -> None:
        """Do nothing: the control plane keeps the archive."""


async def unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    """Unpack an archive into a new folder; a cancellation waits until writing has stopped. Raises BuildFailed."""
    stop = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_Unpacking(folder, max_bytes, stop).run, archive))
    try:
        await asyncio.shield(work)
    finally:
        stop.set()
        await asyncio.gather(work, return_exceptions=True)


class _Unpacking:
    """Unpacks one archive in a thread; `stop` ends it early."""

    def __init__(self, folder: Path, max_bytes: int, stop: threading.Event) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._stop = stop

    def run(self, archive: Path) -> None:
        """Unpack everything. Raises BuildFailed."""
        self._folder.mkdir(parents=True)
        try:
            self._measure(archive)
            for tar, entry in self._entries(archive):
                self._unpack(tar, entry)
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, RecursionError, ValueError) as exc:
            raise BuildFailed(f"the archive cannot be read as a gzipped tar: {exc}") from exc

    def _measure(self, archive: Path) -> None:
        """Read only the headers, so that an archive that is too large is refused before any file is written."""
        size = 0
        for number, (_, entry) in enumerate(self._entries(archive), 1):
            size += entry.size
            if number > _MAX_ENTRIES:
                raise BuildFailed(f"the archive has more than {_MAX_ENTRIES} entries")
            if size > self._max_bytes:
                raise too_large("archive", self._max_bytes)

    def _entries(self, archive: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        with gzip.open(archive) as content, _open_tar(content) as tar:
            for entry in tar:
                if self._stop.is_set():
                    return

                yield tar, entry
                vars(tar).update(members=[], pax_headers={})  # tarfile would keep all entries in memory

    def _unpack(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = _to_path(entry)
        target = self._folder / path
        try:
            if entry.isdir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._write(tar, entry, target)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as exc:
            raise BuildFailed(f"the archive has {str(path)!r} both as a file and as a folder") from exc

    def _write(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
        content = tar.extractfile(entry)
        assert content is not None  # noqa: S101 - it is a file
        mode = 0o700 if entry.mode & 0o100 else 0o600

        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            while not self._stop.is_set() and (chunk := content.read(_READ_BYTES)):
                file.write(chunk)


def _to_path(entry: tarfile.TarInfo) -> PurePosixPath:
    """Return the path of an entry relative to the folder. Raises BuildFailed."""
    path = PurePosixPath(entry.name)
    name = repr(entry.name[:200])
    if path.is_absolute() or ".." in path.parts or "\0" in entry.name:
        raise BuildFailed(f"the archive's {name} leads out of its folder; pack it with relative paths")

    if len(os.fsencode(path)) > _MAX_PATH or any(len(os.fsencode(part)) > _MAX_NAME for part in path.parts):
        raise BuildFailed(f"the archive's {name} is too long; a path has at most {_MAX_PATH} bytes, a name {_MAX_NAME}")

    if entry.issym() or entry.islnk():
        raise BuildFailed(f"the archive's {name} is a link; replace it by a file, because links are not unpacked")
    if not (entry.isreg() or entry.isdir()) or entry.issparse() or entry.size < 0:
        raise BuildFailed(f"the archive's {name} is neither a plain file nor a folder")

    return path


def _open_tar(content: gzip.GzipFile) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast("IO[bytes]", _BoundedReader(content)), mode="r:")


class _BoundedReader:
    """A stream that refuses large reads, so that a header in an archive cannot fill the memory."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _READ_BYTES:
            raise BuildFailed("the archive has an entry whose header is too long")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


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
            raise BuildFailed(_reason(outcome.tail) or f"git {arguments[0]} {outcome.exit}")

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


def _reason(tail: list[str]) -> str:
    errors = [line for line in tail if line.startswith(("fatal:", "error:", "remote:", "ERROR:"))]
    return "; ".join(errors or tail[-3:])


_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SUBMODULE = re.compile(r"[-+ U]?[0-9a-f]{40,64} (?P<path>.+)")
_MAX_SUBMODULE_DEPTH = 5
_MAX_SUBMODULES = 100
_NO_REF = "couldn't find remote ref"
_SHOWN_REFS = 20
_MAX_REFS = 10_000
_SILENT = MaskedOutput(lambda _line: None)


@dataclass(frozen=True)
class GitSource:
    """A commit of a git repository; a known `commit` overrides the `ref`.

    `credential` is a user name and a password or token for the repository's host, unless the URL has one. `kept` is a
    .git folder with the commit, from an earlier build: then nothing is fetched.
    """

    url: str
    ref: str | None
    commit: str | None
    max_bytes: int
    credential: Secret | None = None
    kept: Path | None = None

    @property
    def title(self) -> str:
        """The repository and the commit or ref."""
        return f"{mask_credentials(self.url)} at {self.commit or self.ref or 'HEAD'}"

    @property
    def hidden(self) -> list[str]:
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
        self._git = Git(address, secret, folder, output)
        self._submodules: list[Path] = []
        self.files = self._git.files

    async def fetch(self) -> str:
        """Fetch and check out, with submodules; return the commit. Raises BuildFailed with git's error."""
        if self._source.kept is not None and await self._check_out_kept(self._source.kept):
            return self._source.commit or ""

        self.files.mkdir(parents=True)
        await self._git.run(self.files, "init", "--quiet", "--template=")
        await within_size(self._fetch(), self.files, self._source.max_bytes, "repository")

        return (await self._git.run(self.files, "rev-parse", "--verify", "HEAD", output=_SILENT))[-1]

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

    async def _check_out_kept(self, earlier_history: Path) -> bool:
        """Check the commit out from a .git folder that an earlier build kept; return whether that was possible.

        The project's own code ran beside that folder, so git gets no credential here.
        """
        git = self._git
        self._git = replace(self._git, secret=None)
        try:
            self.files.mkdir(parents=True)
            await asyncio.to_thread(shutil.copytree, earlier_history, self.files / ".git", symlinks=True)
            await self._git.run(self.files, "checkout", "--quiet", "--force", "--detach", self._source.commit or "")
            fetching = self._fetch_submodules(self.files, git.address, 1)

            await within_size(fetching, self.files, self._source.max_bytes, "repository")
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
        kind, names = ("tag", "tags") if ref.startswith("refs/tags/") else ("branch", "branches")
        folder = "refs/tags/" if kind == "tag" else "refs/heads/"
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
