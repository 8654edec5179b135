"""A thread's state, its history and changing it, on a real Postgres."""

import dataclasses
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from portside.agent.local_graphs import PostgresSaver
from portside.executor.graph_operations import GraphOperations, read_history, read_state, update_state
from portside.executor.load import Graphs
from portside.executor.requests import HistoryRead, StateChange, StateRead
from portside.kernel.codec import load
from portside.kernel.db import Database
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.user_json import dump_user


class Out(TypedDict, total=False):
    out: str


def graph(**nodes: Any) -> Any:
    builder = StateGraph(Out)
    before = START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name

    return builder.compile()


def boom(_: Out) -> Out:
    raise ValueError("kaboom")


class Model(BaseModel):
    name: str
    count: int = 0


class Refused(Exception):
    """What the project's own code raises, of a class of its own."""


@dataclasses.dataclass
class Checked:
    count: Any = 0

    def __post_init__(self) -> None:
        if not isinstance(self.count, int):
            raise Refused(f"no number: {self.count}")


def compile_refusing_graph(model: Any) -> Any:
    """A graph whose first node writes what the model of its state refuses."""
    builder = StateGraph(model).add_node("bad", lambda _: {"count": "many"}).add_node("after", lambda _: {})
    return builder.add_edge(START, "bad").add_edge("bad", "after").compile()


GRAPHS = {
    "model": compile_refusing_graph(Model),
    "dataclass": compile_refusing_graph(Checked),
    "two": graph(a=lambda _: {"out": "a"}, b=lambda _: {"out": "b"}),
    "asks": graph(inner=graph(ia=lambda s: {"out": interrupt({"from": s["out"]})})),
    "fails": graph(boom=boom),
    "chat": StateGraph(MessagesState).add_node("n", lambda _: {}).add_edge(START, "n").compile(),
}


