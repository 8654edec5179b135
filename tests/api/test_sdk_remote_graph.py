"""langgraph's RemoteGraph on a server of ours: alone, and as a node of another graph."""

import operator
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client, get_sync_client
from typing_extensions import TypedDict

from tests.servers import PARITY_PROJECT, ServerProcess, agent_server

FOO = {"foo": ["in"]}
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), project=str(PARITY_PROJECT)) as running:
        yield running


@pytest.fixture
async def remote(server: ServerProcess) -> AsyncIterator[Callable[[str], RemoteGraph]]:
    """Makes remote graphs whose connections are closed after the test."""
    async with get_client(url=server.url, api_key="") as client:
        with get_sync_client(url=server.url, api_key="") as sync_client:
            yield lambda graph: RemoteGraph(graph, client=client, sync_client=sync_client)


def new_thread() -> dict:
    return {"configurable": {"thread_id": str(uuid4())}}


async def test_invoke(remote: Callable[[str], RemoteGraph]):
    graph = remote("twostep")
    assert graph.invoke(FOO) == {"foo": ["in", "a", "b"]}
    assert await graph.ainvoke(FOO, new_thread()) == {"foo": ["in", "a", "b"]}
    assert (await remote("echo").ainvoke(HI))["messages"][-1]["content"] == "echo: hi"


async def test_an_error_of_the_graph_is_raised(remote: Callable[[str], RemoteGraph]):
    with pytest.raises(RemoteException, match="kaboom"):
        await remote("boom").ainvoke({"n": 0})


async def test_stream_modes(remote: Callable[[str], RemoteGraph]):
    graph = remote("twostep")
    assert list(graph.stream(FOO)) == [{"a": {"foo": ["a"]}}, {"b": {"foo": ["b"]}}]
    several = [part async for part in graph.astream(FOO, stream_mode=["values", "updates"])]
    assert [part.event for part in several] == ["values", "updates", "values", "updates", "values"]
    written = [part async for part in remote("writer").astream({"said": ""}, stream_mode="custom")]
    assert written == [{"progress": 1}, "half"]
    tokens = [chunk async for chunk, _ in remote("fake_chat").astream(HI, stream_mode="messages")]
    contents = [token["content"] if isinstance(token, dict) else AIMessageChunk.text(token) for token in tokens]
    assert "".join(contents) == "one two three four"

    tasks = [part async for part in graph.astream(FOO, stream_mode="tasks")]
    assert [part["name"] for part in tasks] == ["a", "a", "b", "b"]


async def test_stream_of_subgraphs(remote: Callable[[str], RemoteGraph]):
    parts = [p async for p in remote("parent").astream(FOO, stream_mode="updates", subgraphs=True)]
    names = [(len(namespace), next(iter(update))) for namespace, update in parts]
    assert names == [(0, "pre"), (1, "sub1"), (1, "sub2"), (0, "child")]


async def test_states(remote: Callable[[str], RemoteGraph]):
    graph = remote("twostep")
    config = new_thread()
    await graph.ainvoke(FOO, config)
    state = graph.get_state(config)
    assert (state.values, state.next) == ({"foo": ["in", "a", "b"]}, ())
    history = [state async for state in graph.aget_state_history(config, limit=10)]
    assert [state.next for state in history] == [(), ("b",), ("a",), ("__start__",)]

    assert len(list(graph.get_state_history(config, limit=2))) == 2
    before = [state async for state in graph.aget_state_history(config, before=history[1].config, limit=10)]
    assert len(before) == 2
    assert (await graph.aget_state(history[1].config)).next == ("b",)
    forked = await graph.aupdate_state(history[1].config, {"foo": ["fork"]}, as_node="a")
    assert await graph.ainvoke(None, forked) == {"foo": ["in", "a", "fork", "b"]}
    assert graph.update_state(config, {"foo": ["hand"]})["configurable"]["checkpoint_id"]


async def test_interrupts_are_resumed(remote: Callable[[str], RemoteGraph]):
    graph = remote("approval")
    config = new_thread()
    first = await graph.ainvoke({"text": "a"}, config)
    assert first["text"] == "a!"
    state = await graph.aget_state(config)
    assert state.next == ("ask",)
    assert state.tasks[0].interrupts[0].value == {"question": "approve?", "text": "a!"}

    assert await graph.ainvoke(Command(resume="yes"), config) == {"text": "done:yes", "decision": "yes"}


async def test_states_of_subgraphs(remote: Callable[[str], RemoteGraph]):
    graph = remote("nested_approval")
    config = new_thread()
    await graph.ainvoke(FOO, config)
    state = await graph.aget_state(config, subgraphs=True)
    inner = state.tasks[0].state
    assert inner.next == ("ia",)
    assert (await graph.aget_state(inner.config)).values == FOO


async def test_the_graph_is_drawn(remote: Callable[[str], RemoteGraph]):
    graph = remote("parent")
    assert {"__start__", "pre", "child", "__end__"} <= set(graph.get_graph().nodes)
    drawn = await graph.aget_graph(xray=True)
    assert {"child:sub1", "child:sub2"} <= set(drawn.nodes)
    assert "sub1" in drawn.draw_mermaid()


class Foo(TypedDict):
    foo: Annotated[list[str], operator.add]


async def test_inside_another_graph(remote: Callable[[str], RemoteGraph]):
    local = StateGraph(Foo).add_node("near", lambda _state: {"foo": ["near"]}).add_node("far", remote("twostep"))
    graph = local.add_edge(START, "near").add_edge("near", "far").compile()
    assert (await graph.ainvoke(FOO))["foo"] == ["in", "near", "in", "near", "a", "b"]
    parts = [part async for part in graph.astream(FOO, stream_mode="updates", subgraphs=True)]
    assert [next(iter(update)) for _, update in parts] == ["near", "a", "b", "far"]


class Draft(TypedDict):
    text: str
    decision: str


async def test_an_interrupt_inside_another_graph(remote: Callable[[str], RemoteGraph]):
    local = StateGraph(Draft).add_node("far", remote("approval")).add_edge(START, "far")
    graph = local.compile(checkpointer=InMemorySaver())
    config = new_thread()
    first = await graph.ainvoke({"text": "a"}, config)
    assert first["__interrupt__"][0].value == {"question": "approve?", "text": "a!"}

    # The library does not hand the answer on to the far graph; its thread has the same id and takes it itself.
    assert await remote("approval").ainvoke(Command(resume="yes"), config) == {"text": "done:yes", "decision": "yes"}


class Answered(TypedDict):
    foo: Annotated[list[str], operator.add]
    answer: str


async def test_a_resumed_graph_does_not_take_its_input_again(remote: Callable[[str], RemoteGraph]):
    local = StateGraph(Answered).add_node("far", remote("nested_approval")).add_edge(START, "far")
    graph = local.compile(checkpointer=InMemorySaver())
    config = new_thread()
    [asked] = (await graph.ainvoke({"foo": ["in"]}, config))["__interrupt__"]
    before = (await remote("nested_approval").aget_state(config)).values
    [again] = (await graph.ainvoke(Command(resume="yes"), config))["__interrupt__"]

    # The library does not hand on an answer without an id, but the question is the same one.
    assert again == asked
    assert (await remote("nested_approval").aget_state(config)).values == before
    answered = await graph.ainvoke(Command(resume={asked.id: "yes"}), config)
    assert "__interrupt__" not in answered
