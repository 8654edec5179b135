"""What is in a backup: files come back as they were, and no entry is written outside of the restored folder."""

import io
import os
import socket
import tarfile
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest

from portside.backup import contents
from portside.backup.container import BackupRefused, EncryptedReader, EncryptedWriter, Header, Passphrase, new_salt
from portside.backup.contents import PART_BYTES, Packer, check, unpack

PASSPHRASE = Passphrase("correct horse battery")
SALT = new_salt()


def ignore(_size: int) -> None:
    """Ignore the progress."""


class Packed:
    """A backup in memory that is being written."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        self.header = Header(
            kind="data",
            created_at=datetime(2030, 1, 2, tzinfo=UTC),
            version="0.1.0",
            postgres=18,
            installation="i",
            salt=SALT,
            scrypt_log_n=14,
        )

        self._writer = EncryptedWriter(self.file, self.header, PASSPHRASE)
        self.packer = Packer(self._writer, ignore)

    def close(self) -> EncryptedReader:
        self.packer.close()
        self._writer.close()
        return self.reader()

    def reader(self) -> EncryptedReader:
        self.file.seek(0)
        return EncryptedReader(self.file, PASSPHRASE)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES])
def test_streams_of_unknown_length_come_back(tmp_path: Path, size: int) -> None:
    packed = Packed()
    content = os.urandom(1 << 16) * (size >> 16) + b"x" * (size & 0xFFFF)
    packed.packer.add_stream("dumps/one", io.BytesIO(content))
    unpack(packed.close(), tmp_path, ignore)
    assert (tmp_path / "dumps" / "one").read_bytes() == content
    assert check(packed.reader(), ignore).size_bytes == size


def test_trees_come_back_with_modes_and_links(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "archives" / "empty").mkdir(parents=True)
    (home / "archives" / "ä ö.tar.gz").write_bytes(b"archive")
    (home / "key").write_text("secret")
    (home / "key").chmod(0o600)
    (home / "run").write_text("#!/bin/sh")
    (home / "run").chmod(0o755)

    (home / "left out").write_text("x")
    (home / "archives" / "same").symlink_to("ä ö.tar.gz")
    (home / "outside").symlink_to("/etc/passwd")
    (home / "above").symlink_to("../../x")
    (home / "beside").symlink_to("../x")

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "s"))
        packed = Packed()
        packed.packer.add_tree(home, "home", lambda name: name == "left out")

    unpack(packed.close(), tmp_path / "new", ignore)
    new = tmp_path / "new" / "home"
    assert (new / "archives" / "same").read_bytes() == b"archive"
    assert sorted(path.name for path in new.rglob("*")) == sorted(
        ["archives", "empty", "ä ö.tar.gz", "same", "key", "run"]
    )
    assert [(new / name).stat().st_mode & 0o777 for name in ("key", "run")] == [0o600, 0o755]


def test_hostile_names_are_refused(tmp_path: Path) -> None:
    for name in ("/etc/cron.d/x", "../x", "home/../../x"):
        packed = Packed()
        packed.packer.add_bytes(name, b"x")
        with pytest.raises(BackupRefused, match="outside"):
            unpack(packed.close(), tmp_path / "new", ignore)

    assert list(tmp_path.rglob("*")) == [] or all(path.is_dir() for path in tmp_path.rglob("*"))


def test_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    packed = Packed()
    packed.packer.add_bytes("home/real", b"kept")
    packed.packer.add_link("home/link", "real")
    packed.packer.add_bytes("home/link", b"overwritten")

    with pytest.raises(OSError, match="exists"):
        unpack(packed.close(), tmp_path, ignore)

    assert (tmp_path / "home" / "real").read_bytes() == b"kept"


def test_file_behind_a_link_is_refused(tmp_path: Path) -> None:
    """Each of two links stays inside by its text, and together they lead outside."""
    target = tmp_path / "deep" / "new"
    packed = Packed()
    packed.packer.add_link("home/a/b/up", "../..")
    packed.packer.add_link("home/out", "a/b/up/../../..")
    packed.packer.add_bytes("home/out/x", b"x")

    with pytest.raises(BackupRefused, match="behind a link: home/out/x"):
        unpack(packed.close(), target, ignore)

    assert not list(tmp_path.rglob("x"))


def test_tablespaces_are_refused() -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        link = tarfile.TarInfo("pg_tblspc/16999")
        link.type = tarfile.SYMTYPE
        link.linkname = "/elsewhere"
        tar.addfile(link)

    archive.seek(0)
    with pytest.raises(BackupRefused, match="tablespaces"):
        Packed().packer.add_archive("postgres/data", archive)


def test_backup_without_its_summary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if somebody who knows the passphrase made it."""
    monkeypatch.setattr(contents, "SUMMARY", "other.json")
    packed = Packed()
    packed.packer.add_bytes("home/key", b"x")
    reader = packed.close()

    monkeypatch.undo()
    with pytest.raises(BackupRefused, match="incomplete"):
        check(reader, ignore)


def test_memory_does_not_grow_with_the_size() -> None:
    class Zeros:
        """64 MB."""

        left = 64 << 20

        def read(self, size: int, /) -> bytes:
            taken = min(size, self.left, 1 << 20)
            self.left -= taken
            return bytes(taken)

    packed = Packed()
    tracemalloc.start()
    packed.packer.add_stream("dumps/large", Zeros())
    reader = packed.close()
    assert check(reader, ignore).size_bytes == 64 << 20
    _, peak = tracemalloc.get_traced_memory()

    tracemalloc.stop()
    assert peak < 6 * PART_BYTES
