"""Projects of every layout, built with the real uv and npm."""

import asyncio
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from portside.dataplane.builds.archive import ArchiveSource
from portside.dataplane.builds.config import read_config
from portside.dataplane.builds.environment import python_of
from portside.dataplane.builds.javascript import JavaScript, Scripts
from portside.dataplane.builds.output import Output
from portside.dataplane.builds.revision import BuildOrder, Built, build_revision, discard_unfinished
from portside.dataplane.failures import BuildFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.types import LogEntry
from tests.conftest import eventually

LIMIT = 50_000_000
GRAPHS = {"agent": "./agent.py:graph"}
PROC = Path("/proc/self").exists()
NODE = pytest.mark.skipif(not shutil.which("npm"), reason="Node is not installed")


class Workshop:
    """Builds projects from archives in a folder of the test, and keeps what their logs say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "deployments" / "one" / "revisions" / "two"
        self.project = folder / "project"
        self.text = ""
        self._log = RevisionLog(self._ship)

    async def _ship(self, entries: list[LogEntry]) -> None:
        self.text += "".join(f"{entry.message}\n" for entry in entries)

    def write(self, files: dict[str, str], **config: object) -> None:
        for name, text in {"langgraph.json": json.dumps({"graphs": GRAPHS, **config}), **files}.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)

    def order(self, config: str = "langgraph.json", **scripts: str) -> BuildOrder:
        async def download(into: Path) -> None:
            with tarfile.open(into, "w:gz") as tar:
                tar.add(self.project, ".")

        wheels = self.folder.parents[3] / "wheels"
        source = ArchiveSource(download, LIMIT)
        return BuildOrder(self.folder, source, config, wheels, 200.0, Scripts(**scripts), ["a-secret-value"])

    async def build(self, config: str = "langgraph.json", **scripts: str) -> Built:
        try:
            return await build_revision(self.order(config, **scripts), self._log)
        finally:
            await self._log.flush()

    async def refuses(self, words: str, **scripts: str) -> None:
        with pytest.raises(BuildFailed, match=words):
            await self.build(**scripts)
        assert not self.folder.exists()

    def python(self, code: str) -> str:
        command = [str(python_of(self.folder)), "-P", "-c", code]
        return subprocess.check_output(command, text=True, cwd="/").strip()

    async def close(self) -> None:
        await self._log.close()


@pytest.fixture
async def workshop(tmp_path: Path) -> AsyncIterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    await workshop.close()


def pyproject(name: str, *dependencies: str) -> str:
    return (
        f'[project]\nname = "{name}"\nversion = "1"\nrequires-python = ">=3.11"\n'
        f"dependencies = {json.dumps(dependencies)}\n"
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[tool.hatch.build.targets.wheel]\npackages = ["{name}"]\n'
    )


async def test_a_project_below_plain_folders_and_requirements_in_one_environment(workshop: Workshop):
    workshop.write(
        {
            "apps/one/langgraph.json": json.dumps({
                "graphs": GRAPHS, "dependencies": [".", "../../libs/shared", "../../plain", "sniffio"],
                "dockerfile_lines": ["RUN true"], "pip_config_file": "pip.conf",
            }),
            "apps/one/pip.conf": "[global]\ntimeout = 5\n",
            "apps/one/requirements.txt": "idna\n",
            "libs/shared/pyproject.toml": pyproject("shared"),
            "libs/shared/shared/__init__.py": "",
            "libs/shared/shared/prompt.md": "Be kind.",
            "plain/module.py": "",
        }
    )  # fmt: skip
    built = await workshop.build("apps/one/langgraph.json")
    assert (built.commit, built.config) == ("", "apps/one/langgraph.json")
    # A project is installed in place: the files beside its code are there, whatever its build would have left out.
    code = "import idna, portside, sniffio, shared, pathlib; print(pathlib.Path(shared.__file__).parent)"
    found = await asyncio.to_thread(workshop.python, code)
    assert found == str(workshop.folder / "source" / "libs" / "shared" / "shared")
    assert "Skipped: dockerfile_lines" in workshop.text
    assert "Skipped: pip_config_file: global.timeout" in workshop.text


async def test_a_locked_workspace_installs_what_its_lock_file_names(workshop: Workshop):
    workspace = '[tool.uv.workspace]\nmembers = ["packages/*"]\n[tool.uv.sources]\nlib = { workspace = true }\n'
    workshop.write(
        {
            "pyproject.toml": '[project]\nname = "root"\nversion = "1"\nrequires-python = ">=3.11"\n' + workspace,
            "packages/bot/pyproject.toml": pyproject("bot", "lib", "sniffio==1.3.0"),
            "packages/bot/bot/__init__.py": "",
            "packages/lib/pyproject.toml": pyproject("lib"),
            "packages/lib/lib/__init__.py": "",
        },
        source={"kind": "uv", "package": "bot"},
    )
    lock = [find_uv_bin(), "lock", "--quiet", "--python", sys.executable]
    await asyncio.to_thread(subprocess.run, lock, cwd=workshop.project, check=True)
    await workshop.build()
    code = "import bot, lib, portside; from importlib.metadata import version; print(version('sniffio'))"
    assert await asyncio.to_thread(workshop.python, code) == "1.3.0"


PACKAGE = {"name": "front", "version": "1.0.0", "dependencies": {"local": "file:./local"}}
LOCAL = {
    "local/package.json": json.dumps({"name": "local", "version": "1.0.0"}),
    "local/index.js": "module.exports = 7;",
}


# It leaves a process behind, in a session of its own and with a hold on the output.
BUNDLE = """\
require("fs").writeFileSync("built.txt", String(require("local")) + process.cwd());
const child = require("child_process").spawn("sleep", ["600"], {detached: true, stdio: "inherit"});
child.unref();
console.log("left behind", child.pid, "a-secret-value");
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@NODE
async def test_a_front_end_is_installed_at_the_top_and_built_beside_the_configuration(workshop: Workshop):
    workshop.write(
        {
            "package.json": json.dumps(PACKAGE), **LOCAL,
            "app/langgraph.json": json.dumps({"graphs": GRAPHS, "dependencies": ["."]}),
            "app/package.json": json.dumps({"scripts": {"bundle": "node bundle.js"}}),
            "app/bundle.js": BUNDLE,
        }
    )  # fmt: skip
    await workshop.build("app/langgraph.json", build="npm run bundle && node --version")
    app = workshop.folder / "source" / "app"
    assert (app / "built.txt").read_text() == f"7{app}"
    assert "Running npm i\n" in workshop.text
    assert "a-secret-value" not in workshop.text
    assert await asyncio.to_thread(workshop.python, "import portside; print('ready')") == "ready"
    left = int(workshop.text.partition("left behind ")[2].split()[0])

    async def gone() -> bool:
        return not runs(left)

    if PROC:
        await eventually(gone)


