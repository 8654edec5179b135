"""Decoding of request bodies, queries and paths.

The documented names are canonical; the other names that clients use are in one table, `kernel/aliases.py`.
"""

import enum
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portside.kernel.errors import BodyTooLarge, Invalid, Problem
from portside.kernel.http import json_validation
from portside.kernel.http.decode import decode_body, decode_path, decode_query
from portside.kernel.http.json_validation import value_limit
from portside.kernel.user_json import MAX_DEPTH

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

    (found,) = raised.value.problems
    return found.loc, found.msg, found.type


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
def test_invalid_field_is_located(body, loc, kind) -> None:
    assert problem(body)[0::2] == (loc, kind)


Word = Annotated[str, msgspec.Meta(pattern=r"^[a-z]+$", description="a word")]


class Chosen(msgspec.Struct):
    word: Word | None = None
    words: list[Word] | Word = []
    mode: Literal["values", "updates"] = "values"
    modes: list[Literal["a", "b"]] | Literal["c"] | None = None
    by_name: dict[str, Item] = {}


@pytest.mark.parametrize(
    ("body", "msg"),
    [
        ({"mode": "x"}, "Invalid enum value 'x'; use one of: updates, values"),
        ({"modes": ["a", "x"]}, "Invalid enum value 'x'; use one of: a, b"),
        ({"modes": "x"}, "Invalid enum value 'x'; use one of: c"),
        ({"by_name": {"k": {"n": 1, "colour": "x"}}}, "Invalid enum value 'x'; use one of: red"),
        ({"word": "1"}, "must be a word"),
        ({"words": ["a", "1"]}, "must be a word"),
    ],
)
def test_a_value_that_is_none_of_those_allowed_is_told_them(body: dict[str, Any], msg: str) -> None:
    with pytest.raises(Invalid) as refusal:
        decode_body(json.dumps(body).encode(), Chosen)
    assert [problem.msg for problem in refusal.value.problems] == [msg]


def test_missing_field_has_the_message_that_clients_know() -> None:
    assert problem(b"{}") == (["body", "id"], "Field required", "missing")


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"{", b"{} {}", b"\xff", b"'a'", b'{"a":"\x00"}', b"\xef\xbb\xbf{}", b'{"a":' + b"1" * 5000 + b"}"],
)
def test_invalid_json_is_refused(raw: bytes) -> None:
    loc, message, kind = problem(raw)
    assert (loc, kind) == (["body"], "json_invalid")
    assert message


UNFIT = [
    (b'{"input":"a\\u0000b"}', ["body", "input"], "NUL"),
    (b'{"input":{"a\\u0000":1}}', ["body", "input", "a\0"], "NUL"),
    (b'{"input":[{"a":["\\u0000"]}]}', ["body", "input", 0, "a", 0], "NUL"),
    (b'{"input":["\\ud800"]}', ["body", "input", 0], "surrogate"),
    (b'{"input":{"\\udfff":1}}', ["body", "input", "?"], "surrogate"),
    (b'{"input":{"a":"\xff"}}', ["body", "input", "a"], "UTF-8"),
    (b'{"input":"\xed\xa0\x80"}', ["body", "input"], "UTF-8"),
    (b'{"input":{"n":NaN}}', ["body", "input", "n"], "finite"),
    (b'{"input":[-Infinity]}', ["body", "input", 0], "finite"),
    (b'{"input":{"n":1e999}}', ["body", "input", "n"], "finite"),
    (b'{"input":{"n":18446744073709551616}}', ["body", "input", "n"], "64 bits"),
    (b'{"input":[1,-9223372036854775809]}', ["body", "input", 1], "64 bits"),
    (b'{"zap":1180591620717411303424}', ["body", "zap"], "64 bits"),
]


@pytest.mark.parametrize(("raw", "loc", "says"), UNFIT)
def test_value_that_cannot_be_stored_is_located(raw: bytes, loc: list, says: str) -> None:
    with pytest.raises(Invalid) as raised:
        decode_body(raw, Free)

    (found,) = raised.value.problems
    assert (found.loc, says in found.msg) == (loc, True), found.msg


@pytest.mark.parametrize(
    "value",
    [
        2**64 - 1,
        -(2**63),
        -0.0,
        0.1234567890123456789,
        "\\u0000",
        "\\\\u0000",
        "1" * 5000,
        "\U0001f600",
        "[[",
        "}{",
        {"a": "12345678901234567890"},
        ["[" * 300, "{" * 300],
    ],
)
def test_unusual_but_valid_values_are_accepted(value) -> None:
    assert decode_body(json.dumps({"input": value}).encode(), Free)[0].input == value


@pytest.fixture
def _at_most_100_values() -> Iterator[None]:
    before = value_limit.set(100)
    yield
    value_limit.reset(before)


