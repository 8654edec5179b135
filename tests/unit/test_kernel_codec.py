"""Values of graphs become JSON that every client can read and Postgres can store."""

import dataclasses
import enum
import json
import re
from array import array
from collections import ChainMap, UserDict, UserList, UserString, deque, namedtuple
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath
from time import localtime
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, SecretStr, TypeAdapter

from portside.kernel.codec import dump_api, load
from portside.kernel.user_json import MAX_DEPTH, dump_user, storable, without_nul

Point = namedtuple("Point", "x y")  # noqa: PYI024 - the plain kind is what users have
MOMENT = datetime(2026, 1, 5, 12, tzinfo=UTC)
MODEL_FORM = {"name": "m", "at": "2026-01-05T12:00:00+00:00"}
UUID_TEXT = "0190a0c0-0000-7000-8000-000000000001"


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    name: str
    at: datetime


@dataclasses.dataclass
class Record:
    name: str
    point: Point


class Longer(float):
    pass


class Struct(msgspec.Struct):
    name: str


class Kept(NamedTuple):
    number: Decimal
    data: bytes


class Stubborn:
    """Has methods with the names that `dump_user` calls, but other meanings."""

    def dict(self, needed: int) -> int:
        return needed

    def to_dict(self) -> None:
        raise RuntimeError("not now")

    def __repr__(self) -> str:
        return "<stubborn>"


FORMS = [
    (float("nan"), None),
    (float("inf"), None),
    ((1, 2), [1, 2]),
    (Point(1, 2), {"x": 1, "y": 2}),
    (Record("a", Point(1, 2)), {"name": "a", "point": {"x": 1, "y": 2}}),
    (Model(name="m", at=MOMENT), MODEL_FORM),
    (MOMENT, "2026-01-05T12:00:00+00:00"),
    (UUID(UUID_TEXT), UUID_TEXT),
    (Colour.RED, "red"),
    ({1}, [1]),
    (b"\xff\xfe", "//4="),
    (bytearray(b"abc"), "YWJj"),
    (memoryview(b"abc"), "YWJj"),
    (Decimal("1.10"), 1.1),
    (Decimal(5), 5),
    (Decimal("1E+3"), 1000),
    (Decimal("NaN"), None),
    (Decimal("Infinity"), None),
    (Fraction(1, 2), 0.5),
    (Fraction(10**400), str(10**400)),
    (1 + 2j, {"real": 1.0, "imag": 2.0}),
    (deque([1, Decimal("1.5")]), [1, 1.5]),
    (timedelta(seconds=90), 90.0),
    (timedelta(days=-1, microseconds=5), -86399.999995),
    (PurePosixPath("/a/b"), "/a/b"),
    (Path("a"), "a"),
    (ip_address("10.0.0.1"), "10.0.0.1"),
    (ip_network("fd00::/8"), "fd00::/8"),
    (ip_interface("10.0.0.1/8"), "10.0.0.1/8"),
    (re.compile("a+", re.IGNORECASE), "a+"),
    (re.compile(b"a+"), "YSs="),
    (UTC, "UTC"),
    (ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
    (range(10**12), {"start": 0, "stop": 10**12, "step": 1}),
    (slice(1, None), {"start": 1, "stop": None, "step": None}),
    (SimpleNamespace(a=Decimal("1.5")), {"a": 1.5}),
    (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
    (UserDict(a=1), {"a": 1}),
    (UserList([1]), [1]),
    (UserString("a"), "a"),
    (MappingProxyType({"a": 1}), {"a": 1}),
    ({"a": 1}.keys(), ["a"]),
    ({"a": 1}.values(), [1]),
    ({"a": 1}.items(), [["a", 1]]),
    (array("i", [1, 2]), [1, 2]),
    (localtime(0), list(localtime(0))),
    (Longer(1.5), 1.5),
    (SecretStr("hidden"), "**********"),
    (TypeAdapter(AnyUrl).validate_python("http://a/b"), "http://a/b"),
    (Struct("s"), {"name": "s"}),
    ([Model(name="m", at=MOMENT), Kept(Decimal("1.5"), b"a")], [MODEL_FORM, {"number": 1.5, "data": "YQ=="}]),
    (np.float64(1.5), 1.5),
    (np.float32(0.1), 0.1),
    (np.array([0.1], dtype="float32"), [0.1]),
    (np.array([1, 2], dtype=">i4"), [1, 2]),
    (np.float64("nan"), None),
    (np.longdouble(1.5), 1.5),
    (np.int64(5), 5),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.bytes_(b"a"), "YQ=="),
    (np.complex128(1 + 2j), {"real": 1.0, "imag": 2.0}),
    (np.datetime64("2020-01-01"), "2020-01-01T00:00:00"),
    (np.datetime64("NaT"), None),
    (np.timedelta64(2, "m"), 120.0),
    (np.timedelta64(2, "M"), 2),
    (np.timedelta64("NaT", "s"), None),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array([[1, 2], [3, 4]]).T, [[1, 3], [2, 4]]),
    (np.arange(6)[::2], [0, 2, 4]),
    (np.array(5), 5),
    (np.array([1.5, float("nan")]), [1.5, None]),
    (np.array(["a"]), ["a"]),
    (np.array([b"ab"]), ["YWI="]),
    (np.array([1 + 2j]), [{"real": 1.0, "imag": 2.0}]),
    (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), ["2020-01-01T00:00:00", None]),
    (np.array([[5]], dtype="timedelta64[s]"), [[5.0]]),
    (np.array([{"a": Decimal("1.5")}, None], dtype=object), [{"a": 1.5}, None]),
    (np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]), [{"a": 1, "b": 2.5}]),
    (ValueError("no"), {"error": "ValueError", "message": "no"}),
    (Stubborn(), "<stubborn>"),
    (Record, repr(Record)),
    (object, repr(object)),
    (
        {1: 0, False: 0, None: 0, Colour.RED: 0, UUID(UUID_TEXT): 0},
        dict.fromkeys(["1", "false", "null", "red", UUID_TEXT], 0),
    ),
]


