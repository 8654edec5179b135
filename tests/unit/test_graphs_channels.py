"""Messages and subgraphs in the event streaming protocol."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

from portside.executor.channels import Channels
from portside.executor.message_events import Messages
from portside.executor.model_events import MODEL_RUN, ModelEvent

PLACE = {"langgraph_checkpoint_ns": "chat:t1", "langgraph_node": "chat", "ls_provider": "acme", "tags": ["x"]}


STREAMED = (AIMessageChunk("a", id="m"), PLACE)


def tell(*messages: Any) -> list[dict[str, Any]]:
    narrator = Messages()
    return [reported for message in messages for reported in narrator.convert(message, PLACE)]


def call_chunk(index: int, args: str, **rest: Any) -> AIMessageChunk:
    chunk = {"name": None, "id": None, "args": args, "index": index, "type": "tool_call_chunk", **rest}
    return AIMessageChunk("", id="m", tool_call_chunks=[chunk])


def blocks(reported: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["content"] for event in reported if event["event"] == "content-block-finish"]


def test_a_message_that_streams():
    reported = tell(
        AIMessageChunk("one", id="m"),
        AIMessageChunk(" two", id="m", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
        AIMessageChunk(
            "",
            id="m",
            usage_metadata={"input_tokens": 0, "output_tokens": 4, "total_tokens": 4},
            chunk_position="last",
        ),
    )

    assert [event["event"] for event in reported] == [
        "message-start",
        "content-block-start",
        "content-block-delta",
        "content-block-delta",
        "content-block-finish",
        "message-finish",
    ]

    metadata = {"provider": "acme", "langgraph_node": "chat"}
    assert reported[0] == {"event": "message-start", "role": "ai", "id": "m", "metadata": metadata}
    assert reported[1]["content"] == {"type": "text", "text": ""}

    assert reported[2] == {
        "event": "content-block-delta",
        "message_id": "m",
        "index": 0,
        "delta": {"type": "text-delta", "text": "one"},
    }

    assert reported[4]["content"] == {"type": "text", "text": "one two"}
    # Each piece has only what came with it.
    assert reported[5]["usage"]["total_tokens"] == 7


def test_calls_of_tools_that_stream_side_by_side():
    reported = tell(
        call_chunk(0, '{"a"', name="look", id="c0"),
        call_chunk(1, '{"b": ', name="find", id="c1"),
        call_chunk(0, ": 1}"),
        call_chunk(1, "oops"),
        AIMessageChunk("", id="m", chunk_position="last"),
    )

    deltas = [(event["index"], event["delta"]["args"]) for event in reported if event["event"] == "content-block-delta"]
    assert deltas == [(0, '{"a"'), (1, '{"b": '), (0, ": 1}"), (1, "oops")]
    first, second = blocks(reported)
    assert first == {"type": "tool_call", "id": "c0", "name": "look", "args": {"a": 1}}
    assert (second["type"], second["args"]) == ("invalid_tool_call", '{"b": oops')


@pytest.mark.needs("langchain-core", "1.0.0")
def test_thoughts_and_words_are_blocks_of_their_own():
    reported = tell(
        AIMessageChunk([{"type": "reasoning", "reasoning": "hm", "index": 0}], id="m"),
        AIMessageChunk([{"type": "text", "text": "yes", "index": 1}], id="m", chunk_position="last"),
    )

    assert [(block["type"], block.get("text") or block.get("reasoning")) for block in blocks(reported)] == [
        ("reasoning", "hm"),
        ("text", "yes"),
    ]


def test_messages_that_never_streamed():
    whole = AIMessage("hello", id="a", tool_calls=[{"name": "look", "args": {}, "id": "c", "type": "tool_call"}])
    reported = tell(whole, whole, HumanMessage("hi", id="h"), ToolMessage("done", id="t", tool_call_id="c"))
    assert [event["role"] for event in reported if event["event"] == "message-start"] == ["ai"]
    assert [block["type"] for block in blocks(reported)] == ["text", "tool_call"]
    assert "usage" not in reported[-1]


def test_what_a_node_made_itself_is_no_message():
    returned = {key: value for key, value in PLACE.items() if key != "ls_provider"}
    assert not list(Messages().convert(AIMessage("hello", id="a"), {**returned, "ls_integration": "langgraph"}))


def spoken(name: str, **rest: Any) -> ModelEvent:
    return ModelEvent({"event": name, **rest}, {**PLACE, MODEL_RUN: "r1"})


def test_a_model_that_speaks_the_protocol_is_quoted():
    narrator = Messages()
    delta = {"index": 0, "delta": {"type": "text-delta", "text": "one"}}
    said = [
        spoken("message-start", role="ai", id="m"),
        spoken("content-block-delta", **delta),
        spoken("message-finish"),
    ]

    assert [reported for event in said for reported in narrator.convert_native(event)] == [
        {
            "event": "message-start",
            "role": "ai",
            "id": "m",
            "metadata": {"provider": "acme", "langgraph_node": "chat"},
        },
        {"event": "content-block-delta", "message_id": "m", **delta},
        {"event": "message-finish", "message_id": "m"},
    ]

    assert not list(narrator.convert(AIMessage("one", id="m"), said[0].metadata))


def test_message_from_two_sources_is_emitted_once():
    narrator = Messages()
    place = {**PLACE, MODEL_RUN: "r1"}
    reported = [
        *narrator.convert(AIMessageChunk("one", id="m"), place),
        *narrator.convert_native(spoken("message-start", role="ai", id="m")),
        *narrator.convert_native(spoken("content-block-delta", index=0, delta={"type": "text-delta", "text": "one"})),
        *narrator.convert(AIMessageChunk(" two", id="m"), place),
        *narrator.convert(AIMessage("one two", id="other"), place),
        *narrator.convert_native(spoken("message-finish")),
    ]

    assert [event["delta"]["text"] for event in reported if event["event"] == "content-block-delta"] == ["one", " two"]
    assert [event["event"] for event in reported].count("message-finish") == 1


@pytest.mark.parametrize("mode, said", [("custom", spoken("message-start", id="m")), ("messages", STREAMED)])
def test_a_model_that_fails_says_so(mode, said):
    channels = Channels()
    list(channels.convert((), mode, said))
    result = {"id": "t1", "name": "chat", "error": "no", "result": {}, "interrupts": []}
    reported = next(iter(channels.convert((), "tasks", result))).data
    assert reported == {"event": "error", "message_id": "m", "message": "no"}


def test_concurrent_models_have_separate_messages():
    reported = tell(AIMessageChunk("a", id="1"), AIMessageChunk("b", id="2"), AIMessageChunk("c", id="1"))
    assert [event.get("message_id", event.get("id")) for event in reported] == ["1", "1", "1", "2", "2", "2", "1"]


def test_the_end_of_a_task_ends_what_it_left_open():
    channels = Channels()
    before = list(channels.convert((), "messages", (AIMessageChunk("a", id="1"), PLACE)))
    result = {"id": "t1", "name": "chat", "error": None, "result": {}, "interrupts": []}
    after = list(channels.convert((), "tasks", result))
    assert [event.data["event"] for event in before][-1] == "content-block-delta"
    assert [event.data.get("event") for event in after] == ["content-block-finish", "message-finish", None]


def test_a_subgraph_that_a_tool_call_began():
    channels = Channels()
    task = {"id": "t1", "name": "tools", "input": {"tool_call": {"id": "call-1"}}, "triggers": []}
    list(channels.convert((), "tasks", task))
    inner = {"id": "t2", "name": "n", "input": {}, "metadata": {"lc_agent_name": "researcher"}}
    started = next(iter(channels.convert(("tools:t1",), "tasks", inner)))

    assert started.data == {
        "event": "started",
        "graph_name": "researcher",
        "namespace": ["tools:t1"],
        "trigger_call_id": "t1",
        "cause": {"type": "toolCall", "tool_call_id": "call-1"},
    }

    failed = {"id": "t1", "name": "tools", "error": {"error": "ValueError", "message": "no"}, "result": {}}
    assert list(channels.convert((), "tasks", failed))[-1] == (
        "lifecycle",
        ("tools:t1",),
        {"event": "failed", "graph_name": "tools", "error": "no"},
    )


def test_custom_events_are_passed_unchanged():
    channels = Channels()
    written = [{"name": "n", "payload": 1}, {"step": 1, "name": "n"}, {"name": 5}, "text"]
    assert [next(iter(channels.convert((), "custom", item))).data for item in written] == written