@pytest.mark.usefixtures("_at_most_100_values")
@pytest.mark.parametrize(
    ("value", "count"),
    [
        ([0] * 99, 101),
        ([[]] * 99, 200),
        ([{"a": 1}] * 60, 122),
        ({str(number): number for number in range(99)}, 101),
        ([","] * 99, 101),
        (['"'] * 99, 101),
        (["\\"] * 99, 101),
        # So many strings that they are counted alone, as keys and their values.
        ([""] * 1000, 500),
    ],
    ids=str,
)
def test_more_values_than_allowed_are_refused_with_their_number(value, count) -> None:
    with pytest.raises(BodyTooLarge, match=f"holds {count} values, more than 100, .* HTTP_MAX_REQUEST_BODY_VALUES"):
        decode_body(json.dumps({"input": value}).encode(), Free)


@pytest.mark.usefixtures("_at_most_100_values")
@pytest.mark.parametrize(
    "value", [[0] * 97, ",[{" * 200, '","' * 200, '\\",' * 200, ["a,b", "\\"] * 40, "x" * 1000], ids=str
)
def test_what_is_inside_of_strings_is_no_value(value) -> None:
    assert decode_body(json.dumps({"input": value}).encode(), Free)[0].input == value


@pytest.mark.parametrize(
    ("unfit", "what"),
    [('"\\u0000"', "a NUL character, which cannot be stored"), ("1" * 30, "an integer of more than 64 bits")],
)
def test_problem_behind_very_many_values_is_named_without_its_field(monkeypatch, unfit, what) -> None:
    monkeypatch.setattr(json_validation, "MAX_SEARCHED_VALUES", 100)
    raw = f'{{"input":[{"0," * 200}{unfit}]}}'.encode()
    with pytest.raises(Invalid) as refusal:
        decode_body(raw, Free)

    message = f"holds {what}; it is not among the first values"
    assert refusal.value.problems == [Problem(["body"], message, "value_error")]


def test_last_of_duplicate_keys_counts() -> None:
    assert decode_body(b'{"input":1,"input":2}', Free)[0].input == 2


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_deep_body_is_refused_without_a_crash(raw: bytes) -> None:
    assert problem(raw)[0] == ["body"]


def build_nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize("marks", [("[", "]"), ('{"a":', "}")])
def test_only_real_nesting_counts_as_depth(marks) -> None:
    body = lambda depth: b'{"input":' + build_nested(depth, *marks) + b"}"  # noqa: E731
    decode_body(body(MAX_DEPTH - 1), Free)
    with pytest.raises(Invalid, match=r"^body\.input\..*levels deep"):
        decode_body(body(MAX_DEPTH), Free)

    decode_body(b'{"input":[' + b",".join([b"[[]]"] * 1000) + b"]}", Free)
    decode_body(b'{"input":"' + b"[" * 1000 + b'"}', Free)


def test_unknown_fields_are_listed_with_their_paths() -> None:
    raw = {"id": ID, "zap": 1, "items": [{"n": 1, "q": 2}], "first": {"n": 1, "r": 1}, "counts": {"free": 1}}
    value, ignored = decode_body(json.dumps(raw).encode(), Body)
    assert ignored == ["zap", "items[].q", "first.r"]
    assert value.counts == {"free": 1}


def test_alias_is_accepted_and_canonical_name_wins() -> None:
    def decode_path(**fields: str) -> object:
        value, ignored = decode_body(json.dumps({"id": ID, **fields}).encode(), Body)
        assert ignored == []
        return value.graph_config_path

    assert decode_path(langgraph_config_path="a") == "a"
    assert decode_path(graph_config_path="a", langgraph_config_path="b") == "a"
    assert decode_path(langgraph_config_path="b", graph_config_path="a") == "a"


def test_query_values_are_converted_from_text() -> None:
    pairs = [("limit", "5"), ("names", "a,b"), ("names", "c"), ("deployment_id", ID), ("enabled", "true"), ("zap", "1")]
    assert decode_query(pairs, Query) == (Query(5, ["a", "b", "c"], UUID(ID), is_enabled=True), ["zap"])
    assert decode_query([], Query) == (Query(), [])
    assert decode_query([("names", '["a", "b"]'), ("names", "[c")], Query)[0].names == ["a", "b", "[c"]
    assert decode_query([("zap", "\0")], None) == (None, ["zap"])


@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        (("limit", "x"), "type_error"),
        (("limit", ""), "type_error"),
        (("limit", "0"), "value_error"),
        (("limit", str(2**70)), "value_error"),
        (("deployment_id", "x"), "uuid_parsing"),
        (("is_enabled", "perhaps"), "type_error"),
        (("names", "a\0b"), "value_error"),
    ],
)
def test_invalid_query_value_is_located(pair, kind) -> None:
    with pytest.raises(Invalid) as raised:
        decode_query([pair], Query)

    (found,) = raised.value.problems
    assert (found.loc, found.type) == (["query", pair[0]], kind)


def test_a_filter_that_a_route_lacks_is_refused() -> None:
    """A client that changes the first of a list must not get a list without its filter."""
    for kind in (Query, None):
        with pytest.raises(Invalid, match=r"query\.agent_id: is a filter that this route does not support"):
            decode_query([("agent_id", ID)], kind)

    assert decode_query([("agent_id", "")], Query) == (Query(), ["agent_id"])

    raw = json.dumps({"id": ID, "thread_id": "t"}).encode()
    with pytest.raises(Invalid, match=r"body\.thread_id: is a filter that this route does not support"):
        decode_body(raw, Body, is_search=True)

    assert decode_body(raw, Body)[1] == ["thread_id"]
    assert decode_body(json.dumps({"id": ID, "thread_id": None}).encode(), Body, is_search=True)[1] == ["thread_id"]


