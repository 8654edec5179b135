"""Commands: the shapes a client may send."""

from typing import Any

import pytest
from langgraph.types import Command, Send

from portside.executor.run_commands import parse_command
from portside.kernel.errors import Invalid


@pytest.mark.parametrize(
    ("raw", "command"),
    [
        ({"resume": "yes"}, Command(resume="yes")),
        ({"resume": False}, Command(resume=False)),
        ({"goto": "a"}, Command(goto="a")),
        ({"goto": ["a", "b"]}, Command(goto=["a", "b"])),
        ({"goto": {"node": "a", "input": 1}}, Command(goto=Send("a", 1))),
        (
            {"goto": [{"node": "a", "input": 1}, {"node": "b", "input": None}]},
            Command(goto=[Send("a", 1), Send("b", None)]),
        ),
        ({"update": {"x": 1}}, Command(update={"x": 1})),
        ({"update": [["x", 1], ["x", 2]]}, Command(update=[("x", 1), ("x", 2)])),
        ({"update": {"x": 1}, "resume": 3, "goto": None}, Command(update={"x": 1}, resume=3)),
    ],
)
def test_good_shapes(raw: dict[str, Any], command: Command[Any]):
    assert parse_command(raw) == command


@pytest.mark.parametrize(
    ("raw", "loc"),
    [
        ({}, ["body", "command"]),
        ({"resume": None, "unknown": 1}, ["body", "command"]),
        ({"goto": 3}, ["body", "command", "goto"]),
        ({"goto": [3]}, ["body", "command", "goto", 0]),
        ({"goto": ["a", {"node": "b"}]}, ["body", "command", "goto"]),
        ({"goto": {"input": 1}}, ["body", "command", "goto", "node"]),
        ({"goto": {"node": "a"}}, ["body", "command", "goto", "input"]),
        ({"goto": [{"node": "a", "input": 1}, {"node": 3}]}, ["body", "command", "goto", 1, "node"]),
        ({"update": "x"}, ["body", "command", "update"]),
        ({"update": [["x", 1], ["y"]]}, ["body", "command", "update", 1]),
        ({"update": [[1, 2]]}, ["body", "command", "update", 0]),
    ],
)
def test_bad_shapes_name_the_field(raw: dict[str, Any], loc: list[str | int]):
    with pytest.raises(Invalid) as caught:
        parse_command(raw)
    assert caught.value.problems[0].loc == loc
