"""Builds with the real git and uv."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

import portside
from portside.dataplane.builds.build import (
    BuildPlaces,
    BuildRecord,
    BuildRequest,
    build_revision,
    discard_build,
    find_build,
    update_wheel,
)
from portside.dataplane.builds.environment import python_path
from portside.dataplane.builds.git import GitSource
from portside.dataplane.builds.wheel import EXECUTOR, pack_wheel, read_wheel_version, wheel_version
from portside.dataplane.failures import BuildFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.masking import MaskedOutput
from portside.kernel.disk import DiskReserve, find_shortage
from portside.listener_api import NewLogEntry
from tests.conftest import eventually
from tests.small_disk import needs_small_disk, small_disk

PYPROJECT = """\
[project]
name = "tiny-agent"
version = "1.0"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
only-include = ["tiny_agent.py"]
"""
FILES = {
    "graph.json": json.dumps({"dependencies": ["."], "graphs": {"agent": "./tiny_agent.py:graph"}}),
    "pyproject.toml": PYPROJECT,
    "tiny_agent.py": "graph = None\n",
}
LIMIT = 50_000_000


class Repository:
    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self.wheels = wheels
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.folder / name).write_text(text)

        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "work")
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The platform's own wheels, which a listener packs once for all its builds."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture
def repository(tmp_path: Path, wheels: Path) -> Repository:
    return Repository(tmp_path / "a repository", wheels)


class Lines:
    def __init__(self) -> None:
        self.entries: list[NewLogEntry] = []

    async def ship(self, entries: list[NewLogEntry]) -> None:
        self.entries += entries

    @property
    def text(self) -> str:
        return "\n".join(entry.message for entry in self.entries)


async def fetch(folder: Path, url: str, ref: str | None = "main", commit: str | None = None) -> str:
    return await GitSource(url, ref, commit, LIMIT).checkout(folder, MaskedOutput(print)).fetch()


async def test_branches_tags_and_commits_are_fetched(repository: Repository, tmp_path: Path):
    first = repository.commit({"file": "1"})
    repository.git("tag", "-a", "v1", "-m", "one")
    second = repository.commit({"file": "2"})
    repository.git("branch", "feature/x", first)

    local = str(repository.folder)
    url = repository.folder.as_uri()
    assert await fetch(tmp_path / "1", local) == second
    assert await fetch(tmp_path / "2", url, "refs/tags/v1") == first
    assert await fetch(tmp_path / "3", url, "feature/x") == first
    assert await fetch(tmp_path / "4", url, first) == first
    assert await fetch(tmp_path / "5", local, "main", first) == first

    assert await fetch(tmp_path / "6", url, None) == second
    assert (tmp_path / "5" / "source" / "file").read_text() == "1"


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("nowhere", "the repository has no branch 'nowhere'; its branches are develop, main"),
        ("refs/tags/none", "the repository has no tag 'none'; its tags are v1"),
        ("--upload-pack=touch /tmp/x", "not a valid branch or tag"),
        ("a:b", "not a valid branch or tag"),
        ("0" * 40, "0{40}"),
    ],
)
async def test_unknown_ref_lists_existing_ones(repository: Repository, tmp_path: Path, ref: str, words: str):
    repository.commit({"file": "1"})
    repository.git("branch", "develop")
    repository.git("tag", "v1")

    with pytest.raises(BuildFailed, match=words):
        await fetch(tmp_path / "out", str(repository.folder), ref)


async def test_missing_ref_message_for_empty_and_large_repositories(repository: Repository, tmp_path: Path):
    local = str(repository.folder)
    for number, ref in enumerate((None, "main")):
        with pytest.raises(BuildFailed, match=r"the repository has no (commits|branches)"):
            await fetch(tmp_path / str(number), local, ref)

    repository.commit({"file": "1"})

    for number in range(30):
        repository.git("branch", f"b{number:02}")

    with pytest.raises(BuildFailed, match=r"its branches are b00, b01, .*b19 and 11 more"):
        await fetch(tmp_path / "many", local, "nowhere")

    repository.git("symbolic-ref", "HEAD", "refs/heads/gone")
    with pytest.raises(BuildFailed, match=r"the repository has no default branch; its branches are b00"):
        await fetch(tmp_path / "headless", local, None)


@pytest.mark.parametrize("url", ["ext::sh -c touch% was-here", "--upload-pack=touch was-here", "/no/such/folder"])
async def test_dangerous_and_unknown_addresses_fail(tmp_path: Path, url: str):
    with pytest.raises(BuildFailed):
        await fetch(tmp_path / "out", url)
    assert await asyncio.to_thread(lambda: list(tmp_path.rglob("was-here"))) == []


async def test_credentials_are_masked(tmp_path: Path):
    lines: list[str] = []
    source = GitSource("http://user:very-secret@127.0.0.1:9/x.git", "main", None, LIMIT)
    with pytest.raises(BuildFailed) as failure:
        await source.checkout(tmp_path / "out", MaskedOutput(lines.append)).fetch()

    assert "127.0.0.1" in str(failure.value)
    assert "very-secret" not in str(failure.value) + "".join(lines)


async def test_repository_above_limit_is_refused(repository: Repository, tmp_path: Path):
    repository.commit({"big": "x" * 2_000_000})
    with pytest.raises(BuildFailed, match="larger than 1000000 bytes"):
        await (
            GitSource(str(repository.folder), "main", None, 1_000_000)
            .checkout(tmp_path / "out", MaskedOutput(print))
            .fetch()
        )


async def test_machine_hooks_and_configuration_are_ignored(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository.commit({"file": "1"})
    (tmp_path / "evil").write_text('[url "/no/such"]\n\tinsteadOf = /\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "evil"))
    monkeypatch.setenv("GIT_DIR", "/no/such")
    assert len(await fetch(tmp_path / "out", str(repository.folder))) == 40


def test_wheel_is_deterministic_and_installable(tmp_path: Path):
    one = pack_wheel(tmp_path / "1")
    other = pack_wheel(tmp_path / "2")
    assert one.name == other.name
    assert one.read_bytes() == other.read_bytes()
    before = one.stat().st_mtime_ns
    assert pack_wheel(tmp_path / "1").stat().st_mtime_ns == before

    with zipfile.ZipFile(one) as archive:
        names = archive.namelist()
        assert "portside/kernel/db.py" in names
        assert any(name.startswith("portside/") and name.endswith(".sql") for name in names)
        assert not [name for name in names if name.endswith(".pyc")]
        assert archive.testzip() is None


# Changes files of a copy of the package, and prints both versions before and after each change.
VERSIONS = """
import sys
from pathlib import Path
import portside
from portside.dataplane.builds.wheel import server_versions
package = Path(sys.argv[1])
assert Path(portside.__file__).parent == package
def show():
    print(*server_versions(has_javascript=False), server_versions(has_javascript=True)[1])
