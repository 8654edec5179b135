"""The wheel that people install has every file of the package, also those that only a build makes; so has the sdist.

hatchling itself says what it would pack; nothing is built.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/hello-agent/"
# git ignores them: documentation, pages, and what runs graphs in JavaScript.
BUILT = (
    "src/portside/console/help/index.html",
    "src/portside/console/help/search.json.gz",
    "src/portside/console/static/index.html",
    "src/portside/console/static/assets/index-a1b2.js",
    "src/portside/executor_js/main.mjs",
    "src/portside/executor_js/package.json",
)
REFUSED_WITHOUT = {
    "src/portside/console/static/index.html": "the console",
    "src/portside/executor_js/main.mjs": "the executor of JavaScript graphs",
}
# What the wheel and the sdist of a checkout have beside the package.
WITH_THE_SDIST = ("README.md", "LICENSE", "CHANGELOG.md", "requirements.lock", "pyproject.toml", "hatch_build.py")


@pytest.fixture
def listed() -> list[str]:
    """The files of the package and of the example that git has."""
    command = ["git", "ls-files", "src/portside", EXAMPLE]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def checkout(tmp_path: Path, listed: list[str]) -> Path:
    """A checkout where everything is built: the files of the package are empty."""
    for name in (".gitignore", *WITH_THE_SDIST):
        shutil.copy(ROOT / name, tmp_path)

    for name in (*listed, *BUILT, "src/portside/__pycache__/app.cpython-313.pyc", "console/src/main.tsx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    return tmp_path


def test_wheel_has_every_file_of_the_package(checkout: Path, listed: list[str]):
    builder = WheelBuilder(str(checkout))
    packed = {each.distribution_path for each in builder.recurse_included_files()}

    needed = {name.removeprefix("src/") for name in (*listed, *BUILT) if not name.startswith(EXAMPLE)}
    needed |= {f"portside/{name}" for name in listed if name.startswith(EXAMPLE)}
    assert {Path(name).suffix for name in needed} >= {".py", ".sql", ".txt", ".html", ".js"}
    assert packed == needed


def test_sdist_has_what_a_wheel_is_built_from(checkout: Path, listed: list[str]):
    builder = SdistBuilder(str(checkout))
    packed = {each.distribution_path for each in builder.recurse_included_files()}
    # hatchling adds what says how to build.
    assert packed == {*listed, *BUILT, *WITH_THE_SDIST} - {"pyproject.toml", "hatch_build.py"}


@pytest.fixture
def small_checkout(tmp_path: Path) -> Path:
    for name in (".gitignore", *WITH_THE_SDIST):
        shutil.copy(ROOT / name, tmp_path)

    for name in ("src/portside/__init__.py", f"{EXAMPLE}agent.py", *BUILT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    return tmp_path


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_package_without_its_javascript_is_refused(builder: type, small_checkout: Path):
    build = builder(str(small_checkout))
    next(build.build(directory=str(small_checkout / "dist"), versions=["standard"]))
    for file, missing in REFUSED_WITHOUT.items():
        (small_checkout / file).rename(small_checkout / "away")
        with pytest.raises(RuntimeError, match=f"would lack {missing}: run 'make console' first"):
            next(build.build(directory=str(small_checkout / "another"), versions=["standard"]))

        (small_checkout / "away").rename(small_checkout / file)

    assert not [*small_checkout.glob("another/portside*")]


def test_editable_installation_needs_no_javascript(small_checkout: Path):
    for file in BUILT:
        (small_checkout / file).unlink()

    next(WheelBuilder(str(small_checkout)).build(directory=str(small_checkout / "dist"), versions=["editable"]))
