"""Messages of graphs as A2A messages, and A2A tasks in both versions of the protocol."""

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from portside.agent.a2a.messages import (
    AS_SENT,
    TASK_START,
    InputFields,
    ToolResults,
    build_history,
    build_input,
    find_reply,
    format_task_id,
    mark_task,
    read_parts,
    resume_command,
    to_parts,
)
from portside.agent.a2a.params import AgentMessage, FileContent, MessagePart, SendParams, TaskParams, read_params
from portside.agent.a2a.rpc import InvalidParams, TaskNotCancelable, TaskNotFound
from portside.agent.a2a.service import _to_rpc_error, read_task_id
from portside.agent.a2a.tasks import _parse_page_token, _parse_time, format_page_token
from portside.agent.a2a.versions import MODERN, OLD, to_modern_state, to_old_state
from portside.agent.runs.errors import RunNotFound
from portside.kernel.clock import now
from portside.kernel.errors import Forbidden, PortsideError

THREAD = UUID(int=1)
FIRST = UUID(int=2)
SECOND = UUID(int=3)


def human(text: str, start: UUID | None, **kept: Any) -> dict[str, Any]:
    labels = {TASK_START: str(start)} if start else {}
    return {"type": "human", "content": text, "id": text, "additional_kwargs": {**labels, **kept}}


def test_history_assigns_messages_to_the_task_that_started_them() -> None:
    messages = [
        human("one", FIRST),
        {"type": "ai", "content": "1", "id": "a"},
        human("by hand", None),
        {"type": "ai", "content": "!", "id": "b"},
        human("two", SECOND),
        {"type": "ai", "content": "", "id": "c"},
    ]

    history = build_history({"messages": messages}, THREAD, ToolResults("all"))
    assert [(each.message["messageId"], each.start) for each in history] == [
        ("one", str(FIRST)),
        ("a", str(FIRST)),
        ("by hand", None),
        ("b", None),
        ("two", str(SECOND)),
    ]

    assert history[0].message["taskId"] == format_task_id(THREAD, FIRST)
    assert "taskId" not in history[2].message
    assert (find_reply(history, str(FIRST)) or {})["parts"] == [{"kind": "text", "text": "1"}]
    assert find_reply(history, str(SECOND)) is None


@pytest.mark.parametrize("values", [None, [], {}, {"messages": None}, {"messages": "hi"}, {"messages": [1, None, "x"]}])
def test_values_without_messages_have_no_history(values: Any) -> None:
    assert build_history(values, THREAD, ToolResults("all")) == []


def test_history_tolerates_malformed_messages() -> None:
    odd = {"type": "human", "content": ["a", {"type": "text"}, 7], "additional_kwargs": [1]}
    nameless = {"type": "tool", "name": ["x"], "content": "found"}
    assert build_history({"messages": [nameless]}, THREAD, ToolResults("x")) == []
    sent = human("hi", FIRST, **{AS_SENT: "x"})
    history = build_history({"messages": [odd, sent, {"type": "system", "content": "s"}]}, THREAD, ToolResults("all"))
    assert [each.message["parts"][0]["text"] for each in history] == ["a", "hi"]
    assert to_parts([{"type": "image", "url": 7, "extras": 7}, {"type": "file", "base64": "aGk=", "extras": []}]) == [
        {"kind": "file", "file": {"bytes": "aGk="}}
    ]

    assert to_parts([{"type": "image", "url": "http://["}]) == [{"kind": "file", "file": {"uri": "http://["}}]


@pytest.mark.parametrize(
    ("named", "expected"), [("all", ["a", "b"]), ("none", []), ("", []), ("b", ["b"]), ("a, b", ["a", "b"])]
)
def test_history_includes_results_of_the_named_tools(named: str, expected: list[str]) -> None:
    results = [{"type": "tool", "name": name, "content": "x", "tool_call_id": name, "id": name} for name in ("a", "b")]
    history = build_history({"messages": results}, THREAD, ToolResults(named))
    found = [result["name"] for each in history for result in each.message["parts"][0]["data"]["tool_results"]]
    assert found == expected
    assert len(history) == bool(expected)