show()
for name in ("agent/settings.py", "executor/load.py", "executor_js/main.mjs"):
    with (package / name).open("a") as file:
        file.write("\\n")
    show()
"""


def test_graphs_are_described_again_only_when_what_describes_them_has_changed(tmp_path: Path):
    installed = Path(portside.__file__).parent
    package = tmp_path / "portside"
    shutil.copytree(installed, package, ignore=shutil.ignore_patterns("__pycache__", "console"))
    command = [sys.executable, "-P", "-c", VERSIONS, str(package)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    lines = subprocess.check_output(command, text=True, env=environment).splitlines()
    servers, python, both = zip(*(line.split() for line in lines), strict=True)

    def changes(codes: Sequence[str]) -> list[bool]:
        """Whether each change of a file changed the version: the agent server's, Python's executor, JavaScript's."""
        return [earlier != later for earlier, later in pairwise(codes)]

    assert changes(servers) == [True, True, False]
    assert changes(python) == [False, True, False]
    assert changes(both) == [False, True, True]


def test_old_wheels_are_removed_after_a_day(tmp_path: Path):
    old = tmp_path / "portside-0-py3-none-any.whl"
    recent = tmp_path / "portside-1-py3-none-any.whl"
    for path in (old, recent):
        path.write_text("")

    os.utime(old, (0, 0))
    packed = pack_wheel(tmp_path)
    assert set(tmp_path.iterdir()) == {packed, recent}


