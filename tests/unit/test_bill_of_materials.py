"""The bill of materials of a release names what Portside needs when it runs, and nothing of its development."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCK = """
direct==1.0 ; sys_platform != 'win32' \\
    --hash=sha256:00
    # via portside (pyproject.toml)
indirect==2.0 \\
    --hash=sha256:01
    # via
    #   direct
    #   tool
tool==3.0 \\
    --hash=sha256:02
    # via portside (pyproject.toml)
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bill_script", ROOT / "scripts" / "bill_of_materials.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Named tuples of the module look for it there.
    sys.modules["bill_script"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bill(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """That of this repository; what a build says about its packages is written here, as make install may lack npm."""
    root = tmp_path_factory.mktemp("root")
    for name in ("pyproject.toml", "requirements.lock", "console", "executor-js"):
        (root / name).symlink_to(ROOT / name)

    folder = root / "src" / "portside" / "executor_js"
    folder.mkdir(parents=True)
    (folder / "bundled.json").write_text('{"@scope/inside": {"version": "1.2.3", "license": "MIT"}}')
    text = script.write_bill(root, "0123abc")
    assert text == script.write_bill(root, "0123abc"), "equal sources give an equal file"
    return dict(json.loads(text))


def test_packages_are_read_with_those_that_require_them(script: ModuleType):
    pins = script.read_pins(LOCK)
    assert {name: pin.version for name, pin in pins.items()} == {"direct": "1.0", "indirect": "2.0", "tool": "3.0"}
    assert pins["direct"].marker == "sys_platform != 'win32'"
    assert pins["indirect"].via == {"direct", "tool"}
    assert script.find_needed(pins, ["direct"]) == {"direct", "indirect"}


def test_bill_names_what_is_installed_and_not_what_develops(bill: dict[str, Any]):
    # It was compared with the schema when it was written.
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    portside = bill["metadata"]["component"]
    assert (portside["name"], portside["licenses"]) == ("portside", [{"license": {"id": "Apache-2.0"}}])

    scopes = {each["purl"].rpartition("@")[0]: each["scope"] for each in bill["components"]}
    assert scopes["pkg:pypi/asyncpg"] == "required"
    assert scopes["pkg:pypi/h11"] == "required", "it is required by others"
    assert scopes["pkg:pypi/lightkube"] == "optional", "it is of an extra"
    assert not {"pkg:pypi/pytest", "pkg:pypi/mypy", "pkg:pypi/pip-audit"} & {*scopes}


def test_bill_names_the_javascript_in_the_package(bill: dict[str, Any]):
    places = {each["purl"]: each["properties"][0]["value"] for each in bill["components"] if "pkg:npm" in each["purl"]}
    locked = json.loads((ROOT / "console" / "package-lock.json").read_text())["packages"]
    react = locked["node_modules/react"]["version"]
    assert places[f"pkg:npm/react@{react}"] == "the console"
    assert places["pkg:npm/%40scope/inside@1.2.3"] == "the executor of JavaScript graphs"
    assert not any("pkg:npm/vite@" in purl or "%40types" in purl for purl in places), "they only build"


def test_bill_is_not_written_without_the_built_executor(script: ModuleType, tmp_path: Path):
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).symlink_to(ROOT / name)

    with pytest.raises(script.MissingBuildError, match="run 'make console' first"):
        script.write_bill(tmp_path)
