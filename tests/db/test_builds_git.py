"""Fetching private repositories and submodules from a real git host, and attacks through them."""

import asyncio
import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from portside.dataplane.builds.git import GitSource
from portside.dataplane.builds.sources import CommitTexts
from portside.dataplane.failures import BuildFailed
from portside.dataplane.masking import MaskedOutput
from portside.listener_api import Secret
from tests.api.git_host import TOKEN, GitHost, git_host
from tests.repositories import Repository

LIMIT = 50_000_000
CREDENTIAL = Secret("x-access", TOKEN)


def source(url: str, credential: Secret | None = None, limit: int = LIMIT) -> GitSource:
    return GitSource(url, "main", None, limit, credential)


async def fetch(wanted: GitSource, folder: Path, lines: list[str] | None = None) -> Path:
    checkout = wanted.checkout(folder, MaskedOutput((lines if lines is not None else []).append, wanted.secrets))
    await checkout.fetch()
    await asyncio.to_thread(checkout.keep_history, None)
    return checkout.files


@pytest.fixture
async def git_server(tmp_path: Path):
    async with git_host(tmp_path / "hosted") as host:
        yield host


def watch_git(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Collect all command lines and the files of a folder at each request of git to the host."""
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
async def test_private_repository_token_appears_nowhere(
    tmp_path: Path, place: str, git_server: GitHost, monkeypatch: pytest.MonkeyPatch
):
    Repository(git_server.folder / "private").commit({"file": "1"})
    seen = watch_git(monkeypatch, tmp_path / "out")
    lines = list[str]()

    if place == "credential":
        wanted = source(f"{git_server.url}/private", CREDENTIAL)
    else:
        wanted = source(f"{git_server.url.replace('://', f'://x-access:{TOKEN}@')}/private")

    files = await fetch(wanted, tmp_path / "out", lines)
    assert (files / "file").read_text() == "1"
    assert f"x-access:{TOKEN}" in git_server.shown
    assert any("git-remote-http" in text for text in seen)
    assert TOKEN not in "".join([*seen, *lines])


async def test_wrong_token_fails_without_showing_it(tmp_path: Path, git_server: GitHost):
    Repository(git_server.folder / "private").commit({"file": "1"})
    lines: list[str] = []
    with pytest.raises(BuildFailed, match="Authentication failed") as failure:
        await fetch(source(f"{git_server.url}/private", Secret("x-access", "another-token")), tmp_path / "out", lines)

    assert "another-token" not in str(failure.value) + "".join(lines)


def test_token_with_line_break_is_refused(tmp_path: Path):
    with pytest.raises(BuildFailed, match="control character"):
        source("https://host/x", Secret("user", "a\nhost=elsewhere")).checkout(tmp_path, MaskedOutput(print))


def with_submodule(folder: Path, name: str, url: str, to: Repository) -> Repository:
    """Create a repository with another one as a submodule called `below`, at any address."""
    repository = Repository(folder / name)
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(to.folder), "below")
    repository.git("submodule", "set-url", "below", url)
    repository.commit({"own": name})
    return repository


async def test_nested_submodules_are_fetched(tmp_path: Path, git_server: GitHost):
    deepest = Repository(git_server.folder / "deepest")
    deepest.commit({"file": "deepest"})
    middle = with_submodule(git_server.folder, "middle", "../deepest", deepest)
    with_submodule(git_server.folder, "top", f"{git_server.url}/middle", middle)
    middle.commit({"own": "later, and not what top names"})

    files = await fetch(source(f"{git_server.url}/top", CREDENTIAL), tmp_path / "out")
    assert (files / "own").read_text() == "top"
    assert (files / "below" / "own").read_text() == "middle"
    assert (files / "below" / "below" / "file").read_text() == "deepest"
    assert [path for path in files.rglob(".git*") if path.name != ".gitmodules"] == []


async def test_local_repository_may_have_local_submodule(tmp_path: Path):
    below = Repository(tmp_path / "hosted" / "lib")
    below.commit({"file": "1"})
    top = with_submodule(tmp_path / "hosted", "top", str(below.folder), below)
    files = await fetch(source(str(top.folder)), tmp_path / "out")
    assert (files / "below" / "file").read_text() == "1"


async def test_author_and_subject_of_a_commit_are_short_printable_lines(tmp_path: Path):
    repository = Repository(tmp_path / "hosted")
    repository.commit({"file": "1"})
    checkout = source(str(repository.folder)).checkout(tmp_path / "first", MaskedOutput(print))
    await checkout.fetch()
    assert await checkout.read_commit_texts() == CommitTexts(author="Test", subject="change")

    secret = "tok-0123456789"
    subject = f"Say\x1b[31m hello\u202e\x85 {secret} " + "word " * 5000
    author = "Åda \x1b[2J" + "L " * 1000 + " <ada@example.org>"
    repository.git("commit", "--amend", "-q", f"--author={author}", "-m", f"{subject}\n\nA body.")

    hostile = source(str(repository.folder)).checkout(tmp_path / "second", MaskedOutput(print, [secret]))
    await hostile.fetch()
    texts = await hostile.read_commit_texts()
    assert texts.author is not None
    assert texts.subject is not None
    assert texts.author.startswith("Åda [2JL L")
    assert texts.subject.startswith("Say [31m hello *** word word")

    for text in (texts.author, texts.subject):
        assert text.isprintable()
        assert len(text) <= 200
        assert text.endswith("…")


async def test_kept_history_replaces_repositories_that_are_gone(tmp_path: Path, git_server: GitHost):
    """With the submodules, and with the history that tools look for; a damaged one is fetched again."""
    below = Repository(git_server.folder / "below")
    below.commit({"file": "1"})
    top = with_submodule(git_server.folder, "top", f"{git_server.url}/below", below)
    commit = top.git("rev-parse", "HEAD")
    wanted = source(f"{git_server.url}/top", CREDENTIAL)
    kept = tmp_path / "sources" / "one"
    first = wanted.checkout(tmp_path / "first", MaskedOutput(lambda _: None, wanted.secrets))
    assert await first.fetch() == commit

    await asyncio.to_thread(first.keep_history, kept)
    assert not (kept / "FETCH_HEAD").exists(), "it names the address"
    assert not (tmp_path / "first" / "gitconfig").exists()
    assert CREDENTIAL.value not in "".join(path.read_text("latin-1") for path in kept.rglob("*") if path.is_file())

    shutil.rmtree(git_server.folder / "below")
    shutil.rmtree(git_server.folder / "top")
    offline = GitSource(f"{git_server.url}/top", "main", commit, LIMIT, CREDENTIAL, kept)
    again = offline.checkout(tmp_path / "again", MaskedOutput(lambda _: None))
    assert await again.fetch() == commit
    assert (await again.read_commit_texts()).subject == "change"
    assert (again.files / "below" / "file").read_text() == "1"
    assert (again.files / ".git").is_dir(), "tools ask it for the version"

    for pack in kept.rglob("*.pack"):
        pack.chmod(0o600)
        pack.write_bytes(b"damaged")

    lines: list[str] = []
    damaged = offline.checkout(tmp_path / "damaged", MaskedOutput(lines.append))
    with pytest.raises(BuildFailed):
        await damaged.fetch()

    assert any("cannot be used" in line for line in lines)


async def test_what_a_project_wrote_into_its_history_gets_no_credential(tmp_path: Path, git_server: GitHost):
    """The code of the project ran beside the folder that a later build takes the same commit from."""
    repository = Repository(git_server.folder / "top")
    repository.commit({"file": "1"})
    commit = repository.git("rev-parse", "HEAD")
    wanted = GitSource(f"{git_server.url}/top", None, commit, LIMIT, CREDENTIAL)
    kept = tmp_path / "sources" / "one"
    first = wanted.checkout(tmp_path / "first", MaskedOutput(lambda _: None))
    await first.fetch()
    await asyncio.to_thread(first.keep_history, kept)

    mark = tmp_path / "mark"
    seen = tmp_path / "seen"
    for folder, script in ((kept / "hooks", f"touch {mark}"), (tmp_path / "hooks", f"env > {seen}")):
        folder.mkdir(exist_ok=True)
        hook = folder / "post-checkout"
        hook.write_text(f"#!/bin/sh\n{script}\n")
        hook.chmod(0o755)

    again = dataclasses.replace(wanted, history=kept)
    await again.checkout(tmp_path / "again", MaskedOutput(lambda _: None)).fetch()
    assert not mark.exists(), "its hooks are not run"

    with (kept / "config").open("a") as file:
        file.write(f"[core]\n\thooksPath = {tmp_path / 'hooks'}\n")

    await again.checkout(tmp_path / "third", MaskedOutput(lambda _: None)).fetch()
    assert CREDENTIAL.value not in (seen.read_text() if seen.exists() else "")


async def test_remote_repository_cannot_have_local_submodule(tmp_path: Path, git_server: GitHost):
    secret = Repository(tmp_path / "private")
    secret.commit({"file": "1"})
    with_submodule(git_server.folder, "top", str(secret.folder), secret)

    with pytest.raises(BuildFailed, match="transport 'file' not allowed"):
        await fetch(source(f"{git_server.url}/top", CREDENTIAL), tmp_path / "out")


async def test_a_remote_submodule_of_a_local_repository_cannot_have_a_local_one(tmp_path: Path, git_server: GitHost):
    git_server.is_open = True
    secret = Repository(tmp_path / "private")
    secret.commit({"file": "1"})

    middle = with_submodule(git_server.folder, "middle", str(secret.folder), secret)
    top = with_submodule(tmp_path / "here", "top", f"{git_server.url}/middle", middle)

    with pytest.raises(BuildFailed, match="transport 'file' not allowed"):
        await fetch(source(str(top.folder)), tmp_path / "out")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three to copy: a private one, one for others to contain, and one that contains it as a submodule."""
    folder = tmp_path_factory.mktemp("repositories")
    lib = Repository(folder / "lib")
    lib.commit({"file": "1"})
    Repository(folder / "private").commit({"file": "private"})
    with_submodule(folder, "top", "https://host.example/lib", lib)
    return folder


@pytest.mark.parametrize(
    "section",
    [
        '[submodule "below"]\n\tpath = below\n\turl = --upload-pack=touch {mark}\n',
        '[submodule "below"]\n\tpath = below\n\turl = "ext::sh -c touch% {mark}"\n',
        '[submodule "below"]\n\tpath = below\n\turl = "ssh://-oProxyCommand=touch {mark}/x"\n',
        '[submodule "below"]\n\tpath = below\n\turl = file://{private}\n',
        '[submodule "below"]\n\tpath = below\n\turl = {host}/lib\n\tupdate = "!touch {mark}"\n',
        '[submodule "../../below"]\n\tpath = below\n\turl = {host}/lib\n',
        '[submodule "below"]\n\tpath = ../../outside\n\turl = {host}/lib\n',
        '[submodule "below"]\n\tpath = -below\n\turl = {host}/lib\n',
    ],
    ids=["option", "ext", "ssh-option", "file", "command", "name", "path", "path-option"],
)
async def test_malicious_submodules_run_nothing(tmp_path: Path, git_server: GitHost, repositories: Path, section: str):
    private = tmp_path / "private"
    mark = tmp_path / "mark"
    shutil.copytree(repositories / "private", private)
    for name in ("lib", "top"):
        shutil.copytree(repositories / name, git_server.folder / name)

    top = Repository(git_server.folder / "top")
    top.commit({".gitmodules": section.format(mark=mark, private=private, host=git_server.url)})
    before = entries(tmp_path)

    with contextlib.suppress(BuildFailed):
        files = await fetch(source(f"{git_server.url}/top", CREDENTIAL), tmp_path / "out")
        assert (files / "own").read_text() == "top"

    assert not mark.exists()
    assert entries(tmp_path) - before <= {"out"}
    assert not any("private" in file.read_text() for file in (tmp_path / "out").rglob("file"))


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_token_is_sent_to_its_own_host_only(tmp_path: Path, git_server: GitHost):
    below = Repository(tmp_path / "other" / "lib")
    below.commit({"file": "1"})
    async with git_host(tmp_path / "other") as other:
        with_submodule(git_server.folder, "top", f"{other.url}/lib", below)
        with pytest.raises(BuildFailed, match="could not read Username"):
            await fetch(source(f"{git_server.url}/top", CREDENTIAL), tmp_path / "out")

    assert other.asked
    assert other.shown == []


async def test_submodules_are_limited_in_size_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    below = Repository(tmp_path / "hosted" / "lib")
    below.commit({"file": "x" * 2_000_000})

    top = with_submodule(tmp_path / "hosted", "top", str(below.folder), below)
    with pytest.raises(BuildFailed, match="the repository is larger than 1000000 bytes"):
        await fetch(source(str(top.folder), limit=1_000_000), tmp_path / "1")

    monkeypatch.setattr("portside.dataplane.builds.git._MAX_SUBMODULE_DEPTH", 0)
    with pytest.raises(BuildFailed, match="nested more than 0 deep"):
        await fetch(source(str(top.folder)), tmp_path / "2")
