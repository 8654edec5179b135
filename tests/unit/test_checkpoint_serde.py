"""The serializer of checkpoints.

Reading a checkpoint runs no code that the checkpoint names, and restores what graphs keep.
"""

import dataclasses
import os
import pickle
import re
from collections import deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import ormsgpack
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Interrupt, Send
from pydantic import BaseModel, SecretStr

from portside.executor.checkpoints.backend import completed
from portside.executor.checkpoints.pieces import ValuePieces
from portside.executor.checkpoints.rows import Encoding, checkpoint_rows
from portside.executor.checkpoints.serde import SerdeRules, UnsafeCheckpoint, make_serde

HERE = __name__
ONE, SEVERAL, KEYWORDS, METHOD, MODEL_1, MODEL_2 = range(6)


class Color(Enum):
    RED = "red"


class Model(BaseModel):
    name: str
    secret: SecretStr = SecretStr("s")


@dataclasses.dataclass
class Record:
    name: str


class Pair(NamedTuple):
    left: int
    right: str


class Odd:
    """No data class."""

    def __init__(self, path: str = "") -> None:
        Path(path).write_text("called")


KEPT: list[Any] = [
    HumanMessage("hi", id="1"), AIMessage("there", tool_calls=[{"name": "t", "args": {}, "id": "c"}]),
    Document("text"), Interrupt(value="?", id="i"), Color.RED, Model(name="n"), Record("r"), Pair(1, "b"),
    {1, 2}, frozenset({3}), deque([1]), datetime.now(UTC), date(2026, 1, 2), timedelta(seconds=3), Decimal("1.5"),
    UUID(int=5), ip_address("::1"), Path("/a/b"), re.compile("a+"), b"bytes", None, {"a": [1, 2.5, "x"]},
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_values_of_checkpoints_round_trip(value):
    serde = make_serde()
    read = serde.loads_typed(serde.dumps_typed(value))
    assert read == value
    assert type(read) is type(value)


def test_send_round_trips():
    serde = make_serde()
    [read] = serde.loads_typed(serde.dumps_typed([Send("node", {"a": Record("r")})]))
    assert (read.node, read.arg) == ("node", {"a": Record("r")})


def call(code: int, *arguments: object) -> tuple[str, bytes]:
    """A blob that names something to be called, as whoever can write to the database may put it there."""
    return "msgpack", ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(arguments)))


@pytest.mark.parametrize("serde", [SerdeRules(), SerdeRules(allowed_msgpack_modules=None)], ids=["default", "strict"])
@pytest.mark.parametrize("code", range(6))
def test_hostile_blobs_call_nothing(code, serde, tmp_path):
    trace = tmp_path / "trace"
    command = f"touch {trace}"
    attacks = [
        ("os", "system", command), ("subprocess", "Popen", command), ("subprocess", "Popen", {"args": command}),
        ("builtins", "eval", f"open({str(trace)!r}, 'w')"), ("builtins", "exec", f"open({str(trace)!r}, 'w')"),
        ("pathlib", "Path", [str(trace)], "touch"), (HERE, "Odd", str(trace)), (HERE, "Odd", [str(trace)]),
        (HERE, "Odd", {"path": str(trace)}), ("os", "path", "x"), ("importlib", "import_module", "this"),
        ("builtins", "open", [str(trace), "w"]), ("pickle", "loads", pickle.dumps(os.getcwd)),
        ("langchain_core.load.load", "loads", "{}"), ("tests.unit.test_checkpoint_serde.Odd", "__init__", [str(trace)]),
    ]  # fmt: skip
    for attack in attacks:
        made_of = attack if len(attack) == 4 else (*attack, "__call__")
        make_serde(serde).loads_typed(call(code, *made_of))
    assert not trace.exists()


def test_modules_are_not_imported_for_a_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "planted_by_nobody.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make_serde().loads_typed(call(KEYWORDS, "planted_by_nobody", "X", {"a": 1})) == {"a": 1}


def test_pickles_are_read_only_where_that_was_asked_for():
    hostile = pickle.dumps(Record("r"))
    with pytest.raises(UnsafeCheckpoint, match="pickle"):
        make_serde().loads_typed(("pickle", hostile))
    assert make_serde(SerdeRules(pickle_fallback=True)).loads_typed(("pickle", hostile)) == Record("r")


def test_a_list_of_classes_lets_in_these_and_what_langgraph_keeps():
    serde = make_serde(SerdeRules(allowed_msgpack_modules=[[HERE, "Record"]]))
    read = serde.loads_typed(serde.dumps_typed([Record("r"), Pair(1, "b"), HumanMessage("hi", id="1")]))
    assert read == [Record("r"), {"left": 1, "right": "b"}, HumanMessage("hi", id="1")]


def test_objects_in_json_are_made_of_listed_classes_only():
    written = {"lc": 2, "type": "constructor", "id": [*HERE.split("."), "Record"], "kwargs": {"name": "r"}}
    raw = "json", msgspec.json.encode({"a": written})
    with pytest.raises(UnsafeCheckpoint, match="allowed_json_modules"):
        make_serde().loads_typed(raw)
    other = make_serde(SerdeRules(allowed_json_modules=[["some", "Thing"]]))
    assert other.loads_typed(raw) == {"a": written}
    listed = make_serde(SerdeRules(allowed_json_modules=[[*HERE.split("."), "Record"]]))
    assert listed.loads_typed(raw) == {"a": Record("r")}


@pytest.mark.parametrize("value", [None, True, 1.5, 7, "text", "\u00e9"])
def test_small_values_are_restored_from_the_body_of_a_checkpoint(value):
    serde = make_serde()
    assert serde.loads_typed(body_with(value))["channel_values"] == {"small": value}


def test_a_small_value_that_cannot_be_stored_is_refused_at_once():
    with pytest.raises(TypeError):
        body_with(2**64, completes=False)


def body_with(value: Any, *, completes: bool = True) -> tuple[str, bytes]:
    checkpoint: Any = {
        "v": 4, "id": "1", "ts": "", "channel_values": {"small": value}, "channel_versions": {"small": "1"},
        "versions_seen": {},
    }  # fmt: skip
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    rows = checkpoint_rows(Encoding(make_serde(), ValuePieces()), config, checkpoint, {}, {})
    [row] = rows.checkpoints.values()
    return completed(row)[5:7] if completes else ("", b"")