def order(tmp_path: Path, repository: Repository, **changes: object) -> BuildRequest:
    fields: dict[str, object] = {
        "folder": tmp_path / "revision with space",
        "source": GitSource(str(repository.folder), "main", None, LIMIT),
        "config_path": "graph.json",
        "places": BuildPlaces(repository.wheels),
        "timeout_s": 200.0,
    }

    return BuildRequest(**{**fields, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Built:
    """What a build made, and its log."""

    asked: BuildRequest
    record: BuildRecord
    commit: str
    text: str

    def python(self, code: str) -> str:
        return subprocess.check_output(
            [str(python_path(self.asked.folder)), "-P", "-c", code], text=True, cwd="/"
        ).strip()


async def build(folder: Path, repository: Repository, **changes: object) -> Built:
    commit = repository.commit(FILES)
    lines = Lines()
    asked = order(folder, repository, **changes)
    log = RevisionLog(lines.ship)
    record = await build_revision(asked, log)
    await log.close()
    return Built(asked, record, commit, lines.text)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Built:
    """A build of the layout split. Its tests leave it as it is."""
    folder = tmp_path_factory.mktemp("built")
    return asyncio.run(build(folder, Repository(folder / "a repository", wheels)))


FIND_SERVER = "import importlib.util as u; print(*(n for n in ('portside.agent', 'asyncpg') if u.find_spec(n)))"


def test_a_split_build_has_no_agent_server(built: Built):
    assert built.record.layout == "split"
    assert built.python(FIND_SERVER) == ""


async def test_a_combined_build_has_an_agent_server(repository: Repository, tmp_path: Path):
    built = await build(tmp_path, repository, layout="combined")
    assert built.record.layout == "combined"
    assert await asyncio.to_thread(built.python, FIND_SERVER) == "portside.agent asyncpg"


async def test_a_split_build_gets_the_executor_of_a_newer_platform(built: Built):
    folder = built.asked.folder
    wheels = built.asked.places.wheels
    venv = folder / "venv"
    [info] = venv.glob("lib/*/site-packages/portside-*.dist-info")
    older = info.rename(info.with_name("portside-0.0.1.dist-info"))
    for file, now, then in (("METADATA", wheel_version(EXECUTOR), "0.0.1"), ("RECORD", info.name, older.name)):
        text = (older / file).read_text()
        # The files are links into uv's cache.
        (older / file).unlink()
        (older / file).write_text(text.replace(now, then))

    await update_wheel(folder, wheels)
    assert read_wheel_version(venv) == wheel_version(EXECUTOR)
    assert len(list(venv.glob("lib/*/site-packages/portside-*.dist-info"))) == 1
    await asyncio.to_thread(built.python, "import portside.executor, portside.executor.messages")

    before = next(venv.glob("lib/*/site-packages/portside-*.dist-info")).stat().st_mtime_ns
    await update_wheel(folder, wheels)
    assert next(venv.glob("lib/*/site-packages/portside-*.dist-info")).stat().st_mtime_ns == before


def test_project_is_built_and_importable(built: Built):
    folder = built.asked.folder
    assert (built.record.commit, built.record.config) == (built.commit, "graph.json")
    assert find_build(folder) == built.record
    assert not (folder / "source" / ".git").exists()
    assert str(folder) in built.python("import tiny_agent, portside; print(portside.__file__)")

    assert built.commit in built.text
    assert "tiny-agent" in built.text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dependencies": ["no-such-thing-of-portside==1"]}, "no-such-thing-of-portside"),
        (
            {"python_version": "3.99"},
            rf"needs Python 3\.99.*run 'uv python install 3\.99' there, .*It has .*3\.{sys.version_info.minor}",
        ),
        ({"dependencies": ["portside==0.0.0"]}, "portside"),
    ],
)
async def test_failed_install_shows_reason(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, object], words: str
):
    # Those of pyenv are scripts, which uv executes one by one to find a Python that nobody has.
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if not folder.endswith("shims")]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    repository.commit({**FILES, "graph.json": json.dumps({"graphs": {"a": "./tiny_agent.py:graph"}, **config})})
    lines = Lines()

    log = RevisionLog(lines.ship)
    asked = order(tmp_path, repository)
    with pytest.raises(BuildFailed, match=words) as failure:
        await build_revision(asked, log)

    await log.close()
    # Paths are relative to the repository.
    assert str(asked.folder) not in f"{failure.value}\n{lines.text}"
    assert not asked.folder.exists()


