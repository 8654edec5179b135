"""The wheel is installed by pip, pipx and uvx, with each supported Python, into an environment that has nothing else.

`tests/unit/test_wheel_contents.py` says cheaply what it contains.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
# The oldest and the newest with what people use most; a test with an interpreter that is not here is skipped.
USED = [("3.11", "pip"), ("3.12", "pipx"), ("3.13", "uvx"), ("3.14", "pip")]
STARTED = [(python, installer) for python in ("3.11", "3.12", "3.13") for installer in ("pip", "pipx", "uvx")]

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3600)]


def find_python(version: str) -> str:
    """Return the path of an interpreter on this machine: in the PATH, of uv, or of pyenv."""
    command = [find_uv_bin(), "python", "find", "--no-project", "--no-python-downloads", version]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return result.stdout.strip()

    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if not installed:
        pytest.skip(f"Python {version} is not on this machine")

    return str(installed[-1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "scripts.docs_site", "build", "--strict"], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--build-constraints", "requirements.lock"]
    subprocess.run([*command, "--require-hashes", "--out-dir", str(folder)], cwd=ROOT, check=True)
    [wheel] = folder.glob("portside-*.whl")
    return wheel


def use_wheel(wheel: Path, version: str, installer: str, *options: str) -> str:
    command = [sys.executable, "scripts/check_installed.py", str(wheel), "--python", find_python(version)]
    result = subprocess.run(
        [*command, "--with", installer, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(("version", "installer"), STARTED)
def test_wheel_is_installed(version: str, installer: str, wheel: Path):
    said = use_wheel(wheel, version, installer, "--only-version")
    assert "portside, version" in said


@pytest.mark.parametrize(("version", "installer"), USED)
def test_installed_wheel_deploys_and_serves(version: str, installer: str, wheel: Path):
    options = ["--agent", str(ROOT / "examples" / "hello-agent-js")] if version == "3.13" else []
    said = use_wheel(wheel, version, installer, *options)
    assert "hello-agent: I worked it out: 6*7 = 42." in said
    assert "the console's first page:" in said
    assert "the doctor: 0 faults" in said


def test_same_sources_give_the_same_files(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The times in them are those that the build is given."""
    source = tmp_path / "source"
    with subprocess.Popen(["tar", "xzf", str(next(wheel.parent.glob("*.tar.gz"))), "-C", str(tmp_path)]) as unpacking:
        assert unpacking.wait() == 0

    next(tmp_path.glob("portside-*")).rename(source)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    wheels = []
    for folder in (source, shutil.copytree(source, tmp_path / "another")):
        out = tmp_path / f"of-{folder.name}"
        subprocess.run([find_uv_bin(), "build", "--quiet", "--wheel", "--out-dir", str(out), str(folder)], check=True)
        wheels.append(next(out.glob("*.whl")).read_bytes())

    assert wheels[0] == wheels[1]
