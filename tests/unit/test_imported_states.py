"""A history that another server shows becomes the same history: values, next nodes, open interrupts, parents, times.

The graph makes the states again, in memory, and only those that were accepted are stored.
"""

import json
import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from portside.executor.graph_operations import to_thread_state
from portside.executor.imported_states import import_states, restore_messages
from portside.kernel.errors import Invalid
from portside.kernel.user_json import dump_user
from portside.transfer.threads import build_changes, compare_histories

# Older versions cannot overwrite what a reducer made.
pytestmark = pytest.mark.needs("langgraph", "1.2.0")
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}
Graph = Any


class State(MessagesState):
    log: Annotated[list[str], operator.add]
    count: int
    decision: str


def log_as(name: str) -> Any:
    return lambda _state: {"log": [name]}


def answer(state: State) -> dict[str, Any]:
    return {"messages": [("ai", "hello")], "log": ["answer"], "count": state.get("count", 0) + 1}


def ask(_state: State) -> dict[str, Any]:
    return {"decision": interrupt({"question": "ok?"}), "log": ["ask"]}


def choose(_state: State) -> Command[Any]:
    return Command(update={"log": ["choose"]}, goto="fan")


def build() -> Graph:
    """A graph with parallel nodes, an edge from several, conditions, a node that chooses the next one, and sends."""
    builder = StateGraph(State)
    builder.add_node("answer", answer).add_edge(START, "answer")
    for name in ("left", "right"):
        builder.add_node(name, log_as(name)).add_edge("answer", name)

    builder.add_node("join", log_as("join")).add_edge(["left", "right"], "join")
    builder.add_conditional_edges("join", lambda state: "ask" if state["count"] == 1 else "choose", ["ask", "choose"])
    builder.add_node("ask", ask).add_edge("ask", END)
    builder.add_node("choose", choose).add_node("fan", log_as("fan"))
    builder.add_node("work", lambda task: {"log": [f"work {task['n']}"]})
    builder.add_conditional_edges("fan", lambda _state: [Send("work", {"n": n}) for n in range(2)], ["work"])
    return builder.compile(checkpointer=InMemorySaver())


async def read(graph: Graph) -> list[dict[str, Any]]:
    """The history as a server shows it."""
    states = [to_thread_state(snapshot) async for snapshot in graph.aget_state_history(CONFIG)]
    decoded: list[dict[str, Any]] = json.loads(dump_user(states))
    return decoded


async def copy(source: Graph, target: Graph) -> list[dict[str, Any]]:
    """Import the history of a graph into another one; return it."""
    history = await read(source)
    await import_states(target, CONFIG, build_changes(history))
    return history


async def test_a_history_is_made_again() -> None:
    source, target = build(), build()
    await source.ainvoke({"messages": [("user", "hi")]}, CONFIG)
    await source.ainvoke(Command(resume="yes"), CONFIG)
    await source.aupdate_state(CONFIG, {"log": ["by hand"], "count": 9}, as_node="work")
    await source.ainvoke({"messages": [("user", "again")]}, CONFIG)

    history = await copy(source, target)
    imported = await read(target)
    assert len(history) > 12
    assert compare_histories(history, imported) is None
    for before, after in zip(history, imported, strict=True):
        kept = ("parent_checkpoint_id", "created_at")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert [task["id"] for task in after["tasks"]] == [task["id"] for task in before["tasks"]]
        assert (after["metadata"]["source"], after["metadata"]["step"]) == (
            before["metadata"]["source"],
            before["metadata"]["step"],
        )

    values = (await target.aget_state(CONFIG)).values
    assert [type(message) for message in values["messages"]] == [HumanMessage, AIMessage] * 2


async def test_a_fork_of_an_earlier_state_keeps_its_question() -> None:
    source, target = build(), build()
    await source.ainvoke({"messages": [("user", "hi")]}, CONFIG)
    await source.ainvoke(Command(resume="yes"), CONFIG)
    [earlier] = [state async for state in source.aget_state_history(CONFIG) if state.next == ("left", "right")]
    await source.ainvoke(None, earlier.config)

    history = await copy(source, target)
    assert compare_histories(history, await read(target)) is None
    [question] = (await target.aget_state(CONFIG)).interrupts
    assert question.value == {"question": "ok?"}

    values = await target.ainvoke(Command(resume={question.id: "no"}), CONFIG)
    assert (values["decision"], values["log"]) == ("no", ["answer", "left", "right", "join", "ask"])


async def test_the_end_of_a_history_stands_for_itself() -> None:
    source, target = build(), build()
    await source.ainvoke({"messages": [("user", "hi")]}, CONFIG)
    await source.ainvoke(Command(resume="yes"), CONFIG)
    await source.ainvoke({"messages": [("user", "again")]}, CONFIG)

    for count in (1, 3, 9):
        target = build()
        latest = (await read(source))[:count]
        await import_states(target, CONFIG, build_changes(latest))
        assert compare_histories(latest, await read(target)) is None


async def test_a_refusal_names_the_state_and_stores_nothing() -> None:
    source, target = build(), build()
    await source.ainvoke({"messages": [("user", "hi")]}, CONFIG)
    changes = build_changes(await read(source))
    changes[2] = {**changes[2], "appended": {"decision": ["no list"]}, "values": {}}

    with pytest.raises(Invalid) as refusal:
        await import_states(target, CONFIG, changes)

    assert refusal.value.problems[0].loc == ["body", "history", 2]
    assert await read(target) == []


def test_only_messages_become_messages() -> None:
    fields = {"content": "hi", "additional_kwargs": {}, "response_metadata": {}, "id": None, "name": None}
    human = restore_messages({"deep": [{**fields, "type": "human"}]})
    assert human == {"deep": [HumanMessage("hi")]}

    for plain in ({"type": "human", "content": "hi"}, {**fields, "type": "stranger"}, {**fields, "type": 3}, ["x", 1]):
        assert restore_messages(plain) == plain
