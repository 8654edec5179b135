"""Fetching repositories: private ones, submodules, and what must not happen with either. With a real git host."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from portside.dataplane.builds.git import GitSource
from portside.dataplane.builds.output import Output
from portside.dataplane.failures import BuildFailed
from portside.dataplane.types import Secret
from tests.api.git_host import TOKEN, GitHost, git_host
from tests.repositories import Repository

LIMIT = 50_000_000
CREDENTIAL = Secret("x-access", TOKEN)


def source(url: str, credential: Secret | None = None, limit: int = LIMIT) -> GitSource:
    return GitSource(url, "main", None, limit, credential)


async def fetch(wanted: GitSource, folder: Path, lines: list[str] | None = None) -> Path:
    checkout = wanted.checkout(folder, Output((lines if lines is not None else []).append, wanted.hidden))
    await checkout.fetch()
    await asyncio.to_thread(checkout.forget_history)
    return checkout.files


@pytest.fixture
async def hosted(tmp_path: Path):
    async with git_host(tmp_path / "hosted") as host:
        yield host


def seen_while_git_talks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Collect all command lines and the files of a folder, each time that git asks the host for something."""
    seen: list[str] = []
    backend = GitHost._backend

    def watched(self: GitHost, *arguments: Any) -> Any:
        for path in [*Path("/proc").glob("[0-9]*/cmdline"), *folder.rglob("*")]:
            with contextlib.suppress(OSError):
                seen.append(path.read_bytes().decode(errors="replace"))
        return backend(self, *arguments)

    monkeypatch.setattr(GitHost, "_backend", watched)
    return seen


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
@pytest.mark.parametrize("place", ["credential", "address"])
async def test_a_private_repository_is_fetched_and_its_token_shows_nowhere(
    tmp_path: Path, place: str, hosted: GitHost, monkeypatch: pytest.MonkeyPatch
):
    Repository(hosted.folder / "private").commit({"file": "1"})
    seen, lines = seen_while_git_talks(monkeypatch, tmp_path / "out"), list[str]()
    if place == "credential":
        wanted = source(f"{hosted.url}/private", CREDENTIAL)
    else:
        wanted = source(f"{hosted.url.replace('://', f'://x-access:{TOKEN}@')}/private")
    files = await fetch(wanted, tmp_path / "out", lines)
    assert (files / "file").read_text() == "1"
    assert f"x-access:{TOKEN}" in hosted.shown
    assert any("git-remote-http" in text for text in seen)
    assert TOKEN not in "".join([*seen, *lines])


async def test_a_wrong_token_fails_and_does_not_show(tmp_path: Path, hosted: GitHost):
    Repository(hosted.folder / "private").commit({"file": "1"})
    lines: list[str] = []
    with pytest.raises(BuildFailed, match="Authentication failed") as failure:
        await fetch(source(f"{hosted.url}/private", Secret("x-access", "another-token")), tmp_path / "out", lines)
    assert "another-token" not in str(failure.value) + "".join(lines)


def test_a_token_with_a_line_break_is_refused(tmp_path: Path):
    with pytest.raises(BuildFailed, match="control character"):
        source("https://host/x", Secret("user", "a\nhost=elsewhere")).checkout(tmp_path, Output(print))


def with_submodule(folder: Path, name: str, url: str, to: Repository) -> Repository:
    """Make a repository that names another one as a submodule called `below`, at any address."""
    repository = Repository(folder / name)
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(to.folder), "below")
    repository.git("submodule", "set-url", "below", url)
    repository.commit({"own": name})
    return repository


async def test_submodules_are_fetched_and_theirs(tmp_path: Path, hosted: GitHost):
    deepest = Repository(hosted.folder / "deepest")
    deepest.commit({"file": "deepest"})
    middle = with_submodule(hosted.folder, "middle", "../deepest", deepest)
    with_submodule(hosted.folder, "top", f"{hosted.url}/middle", middle)
    middle.commit({"own": "later, and not what top names"})
    files = await fetch(source(f"{hosted.url}/top", CREDENTIAL), tmp_path / "out")
    assert (files / "own").read_text() == "top"
    assert (files / "below" / "own").read_text() == "middle"
    assert (files / "below" / "below" / "file").read_text() == "deepest"
    assert [path for path in files.rglob(".git*") if path.name != ".gitmodules"] == []


async def test_a_repository_of_this_machine_may_name_another_one(tmp_path: Path):
    below = Repository(tmp_path / "hosted" / "lib")
    below.commit({"file": "1"})
    top = with_submodule(tmp_path / "hosted", "top", str(below.folder), below)
    files = await fetch(source(str(top.folder)), tmp_path / "out")
    assert (files / "below" / "file").read_text() == "1"


async def test_one_from_the_network_cannot_name_a_folder_of_this_machine(tmp_path: Path, hosted: GitHost):
    secret = Repository(tmp_path / "private")
    secret.commit({"file": "1"})
    with_submodule(hosted.folder, "top", str(secret.folder), secret)
    with pytest.raises(BuildFailed, match="transport 'file' not allowed"):
        await fetch(source(f"{hosted.url}/top", CREDENTIAL), tmp_path / "out")


async def test_a_token_is_only_shown_to_its_own_host(tmp_path: Path, hosted: GitHost):
    below = Repository(tmp_path / "other" / "lib")
    below.commit({"file": "1"})
    async with git_host(tmp_path / "other") as other:
        with_submodule(hosted.folder, "top", f"{other.url}/lib", below)
        with pytest.raises(BuildFailed, match="could not read Username"):
            await fetch(source(f"{hosted.url}/top", CREDENTIAL), tmp_path / "out")
    assert other.asked
    assert other.shown == []


async def test_submodules_count_towards_the_size_and_are_bounded_in_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    below = Repository(tmp_path / "hosted" / "lib")
    below.commit({"file": "x" * 2_000_000})
    top = with_submodule(tmp_path / "hosted", "top", str(below.folder), below)
    with pytest.raises(BuildFailed, match="the repository is larger than 1000000 bytes"):
        await fetch(source(str(top.folder), limit=1_000_000), tmp_path / "1")
    monkeypatch.setattr("portside.dataplane.builds.git._MAX_SUBMODULE_DEPTH", 0)
    with pytest.raises(BuildFailed, match="nested more than 0 deep"):
        await fetch(source(str(top.folder)), tmp_path / "2")
