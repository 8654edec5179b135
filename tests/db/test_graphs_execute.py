"""Running graphs on a real Postgres: how runs end, stop, fail, are cut off and go on."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from typing_extensions import TypedDict

from portside.executor.execute import Execution
from portside.executor.load import GraphFactory
from portside.kernel.errors import Invalid
from tests.db.graph_runs import (
    Text,
    Words,
    ask,
    boom,
    draft,
    fin,
    graph,
    graph_runners,
    names,
    pre,
    sub1,
    sub2,
)


@pytest.fixture
async def make_runner(agent_databases) -> AsyncIterator[Any]:
    async with graph_runners(await agent_databases()) as make:
        yield make


@pytest.mark.needs("langgraph", "1.2.12")
async def test_interrupt_and_resume_follow_the_transcript(make_runner):
    runner = make_runner(approval=graph(Text, draft, ask, fin))
    events, outcome = await runner.run("approval", input={"text": "a"}, stream_modes=["values", "updates"])
    asked = events[3][1]["__interrupt__"]

    assert events == [
        ("values", {"text": "a"}),
        ("updates", {"draft": {"text": "a!"}}),
        ("values", {"text": "a!"}),
        ("updates", {"__interrupt__": asked}),
        ("values", {"text": "a!", "__interrupt__": asked}),
    ]

    assert asked == [{"value": {"question": "approve?", "text": "a!"}, "id": asked[0]["id"], "response_schema": None}]
    assert json.loads(outcome.values) == {"text": "a!", "__interrupt__": asked}
    assert list(outcome.interrupts.values()) == [[{"id": asked[0]["id"], "value": asked[0]["value"]}]]
    assert outcome.has_next

    events, outcome = await runner.run("approval", command={"resume": "yes"}, stream_modes=["values", "updates"])
    assert events == [
        ("values", {"text": "a!"}),
        ("updates", {"ask": {"decision": "yes"}}),
        ("values", {"text": "a!", "decision": "yes"}),
        ("updates", {"fin": {"text": "done:yes"}}),
        ("values", {"text": "done:yes", "decision": "yes"}),
    ]

    assert json.loads(outcome.values) == {"text": "done:yes", "decision": "yes"}
    assert (outcome.interrupts, outcome.has_next) == ({}, False)


async def test_several_interrupts_are_answered_one_by_one(make_runner):
    builder = StateGraph(Words)
    for name in ("left", "right"):
        builder.add_node(name, lambda _, name=name: {"foo": [interrupt(name)]})
        builder.add_edge(START, name)

    runner = make_runner(both=builder.compile())
    _, outcome = await runner.run("both", input={"foo": []})
    waiting = {i["value"]: i["id"] for i in json.loads(outcome.values)["__interrupt__"]}
    assert set(waiting) == {"left", "right"}
    assert len(outcome.interrupts) == 2
    _, outcome = await runner.run("both", command={"resume": {waiting["left"]: "L"}})
    assert [i["value"] for waits in outcome.interrupts.values() for i in waits] == ["right"]

    assert outcome.has_next
    _, outcome = await runner.run("both", command={"resume": {waiting["right"]: "R"}})
    assert json.loads(outcome.values) == {"foo": ["L", "R"]}
    assert not outcome.has_next


@pytest.mark.parametrize(
    ("stops", "at"),
    [
        ({"interrupt_before": ["fin"]}, "fin"),
        ({"interrupt_after": ["draft"]}, "fin"),
        ({"interrupt_before": "*"}, "draft"),
        ({"interrupt_after": ["fin"]}, None),
        ({"interrupt_before": ["nobody"]}, None),
    ],
)
async def test_static_interrupts(make_runner, stops, at):
    runner = make_runner(g=graph(Text, draft, fin))
    events, outcome = await runner.run("g", input={"text": "a", "decision": "d"}, stream_modes=["updates"], **stops)
    stopped = ("updates", {"__interrupt__": []})
    assert (stopped in events) == ("nobody" not in str(stops))
    assert outcome.has_next == (at is not None)
    assert outcome.interrupts == {}
    assert "__interrupt__" not in json.loads(outcome.values)

    if at:
        _, outcome = await runner.run("g")
        assert json.loads(outcome.values)["text"] == "done:d"


async def test_a_breakpoint_compiled_into_the_graph(make_runner):
    builder = StateGraph(Text)
    builder.add_node("draft", draft)
    builder.add_edge(START, "draft")
    _, outcome = await make_runner(g=builder.compile(interrupt_before=["draft"])).run("g", input={"text": "a"})
    assert outcome.has_next
    assert json.loads(outcome.values) == {"text": "a"}


async def test_an_error_is_an_event_and_part_of_the_outcome(make_runner):
    events, outcome = await make_runner(g=graph(Text, draft, boom)).run("g", input={"text": "a"})
    assert events[-1] == ("error", {"error": "ValueError", "message": "kaboom"})
    assert outcome.error == {"error": "ValueError", "message": "kaboom"}
    assert (json.loads(outcome.values), outcome.has_next) == ({"text": "a!"}, False)


async def test_no_input_on_an_empty_thread_and_too_many_steps_are_errors_of_the_run(make_runner):
    runner = make_runner(g=graph(Text, draft, fin))
    events, outcome = await runner.run("g")
    assert names(events) == ["error"]
    assert (outcome.error["error"], outcome.values) == ("EmptyInputError", None)
    _, outcome = await runner.run("g", input={"text": "a", "decision": "d"}, config={"recursion_limit": 1})
    assert outcome.error["error"] == "GraphRecursionError"


async def test_a_cancellation_from_inside_is_an_error_and_one_from_outside_is_not(make_runner):
    async def lets_go() -> Any:
        raise asyncio.CancelledError

    async def waits(_: Text) -> Text:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    started = asyncio.Event()
    runner = make_runner(lets_go=GraphFactory(lets_go, "lets_go"), waits=graph(Text, waits))
    _, outcome = await runner.run("lets_go", input={"text": "a"})
    assert outcome.error["error"] == "CancelledError"
    running = asyncio.create_task(runner.run("waits", input={"text": "a"}))

    await asyncio.wait_for(started.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("with_command", [False, True])
async def test_interrupted_run_continues_in_its_second_node(make_runner, with_command):
    ran: list[str] = []
    blocked = asyncio.Event()
    release = asyncio.Event()

    async def first(_: Words) -> dict[str, Any]:
        ran.append("first")
        return {"foo": ["first"]}

    async def second(_: Words) -> dict[str, Any]:
        ran.append("second")
        blocked.set()
        await release.wait()
        return {"foo": ["second"]}

    runner = make_runner(g=graph(Words, first, second))
    fields: dict[str, Any] = {"input": {"foo": ["in"]}}

    if with_command:
        await runner.run("g", input={"foo": ["in"]}, interrupt_before="*")
        fields = {"command": {"update": {"foo": ["more"]}}}

    configurable = {"run_id": str(uuid4())}
    running = asyncio.create_task(runner.run("g", **fields, configurable=configurable))
    await asyncio.wait_for(blocked.wait(), 60)
    running.cancel()
    await asyncio.wait([running])
    release.set()

    events, outcome = await runner.run("g", **fields, configurable=configurable, resume=True, stream_modes=["updates"])
    assert ran == ["first", "second", "second"]
    assert names(events) == ["updates"]
    start = ["in", "more"] if with_command else ["in"]
    assert json.loads(outcome.values)["foo"] == [*start, "first", "second"]


async def test_resumed_fork_continues_from_its_own_checkpoint(make_runner):
    runner = make_runner(g=graph(Words, pre, sub1, sub2))
    await runner.run("g", input={"foo": ["in"]})
    async with runner.graphs.open("g") as opened:
        history = [
            state async for state in opened.aget_state_history({"configurable": {"thread_id": runner.thread_id}})
        ]

    fork = {"checkpoint_id": history[2].config["configurable"]["checkpoint_id"]}
    _, outcome = await runner.run("g", configurable=fork, interrupt_before=["sub2"])
    assert outcome.has_next
    events, outcome = await runner.run("g", configurable=fork, resume=True, stream_modes=["updates"])
    assert json.loads(outcome.values)["foo"] == ["in", "pre", "sub1", "sub2"]
    assert [list(update) for name, update in events if name == "updates"] == [["sub2"]], "no node runs twice"


async def test_a_subgraph_that_interrupts(make_runner):
    def inner(_: Words) -> dict[str, Any]:
        return {"foo": [interrupt("inside")]}

    builder = StateGraph(Words)
    builder.add_node("child", graph(Words, inner))
    builder.add_edge(START, "child")
    runner = make_runner(g=builder.compile())
    _, outcome = await runner.run("g", input={"foo": []})
    assert outcome.has_next
    assert [i["value"] for waits in outcome.interrupts.values() for i in waits] == ["inside"]

    _, outcome = await runner.run("g", command={"resume": "out"})
    assert json.loads(outcome.values) == {"foo": ["out"]}


async def test_the_output_schema_picks_the_final_values(make_runner):
    class Out(TypedDict):
        text: str

    events, outcome = await make_runner(g=graph(Text, draft, output_schema=Out)).run(
        "g", input={"text": "a", "decision": "d"}
    )
    assert events[-1] == ("values", {"text": "a!", "decision": "d"})
    assert json.loads(outcome.values) == {"text": "a!"}


async def test_the_functional_api(make_runner):
    @task
    def double(number: int) -> int:
        return number * 2

    @entrypoint()
    async def work(number: int) -> Any:
        return await double(number) if number < 100 else interrupt("really?")

    runner = make_runner(work=work)
    events, outcome = await runner.run("work", input=21)
    assert events == [("values", 42)]
    assert outcome.values == b"42"
    _, outcome = await runner.run("work", input=100)
    assert json.loads(outcome.values)["__interrupt__"][0]["value"] == "really?"
    assert outcome.has_next


async def test_context_reaches_the_node_typed_and_without_unknown_keys(make_runner):
    @dataclass
    class Context:
        model: str = "small"

    def node(_: Text, runtime: Runtime[Context]) -> Text:
        return {"text": runtime.context.model}

    runner = make_runner(g=graph(Text, node, context_schema=Context))
    for context, seen in (({"model": "big", "unknown": 1}, "big"), ({}, "small"), (None, "small")):
        _, outcome = await runner.run("g", input={"text": ""}, context=context)
        assert json.loads(outcome.values) == {"text": seen}


async def test_internal_keys_of_langgraph_cannot_be_sent(make_runner):
    runner = make_runner(g=graph(Text, draft))
    await runner.run("g", input={"text": "a"}, configurable={"__pregel_checkpointer": None})
    async with runner.graphs.open("g") as opened:
        state = await opened.aget_state({"configurable": {"thread_id": runner.thread_id}})

    assert state.values == {"text": "a!"}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_durability(make_runner, durability):
    runner = make_runner(g=graph(Text, draft))
    await runner.run("g", input={"text": "a"}, durability=durability)
    async with runner.graphs.open("g") as opened:
        config = {"configurable": {"thread_id": runner.thread_id}}
        history = [state.values async for state in opened.aget_state_history(config)]

    assert history[0] == {"text": "a!"}
    assert len(history) == (1 if durability == "exit" else 3)


async def test_a_bad_command_is_refused_before_anything_runs_and_a_graph_that_is_gone_fails_the_run(make_runner):
    runner = make_runner(g=graph(Text, draft))
    with pytest.raises(Invalid):
        Execution(runner.graphs, runner.request("g", command={"goto": 3}))

    events, outcome = await runner.run("unknown", input={})
    assert names(events) == ["error"]
    assert "Expected one of: ['g']" in outcome.error["message"]
