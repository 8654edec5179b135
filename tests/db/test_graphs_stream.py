"""The events of a run, stream mode by stream mode."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.graph import MessagesState

from portside.executor.execute import Execution
from tests.db.graph_runs import (
    Text,
    boom,
    draft,
    echo,
    graph,
    graph_runners,
    names,
    parent,
    talk,
)


@pytest.fixture
async def make_runner(agent_databases) -> AsyncIterator[Any]:
    async with graph_runners(await agent_databases()) as make:
        yield make


async def test_values_without_followers_are_in_the_outcome_alone(make_runner):
    runner = make_runner(echo=graph(MessagesState, echo))
    heard = iter([True, False])
    request = runner.request("echo", input={"messages": [{"role": "user", "content": "hi"}]})
    execution = Execution(runner.graphs, request, lambda: next(heard))
    [first] = [json.loads(data) async for _, data in execution]
    assert [message["content"] for message in first["messages"]] == ["hi"]
    assert [message["content"] for message in json.loads(execution.outcome.values)["messages"]] == ["hi", "echo: hi"]


@pytest.mark.parametrize(
    ("mode", "named"),
    [("values", "an event 'values' of this run has 1011"), ("custom", "the result of this run has 1012")],
)
async def test_run_with_a_larger_event_or_result_than_allowed_ends_with_an_error(make_runner, mode, named):
    options = {"input": {"text": "x" * 1000}, "stream_modes": [mode], "max_event_bytes": 1000}
    events, outcome = await make_runner(g=graph(Text, draft)).run("g", **options)
    assert outcome.error == {
        "error": "EventTooLarge",
        "message": f"{named} bytes, more than EVENT_MAX_BYTES (1000) allows",
    }

    assert (names(events), outcome.values) == (["error"], None)


async def test_a_failed_run_with_larger_values_than_allowed_leaves_those_of_the_thread(make_runner):
    def fail(_: Text) -> Text:
        raise ValueError("kaboom")

    options = {"input": {"text": "x" * 1000}, "stream_modes": ["updates"], "max_event_bytes": 1000}
    _, outcome = await make_runner(g=graph(Text, fail)).run("g", **options)
    assert (outcome.error["error"], outcome.values) == ("ValueError", None)


@pytest.mark.needs("langchain-core", "1.0.0")
async def test_values(make_runner):
    events, outcome = await make_runner(echo=graph(MessagesState, echo)).run(
        "echo", input={"messages": [{"role": "user", "content": "hi"}]}
    )
    assert names(events) == ["values", "values"]
    first, last = (data["messages"] for _, data in events)
    assert list(first[0]) == ["content", "additional_kwargs", "response_metadata", "type", "name", "id"]
    assert [message["content"] for message in last] == ["hi", "echo: hi"]

    assert last[1]["type"] == "ai"
    assert {"tool_calls", "invalid_tool_calls", "usage_metadata"} < set(last[1])
    assert json.loads(outcome.values) == {"messages": last}
    assert (outcome.interrupts, outcome.has_next, outcome.error) == ({}, False, None)


async def test_only_what_was_asked_for_is_sent(make_runner):
    events, outcome = await make_runner(g=graph(Text, draft)).run("g", input={"text": "a"}, stream_modes=["updates"])
    assert events == [("updates", {"draft": {"text": "a!"}})]
    assert json.loads(outcome.values) == {"text": "a!"}


async def test_updates_come_before_values(make_runner):
    events, _ = await make_runner(g=graph(Text, draft)).run(
        "g", input={"text": "a"}, stream_modes=["values", "updates"]
    )

    assert events == [
        ("values", {"text": "a"}),
        ("updates", {"draft": {"text": "a!"}}),
        ("values", {"text": "a!"}),
    ]


@pytest.mark.needs("langchain-core", "1.0.0")
async def test_messages_tuple(make_runner):
    events, _ = await make_runner(chat=graph(MessagesState, talk)).run(
        "chat", input={"messages": []}, stream_modes=["messages-tuple", "messages"]
    )
    assert names(events) == ["messages"] * len(events)
    pieces = [message for _, (message, _) in events if message["type"] == "AIMessageChunk"]
    assert "".join(piece["content"] for piece in pieces) == "one two three"
    assert {"tool_call_chunks", "chunk_position"} < set(pieces[0])

    metadata = events[0][1][1]
    assert metadata["langgraph_node"] == "talk"
    assert {"langgraph_step", "langgraph_triggers", "langgraph_path", "langgraph_checkpoint_ns", "ls_model_type"} < set(
        metadata
    )
    assert events[-1][1][0]["type"] == "tool"


async def test_messages_grow_and_what_did_not_stream_is_complete_at_once(make_runner):
    events, _ = await make_runner(chat=graph(MessagesState, talk)).run(
        "chat", input={"messages": []}, stream_modes=["messages"]
    )
    assert names(events)[:2] == ["messages/metadata", "messages/partial"]
    assert names(events)[-2:] == ["messages/metadata", "messages/complete"]
    partials = [data[0] for event, data in events if event == "messages/partial"]
    assert [partial["content"] for partial in partials][:3] == ["one", "one two", "one two three"]
    assert {partial["type"] for partial in partials} == {"ai"}

    ((message_id, described),) = events[0][1].items()
    assert message_id == partials[0]["id"]
    assert described["metadata"]["langgraph_node"] == "talk"
    assert events[-1][1][0]["tool_call_id"] == "call"


async def test_custom_and_subgraphs(make_runner):
    runner = make_runner(parent=parent())
    events, outcome = await runner.run(
        "parent", input={"foo": ["in"]}, stream_modes=["values", "updates", "custom"], stream_subgraphs=True
    )
    inner = next(event for event in names(events) if event.startswith("values|child:")).removeprefix("values")

    assert names(events) == [
        "values",
        "updates",
        "values",
        f"values{inner}",
        f"custom{inner}",
        f"updates{inner}",
        f"values{inner}",
        f"updates{inner}",
        f"values{inner}",
        "updates",
        "values",
    ]

    assert events[4][1] == {"at": "sub1"}
    assert events[5][1] == {"sub1": {"foo": ["sub1"]}}
    assert json.loads(outcome.values)["foo"] == ["in", "pre", "in", "pre", "sub1", "sub2"]
    quiet, _ = await make_runner(parent=parent()).run("parent", input={"foo": ["in"]}, stream_modes=["values"])
    assert names(quiet) == ["values"] * 3


async def test_a_subgraph_in_debug_names_its_checkpoint(make_runner):
    events, _ = await make_runner(parent=parent()).run("parent", input={"foo": ["in"]}, stream_modes=["debug"])
    tasks = [task for _, item in events if item["type"] == "checkpoint" for task in item["payload"]["tasks"]]
    [child] = [task for task in tasks if "state" not in task]
    assert child["checkpoint"]["checkpoint_ns"] == f"child:{child['id']}"
    assert {task["state"] for task in tasks if task is not child} == {None}


@pytest.mark.needs("langgraph", "1.2.20")
async def test_tasks(make_runner):
    events, _ = await make_runner(g=graph(Text, draft, boom)).run("g", input={"text": "a"}, stream_modes=["tasks"])
    (_, start), (_, end), (_, start_of_boom), (_, failed), error = events
    assert (start["name"], start["input"], start["triggers"]) == ("draft", {"text": "a"}, ["branch:to:draft"])
    assert (end["id"], end["error"], end["result"], end["interrupts"]) == (start["id"], None, {"text": "a!"}, [])
    assert failed["id"] == start_of_boom["id"]
    assert failed["error"] == {"error": "ValueError", "message": "kaboom"}
    assert error == ("error", {"error": "ValueError", "message": "kaboom"})


async def test_checkpoints_and_debug(make_runner):
    runner = make_runner(g=graph(Text, draft))
    events, _ = await runner.run("g", input={"text": "a"}, stream_modes=["checkpoints", "debug"])
    checkpoints = [data for event, data in events if event == "checkpoints"]
    assert [point["metadata"]["step"] for point in checkpoints] == [-1, 0, 1]
    assert [point["next"] for point in checkpoints] == [["__start__"], ["draft"], []]
    assert set(checkpoints[1]) == {"config", "parent_config", "values", "metadata", "next", "tasks"}
    debug = [data for event, data in events if event == "debug"]
    types = [item["type"] for item in debug]
    assert types == ["checkpoint", "checkpoint", "task", "task_result", "checkpoint"]

    last = debug[-1]["payload"]
    assert last["checkpoint"]["thread_id"] == runner.thread_id
    assert last["parent_checkpoint"]["checkpoint_id"] == debug[1]["payload"]["checkpoint"]["checkpoint_id"]


async def test_events_hold_the_raw_input_and_leave_the_other_modes_as_they_are(make_runner):
    raw = {"messages": [{"role": "user", "content": "hi"}]}
    events, outcome = await make_runner(chat=graph(MessagesState, talk)).run(
        "chat", input=raw, stream_modes=["events", "values", "messages-tuple"]
    )
    kinds = [data["event"] for event, data in events if event == "events"]
    assert kinds[0] == "on_chain_start"
    assert kinds[-1] == "on_chain_end"

    assert kinds.count("on_chat_model_stream") >= 3
    assert events[0][1]["data"]["input"] == raw
    assert names(events).count("values") == 2
    assert names(events).count("messages") >= 3
    assert len(json.loads(outcome.values)["messages"]) == 3
