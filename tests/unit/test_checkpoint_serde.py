"""The serializer of checkpoints.

Reading a checkpoint runs no code that the checkpoint names, and restores what graphs keep.
"""

import dataclasses
import os
import pickle
import re
from array import array
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from time import gmtime
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import ormsgpack
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Interrupt, Send
from pydantic import AnyUrl, BaseModel, SecretStr, TypeAdapter

from portside.executor.checkpoints.backend import complete_row
from portside.executor.checkpoints.pieces import ValuePieces
from portside.executor.checkpoints.rows import Encoding, build_checkpoint_rows
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


class Free(BaseModel):
    name: str
    part: Any = None


class Struct(msgspec.Struct):
    part: Any


class Odd:
    """No data class."""

    def __init__(self, path: str = "") -> None:
        Path(path).write_text("called")


KEPT: list[Any] = [
    HumanMessage("hi", id="1"),
    AIMessage("there", tool_calls=[{"name": "t", "args": {}, "id": "c"}]),
    Document("text"),
    Interrupt(value="?", id="i"),
    Color.RED,
    Model(name="n"),
    Record("r"),
    Pair(1, "b"),
    {1, 2},
    frozenset({3}),
    deque([1]),
    datetime.now(UTC),
    date(2026, 1, 2),
    timedelta(seconds=3),
    Decimal("1.5"),
    UUID(int=5),
    ip_address("::1"),
    Path("/a/b"),
    re.compile("a+"),
    b"bytes",
    None,
    {"a": [1, 2.5, "x"]},
    2**70,
    1 + 2j,
    Fraction(1, 2),
    range(5),
    slice(1, 2),
    SimpleNamespace(a=1),
    MappingProxyType({"a": 1}),
    ChainMap({"a": 1}, {"b": 2}),
    UserDict(a=1),
    UserList([1]),
    UserString("a"),
    array("d", [1.5]),
    PurePosixPath("a/b"),
    Struct("s"),
    bytearray(b"a"),
    TypeAdapter(AnyUrl).validate_python("http://a/b"),
    {np.int64(5): {Path("/a"): 1}, (1, "b"): 2, frozenset({1}): 3, Decimal("1.5"): 4, None: [{Fraction(1, 2): 5}]},
    np.float64(1.5),
    np.float32(0.1),
    np.int8(-5),
    np.bool_(True),
    np.bytes_(b"a"),
    np.complex64(1 + 2j),
    np.longdouble(1.5),
    np.datetime64("2020-01-01"),
    np.datetime64(5, "25s"),
    np.timedelta64(5, "D"),
    np.timedelta64(5),
]
# Containers whose parts langgraph's serializer refuses.
AROUND: list[Callable[[Any], Any]] = [
    lambda part: [part],
    lambda part: {"a": [part]},
    lambda part: deque([part]),
    Record,
    lambda part: Pair(1, part),
    lambda part: Free(name="n", part=part),
    Struct,
    lambda part: SimpleNamespace(a=part),
    lambda part: ToolMessage("t", tool_call_id="c", artifact=part),
    lambda part: Document("d", metadata={"a": part}),
    lambda part: Send("node", {"a": part}),
    lambda part: Interrupt(value=part, id="i"),
]
ARRAYS = [
    np.array([[1, 2], [3, 4]]),
    np.array([[1, 2], [3, 4]]).T,
    np.arange(6)[::2],
    np.array(5),
    np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    np.array([5], dtype="timedelta64[s]"),
    np.array([["2020-01-01T01:02:03"]], dtype="datetime64[s]"),
    np.array([1 + 2j]),
    np.array(["a", "bc"]),
    np.array([[{"a": Fraction(1, 2)}, None]], dtype=object),
    np.array([[1, 2], [3]], dtype=object),
]


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_values_of_checkpoints_round_trip(value):
    serde = make_serde()
    read = serde.loads_typed(serde.dumps_typed(value))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("around", AROUND)
def test_values_round_trip_inside_of_others(around):
    serde = make_serde()
    value = around(range(3))
    assert serde.loads_typed(serde.dumps_typed(value)) == value


@pytest.mark.parametrize("value", ARRAYS, ids=str)
@pytest.mark.parametrize("around", [lambda part: part, lambda part: [part, Fraction(1, 2)]], ids=["alone", "beside"])
def test_arrays_round_trip(value, around):
    serde = make_serde()
    read = serde.loads_typed(serde.dumps_typed(around(value)))
    found = read[0] if isinstance(read, list) else read
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert np.array_equal(found, value, equal_nan=value.dtype.kind in "Mm")


class Named(bytes):
    pass


class Longer(float):
    pass


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Named(b"a"), b"a"),
        ([Named(b"a")], [b"a"]),
        (Longer(1.5), 1.5),
        (gmtime(0), list(gmtime(0))),
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.items(), [["a", 1]]),
    ],
    ids=repr,
)
def test_instances_of_plain_classes_are_stored_without_their_class(value, stored):
    serde = make_serde()
    kind, encoded = serde.dumps_typed(value)
    assert type(encoded) is bytes
    assert serde.loads_typed((kind, encoded)) == stored


@pytest.mark.parametrize("value", [Fraction(1, 2), 1 + 2j, np.float64(1.5), range(3)], ids=repr)
def test_a_reader_without_the_class_finds_plain_data(value):
    _, encoded = make_serde().dumps_typed(value)
    parts = ormsgpack.unpackb(encoded, ext_hook=lambda _, data: ormsgpack.unpackb(data))
    assert parts[2] in ("1/2", "(1+2j)", 1.5, [0, 3, 1])


def test_what_has_no_form_without_pickle_is_refused():
    with pytest.raises(TypeError, match="Odd"):
        make_serde().dumps_typed({"a": [object.__new__(Odd), Fraction(1, 2)]})

    serde = make_serde(SerdeRules(pickle_fallback=True))
    assert serde.dumps_typed(object.__new__(Odd))[0] == "pickle"
    assert serde.dumps_typed(Fraction(1, 2))[0] == "msgpack"


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
        ("os", "system", command),
        ("subprocess", "Popen", command),
        ("subprocess", "Popen", {"args": command}),
        ("builtins", "eval", f"open({str(trace)!r}, 'w')"),
        ("builtins", "exec", f"open({str(trace)!r}, 'w')"),
        ("pathlib", "Path", [str(trace)], "touch"),
        (HERE, "Odd", str(trace)),
        (HERE, "Odd", [str(trace)]),
        (HERE, "Odd", {"path": str(trace)}),
        ("os", "path", "x"),
        ("importlib", "import_module", "this"),
        ("builtins", "open", [str(trace), "w"]),
        ("pickle", "loads", pickle.dumps(os.getcwd)),
        ("langchain_core.load.load", "loads", "{}"),
        ("tests.unit.test_checkpoint_serde.Odd", "__init__", [str(trace)]),
    ]

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


@pytest.mark.parametrize("value", [None, True, 1.5, 7, 2**64, "text", "\u00e9"])
def test_small_values_are_restored_from_the_body_of_a_checkpoint(value):
    serde = make_serde()
    assert serde.loads_typed(body_with(value))["channel_values"] == {"small": value}


def body_with(value: Any) -> tuple[str, bytes]:
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "",
        "channel_values": {"small": value},
        "channel_versions": {"small": "1"},
        "versions_seen": {},
    }

    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    rows = build_checkpoint_rows(Encoding(make_serde(), ValuePieces()), config, checkpoint, {}, {})
    [row] = rows.checkpoints.values()

    return complete_row(row)[5:7]
