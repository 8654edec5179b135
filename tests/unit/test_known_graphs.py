"""The cache file of the descriptions of graphs."""

from pathlib import Path

import ormsgpack
import pytest

from portside.agent.executors.known import KnownGraphs
from portside.executor.requests import GraphFacts

FACTS = {"echo": GraphFacts(description="Repeats what it hears.", is_fixed=True)}


def test_descriptions_come_back(tmp_path: Path):
    written = KnownGraphs(tmp_path / "known")
    assert not written.load()
    written.keep(FACTS, {"langgraph": "1.0"}, {("schemas", b"{}"): {"input_schema": 1}})

    read = KnownGraphs(tmp_path / "known")
    assert read.load()
    assert read.facts == FACTS
    assert read.libraries == {"langgraph": "1.0"}
    assert read.descriptions == {("schemas", b"{}"): {"input_schema": 1}}


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1 damaged", ormsgpack.packb([]), ormsgpack.packb({"facts": {"echo": 1}})],
    ids=["empty", "damaged", "no object", "wrong facts"],
)
def test_damaged_file_counts_as_missing_and_is_replaced(tmp_path: Path, content: bytes):
    path = tmp_path / "known"
    path.write_bytes(content)
    file = KnownGraphs(path)
    assert not file.load()

    file.keep(FACTS, {}, {})
    assert KnownGraphs(path).load()
