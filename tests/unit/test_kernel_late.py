"""Packages that run when something of them is asked for: nobody sees a difference but the moment."""

import ast
import importlib
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from portside.cli.serve import LATE_PACKAGES
from portside.kernel.late import put_off

INIT = """
import builtins
builtins.late_runs.append(__name__)
from .large import thing
__version__ = "1.0"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Write `latest`, a package with the modules `small` and `large`, that notes in a list when it runs; put it off."""
    runs: list[str] = []
    monkeypatch.setattr("builtins.late_runs", runs, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)

    def write(init: str = INIT) -> list[str]:
        folder = tmp_path / "latest"
        folder.mkdir()
        for name, text in {"__init__": init, "small": "leaf = 1\n", "large": "thing = 2\n"}.items():
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        put_off("latest", "not_installed_at_all")
        return runs

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "latest"]:
        del sys.modules[name]


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_a_module_of_a_package_does_without_the_package(package: Callable[[], list[str]]) -> None:
    runs = package()
    assert imported("latest.small").leaf == 1
    assert imported("latest").small.leaf == 1
    assert (runs, "latest.large" in sys.modules) == ([], False)


@pytest.mark.parametrize(
    "asking",
    [
        "import latest; latest.thing",
        "from latest import thing",
        "from latest import *; thing",
        "import latest; latest.__version__",
        "import latest; latest.large",
        "import latest; assert 'thing' in dir(latest)",
        "import latest; latest.thing = 3",
        "import latest, latest.small; hasattr(latest, 'nothing')",
    ],
)
def test_who_asks_for_a_name_has_the_package_run_once(package: Callable[[], list[str]], asking: str) -> None:
    runs = package()
    exec(asking)
    exec(asking)
    late = imported("latest")
    assert runs == ["latest"]
    assert (late.thing, type(late)) == (3 if "= 3" in asking else 2, ModuleType)
    with pytest.raises(AttributeError, match="'latest' has no attribute 'nothing'"):
        _ = late.nothing


def test_a_package_that_asks_itself_gets_what_it_has(package: Callable[[str], list[str]]) -> None:
    package("first = 1\nimport latest\nseen = latest.first, hasattr(latest, 'second')\nsecond = 2\n")
    assert imported("latest").seen == (1, False)
    assert imported("latest").second == 2


def test_a_package_that_fails_is_asked_again(package: Callable[[str], list[str]]) -> None:
    package("import builtins\nbuiltins.late_runs.append(1)\nif len(builtins.late_runs) == 1: 1 / 0\nthing = 5\n")
    with pytest.raises(ZeroDivisionError):
        _ = imported("latest").thing
    assert imported("latest").thing == 5


def test_a_thread_waits_for_the_one_that_runs_it(
    package: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.late_events", (begun, go_on), raising=False)
    package("import builtins\nbuiltins.late_events[0].set()\nbuiltins.late_events[1].wait(60)\nthing = 7\n")
    late, seen = imported("latest"), []
    threads = [threading.Thread(target=lambda: seen.append(late.thing)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    assert seen == []
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert seen == [7, 7, 7]


def test_a_package_can_be_loaded_another_time(package: Callable[[], list[str]]) -> None:
    runs = package()
    assert importlib.reload(imported("latest")).thing == 2
    assert runs == ["latest"]


def test_what_a_server_puts_off_is_not_needed_by_graphs_and_whole_when_asked() -> None:
    """In a process of its own: here everything is imported."""
    script = """
import sys, types
from portside.kernel.late import put_off
put_off(*sys.argv[1:])
import portside.agent.server, portside.agent.custom.cache
print(*[name for name in sys.argv[1:] if type(sys.modules[name]) is not types.ModuleType])
import langgraph_sdk, langsmith.types
assert langgraph_sdk.get_client and langsmith.types.Run
for name in sys.argv[1:]:
    late = set(dir(sys.modules.pop(name)))
    __import__(name)
    missing = set(dir(sys.modules[name])) - late
    assert not missing, missing
"""
    command = [sys.executable, "-c", script, *LATE_PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == list(LATE_PACKAGES)


@pytest.mark.parametrize("package", LATE_PACKAGES)
def test_no_module_of_what_waits_asks_the_package_for_a_name_while_it_is_imported(package: str) -> None:
    """A thread that runs the package would wait for one that imports the module, and that one for the package."""
    folder = Path(next(iter(imported(package).__path__)))
    asking = []
    for file in folder.rglob("*.py"):
        if file != folder / "__init__.py":
            parts = file.relative_to(folder).with_suffix("").parts
            home = ".".join([package, *parts[:-1]])
            asking += [f"{file}:{node.lineno}" for node in imports_from(file) if source_of(node, home) == package]
    assert asking == []


def imports_from(file: Path) -> Iterator[ast.ImportFrom]:
    """What a module imports names from when it is imported itself: what is for type checkers only is not."""
    left = list(ast.parse(file.read_text()).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, (ast.If, ast.Try)) and "TYPE_CHECKING" not in ast.dump(getattr(node, "test", node)):
            left += [child for child in ast.walk(node) if isinstance(child, ast.ImportFrom)]


def source_of(node: ast.ImportFrom, home: str) -> str:
    return importlib.util.resolve_name("." * node.level + (node.module or ""), home)
