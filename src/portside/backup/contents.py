"""The contents of a backup: files, as a compressed tar stream, with a summary at the end.

A file longer than a part is several entries of one name, so a stream of unknown length needs neither a temporary file
nor memory for more than one part. A file that changes while it is read cannot break the archive.
"""

import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec
import zstandard

from portside.backup.container import BackupRefused, ByteSource, EncryptedReader, EncryptedWriter

PART_BYTES = 8 << 20
SUMMARY = "summary.json"
_APPENDED = "PORTSIDE.appended"
_LEVEL = 3
Progress = Callable[[int], None]


class Summary(msgspec.Struct):
    """How many files and bytes a backup holds, and its databases with their sizes in bytes at its beginning."""

    files: int = 0
    size_bytes: int = 0
    databases: dict[str, int] = {}


class Packer:
    """Writes files into a backup. `progress` gets the number of bytes that were added."""

    def __init__(self, out: EncryptedWriter, progress: Progress) -> None:
        self._compressor: Any = zstandard.ZstdCompressor(level=_LEVEL).stream_writer(out, closefd=False)  # type: ignore[arg-type]
        self._tar = tarfile.open(  # noqa: SIM115 - `close` ends it
            fileobj=self._compressor, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20
        )
        self.summary = Summary()
        self._progress = progress

    def add_folder(self, name: str, mode: int) -> None:
        """Add an empty folder."""
        info = tarfile.TarInfo(name)
        info.type = tarfile.DIRTYPE
        info.mode = mode
        self._tar.addfile(info)

    def add_link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        info = tarfile.TarInfo(name)
        info.type = tarfile.SYMTYPE
        info.linkname = target
        self._tar.addfile(info)

    def add_stream(self, name: str, source: ByteSource, mode: int = 0o600) -> None:
        """Add a file with everything that the source returns."""
        is_first = True
        while True:
            part = _read_part(source)
            if not part and not is_first:
                break

            info = tarfile.TarInfo(name)
            info.size = len(part)
            info.mode = mode

            if not is_first:
                info.pax_headers = {_APPENDED: "1"}

            self._tar.addfile(info, _BytesReader(part))
            self.summary.size_bytes += len(part)
            self._progress(len(part))
            is_first = False

            if len(part) < PART_BYTES:
                break

        self.summary.files += 1

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a file with this content, which only its owner can read."""
        self.add_stream(name, _BytesReader(content))

    def add_tree(self, folder: Path, prefix: str, is_left_out: Callable[[str], bool]) -> None:
        """Add a folder with everything below it, except what is left out, sockets and what was removed meanwhile."""
        for path in sorted(folder.iterdir()):
            name = f"{prefix}/{path.name}"
            if is_left_out(name.partition("/")[2]):
                continue

            try:
                self._add_entry(path, name, is_left_out)
            except FileNotFoundError:
                continue

    def _add_entry(self, path: Path, name: str, is_left_out: Callable[[str], bool]) -> None:
        status = path.lstat()
        if path.is_symlink():
            self.add_link(name, str(path.readlink()))
        elif path.is_dir():
            self.add_folder(name, status.st_mode & 0o777)
            self.add_tree(path, name, is_left_out)
        elif path.is_file():
            with path.open("rb") as file:
                self.add_stream(name, file, status.st_mode & 0o777)

    def add_archive(self, prefix: str, source: IO[bytes]) -> None:
        """Add the entries of a tar stream, such as the one of `pg_basebackup`."""
        with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 20) as members:
            for member in members:
                name = f"{prefix}/{member.name.removeprefix('./')}"
                if member.isdir():
                    self.add_folder(name, member.mode & 0o777)
                elif member.isfile():
                    content = members.extractfile(member)
                    if content is not None:
                        self.add_stream(name, content, member.mode & 0o777)
                else:
                    raise BackupRefused(
                        f"the database folder holds {member.name}, which is not a regular file. A database with "
                        "tablespaces cannot be copied: take the backup with --dumps"
                    )

    def close(self) -> None:
        """Add the summary and end the stream."""
        text = msgspec.json.encode(self.summary)
        info = tarfile.TarInfo(SUMMARY)
        info.size = len(text)
        self._tar.addfile(info, _BytesReader(text))
        self._tar.close()
        self._compressor.close()


class _BytesReader:
    """Bytes as a file that is read once."""

    def __init__(self, data: bytes) -> None:
        self._rest = memoryview(data)

    def read(self, size: int = -1) -> bytes:
        data = self._rest[: len(self._rest) if size < 0 else size]
        self._rest = self._rest[len(data) :]
        return bytes(data)


def _read_part(source: ByteSource) -> bytes:
    """Read as many bytes as a part has, or all that are left."""
    parts = []
    rest = PART_BYTES
    while rest and (part := source.read(rest)):
        parts.append(part)
        rest -= len(part)

    return b"".join(parts)


@dataclass
class BackupEntry:
    """One entry of a backup. An appended one continues the file of its name; `link` is the target of a link."""

    name: str
    mode: int
    is_folder: bool = False
    is_appended: bool = False
    link: str | None = None
    content: ByteSource | None = field(default=None, repr=False)


class Contents:
    """The entries of a backup, to be read once. `summary` is complete when all were read."""

    def __init__(self, reader: EncryptedReader) -> None:
        self._reader = reader
        self.summary = Summary()

    def __iter__(self) -> Iterator[BackupEntry]:
        """Yield all entries but the summary, which is compared with them at the end. Raises BackupRefused."""
        counts = Summary()
        summary = None

        decompressor = zstandard.ZstdDecompressor()
        try:
            with (
                decompressor.stream_reader(self._reader, closefd=False) as stream,  # type: ignore[arg-type]
                tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as members,
            ):
                for member in members:
                    content = members.extractfile(member) if member.isfile() else None
                    if member.name == SUMMARY and content is not None:
                        summary = msgspec.json.decode(content.read(), type=Summary)
                        continue

                    entry = BackupEntry(
                        name=member.name,
                        mode=member.mode & 0o777,
                        is_folder=member.isdir(),
                        is_appended=_APPENDED in member.pax_headers,
                        link=member.linkname if member.issym() else None,
                        content=content,
                    )

                    if member.isfile():
                        counts.files += not entry.is_appended
                        counts.size_bytes += member.size

                    yield entry

            # The tar stream may end before the file does; reading on proves that the last chunk is there.
            self._reader.read()
        except (tarfile.TarError, zstandard.ZstdError, msgspec.MsgspecError, EOFError) as exc:
            raise BackupRefused(f"the backup is damaged: {exc}") from exc

        if summary is None or (summary.files, summary.size_bytes) != (counts.files, counts.size_bytes):
            raise BackupRefused("the backup is incomplete: it lacks files that its summary lists")

        self.summary = summary


def check(reader: EncryptedReader, progress: Progress) -> Summary:
    """Read a whole backup without writing anything, and return its summary. Raises BackupRefused."""
    contents = Contents(reader)
    for entry in contents:
        while entry.content is not None and (part := entry.content.read(1 << 20)):
            progress(len(part))

    return contents.summary


def unpack(reader: EncryptedReader, target: Path, progress: Progress) -> None:
    """Write the files of a backup into an empty folder. Raises BackupRefused; the caller removes the folder then."""
    for entry in Contents(reader):
        name = _check_path(entry.name)
        if any((target / parent).is_symlink() for parent in name.parents if parent.parts):
            raise BackupRefused(f"the backup names a file behind a link: {entry.name}")

        path = target / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

        if entry.is_folder:
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(entry.mode | 0o700)
        elif entry.link is not None:
            if _stays_inside(entry.name, entry.link):
                path.symlink_to(entry.link)
        elif entry.content is not None:
            _write_file(path, entry, entry.content, progress)


def _write_file(path: Path, entry: BackupEntry, content: ByteSource, progress: Progress) -> None:
    # O_NOFOLLOW: an earlier entry may have made a link of this name.
    flags = os.O_WRONLY | os.O_NOFOLLOW | (os.O_APPEND if entry.is_appended else os.O_CREAT | os.O_EXCL)
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        while part := content.read(1 << 20):
            file.write(part)
            progress(len(part))

        os.fchmod(file.fileno(), entry.mode)


def _check_path(name: str) -> PurePosixPath:
    """Return the path of an entry. Raises BackupRefused if it leads out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BackupRefused(f"the backup names a file outside of its folder: {name}")

    return path


def _stays_inside(name: str, target: str) -> bool:
    """Whether a link points into the restored folder by its text. Links that point elsewhere are not restored."""
    depth = len(PurePosixPath(name).parts) - 1
    for part in PurePosixPath(target).parts:
        if part == "/":
            return False

        depth += -1 if part == ".." else 1
        if depth < 1:
            return False

    return True