@pytest.mark.parametrize(("value", "form"), FORMS)
def test_dump_user_encodes_values_of_graphs(value, form) -> None:
    assert json.loads(dump_user(value)) == form


@pytest.mark.parametrize(("value", "form"), FORMS)
@pytest.mark.parametrize("awkward", [2**70, -(2**70), "lone \ud800", {(1, 2): 3}])
def test_fallback_encoder_gives_the_same_json(value, form, awkward) -> None:
    """Values that orjson rejects go through the fallback encoder, which must give the same JSON."""
    assert json.loads(dump_user([value, awkward]))[0] == json.loads(dump_user(value))


def test_dump_user_keeps_big_integers_and_replaces_surrogates() -> None:
    assert load(dump_user({"n": 2**70, "s": "a\ud800b"})) == {"n": 2**70, "s": "a?b"}
    assert load(dump_api({"n": 2**70})) == {"n": 2**70}


def build_nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]

    return value


def test_dump_user_rejects_deep_and_recursive_values() -> None:
    circle: dict = {}
    circle["self"] = circle
    for value in (build_nested(100_000), circle):
        with pytest.raises(ValueError, match="nested more than"):
            dump_user(value)


def test_request_of_maximum_depth_is_encoded_beside_a_big_integer() -> None:
    assert dump_user([build_nested(MAX_DEPTH - 1), 2**70]).endswith(b"1180591620717411303424]")


@given(st.text(alphabet=st.sampled_from(["\0", "\\", "u", "0", '"', "a", "é"])))
def test_without_nul_replaces_only_nul(text: str) -> None:
    assert json.loads(without_nul(json.dumps(text).encode())) == text.replace("\0", "\ufffd")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_round_trip(value) -> None:
    assert json.loads(dump_user(value)) == value


def test_storable_replaces_invalid_characters_and_cuts_between_characters():
    assert storable("a\0b\ud800") == "a\ufffdb?"
    assert storable("é" * 10, 5) == "éé"
    assert storable("\0" * 10, 7) == "\ufffd\ufffd", "the replacement of a NUL character has three bytes"
