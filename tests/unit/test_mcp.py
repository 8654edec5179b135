"""Graphs as MCP tools: their input schemas, their results and the origins that may call them."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from portside.agent.mcp.results import CallProgress, to_call_result
from portside.agent.mcp.rpc import (
    CAPABILITIES,
    VERSION,
    ForeignOrigin,
    McpError,
    McpRequest,
    check_declared,
    check_origin,
    knows_links,
)
from portside.agent.mcp.service import McpClient, ToolCall, ToolCalls
from portside.agent.mcp.tools import to_tool_input
from portside.agent.types.access import Caller
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


def test_messages_become_a_string_without_unused_definitions() -> None:
    tool = to_tool_input(CONVERSATION)
    assert tool.schema["properties"]["messages"]["type"] == "string"
    assert set(tool.schema["$defs"]) == {"Place", "Kind"}

    assert tool.to_graph_input({"messages": "hi", "place": 1}) == {
        "messages": [{"type": "human", "content": "hi"}],
        "place": 1,
    }

    assert tool.to_graph_input({"messages": [{"role": "user", "content": "hi"}]})["messages"][0]["role"] == "user"
    assert set(CONVERSATION["$defs"]) == {"Message", "Place", "Kind"}


def test_string_messages_stay_a_string() -> None:
    tool = to_tool_input({"type": "object", "properties": {"messages": {"type": "string"}}})
    assert tool.to_graph_input({"messages": "hi"}) == {"messages": "hi"}


@pytest.mark.parametrize("given", [None, {}])
def test_tool_without_schema_accepts_any_object(given: dict | None) -> None:
    tool = to_tool_input(given)
    assert tool.schema == {"type": "object"}
    assert tool.to_graph_input({"a": 1}) == {"a": 1}


def test_non_object_input_is_wrapped() -> None:
    tool = to_tool_input({"type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "string"}, "B": {}}})
    assert tool.schema["required"] == ["input"]
    assert tool.schema["$defs"] == {"A": {"type": "string"}}
    assert tool.to_graph_input({"input": ["x"]}) == ["x"]


def test_recursive_state_is_an_object() -> None:
    state = {"type": "object", "properties": {"next": {"$ref": "#/$defs/State"}}}
    tool = to_tool_input({"$ref": "#/$defs/State", "$defs": {"State": state}})
    assert tool.schema == {**state, "$defs": {"State": state}}
    assert not tool.is_wrapped


def read_progress(progress: CallProgress, *events: tuple[str, object]) -> list[dict]:
    return list(progress.read(b"".join(sse_event(name, dump_api(data), "1-0") for name, data in events)))


def test_progress_grows_and_graph_progress_replaces_steps() -> None:
    progress = CallProgress()
    nothing = [("metadata", {}), ("custom", "words"), ("custom", {"progress": True})]
    assert read_progress(progress, *nothing, ("updates", {"plan": {}})) == [{"progress": 1, "message": "Done: plan"}]
    assert read_progress(
        progress, ("custom", {"progress": 1}), ("custom", {"progress": 40.5, "total": 50, "message": 7})
    ) == [{"progress": 40.5, "total": 50}]
    assert (
        read_progress(progress, ("updates", {"act": {}}), ("custom", {"progress": 2}), ("error", {"progress": 99}))
        == []
    )


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
def test_results_are_text(values: bytes, text: str, *, is_error: bool) -> None:
    result = to_call_result(values)
    assert (result["content"][0]["text"], result["isError"]) == (text, is_error)
    assert "structuredContent" not in result


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image"},
        {"type": ["image"], "url": "https://x.example"},
        {"type": "image", "file_id": "file-1"},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>"}},
        {"type": "file", "file": 7},
        {"type": "audio", "base64": 7},
        {"type": "text", "text": 7},
        7,
    ],
)
def test_blocks_without_file_leave_result_unchanged(block: object) -> None:
    values = dump_api({"messages": [{"type": "ai", "content": ["hi", block]}]})
    assert to_call_result(values)["content"] == [{"type": "text", "text": values.decode()}]


@pytest.mark.parametrize("held", ["message", "blocks"])
def test_answers_that_are_not_states_may_hold_files(held: str) -> None:
    blocks = [{"type": "image", "base64": "aGk=", "mime_type": "image/png"}]
    values = dump_api({"type": "ai", "content": blocks} if held == "message" else blocks)
    assert to_call_result(values)["content"] == [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]


def test_links_are_text_for_older_clients() -> None:
    blocks = [{"type": "image", "url": "https://x.example/a.png"}, {"type": "file", "url": "no address"}]
    values = dump_api({"messages": [{"type": "ai", "content": blocks}]})
    texts = [{"type": "text", "text": "https://x.example/a.png"}, {"type": "text", "text": "no address"}]
    assert to_call_result(values, knows_links=False)["content"] == texts
    assert [block["type"] for block in to_call_result(values)["content"]] == ["resource_link", "text"]
    headers = [{}, {"mcp-protocol-version": "2025-03-26"}, {"mcp-protocol-version": "2025-06-18"}]
    assert [knows_links(each) for each in headers] == [False, False, True]


def test_header_values_are_stripped() -> None:
    request = McpRequest(1, "tools/call", {"name": "a", "_meta": {VERSION: "2026-07-28", CAPABILITIES: {}}})
    headers = {"mcp-protocol-version": " 2026-07-28 ", "mcp-method": "tools/call\t", "mcp-name": " =?base64?YQ==?= "}
    check_declared(request, headers)

    with pytest.raises(McpError, match="Mcp-Name"):
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
def test_named_origins_may_call(rules: CorsRules | None, named: str) -> None:
    try:
        check_origin("https://pages.example", rules, named)
    except ForeignOrigin as exc:
        pytest.fail(str(exc))


@pytest.mark.parametrize(("rules", "named"), [(None, "*"), (None, " * "), (None, "none"), (CorsRules([]), "*")])
def test_default_cors_does_not_allow_origins(rules: CorsRules | None, named: str) -> None:
    with pytest.raises(ForeignOrigin):
        check_origin("https://pages.example", rules, named)
    check_origin(None, rules, named)


class NotedRuns:
    """Notes the runs that are cancelled, and answers for those that have ended."""

    def __init__(self) -> None:
        self.cancelled: list[UUID] = []

    async def cancel(self, _thread_id: UUID, run_id: UUID, _action: str) -> None:
        self.cancelled.append(run_id)

    async def result(self, _thread_id: UUID, _run_id: UUID) -> bytes:
        return b"{}"


async def test_only_the_one_call_in_progress_with_an_id_is_cancelled() -> None:
    nobody: Any = None
    runs: Any = NotedRuns()
    calls = ToolCalls(nobody, runs, nobody)
    client = McpClient(Caller("ada"), "1.2.3.4", "agent", request_id="r", accepts_streams=False)

    def begin(caller: str = "ada", address: str = "1.2.3.4", program: str = "agent") -> ToolCall:
        by = client._replace(caller=Caller(caller), address=address, user_agent=program)
        run: Any = SimpleNamespace(run=SimpleNamespace(thread_id=uuid4(), run_id=uuid4()))
        call = ToolCall(McpRequest(7, "tools/call", {}), by, run)
        calls._in_progress.add(call)
        return call

    others = [begin("bob"), begin(address="5.6.7.8"), begin(program="another")]
    ambiguous = [begin(), begin()]
    await calls.cancel(client, 7)
    assert not any(call.is_cancelled for call in (*others, *ambiguous))

    assert b'"isError":false' in await calls.result(ambiguous[0])
    await calls.cancel(client, 7)
    assert [call.is_cancelled for call in ambiguous] == [False, True]
    assert runs.cancelled == [ambiguous[1].run.run_id]
    assert b'"isError":true' in await calls.result(ambiguous[1])
