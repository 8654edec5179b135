"""The cache file of the descriptions of graphs."""

from pathlib import Path

import ormsgpack
import pytest

from portside.agent.executors.graph_cache import GraphCache
from portside.executor.requests import GraphFacts

FACTS = {"echo": GraphFacts(description="Repeats what it hears.", is_fixed=True)}


def test_descriptions_come_back(tmp_path: Path):
    written = GraphCache(tmp_path / "known")
    assert not written.load()
    written.save(FACTS, {"langgraph": "1.0"}, {("schemas", b"{}"): {"input_schema": 1}})

    read = GraphCache(tmp_path / "known")
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
    file = GraphCache(path)
    assert not file.load()

    file.save(FACTS, {}, {})
    assert GraphCache(path).load()
