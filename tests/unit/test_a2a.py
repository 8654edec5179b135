"""What becomes of messages of a graph, and of tasks in the two versions of the A2A protocol."""

from typing import Any
from uuid import UUID

import pytest

from portside.agent.a2a.conversations import AS_SENT, TASK_START, Tools, answer_of, conversation, task_id_of
from portside.agent.a2a.dialects import MODERN, OLD, modern_state, old_state
from portside.agent.a2a.errors import BadParams, NoTask
from portside.agent.a2a.inputs import Fields, answer_with
from portside.agent.a2a.listing import _cursor, _token
from portside.agent.a2a.params import Message, Send
from portside.agent.a2a.parts import parts_of
from portside.agent.a2a.sending import read_task_id
from portside.kernel.clock import now

THREAD, FIRST, SECOND = UUID(int=1), UUID(int=2), UUID(int=3)


def human(text: str, start: UUID | None, **kept: Any) -> dict[str, Any]:
    labels = {TASK_START: str(start)} if start else {}
    return {"type": "human", "content": text, "id": text, "additional_kwargs": {**labels, **kept}}


def test_messages_belong_to_the_task_of_the_last_question_of_an_agent() -> None:
    messages = [
        human("one", FIRST), {"type": "ai", "content": "1", "id": "a"}, human("by hand", None),
        {"type": "ai", "content": "!", "id": "b"}, human("two", SECOND), {"type": "ai", "content": "", "id": "c"},
    ]  # fmt: skip
    said = conversation({"messages": messages}, THREAD, Tools("all"))
    assert [(each.message["messageId"], each.start) for each in said] == [
        ("one", str(FIRST)), ("a", str(FIRST)), ("by hand", None), ("b", None), ("two", str(SECOND)),
    ]  # fmt: skip
    assert said[0].message["taskId"] == task_id_of(THREAD, FIRST)
    assert "taskId" not in said[2].message
    assert (answer_of(said, str(FIRST)) or {})["parts"] == [{"kind": "text", "text": "1"}]
    assert answer_of(said, str(SECOND)) is None


@pytest.mark.parametrize("values", [None, [], {}, {"messages": None}, {"messages": "hi"}, {"messages": [1, None, "x"]}])
def test_values_of_any_shape_are_no_conversation(values: Any) -> None:
    assert conversation(values, THREAD, Tools("all")) == []


def test_what_a_graph_keeps_in_odd_places_breaks_nothing() -> None:
    odd = {"type": "human", "content": ["a", {"type": "text"}, 7], "additional_kwargs": [1]}
    sent = human("hi", FIRST, **{AS_SENT: "x"})
    said = conversation({"messages": [odd, sent, {"type": "system", "content": "s"}]}, THREAD, Tools("all"))
    assert [each.message["parts"][0]["text"] for each in said] == ["a", "hi"]
    assert parts_of([{"type": "image", "url": 7, "extras": 7}, {"type": "file", "base64": "aGk=", "extras": []}]) == [
        {"kind": "file", "file": {"bytes": "aGk="}}
    ]


@pytest.mark.parametrize(
    ("named", "told"), [("all", ["a", "b"]), ("none", []), ("", []), ("b", ["b"]), ("a, b", ["a", "b"])]
)
def test_results_are_told_of_the_tools_that_are_named(named: str, told: list[str]) -> None:
    results = [{"type": "tool", "name": name, "content": "x", "tool_call_id": name, "id": name} for name in ("a", "b")]
    said = conversation({"messages": results}, THREAD, Tools(named))
    found = [result["name"] for each in said for result in each.message["parts"][0]["data"]["tool_results"]]
    assert found == told
    assert len(said) == bool(told)


def test_both_versions_tell_the_same() -> None:
    file = {"uri": "https://x.example/a", "mimeType": "image/png", "name": "a.png"}
    parts = [{"kind": "text", "text": "hi", "metadata": {"a": 1}}, {"kind": "file", "file": file}]
    message = {"kind": "message", "role": "agent", "messageId": "m", "parts": parts}
    status = {"state": "input-required", "timestamp": "2026-11-21T02:10:20.934992+00:00", "message": message}
    task = {"kind": "task", "id": "t", "contextId": "c", "status": status, "history": [message]}
    shown = {
        "role": "ROLE_AGENT", "messageId": "m",
        "parts": [
            {"text": "hi", "metadata": {"a": 1}},
            {"url": "https://x.example/a", "mediaType": "image/png", "filename": "a.png"},
        ],
    }  # fmt: skip
    told = {"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2026-11-21T02:10:20.934Z", "message": shown}
    assert MODERN.sent(task) == {"task": {"id": "t", "contextId": "c", "status": told, "history": [shown]}}
    assert OLD.sent(task) is task
    states = ("submitted", "working", "input-required", "completed", "failed", "canceled")
    assert [old_state(modern_state(state)) for state in states] == list(states)


def test_an_answer_names_its_question() -> None:
    message = Message(message_id="m", role="user", parts=[])
    send, text = Send(message=message), [{"kind": "text", "text": "yes"}]
    assert answer_with(send, text, ["q"]).resume == {"q": "yes"}
    assert answer_with(send, text, []).resume == "yes"
    assert answer_with(send, [{"kind": "data", "data": {"q": 1}}], ["q", "r"]).resume == {"q": 1}
    with pytest.raises(BadParams, match="q, r"):
        answer_with(send, text, ["q", "r"])


@pytest.mark.parametrize(
    "named", ["", ":", "x", f"{THREAD}", f"{THREAD}:", f"{THREAD}:{FIRST}:", f"{THREAD}:{FIRST.hex}"]
)
def test_what_is_no_id_of_a_task_is_the_id_of_none(named: str) -> None:
    with pytest.raises(NoTask):
        read_task_id(named)


def test_cursors_lead_back() -> None:
    moment = now()
    assert _cursor(_token(moment, FIRST)) == (moment, FIRST)
    for token in ("", "é", "AAAA", _token(moment, FIRST)[4:]):
        with pytest.raises(BadParams):
            _cursor(token)


def test_a_schema_that_could_not_be_made_is_that_of_a_conversation() -> None:
    assert Fields.of(None).takes_messages
    assert Fields.of({"properties": {"messages": {}, "topic": {}}}) == Fields(True, frozenset({"topic"}))
    assert not Fields.of({"properties": {"dish": {}}}).takes_messages
