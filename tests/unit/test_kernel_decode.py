import enum
import json
from typing import Annotated
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portside.kernel.codec import MAX_DEPTH
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import decode_body, decode_path, decode_query

ID = "0190a0c0-0000-7000-8000-000000000001"


class Colour(enum.Enum):
    RED = "red"


class Item(msgspec.Struct):
    n: int
    colour: Colour | None = None


class Body(msgspec.Struct):
    id: UUID
    items: list[Item] = []
    first: Item | None = None
    counts: dict[str, int] = {}
    graph_config_path: str | None = None
    level: Annotated[int, msgspec.Meta(le=5)] = 0


class Free(msgspec.Struct):
    input: object = None


class Query(msgspec.Struct):
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    names: list[str] | None = None
    deployment_id: UUID | None = None
    is_enabled: bool | None = None


def problem(raw: bytes | dict) -> tuple[list, str, str]:
    raw = raw if isinstance(raw, bytes) else json.dumps({"id": ID, **raw}).encode()
    with pytest.raises(Invalid) as raised:
        decode_body(raw, Body)
    (found,) = raised.value.detail
    assert set(found) == {"loc", "msg", "type"}
    return found["loc"], found["msg"], found["type"]


@pytest.mark.parametrize(
    ("body", "loc", "kind"),
    [
        (b"{}", ["body", "id"], "missing"),
        ({"items": [{"n": 1}, {}]}, ["body", "items", 1, "n"], "missing"),
        ({"items": [{"n": 1}, {"n": "x"}]}, ["body", "items", 1, "n"], "type_error"),
        ({"items": {"n": 1}}, ["body", "items"], "type_error"),
        ({"first": {"n": 1, "colour": "blue"}}, ["body", "first", "colour"], "enum"),
        ({"counts": {"a": "x"}}, ["body", "counts", "..."], "type_error"),
        ({"level": 9}, ["body", "level"], "value_error"),
        ({"level": True}, ["body", "level"], "type_error"),
        ({"id": "nope"}, ["body", "id"], "uuid_parsing"),
        (b"null", ["body"], "type_error"),
        (b"[]", ["body"], "type_error"),
    ],
)
def test_a_bad_field_is_located(body, loc, kind) -> None:
    assert problem(body)[0::2] == (loc, kind)


def test_a_missing_field_reads_as_clients_know_it() -> None:
    assert problem(b"{}") == (["body", "id"], "Field required", "missing")


@pytest.mark.parametrize(
    "raw", [b"", b" ", b"{", b"{} {}", b"NaN", b'{"a":Infinity}', b"\xff", b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"'a'",
            b'{"n":1e999}', b"\xef\xbb\xbf{}", b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000],
)  # fmt: skip
def test_what_is_no_json_is_refused_as_such(raw: bytes) -> None:
    loc, message, kind = problem(raw)
    assert (loc, kind) == (["body"], "json_invalid")
    assert message


def nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize("marks", [("[", "]"), ('{"a":', "}")])
def test_depth_has_a_limit_and_only_depth(marks) -> None:
    body = lambda depth: b'{"input":' + nested(depth, *marks) + b"}"  # noqa: E731
    decode_body(body(MAX_DEPTH - 1), Free)
    with pytest.raises(Invalid, match="levels deep"):
        decode_body(body(MAX_DEPTH), Free)
    decode_body(b'{"input":[' + b",".join([b"[[]]"] * 1000) + b"]}", Free)
    decode_body(b'{"input":"' + b"[" * 1000 + b'"}', Free)


def test_unknown_fields_are_named_with_their_way() -> None:
    raw = {"id": ID, "zap": 1, "items": [{"n": 1, "q": 2}], "first": {"n": 1, "r": 1}, "counts": {"free": 1}}
    value, ignored = decode_body(json.dumps(raw).encode(), Body)
    assert ignored == ["zap", "items[].q", "first.r"]
    assert value.counts == {"free": 1}


def test_both_spellings_are_read_and_the_contracts_own_wins() -> None:
    def path_of(**fields: str) -> object:
        value, ignored = decode_body(json.dumps({"id": ID, **fields}).encode(), Body)
        assert ignored == []
        return value.graph_config_path

    assert path_of(langgraph_config_path="a") == "a"
    assert path_of(graph_config_path="a", langgraph_config_path="b") == "a"
    assert path_of(langgraph_config_path="b", graph_config_path="a") == "a"


def test_query_values_are_read_from_their_text() -> None:
    pairs = [("limit", "5"), ("names", "a,b"), ("names", "c"), ("deployment_id", ID), ("enabled", "true"), ("zap", "1")]
    assert decode_query(pairs, Query) == Query(5, ["a", "b", "c"], UUID(ID), is_enabled=True)
    assert decode_query([], Query) == Query()


@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        (("limit", "x"), "type_error"),
        (("limit", ""), "type_error"),
        (("limit", "0"), "value_error"),
        (("limit", str(2**70)), "value_error"),
        (("deployment_id", "x"), "uuid_parsing"),
        (("is_enabled", "perhaps"), "type_error"),
    ],
)
def test_a_bad_query_value_is_located(pair, kind) -> None:
    with pytest.raises(Invalid) as raised:
        decode_query([pair], Query)
    (found,) = raised.value.detail
    assert (found["loc"], found["type"]) == (["query", pair[0]], kind)


def test_path_parameters() -> None:
    assert decode_path("name", "a b", str) == "a b"
    assert decode_path("thread_id", ID, UUID) == UUID(ID)
    with pytest.raises(Invalid) as raised:
        decode_path("thread_id", "nope", UUID)
    expected = {"loc": ["path", "thread_id"], "msg": "Invalid thread ID: must be a UUID", "type": "uuid_parsing"}
    assert raised.value.detail == [expected]


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:0-e.\\untrue', max_size=40).map(str.encode))
def test_no_body_breaks_the_decoder(raw: bytes) -> None:
    try:
        decode_body(raw, Body)
    except Invalid as refused:
        assert refused.detail[0]["loc"][0] == "body"
