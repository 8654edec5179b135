"""Lazy imports: deferred packages behave like ordinary ones, except for the time at which they run."""

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

from portside.kernel.startup import LAZY_PACKAGES, import_lazily

INIT = """
import builtins
builtins.package_runs.append(__name__)
from .large import thing
__version__ = "1.0"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Create a deferred package, `latest`, with the modules `small` and `large`. It records in a list when it runs."""
    runs: list[str] = []
    monkeypatch.setattr("builtins.package_runs", runs, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)

    def write(init: str = INIT) -> list[str]:
        folder = tmp_path / "latest"
        folder.mkdir()

        for name, text in {"__init__": init, "small": "leaf = 1\n", "large": "thing = 2\n"}.items():
            (folder / f"{name}.py").write_text(text)

        importlib.invalidate_caches()
        import_lazily("latest", "not_installed_at_all")
        return runs

    yield write

    for name in [name for name in sys.modules if name.partition(".")[0] == "latest"]:
        del sys.modules[name]


def import_module_named(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_import_of_a_module_does_not_run_its_package(package: Callable[[], list[str]]) -> None:
    runs = package()
    assert import_module_named("latest.small").leaf == 1
    assert import_module_named("latest").small.leaf == 1
    assert (runs, "latest.large" in sys.modules) == ([], False)


@pytest.mark.parametrize(
    "statement",
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
def test_lookup_of_a_name_runs_the_package_once(package: Callable[[], list[str]], statement: str) -> None:
    runs = package()
    exec(statement)
    exec(statement)
    package_module = import_module_named("latest")
    assert runs == ["latest"]
    assert (package_module.thing, type(package_module)) == (3 if "= 3" in statement else 2, ModuleType)

    with pytest.raises(AttributeError, match="'latest' has no attribute 'nothing'"):
        _ = package_module.nothing


def test_package_can_look_up_its_own_names_while_it_runs(package: Callable[[str], list[str]]) -> None:
    package("first = 1\nimport latest\nseen = latest.first, hasattr(latest, 'second')\nsecond = 2\n")
    assert import_module_named("latest").seen == (1, False)
    assert import_module_named("latest").second == 2


def test_failed_package_runs_again_at_the_next_lookup(package: Callable[[str], list[str]]) -> None:
    package("import builtins\nbuiltins.package_runs.append(1)\nif len(builtins.package_runs) == 1: 1 / 0\nthing = 5\n")
    with pytest.raises(ZeroDivisionError):
        _ = import_module_named("latest").thing

    assert import_module_named("latest").thing == 5


def test_second_thread_waits_until_the_package_has_run(
    package: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    go_on = threading.Event()
    monkeypatch.setattr("builtins.package_events", (begun, go_on), raising=False)
    package("import builtins\nbuiltins.package_events[0].set()\nbuiltins.package_events[1].wait(60)\nthing = 7\n")

    package_module = import_module_named("latest")
    seen = []

    threads = [threading.Thread(target=lambda: seen.append(package_module.thing)) for _ in range(3)]
    for thread in threads:
        thread.start()

    assert begun.wait(60)
    assert seen == []
    go_on.set()

    for thread in threads:
        thread.join(60)

    assert seen == [7, 7, 7]


def test_package_can_be_reloaded(package: Callable[[], list[str]]) -> None:
    runs = package()
    assert importlib.reload(import_module_named("latest")).thing == 2
    assert runs == ["latest"]


def test_deferred_packages_of_the_server_are_complete_after_lookup() -> None:
    """Runs in a separate process, because this one has already imported the packages."""
    script = """
import sys, types
from portside.kernel.startup import import_lazily
import_lazily(*sys.argv[1:])
import portside.agent.custom.cache, portside.agent.custom.loopback
import portside.agent.local_graphs, portside.agent.server
print(*[name for name in sys.argv[1:] if type(sys.modules[name]) is not types.ModuleType])
import httpx, langgraph_sdk, langsmith.types
assert httpx.Client and langgraph_sdk.get_client and langsmith.types.Run
for name in sys.argv[1:]:
    lazy_names = set(dir(sys.modules.pop(name)))
    __import__(name)
    missing = set(dir(sys.modules[name])) - lazy_names
    assert not missing, missing
"""

    command = [sys.executable, "-c", script, *LAZY_PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == list(LAZY_PACKAGES)


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_modules_of_deferred_packages_do_not_look_up_its_names_at_import(package: str) -> None:
    """Otherwise a thread that runs the package and one that imports the module could wait for each other."""
    folder = Path(next(iter(import_module_named(package).__path__)))
    lookups = []

    for file in folder.rglob("*.py"):
        if file != folder / "__init__.py":
            parts = file.relative_to(folder).with_suffix("").parts
            home = ".".join([package, *parts[:-1]])
            lookups += [f"{file}:{node.lineno}" for node in imports_from(file) if resolve_source(node, home) == package]

    assert lookups == []


def imports_from(file: Path) -> Iterator[ast.ImportFrom]:
    """Return the modules that a module imports names from at run time, not only for type checkers."""
    left = list(ast.parse(file.read_text()).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, (ast.If, ast.Try)) and "TYPE_CHECKING" not in ast.dump(getattr(node, "test", node)):
            left += [child for child in ast.walk(node) if isinstance(child, ast.ImportFrom)]


def resolve_source(node: ast.ImportFrom, home: str) -> str:
    return importlib.util.resolve_name("." * node.level + (node.module or ""), home)


def test_deployed_server_does_without_rich_and_libraries_of_graphs_and_its_project_does_not():
    """Executors have the graphs: their libraries would be most of the memory and of the start of a server."""
    code = (
        "import sys\n"
        "from portside.kernel.startup import defer_packages, import_without_rich\n"
        "defer_packages()\n"
        "import_without_rich('structlog')\n"
        "import structlog, portside.agent.server\n"
        "assert not {'langchain_core', 'langgraph', 'langsmith', 'pydantic'} & sys.modules.keys()\n"
        "import httpx\n"
        "assert httpx.AsyncClient and httpx.main\n"
        "assert not any(name.partition('.')[0] == 'rich' for name in sys.modules)\n"
        "import rich.console\n"
        "structlog.get_logger().info('a line')\n"
    )

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "a line" in done.stdout
