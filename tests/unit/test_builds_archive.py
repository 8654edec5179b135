"""Unpacking uploaded archives: what is allowed, what is refused, and that nothing is written outside the folder."""

import asyncio
import gzip
import io
import tarfile
from pathlib import Path

import pytest

from portside.dataplane.builds import archive as archives
from portside.dataplane.builds.archive import ArchiveSource, unpack
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput

LIMIT = 1_000_000


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)

    return info


def pack(path: Path, *entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w:gz", format=form) as tar:
        for info, content in entries:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

    return path


def list_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
async def test_files_and_folders_are_unpacked_with_plain_modes(tmp_path: Path, form: int):
    long = "/".join(["a-folder-with-a-long-name" * 4] * 3)
    path = pack(
        tmp_path / "a",
        (entry("folder", tarfile.DIRTYPE, mode=0o2777), b""),
        (entry("folder/run.sh", mode=0o6755), b"#!/bin/sh\n"),
        (entry("./ünï.json", mode=0o000), b"{}"),
        (entry(f"{long}/file"), b"deep"),
        (entry("folder/run.sh", mode=0o4755), b"the later one\n"),
        form=form,
    )

    await unpack(path, tmp_path / "out", LIMIT)
    out = tmp_path / "out"
    assert (out / "folder" / "run.sh").read_text() == "the later one\n"
    assert (out / "folder" / "run.sh").stat().st_mode & 0o7777 == 0o700
    assert (out / "folder").stat().st_mode & 0o6022 == 0
    assert (out / "ünï.json").stat().st_mode & 0o7777 == 0o600
    assert (out / long / "file").read_bytes() == b"deep"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (entry("/etc/evil"), "'/etc/evil' leads out"),
        (entry("a/../../evil"), "leads out"),
        (entry("..", tarfile.DIRTYPE), "leads out"),
        (entry("link", tarfile.SYMTYPE, linkname="/etc/passwd"), "'link' is a link"),
        (entry("link", tarfile.LNKTYPE, linkname="good"), "'link' is a link"),
        (entry("device", tarfile.CHRTYPE), "neither a plain file nor a folder"),
        (entry("pipe", tarfile.FIFOTYPE), "neither a plain file nor a folder"),
        (entry("x" * 300), "is too long"),
        (entry("x/" * 600 + "y"), "is too long"),
        (entry("good/below"), "as a file and as a folder"),
        (entry("good", tarfile.DIRTYPE), "as a file and as a folder"),
    ],
)
async def test_unsafe_entries_are_refused_by_name(tmp_path: Path, bad: tarfile.TarInfo, words: str):
    path = pack(tmp_path / "a", (entry("good"), b"1"), (bad, b""))
    with pytest.raises(BuildFailed, match=words):
        await unpack(path, tmp_path / "deep" / "out", LIMIT)

    assert list_files(tmp_path) <= {"a", "deep", "deep/out", "deep/out/good"}


async def test_archive_bomb_is_refused_before_any_write(tmp_path: Path):
    path = pack(tmp_path / "a", (entry("zeros"), bytes(50_000_000)))
    assert path.stat().st_size < 100_000
    with pytest.raises(BuildFailed, match="larger than 1000000 bytes"):
        await unpack(path, tmp_path / "out", LIMIT)

    assert list_files(tmp_path / "out") == set()


async def test_too_many_entries_and_long_headers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = pack(tmp_path / "long", (entry("a", pax_headers={"comment": "x" * 2_000_000}), b""))
    with pytest.raises(BuildFailed, match="header is too long"):
        await unpack(path, tmp_path / "1", LIMIT)

    monkeypatch.setattr(archives, "_MAX_ENTRIES", 10)
    path = pack(tmp_path / "many", *((entry(f"f{number}"), b"") for number in range(11)))
    with pytest.raises(BuildFailed, match="more than 10 entries"):
        await unpack(path, tmp_path / "2", LIMIT)

    assert list_files(tmp_path / "2") == set()


def test_chained_headers_do_not_break_the_reader(tmp_path: Path):
    header = entry("x", tarfile.XGLTYPE).tobuf()
    path = tmp_path / "chain"
    path.write_bytes(gzip.compress(header * 50_000))

    with pytest.raises(BuildFailed, match="cannot be read"):
        asyncio.run(unpack(path, tmp_path / "out", LIMIT))


@pytest.mark.parametrize(
    "content", [b"", b"not gzip", gzip.compress(b"not tar" * 100, mtime=0), gzip.compress(b"x" * 9000, mtime=0)[:-9]]
)
async def test_non_archive_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(BuildFailed, match="cannot be read as a gzipped tar"):
        await unpack(tmp_path / "a", tmp_path / "out", LIMIT)


async def test_truncated_archive_is_refused(tmp_path: Path):
    path = pack(tmp_path / "a", (entry("a"), bytes(range(256)) * 1000))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BuildFailed, match="cannot be read"):
        await unpack(path, tmp_path / "out", LIMIT)


async def test_archive_source_has_no_commit(tmp_path: Path):
    packed = pack(tmp_path / "a", (entry("langgraph.json"), b"{}"))

    async def download(into: Path) -> None:
        await asyncio.to_thread(packed.rename, into)

    (tmp_path / "build").mkdir()
    checkout = ArchiveSource(download, LIMIT).checkout(tmp_path / "build", MaskedOutput(print))
    assert await checkout.fetch() == ""
    assert list_files(tmp_path / "build") == {"source", "source/langgraph.json"}
