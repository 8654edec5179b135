"""No public method of the stock clients goes unnoticed: a test exercises it, or the table says what it waits for.

The table is docs/reference/sdk-methods.md. The methods are found by looking at the clients themselves, the calls by
reading the tests.
"""

import ast
import inspect
from pathlib import Path

import pytest
from langgraph_sdk import client as sdk

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "sdk-methods.md"
RESOURCES = {
    "assistants": "AssistantsClient",
    "threads": "ThreadsClient",
    "runs": "RunsClient",
    "crons": "CronClient",
    "store": "StoreClient",
    "http": "HttpClient",
}


def methods(prefix: str = "") -> set[str]:
    """The public methods of the asynchronous client, or with "Sync" of the other one."""
    return {
        f"{resource}.{name}"
        for resource, kind in RESOURCES.items()
        for name, _ in inspect.getmembers(getattr(sdk, prefix + kind), inspect.isfunction)
        if not name.startswith("_")
    }


def find_calls(file: Path) -> set[str]:
    """Everything of the form `client.<resource>.<method>` in a test file."""
    return {
        f"{node.value.attr}.{node.attr}"
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in RESOURCES
    }


def table() -> dict[str, dict[str, str]]:
    """The rows of the table by the Python name of the method."""
    rows = [line.strip()[1:-1].split("|") for line in TABLE.read_text("utf-8").splitlines() if line.startswith("| `")]
    names = ("method", "python", "javascript", "state", "note")
    found = [dict(zip(names, (cell.strip() for cell in row), strict=True)) for row in rows]
    return {row["method"].strip("`"): row for row in found}


@pytest.mark.parametrize(
    ("file", "prefix"), [("test_sdk_python.py", ""), ("test_sdk_python_sync.py", "Sync")], ids=["async", "sync"]
)
def test_every_method_is_exercised_or_waits(file: str, prefix: str):
    waiting = {name for name, row in table().items() if row["state"] == "later"}
    assert methods(prefix) - find_calls(Path(__file__).parent / file) - waiting == set()


def test_the_table_has_every_method_and_no_other():
    assert {name for name, row in table().items() if row["python"] != "none"} == methods()


def test_states_are_of_the_known_words():
    assert {row["state"] for row in table().values()} <= {"works", "later"}
