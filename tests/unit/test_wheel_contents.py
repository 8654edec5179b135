"""The wheel that people install has every file of the package, also those that only a build makes.

hatchling itself says what it would pack; nothing is built.
"""

import shutil
import subprocess
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/hello-agent/"
# git ignores them. Without the second one no graph in JavaScript runs, and without the first one there are no pages.
BUILT = (
    "src/portside/console/help/index.html",
    "src/portside/console/help/search.json.gz",
    "src/portside/console/static/index.html",
    "src/portside/console/static/assets/index-a1b2.js",
    "src/portside/executor_js/main.js",
    "src/portside/executor_js/package.json",
)


def test_wheel_has_every_file_of_the_package(tmp_path: Path):
    listed = subprocess.run(
        ["git", "ls-files", "src/portside", EXAMPLE], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    for name in (".gitignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)

    for name in (*listed, *BUILT, "src/portside/__pycache__/app.cpython-313.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    builder = WheelBuilder(str(tmp_path))
    packed = {each.distribution_path for each in builder.recurse_included_files()}

    needed = {name.removeprefix("src/") for name in (*listed, *BUILT) if not name.startswith(EXAMPLE)}
    needed |= {f"portside/{name}" for name in listed if name.startswith(EXAMPLE)}
    assert {Path(name).suffix for name in needed} >= {".py", ".sql", ".txt", ".html", ".js"}
    assert packed == needed
