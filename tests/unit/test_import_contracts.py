"""The contract of imports allows what is named, and nothing else."""

import importlib.util
from pathlib import Path
from typing import Any

import grimp
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "import_contracts.py"


def load_contract() -> Any:
    spec = importlib.util.spec_from_file_location("import_contracts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None

    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.AllowedImports


def find_problems(lines: list[str], imports: list[tuple[str, str]]) -> list[str]:
    graph = grimp.ImportGraph()
    graph.add_module("house")
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)

    contract = load_contract()("name", {}, {"root": "house", "imports": lines})
    check = contract.check(graph, verbose=False)
    assert check.kept is (check.metadata["problems"] == [])
    return check.metadata["problems"]


def test_named_packages_and_modules_may_be_imported():
    lines = ["low:", "middle: low", "high: low.one middle"]
    imports = [
        ("house.low.one", "house.low.two"),
        ("house.middle", "house.low"),
        ("house.high.x", "house.low.one"),
        ("house.high.x", "house.middle.y"),
        ("house.high", "house"),
        ("house.high", "library"),
    ]
    assert find_problems(lines, imports) == []


@pytest.mark.parametrize(
    ("lines", "imports", "problem"),
    [
        (["low:", "new:"], [("house.low", "house.new")], "house.low imports house.new"),
        (["low:"], [("house.new", "house.low")], "house.new: its package has no line"),
        (["low:", "high: low.one"], [("house.high", "house.low.two")], "house.high imports house.low.two"),
        (["low:", "high: low.one"], [("house.high", "house.low.one_more")], "house.high imports house.low.one_more"),
        (["high: low", "low:"], [("house.high", "house.low")], "high: low has no line above it"),
        (["low:", "high: low"], [("house.high", "library")], "high: nothing of low is imported"),
    ],
)
def test_everything_else_is_a_problem(lines, imports, problem):
    assert any(text.startswith(problem) for text in find_problems(lines, imports))
