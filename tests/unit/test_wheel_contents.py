"""The wheel that people install has every file of the package, also those that only a build makes; so has the sdist.

hatchling itself says what it would pack; nothing is built. The wheels that deployments get have what their files import
(`tests/db/test_installed_wheel.py` installs them).
"""

import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from portside.dataplane.builds.wheel import EXECUTOR, SERVER, WheelContent, _package_files

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
IMPORT = re.compile(r"^ *(?:from ([\w.]+) import|import ([\w.]+))", re.MULTILINE)
# `portside serve` imports them where the whole platform is installed.
OF_THE_PLATFORM = {"portside.cli.dev", "portside.console.site", "portside.platform.settings"}


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


def list_with_dependencies(content: WheelContent) -> set[str]:
    """Return the packages that a wheel requires, and all that those require."""
    extras = [f"portside[{extra}]" for extra in content.extras]
    waiting = [Requirement(name) for name in (*content.required, *extras)]
    names = set[str]()
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        is_own = name == "portside"
        if name in names and not is_own:
            continue

        names.add(name)
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            has_extra = any(needed.marker and needed.marker.evaluate({"extra": each}) for each in requirement.extras)
            if has_extra or (not is_own and (needed.marker is None or needed.marker.evaluate({"extra": ""}))):
                waiting.append(needed)

    return names


@pytest.mark.parametrize("content", [SERVER, EXECUTOR], ids=["server", "executor"])
def test_what_deployments_get_imports_nothing_that_they_lack(content: WheelContent):
    files = {name: data.decode() for name, data in _package_files(content).items() if name.endswith(".py")}
    ours = {f"portside.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__") for name in files}
    required = list_with_dependencies(content)
    packages = packages_distributions()

    lacking = set[tuple[str, str]]()
    for file, text in files.items():
        for module in filter(None, (name for match in IMPORT.findall(text) for name in match)):
            top = module.partition(".")[0]
            if top == "portside":
                is_there = module in ours or module in OF_THE_PLATFORM
            else:
                providers = {name.lower().replace("_", "-") for name in packages.get(top, ())}
                is_there = top in sys.stdlib_module_names or not providers.isdisjoint(required)

            if not is_there:
                lacking.add((file, module))

    assert lacking == set()


def test_deployments_get_the_agent_server_and_one_command():
    names = _package_files(SERVER)
    assert {name.partition("/")[0] for name in names} == {
        "__init__.py",
        "__main__.py",
        "agent",
        "cli",
        "executor",
        "kernel",
    }
    assert {Path(name).name for name in names if name.startswith("cli/")} == {
        "__init__.py",
        "main.py",
        "output.py",
        "serve.py",
    }