async def make_javascript(workshop: Workshop, **scripts: str) -> str:
    """Do the JavaScript of a build alone; return what it said."""
    lines: list[str] = []
    config = await asyncio.to_thread(read_config, workshop.project, "langgraph.json")
    await JavaScript(workshop.project, workshop.project, Output(lines.append)).make(config, Scripts(**scripts))
    return "\n".join(lines)


@NODE
async def test_the_lock_file_of_a_javascript_project_is_kept_to(workshop: Workshop):
    graphs = {"agent": "./agent.ts:graph"}
    workshop.write({"package.json": json.dumps(PACKAGE), **LOCAL}, graphs=graphs)
    lock = ["npm", "i", "--package-lock-only", "--silent"]
    await asyncio.to_thread(subprocess.run, lock, cwd=workshop.project, check=True)
    assert "Running npm ci" in await make_javascript(workshop)
    assert (workshop.project / "node_modules" / "local" / "index.js").exists()
    workshop.write({"package.json": json.dumps({**PACKAGE, "dependencies": {"more": "file:./local"}})}, graphs=graphs)
    with pytest.raises(BuildFailed, match=r"'npm ci' \(install_command\) exited with code 1"):
        await make_javascript(workshop)
    workshop.write({}, graphs=graphs, node_version=99)
    with pytest.raises(BuildFailed, match="node_version 99 is not installed on this machine; Node "):
        await make_javascript(workshop)


@NODE
@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        ({"install": "false"}, r"'false' \(install_command\) exited with code 1"),
        ({"build": "true && node no.js"}, r"(?s)\(build_command\) exited with code 1: .*no\.js"),
        ({"build": "kill -9 0"}, "was killed by SIGKILL; the machine may be out of memory"),
    ],
)
async def test_a_command_that_fails_is_told_with_its_words(workshop: Workshop, scripts: dict[str, str], words: str):
    workshop.write({})
    await workshop.refuses(words, **scripts)


@NODE
async def test_a_package_manager_that_is_missing_is_named(workshop: Workshop):
    if shutil.which("bun"):
        pytest.skip("bun is installed")
    workshop.write({"bun.lockb": "", "package.json": "{}"}, graphs={"agent": "./agent.js:graph"})
    await workshop.refuses("installs with bun, which is not installed on this machine")


@pytest.mark.skipif(not PROC, reason="looks into /proc")
async def test_what_a_killed_listener_left_of_a_build_is_cleared_away(workshop: Workshop, tmp_path: Path):
    finished = workshop.folder.with_name("finished")
    for folder in (workshop.folder, finished):
        (folder / "source").mkdir(parents=True)
    (finished / "built.json").write_text('{"commit": "", "config": "langgraph.json"}')
    environment = {"PORTSIDE_BUILD": str(workshop.folder)}
    process = await asyncio.create_subprocess_exec("/bin/sleep", "600", env=environment, start_new_session=True)
    await asyncio.to_thread(discard_unfinished, tmp_path / "deployments")
    assert await process.wait() == -9
    assert finished.exists()
    assert not workshop.folder.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
async def test_a_full_disk_fails_the_build_with_that_reason(workshop: Workshop, monkeypatch: pytest.MonkeyPatch):
    workshop.write({})
    full = Path("/dev/full")
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as it is in the library
        real(path, missing_ok=missing_ok)
        if path.name == "source.tar.gz":
            full.write_bytes(b"x")

    monkeypatch.setattr(Path, "unlink", unlink)
    await workshop.refuses("the build cannot go on: No space left on device")