def _processes_below(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = str((entry / "cwd").readlink())
            except OSError:
                continue

            if where.startswith(str(folder)):
                found.append(entry.name)

    return found


SLEEPER = """\
import subprocess, sys, time
print("now sleeping", flush=True)
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
"""


def commit_sleeping_project(repository: Repository) -> None:
    build = '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
    project = PYPROJECT.split("[build-system]", maxsplit=1)[0] + build
    repository.commit({**FILES, "pyproject.toml": project, "slow.py": SLEEPER})


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_cancelled_build_leaves_no_process(repository: Repository, tmp_path: Path, how: str):
    commit_sleeping_project(repository)
    asked = order(tmp_path, repository, timeout_s=8.0 if how == "timeout" else 200.0)
    log = RevisionLog(Lines().ship)
    build = asyncio.create_task(build_revision(asked, log))

    async def sleeps() -> bool:
        return len(_processes_below(asked.folder)) > 2

    if how == "cancel":
        await eventually(sleeps)
        build.cancel()

    with pytest.raises((BuildFailed, asyncio.CancelledError)) as failure:
        await build

    assert how == "cancel" or "longer than 8 seconds" in str(failure.value)
    await log.close()
    assert not asked.folder.exists()

    async def gone() -> bool:
        return not _processes_below(asked.folder)

    await eventually(gone)


# Fills more than half of a disk of 100 MB, and never all of it, however late the builder looks.
FILLER = """\
import time
with open("filler", "wb") as file:
    file.write(b"x" * 60_000_000)
time.sleep(600)
"""


@needs_small_disk
async def test_build_stops_before_the_disk_is_full(repository: Repository, tmp_path: Path):
    """It fails with the reason and leaves nothing behind; another one does not begin before there is room."""
    commit_sleeping_project(repository)
    repository.commit({"slow.py": FILLER})
    with small_disk(tmp_path / "disk", 100) as disk:
        asked = order(disk.path, repository, reserve=DiskReserve(percent=50), places=BuildPlaces(repository.wheels))
        log = RevisionLog(Lines().ship)
        with pytest.raises(BuildFailed, match="disk of the listener is nearly full"):
            await build_revision(asked, log)

        assert not asked.folder.exists()
        assert find_shortage(disk.path, DiskReserve(percent=50)) is None
        disk.fill_up_to(40_000_000)
        lines = Lines()

        late = RevisionLog(lines.ship)
        with pytest.raises(BuildFailed, match="in reserve"):
            await build_revision(asked, late)

        await late.close()
        assert "Fetching" not in lines.text
        await log.close()


async def test_unfinished_build_of_earlier_listener_is_removed(tmp_path: Path):
    folder = tmp_path / "revision"
    (folder / "source").mkdir(parents=True)
    assert find_build(folder) is None
    discard_build(folder)
    discard_build(folder)
    assert not folder.exists()