@pytest.mark.parametrize(("url", "media_type"), [("https://x.example/a.png", "image/png"), ("http://[", None)])
def test_history_has_files_with_malformed_urls(url: str, media_type: str | None) -> None:
    message = {"type": "ai", "id": "a", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    [item] = build_history({"messages": [message]}, THREAD, ToolResults("all"))
    [part] = item.message["parts"]
    assert part["file"]["uri"] == url
    assert part["file"].get("mimeType") == media_type


def test_both_versions_write_the_same_task() -> None:
    file = {"uri": "https://x.example/a", "mimeType": "image/png", "name": "a.png"}
    parts = [{"kind": "text", "text": "hi", "metadata": {"a": 1}}, {"kind": "file", "file": file}]
    message = {"kind": "message", "role": "agent", "messageId": "m", "parts": parts}
    status = {"state": "input-required", "timestamp": "2026-11-21T02:10:20.934992+00:00", "message": message}
    task = {"kind": "task", "id": "t", "contextId": "c", "status": status, "history": [message]}

    shown = {
        "role": "ROLE_AGENT",
        "messageId": "m",
        "parts": [
            {"text": "hi", "metadata": {"a": 1}},
            {"url": "https://x.example/a", "mediaType": "image/png", "filename": "a.png"},
        ],
    }

    status = {"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2026-11-21T02:10:20.934Z", "message": shown}
    assert MODERN.to_send_result(task) == {"task": {"id": "t", "contextId": "c", "status": status, "history": [shown]}}
    assert OLD.to_send_result(task) is task
    states = ("submitted", "working", "input-required", "completed", "failed", "canceled")
    assert [to_old_state(to_modern_state(state)) for state in states] == list(states)


def test_resume_command_names_the_interrupt() -> None:
    message = AgentMessage(message_id="m", role="user", parts=[])
    send = SendParams(message=message)
    text = [{"kind": "text", "text": "yes"}]
    assert resume_command(send, text, ["q"]).resume == {"q": "yes"}
    assert resume_command(send, text, []).resume == "yes"
    assert resume_command(send, [{"kind": "data", "data": {"q": 1}}], ["q", "r"]).resume == {"q": 1}

    # An object is one answer unless all of its keys are questions.
    form = {"q": 1, "name": "Ada"}
    assert resume_command(send, [{"kind": "data", "data": form}], ["q"]).resume == {"q": form}

    for unclear in (text, [{"kind": "data", "data": form}]):
        with pytest.raises(InvalidParams, match="q, r"):
            resume_command(send, unclear, ["q", "r"])


def test_camel_case_wins_where_a_client_sends_both_names_of_a_member() -> None:
    assert read_params({"id": "t", "history_length": 2}, TaskParams).history_length == 2
    assert read_params({"id": "t", "history_length": 2, "historyLength": 1}, TaskParams).history_length == 1


@pytest.mark.parametrize(
    "named", ["", ":", "x", f"{THREAD}", f"{THREAD}:", f"{THREAD}:{FIRST}:", f"{THREAD}:{FIRST.hex}"]
)
def test_malformed_task_id_is_not_found(named: str) -> None:
    with pytest.raises(TaskNotFound):
        read_task_id(named)


def test_page_token_round_trip() -> None:
    moment = now()
    assert _parse_page_token(format_page_token(moment, FIRST)) == (moment, FIRST)

    out_of_range = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
    for token in ("", "é", "AAAA", format_page_token(moment, FIRST)[4:], format_page_token(out_of_range, FIRST)):
        with pytest.raises(InvalidParams):
            _parse_page_token(token)


@pytest.mark.parametrize("text", ["", "yesterday", "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"])
def test_malformed_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams, match="statusTimestampAfter"):
        _parse_time(text)


@pytest.mark.parametrize("uri", ["http://[", "https://[x]/a.pdf", "//example.com/a.pdf", "ftp://example.com/a.pdf"])
def test_malformed_uri_of_a_file_is_refused(uri: str) -> None:
    for part in (MessagePart(url=uri, media_type="application/pdf"), MessagePart(file=FileContent(uri=uri))):
        with pytest.raises(InvalidParams, match=r"parts\.0: the URI of a file"):
            read_parts([part])


def test_file_with_a_malformed_name_has_no_known_media_type() -> None:
    part = MessagePart(url="https://example.com/", filename="http://[")
    with pytest.raises(InvalidParams, match="the media type of the file is missing"):
        read_parts([part])


@pytest.mark.parametrize("given", [5, None, [7], [{"id": "m", "additional_kwargs": 3}]])
def test_input_of_data_may_have_any_messages(given: Any) -> None:
    message = AgentMessage(message_id="m", role="user", parts=[])
    data = [{"kind": "data", "data": {"messages": given}}]
    graph_input = build_input(message, data, InputFields(has_messages=False, others=frozenset()))
    mark_task(graph_input, message, "start")

    marked = [{"id": "m", "additional_kwargs": {TASK_START: "start"}}]
    assert graph_input == {"messages": marked if isinstance(given, list) and given != [7] else given}


def test_data_with_messages_becomes_text_where_the_graph_has_messages() -> None:
    """The graph gets the message alone, so what such data has under `messages` would be lost."""
    message = AgentMessage(message_id="m", role="user", parts=[])
    data = [{"kind": "data", "data": {"topic": "tea", "messages": ["earlier"]}}]
    graph_input = build_input(message, data, InputFields(has_messages=True, others=frozenset({"topic"})))
    assert graph_input.keys() == {"messages"}
    assert "earlier" in graph_input["messages"][0]["content"]


def test_graph_without_schema_has_messages() -> None:
    assert InputFields.of(None).has_messages
    assert InputFields.of({"properties": {"messages": {}, "topic": {}}}) == InputFields(True, frozenset({"topic"}))
    assert not InputFields.of({"properties": {"dish": {}}}).has_messages


def test_failure_in_a_response_that_has_begun_says_nothing_of_the_inside() -> None:
    broken = PortsideError("the database at 10.0.0.1 refuses the password")
    assert broken.status >= 500
    for failure in (broken, ValueError("a word of the inside")):
        assert _to_rpc_error(failure).message == "Internal error"

    assert _to_rpc_error(Forbidden("Readers read.")).message == "Readers read."
    assert isinstance(_to_rpc_error(RunNotFound()), TaskNotFound)
    assert isinstance(_to_rpc_error(TaskNotCancelable()), TaskNotCancelable)