class Filters(msgspec.Struct):
    text: str | None = None
    texts: list[str] | None = None
    number: float | None = None
    flag: bool | None = None
    colour: Colour | None = None


def test_null_in_a_query_is_text_or_refused() -> None:
    assert decode_query([("text", "null"), ("texts", "null")], Filters)[0] == Filters("null", ["null"])

    for name in ("number", "flag", "colour"):
        for text in ("null", "Null"):
            with pytest.raises(Invalid, match=f"query.{name}: must not be null"):
                decode_query([(name, text)], Filters)


class Since(msgspec.Struct):
    since: datetime | None = None


def test_a_time_in_a_query_is_no_number() -> None:
    """The documents say ISO 8601, and a year alone would be a second of 1970."""
    assert decode_query([("since", "2026-01-31T12:00:00Z")], Since)[0].since.year == 2026
    for text in ("2026", "0.5", "-1", "1e3", "nan"):
        with pytest.raises(Invalid, match=r"query\.since: must be a time in ISO 8601"):
            decode_query([("since", text)], Since)


def test_path_parameters_are_converted() -> None:
    assert decode_path("name", "a b", str) == "a b"
    assert decode_path("thread_id", ID, UUID) == UUID(ID)
    with pytest.raises(Invalid, match=r"^path\.name: must not hold a NUL"):
        decode_path("name", "a\0", str)

    with pytest.raises(Invalid) as raised:
        decode_path("thread_id", "nope", UUID)

    expected = Problem(["path", "thread_id"], "Invalid thread ID: must be a UUID", "uuid_parsing")
    assert raised.value.problems == [expected]


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:0-e.\\untrue', max_size=40).map(str.encode))
def test_any_body_is_decoded_or_refused(raw: bytes) -> None:
    try:
        decode_body(raw, Body)
    except Invalid as refused:
        assert refused.problems[0].loc[0] == "body"


class Counted(msgspec.Struct):
    count: int | None = None
    part: "Counted | None" = None
    parts: list["Counted"] = []
    named: dict[str, "Counted"] = {}
    free: Any = None


def test_float_without_fraction_is_an_integer() -> None:
    raw = b'{"count": 1.0, "part": {"count": 2e1}, "parts": [{"count": 3}, {"count": 4.0}, {"count": 5.0}],'
    value, _ = decode_body(raw + b'"named": {"a.b": {"count": 6.0}}, "free": [7.0]}', Counted)
    assert (value.count, value.part.count, [part.count for part in value.parts]) == (1, 20, [3, 4, 5])
    assert (value.named["a.b"].count, repr(value.free)) == (6, "[7.0]")


class Counts(msgspec.Struct):
    a: int
    b: int | None
    c: Annotated[int, msgspec.Meta(ge=0)]
    d: list[int | str]
    e: dict[str, int]
    f: float
    g: Item | Any


def test_all_whole_floats_are_converted_in_one_pass(monkeypatch) -> None:
    conversions: list[type] = []
    convert = msgspec.convert

    def counted(value: Any, kind: Any, **options: Any) -> Any:
        conversions.append(kind)
        return convert(value, kind, **options)

    monkeypatch.setattr(msgspec, "convert", counted)
    body = b'{"a": 1.0, "b": 2.0, "c": 3.0, "d": [4.0, "x"], "e": {"k": 5.0}, "f": 6.0, "g": {"n": 7.0}}'
    value, _ = decode_body(body, Counts)
    assert (value.a, value.b, value.c, value.d, value.e) == (1, 2, 3, [4, "x"], {"k": 5})
    assert (repr(value.f), repr(value.a)) == ("6.0", "1")
    assert conversions == [Counts, Counts]


@pytest.mark.parametrize(
    "raw", [b'{"count": 1.5}', b'{"parts": [{"count": 1.0}, {"count": 1.5}]}', b'{"count": 1e300}']
)
def test_float_with_fraction_is_not_an_integer(raw: bytes) -> None:
    with pytest.raises(Invalid) as refused:
        decode_body(raw, Counted)
    assert refused.value.problems[0].loc[-1] == "count"


class Described(msgspec.Struct):
    names: Annotated[list[str], msgspec.Meta(extra_json_schema={"maxItems": 3})] | None = None
    items: Annotated[list[Item], msgspec.Meta(extra_json_schema={"maxItems": 3})] | None = None


def test_annotated_list_is_decoded_like_any_list() -> None:
    assert decode_query([("names", "a"), ("names", "b,c")], Described) == (Described(names=["a", "b", "c"]), [])
    body, ignored = decode_body(b'{"items": [{"n": 1, "odd": 2}]}', Described)
    assert (body.items, ignored) == ([Item(1)], ["items[].odd"])
