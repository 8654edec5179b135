"""The paths by which clients select fields of threads."""

import pytest

from portside.agent.threads.records import parse_paths
from portside.executor.requests import select_fields
from portside.kernel.errors import Invalid


@pytest.mark.parametrize(
    ("path", "root", "steps"),
    [
        ("values", "values", []),
        ("values.a", "values", ["a"]),
        ("values.a.b[0][-1].c d", "values", ["a", "b", "0", "-1", "c d"]),
        ("metadata[3]", "metadata", ["3"]),
        ("config.tags[0]", "config", ["tags", "0"]),
        ("interrupts.zażółć", "interrupts", ["zażółć"]),
    ],
)
def test_path_is_split_into_steps(path: str, root: str, steps: list[str]) -> None:
    assert parse_paths({"x": path}) == [{"alias": "x", "root": root, "path": steps}]


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "values.",
        "values..a",
        "values[",
        "values[]",
        "values[a]",
        "values[1",
        "values]",
        "status",
        "valuesx.a",
        "values.a[99999999999]",
        "values" + ".a" * 600,
    ],
)
def test_bad_path_is_refused_by_name(path: str) -> None:
    with pytest.raises(Invalid, match=r"body\.extract\.alias"):
        parse_paths({"alias": path})


def test_no_paths_return_none() -> None:
    assert parse_paths(None) is parse_paths({}) is None


def test_fields_are_selected() -> None:
    state = {"values": {"a": 1, "b": 2}, "next": ["n"]}
    assert select_fields(state, None) is state
    assert select_fields(state, ["next", "values.a", "values.c"]) == {"next": ["n"], "values": {"a": 1}}
    assert select_fields(state, ["values.a", "values"]) == {"values": {"a": 1, "b": 2}}
    assert select_fields(state | {"values": [1]}, ["values.a"]) == {"values": {}}