class Operations(GraphOperations):
    """The operations on the graphs, with the graphs."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__(graphs)
        self.graphs: Any = graphs


@pytest.fixture
async def operations(agent_databases) -> AsyncIterator[Operations]:
    db = await Database.connect(await agent_databases(), max_size=5, schema="portside")
    yield Operations(Graphs(GRAPHS, {}).attach(PostgresSaver(db)))
    await db.close()


@pytest.fixture
async def graphs(agent_databases) -> AsyncIterator[dict[str, Any]]:
    db = await Database.connect(await agent_databases(), max_size=5, schema="portside")
    attached = Graphs(GRAPHS, {}).attach(PostgresSaver(db))
    opened = {}
    for graph_id in attached.list_ids():
        async with attached.open(graph_id) as found:
            opened[graph_id] = found

    yield opened
    await db.close()


def thread(**more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": str(uuid4()), **more}}


def point(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"configurable": {**config["configurable"], **more}}


async def test_the_state_of_a_finished_thread(graphs):
    config = thread(run_id="r1", assistant_id="a1")
    await graphs["two"].ainvoke({"out": "in"}, config)
    state = load(dump_user(await read_state(graphs["two"], config)))
    thread_id = config["configurable"]["thread_id"]
    checkpoint_id = state["checkpoint_id"]

    assert state.keys() == {
        "values",
        "next",
        "tasks",
        "metadata",
        "created_at",
        "checkpoint",
        "parent_checkpoint",
        "interrupts",
        "checkpoint_id",
        "parent_checkpoint_id",
    }

    assert (state["values"], state["next"], state["tasks"], state["interrupts"]) == ({"out": "b"}, [], [], [])
    assert state["checkpoint"] == {"checkpoint_id": checkpoint_id, "thread_id": thread_id, "checkpoint_ns": ""}
    assert state["parent_checkpoint"]["checkpoint_id"] == state["parent_checkpoint_id"] < checkpoint_id

    metadata = {
        "source": "loop",
        "step": 2,
        "parents": {},
        "thread_id": thread_id,
        "run_id": "r1",
        "assistant_id": "a1",
    }

    assert metadata.items() <= state["metadata"].items()
    assert state["created_at"].endswith("+00:00")


async def test_a_thread_without_a_checkpoint(graphs):
    state = await read_state(graphs["two"], thread())
    assert (state["values"], state["next"], state["tasks"]) == ({}, [], [])
    assert state["checkpoint"] is state["metadata"] is state["created_at"] is state["parent_checkpoint"] is None
    asked = thread(checkpoint_id="unknown", checkpoint_ns="")

    assert (await read_state(graphs["two"], asked))["checkpoint"] == {
        "checkpoint_id": "unknown",
        "thread_id": asked["configurable"]["thread_id"],
        "checkpoint_ns": "",
    }


async def test_an_interrupted_subgraph_with_and_without_its_own_state(graphs):
    config = thread()
    await graphs["asks"].ainvoke({"out": "a"}, config)
    state = load(dump_user(await read_state(graphs["asks"], config)))
    task = state["tasks"][0]
    asked = state["interrupts"]
    assert state["next"] == ["inner"]
    assert asked == [{"id": asked[0]["id"], "value": {"from": "a"}}]

    assert task == {
        "id": task["id"],
        "name": "inner",
        "path": ["__pregel_pull", "inner"],
        "error": None,
        "interrupts": asked,
        "checkpoint": {"thread_id": config["configurable"]["thread_id"], "checkpoint_ns": f"inner:{task['id']}"},
        "state": None,
        "result": None,
    }

    deep = load(dump_user(await read_state(graphs["asks"], config, subgraphs=True)))["tasks"][0]
    assert deep["checkpoint"] is None
    assert deep["state"]["next"] == ["ia"]
    assert deep["state"]["values"] == {"out": "a"}
    assert deep["state"]["checkpoint"]["checkpoint_map"].keys() == {"", f"inner:{task['id']}"}
    reported = deep["state"]["metadata"]
    namespace = f"inner:{task['id']}"

    assert {name: reported[name] for name in reported if name.startswith(("langgraph_", "checkpoint_"))} == {
        "langgraph_node": "inner",
        "langgraph_path": ["__pregel_pull", "inner"],
        "langgraph_step": 1,
        "langgraph_triggers": ["branch:to:inner"],
        "langgraph_checkpoint_ns": namespace,
        "checkpoint_ns": namespace,
        "checkpoint_map": {"": state["checkpoint_id"]},
    }

    assert not {"checkpoint_ns", "langgraph_node"} & state["metadata"].keys()


async def test_an_error_is_shown_on_its_task(graphs):
    config = thread()
    with pytest.raises(ValueError, match="kaboom"):
        await graphs["fails"].ainvoke({"out": "a"}, config)

    state = await read_state(graphs["fails"], config)
    assert [task["error"] for task in state["tasks"]] == ["ValueError('kaboom')"]
    assert state["next"] == ["boom"]


async def test_history_newest_first_with_limit_before_and_filter(graphs):
    config = thread()
    two = graphs["two"]
    await two.ainvoke({"out": "in"}, config)
    history = await read_history(two, config, limit=10)
    assert [state["values"].get("out") for state in history] == ["b", "a", "in", None]
    assert len(await read_history(two, config, limit=1)) == 1

    for before in (
        history[1]["checkpoint_id"],
        history[1]["checkpoint"],
        {"configurable": history[1]["checkpoint"]},
    ):
        assert await read_history(two, config, limit=10, before=before) == history[2:]

    assert await read_history(two, config, limit=10, filter={"source": "input"}) == history[3:]

    for bad in (3, {}, {"configurable": {}}, {"checkpoint_id": 1}, {"configurable": None}):
        with pytest.raises(Invalid):
            await read_history(two, config, limit=10, before=bad)


@pytest.mark.parametrize(
    ("graph_id", "reason"), [("model", "valid integer"), ("dataclass", "Refused: no number: many")]
)
async def test_a_state_that_the_graph_refuses_says_why_and_can_be_mended(operations, graph_id, reason):
    config = thread()
    async with operations.graphs.open(graph_id, config) as opened:
        with pytest.raises(Exception, match=r"number|integer"):
            await opened.ainvoke({"name": "n"} if graph_id == "model" else {}, config)

    backend = operations.graphs.checkpointer.backend

    async def read(**select: Any) -> Any:
        row = await backend.read(config["configurable"]["thread_id"], "", None)
        return await operations.read_state(StateRead(graph_id=graph_id, config=config, checkpoint=row, **select))

    async def history(**select: Any) -> Any:
        return await operations.read_history(HistoryRead(graph_id=graph_id, config=config, limit=9, **select))

    async def update(values: Any, as_node: str) -> Any:
        change = StateChange(graph_id=graph_id, config=config, values=values, as_node=as_node)
        return await operations.update_state(change, backend)

    for call in (read, history, partial(update, None, "__copy__")):
        with pytest.raises(BadRequest, match=f"(?s)refuses the values.*{reason}"):
            await call()

    stored = load(await read(select=["values", "checkpoint"]))
    assert (stored["values"]["count"], stored["checkpoint"]["thread_id"]) == (
        "many",
        config["configurable"]["thread_id"],
    )

    assert load(await history(select=["values"]))[0]["values"]["count"] == "many"
    await update({"count": 1}, "bad")
    mended = load(await read())
    assert (mended["values"]["count"], mended["next"]) == (1, ["after"])


async def test_an_update_makes_a_checkpoint_and_may_fork(graphs):
    config = thread()
    two = graphs["two"]
    await two.ainvoke({"out": "in"}, config)
    history = await read_history(two, config, limit=10)
    made = await update_state(two, config, {"out": "edited"}, "a")
    state = await read_state(two, config)
    assert state["checkpoint"] == made

    assert (state["values"], state["next"], state["metadata"]["source"]) == ({"out": "edited"}, ["b"], "update")
    fork = await update_state(two, point(config, checkpoint_id=history[1]["checkpoint_id"]), {"out": "fork"}, None)
    state = await read_state(two, point(config, **fork))
    assert state["parent_checkpoint_id"] == history[1]["checkpoint_id"]
    assert state["values"] == {"out": "fork"}


async def test_an_update_of_messages_coerces_them(graphs):
    config = thread()
    await update_state(graphs["chat"], config, {"messages": [{"role": "user", "content": "hi"}]}, "n")
    state = await read_state(graphs["chat"], config)
    assert [type(message) for message in state["values"]["messages"]] == [HumanMessage]


@pytest.mark.parametrize(
    ("graph_id", "values", "as_node", "said"),
    [
        ("two", {"out": "x"}, "bogus", "Node bogus does not exist"),
        ("two", [1, 2], "a", "dict"),
        ("chat", {"messages": [{"colour": "red"}]}, "n", "Message dict"),
    ],
)
async def test_invalid_update_is_the_callers_error(graphs, graph_id, values, as_node, said):
    with pytest.raises(BadRequest, match=said):
        await update_state(graphs[graph_id], thread(), values, as_node)
