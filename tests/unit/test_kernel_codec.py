"""Values of graphs become JSON that every client can read and Postgres can store."""

import dataclasses
import enum
import json
from collections import namedtuple
from datetime import UTC, datetime
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portside.kernel.codec import dump_api, load
from portside.kernel.user_json import MAX_DEPTH, dump_user, storable, without_nul

Point = namedtuple("Point", "x y")  # noqa: PYI024 - the plain kind is what users have
MOMENT = datetime(2026, 1, 5, 12, tzinfo=UTC)
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
    (Model(name="m", at=MOMENT), {"name": "m", "at": "2026-01-05T12:00:00+00:00"}),
    (MOMENT, "2026-01-05T12:00:00+00:00"),
    (UUID(UUID_TEXT), UUID_TEXT),
    (Colour.RED, "red"),
    ({1}, [1]),
    (b"caf\xc3\xa9 \xff", "café \ufffd"),
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


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_dump_user_rejects_deep_and_recursive_values() -> None:
    circle: dict = {}
    circle["self"] = circle
    for value in (nested(100_000), circle):
        with pytest.raises(ValueError, match="nested more than"):
            dump_user(value)


def test_request_of_maximum_depth_is_encoded_beside_a_big_integer() -> None:
    assert dump_user([nested(MAX_DEPTH - 1), 2**70]).endswith(b"1180591620717411303424]")


@given(st.text(alphabet=st.sampled_from(["\0", "\\", "u", "0", '"', "a", "é"])))
def test_without_nul_replaces_only_nul(text: str) -> None:
    assert json.loads(without_nul(json.dumps(text).encode())) == text.replace("\0", "\ufffd")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_json_round_trip(value) -> None:
    assert json.loads(dump_user(value)) == value


def test_storable_replaces_invalid_characters_and_cuts_between_characters():
    assert storable("a\0b\ud800") == "a\ufffdb?"
    assert storable("é" * 10, 5) == "éé"
    assert storable("\0" * 10, 7) == "\ufffd\ufffd", "the replacement of a NUL character has three bytes"
