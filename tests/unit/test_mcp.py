import pytest

from portside.agent.mcp.clients import ForeignPage, check_origin
from portside.agent.mcp.messages import Request, RequestFailed
from portside.agent.mcp.progress import Progress
from portside.agent.mcp.results import call_result
from portside.agent.mcp.schemas import taken_by
from portside.agent.mcp.versions import CAPABILITIES, VERSION, check_declared
from portside.kernel.codec import dump_api
from portside.kernel.http.cors import CorsRules
from portside.kernel.http.sse import sse_event

CONVERSATION = {
    "type": "object",
    "title": "State",
    "properties": {
        "messages": {"type": "array", "items": {"$ref": "#/$defs/Message"}},
        "place": {"$ref": "#/$defs/Place"},
    },
    "$defs": {
        "Message": {"type": "object"},
        "Place": {
            "type": "object",
            "properties": {"inside": {"$ref": "#/$defs/Place"}, "of": {"$ref": "#/$defs/Kind"}},
        },
        "Kind": {"type": "string"},
    },
}


def test_a_conversation_is_a_text_and_brings_no_definitions_along() -> None:
    takes = taken_by(CONVERSATION)
    assert takes.schema["properties"]["messages"]["type"] == "string"
    assert set(takes.schema["$defs"]) == {"Place", "Kind"}
    assert takes.input({"messages": "hi", "place": 1}) == {
        "messages": [{"type": "human", "content": "hi"}], "place": 1,
    }  # fmt: skip
    assert takes.input({"messages": [{"role": "user", "content": "hi"}]})["messages"][0]["role"] == "user"
    assert set(CONVERSATION["$defs"]) == {"Message", "Place", "Kind"}


def test_messages_that_are_a_text_anyway_stay_one() -> None:
    takes = taken_by({"type": "object", "properties": {"messages": {"type": "string"}}})
    assert takes.input({"messages": "hi"}) == {"messages": "hi"}


@pytest.mark.parametrize("given", [None, {}])
def test_without_a_schema_a_tool_takes_anything(given: dict | None) -> None:
    takes = taken_by(given)
    assert takes.schema == {"type": "object"}
    assert takes.input({"a": 1}) == {"a": 1}


def test_what_is_no_object_is_wrapped_with_what_it_names() -> None:
    takes = taken_by({"type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "string"}, "B": {}}})
    assert takes.schema["required"] == ["input"]
    assert takes.schema["$defs"] == {"A": {"type": "string"}}
    assert takes.input({"input": ["x"]}) == ["x"]


def test_a_state_within_itself_is_an_object_all_the_same() -> None:
    state = {"type": "object", "properties": {"next": {"$ref": "#/$defs/State"}}}
    takes = taken_by({"$ref": "#/$defs/State", "$defs": {"State": state}})
    assert takes.schema == {**state, "$defs": {"State": state}}
    assert not takes.is_wrapped


def told(progress: Progress, *events: tuple[str, object]) -> list[dict]:
    return list(progress.read(b"".join(sse_event(name, dump_api(data), "1-0") for name, data in events)))


def test_progress_only_grows_and_what_the_graph_tells_goes_before_its_steps() -> None:
    progress = Progress()
    nothing = [("metadata", {}), ("custom", "words"), ("custom", {"progress": True})]
    assert told(progress, *nothing, ("updates", {"plan": {}})) == [{"progress": 1, "message": "Done: plan"}]
    assert told(progress, ("custom", {"progress": 1}), ("custom", {"progress": 40.5, "total": 50, "message": 7})) == [
        {"progress": 40.5, "total": 50}
    ]
    assert told(progress, ("updates", {"act": {}}), ("custom", {"progress": 2}), ("error", {"progress": 99})) == []


@pytest.mark.parametrize(
    ("values", "text", "is_error"),
    [
        (b"null", "null", False),
        (b'"said"', "said", False),
        (b"[1]", "[1]", False),
        (b'{"__error__":{"error":"KeyError","message":"\'x\'"}}', "KeyError: 'x'", True),
        (b'{"__error__":{"error":"Boom"}}', "Boom", True),
        (b'{"__error__":"gone"}', "gone", True),
    ],
)
def test_results_are_words(values: bytes, text: str, *, is_error: bool) -> None:
    result = call_result(values)
    assert (result["content"][0]["text"], result["isError"]) == (text, is_error)
    assert "structuredContent" not in result


def test_space_around_a_header_means_nothing() -> None:
    request = Request(1, "tools/call", {"name": "a", "_meta": {VERSION: "2026-07-28", CAPABILITIES: {}}})
    headers = {"mcp-protocol-version": " 2026-07-28 ", "mcp-method": "tools/call\t", "mcp-name": " =?base64?YQ==?= "}
    check_declared(request, headers)
    with pytest.raises(RequestFailed, match="Mcp-Name"):
        check_declared(request, headers | {"mcp-name": "b"})


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (CorsRules(allow_origins=["https://pages.example"]), "*"),
        (CorsRules(allow_origins=["*"]), "none"),
        (CorsRules(allow_origins=[], allow_origin_regex=r"https://.*\.example"), "*"),
        (None, "https://pages.example, https://other.example"),
    ],
)
def test_pages_that_are_named_may_call(rules: CorsRules | None, named: str) -> None:
    check_origin("https://pages.example", rules, named)


@pytest.mark.parametrize(("rules", "named"), [(None, "*"), (None, " * "), (None, "none"), (CorsRules([]), "*")])
def test_that_any_page_may_call_by_default_is_not_enough(rules: CorsRules | None, named: str) -> None:
    with pytest.raises(ForeignPage):
        check_origin("https://pages.example", rules, named)
    check_origin(None, rules, named)
