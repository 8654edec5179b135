"""The checkpointer on a real Postgres: the public conformance suite, and what that suite does not cover."""

import asyncio
import operator
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from portside.agent.local_graphs import PostgresSaver
from portside.kernel.db import Database


@pytest.fixture
async def saver(db) -> PostgresSaver:
    return PostgresSaver(db)


async def rows(db: Database, table: str) -> int:
    return await db.pool.fetchval(f"select count(*) from {table}")


async def test_the_public_conformance_suite_passes_in_every_capability(saver):
    @checkpointer_test(name="PostgresSaver")
    async def ours():
        yield saver

    report = (await validate(ours)).to_dict()["results"]
    assert {name: result["failures"] for name, result in report.items() if result["failures"]} == {}
    assert set(report) == {
        "put",
        "put_writes",
        "get_tuple",
        "list",
        "delete_thread",
        "delete_for_runs",
        "copy_thread",
        "prune",
    }

    assert all(result["detected"] and result["passed"] for result in report.values())
    assert sum(result["tests_passed"] for result in report.values()) == 81


class Chain(TypedDict):
    log: Annotated[list[str], operator.add]
    big: str
    hits: int


def chain(saver: Any) -> Any:
    builder = StateGraph(Chain)
    builder.add_node("a", lambda _: {"log": ["a"], "hits": 1})
    builder.add_node("b", lambda _: {"log": ["b"], "hits": 2})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)

    return builder.compile(checkpointer=saver)


def thread(**more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": str(uuid4()), **more}}


async def test_an_unchanged_channel_is_stored_once_and_small_values_have_no_row(db, saver):
    await chain(saver).ainvoke({"log": ["in"], "big": "x" * 10_000, "hits": 0}, thread())
    stored = await db.pool.fetch("select channel, count(*) from checkpoint_values group by 1 order by 1")
    assert [tuple(row) for row in stored] == [("__start__", 1), ("big", 1), ("log", 3)]
    assert await rows(db, "checkpoints") == 4


async def test_state_and_history_survive_a_new_saver(db, saver):
    config = thread()
    await chain(saver).ainvoke({"log": ["in"], "big": "x", "hits": 0}, config)
    graph = chain(PostgresSaver(db))
    assert (await graph.aget_state(config)).values == {"log": ["in", "a", "b"], "big": "x", "hits": 2}
    history = [state.values.get("hits") async for state in graph.aget_state_history(config)]
    assert history == [2, 1, 0, None]


async def test_the_number_of_statements_of_a_run_is_small(db, saver):
    seen: list[str] = []
    for name in ("fetchrow", "fetch", "execute"):
        original = getattr(db, name)

        def count(query, *, original=original, **values):
            seen.append(query.name)
            return original(query, **values)

        setattr(db, name, count)

    await chain(saver).ainvoke({"log": ["in"], "big": "x", "hits": 0}, thread())
    assert sorted(seen) == ["read_checkpoint"] + ["write_checkpoints"] * 7
    seen.clear()
    await chain(saver).ainvoke({"log": ["in"], "big": "x", "hits": 0}, thread(), durability="exit")
    assert seen == ["read_checkpoint", "write_checkpoints"]


async def test_synchronous_calls_work_from_a_node_thread_and_are_refused_on_the_loop(saver):
    def node(state: Chain) -> dict[str, Any]:
        chain(saver).invoke(state, inner)
        return {"log": [f"inner has {len(list(chain(saver).get_state_history(inner)))}"]}

    inner = thread()
    outer = thread()
    builder = StateGraph(Chain)
    builder.add_node("node", node)
    builder.add_edge(START, "node")

    result = await builder.compile(checkpointer=saver).ainvoke({"log": [], "big": "", "hits": 0}, outer)
    assert result["log"] == ["inner has 4"]
    with pytest.raises(RuntimeError, match="in async code use ainvoke"):
        chain(saver).get_state(outer)


async def test_a_saver_may_be_used_from_another_loop(saver):
    config = thread()
    graph = chain(saver)
    await asyncio.to_thread(lambda: asyncio.run(graph.ainvoke({"log": ["in"], "big": "", "hits": 0}, config)))
    assert (await graph.aget_state(config)).values["log"] == ["in", "a", "b"]


async def test_checkpoints_do_not_store_user_and_request(saver):
    asked = {"langgraph_auth_user_id": "me", "langgraph_request_id": "r", "graph_auth_user_id": "me", "tenant": "t"}
    await chain(saver).ainvoke({"log": ["in"], "big": "", "hits": 0}, config := thread(**asked))
    found = await saver.aget_tuple(config)
    assert found.metadata["tenant"] == "t"
    assert not {name for name in found.metadata if "auth" in name or "request" in name}


async def test_nul_and_other_odd_characters_do_not_break_metadata_or_its_filter(saver):
    odd = "nul \0 slash \\u0000 face \N{GRINNING FACE}"
    config = {**generate_config(), "metadata": {"note": odd}}
    checkpoint = generate_checkpoint(channel_values={"text": odd * 100}, channel_versions={"text": "1"})
    await saver.aput(config, checkpoint, generate_metadata(nested={"k\0ey": [odd]}), {"text": "1"})

    found = [item async for item in saver.alist(config, filter={"nested": {"k\0ey": [odd]}, "note": odd})]
    assert [item.checkpoint["id"] for item in found] == [checkpoint["id"]]
    assert found[0].metadata["note"] == odd.replace("\0", "")
    assert found[0].checkpoint["channel_values"] == {"text": odd * 100}


async def test_history_is_read_in_pages(saver):
    ids = []
    config = generate_config()
    for step in range(205):
        checkpoint = generate_checkpoint()
        ids.append(checkpoint["id"])
        config = await saver.aput(config, checkpoint, generate_metadata(step=step), {})

    latest = {"configurable": {"thread_id": config["configurable"]["thread_id"]}}
    assert [item.checkpoint["id"] async for item in saver.alist(latest)] == ids[::-1]
    assert len([item async for item in saver.alist(latest, limit=150)]) == 150
    assert len([item async for item in saver.alist(None, limit=0)]) == 0


async def test_writes_come_back_in_the_order_langgraph_applies_them(saver):
    stored = await saver.aput(generate_config(), generate_checkpoint(), generate_metadata(), {})
    for task, path in (("1", "~b"), ("2", "~B"), ("3", ""), ("0", "~b")):
        await saver.aput_writes(stored, [("x", task), ("y", path)], task, path)

    found = await saver.aget_tuple(stored)
    assert [(task, channel) for task, channel, _ in found.pending_writes] == [
        (task, channel) for task in ("3", "2", "0", "1") for channel in ("x", "y")
    ]


async def test_an_ordinary_write_stays_and_a_special_one_is_replaced(saver):
    stored = await saver.aput(generate_config(), generate_checkpoint(), generate_metadata(), {})
    await saver.aput_writes(stored, [("x", 1), ("__error__", "first")], "task")
    await saver.aput_writes(stored, [("x", 2), ("__error__", "second")], "task")
    found = await saver.aget_tuple(stored)
    assert {channel: value for _, channel, value in found.pending_writes} == {"x": 1, "__error__": "second"}


async def test_a_node_that_is_cut_off_before_its_edges_are_followed_runs_again(saver):
    builder = StateGraph(Chain)
    builder.add_node("step", lambda state: {"hits": state["hits"] + 1, "log": ["step"]})
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["hits"] < 3 else END, ["step", END])

    graph = builder.compile(checkpointer=saver)
    config = thread()
    await graph.ainvoke({"log": [], "big": "", "hits": 0}, config, interrupt_before=["step"])
    state = await graph.aget_state(config)

    # What langgraph has of a node that returned, and was cancelled while its conditional edge was looked at.
    cut_off = [("hits", 1), ("log", ["step"]), ("__error__", asyncio.CancelledError())]
    await saver.aput_writes(state.config, cut_off, state.tasks[0].id)
    assert (await graph.ainvoke(None, config))["log"] == ["step"] * 3


async def test_deleting_a_run_leaves_no_values_behind_and_takes_its_writes_on_older_checkpoints(db, saver):
    def ask(_: Chain) -> dict[str, Any]:
        return {"log": [interrupt("go on?")]}

    builder = StateGraph(Chain)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    first = thread(run_id="one")
    second = thread(thread_id=first["configurable"]["thread_id"], run_id="two")

    await graph.ainvoke({"log": ["in"], "big": "x" * 1000, "hits": 0}, first)
    before = [await rows(db, table) for table in ("checkpoints", "checkpoint_values", "checkpoint_writes")]
    await graph.ainvoke(Command(resume="yes", update={"big": "y" * 1000}), second)
    await saver.adelete_for_runs(["two"])
    assert [await rows(db, table) for table in ("checkpoints", "checkpoint_values", "checkpoint_writes")] == before
    state = await graph.aget_state(first)
    assert (state.next, state.values["big"]) == (("ask",), "x" * 1000)


async def test_deleting_a_run_of_one_thread_spares_its_copies(db, saver):
    config = thread(run_id="run")
    source = config["configurable"]["thread_id"]
    copy = str(uuid4())
    graph = chain(saver)

    await graph.ainvoke({"log": ["in"], "big": "x", "hits": 0}, config)
    await saver.acopy_thread(source, copy)
    count_writes = "select count(*) from checkpoint_writes where thread_id = $1"
    writes = await db.pool.fetchval(count_writes, copy)
    assert writes > 0
    await saver.adelete_for_runs(["run"], thread_id=source)
    assert [await db.pool.fetchval(count_writes, one) for one in (source, copy)] == [0, writes]
    assert (await graph.aget_state(config)).values == {}
    assert (await graph.aget_state(thread(thread_id=copy))).values["log"] == ["in", "a", "b"]


@pytest.mark.needs("langgraph", "1.2.0")
@pytest.mark.parametrize("snapshot_frequency", [1000, 2])
@pytest.mark.parametrize("deleted", [["one"], ["two"], ["one", "two"], ["two", "one"]], ids="+".join)
async def test_deleting_a_run_keeps_what_later_ones_built_on(saver, deleted, snapshot_frequency):
    config = thread()
    graph = compile_notes(saver, snapshot_frequency)
    thread_id = config["configurable"]["thread_id"]
    for run_id in ("one", "two", "three"):
        await graph.ainvoke({"notes": [run_id], "log": [run_id]}, thread(thread_id=thread_id, run_id=run_id))

    history = [state async for state in graph.aget_state_history(config)]
    assert history[0].values["notes"] == ["one", "a", "two", "a", "three", "a"]

    # One after the other: a checkpoint that only the second one needed goes with it.
    for run_id in deleted:
        await saver.adelete_for_runs([run_id], thread_id=thread_id)

    kept = [state for state in history if state.metadata["run_id"] not in deleted]
    left = [state async for state in graph.aget_state_history(config)]
    assert [state.values for state in left] == [state.values for state in kept]
    assert (await graph.aget_state(config)).values == history[0].values
    gone = next(state for state in history if state.metadata["run_id"] in deleted)
    assert (await graph.aget_state(gone.config)).created_at is None


@pytest.mark.needs("langgraph", "1.2.0")
async def test_checkpoints_that_later_ones_built_on_go_with_these(db, saver):
    config = thread()
    graph = compile_notes(saver, 1000)
    thread_id = config["configurable"]["thread_id"]
    secret = "s" * 300
    for run_id in ("one", "two", "three"):
        given = {"notes": [run_id], "log": [secret] if run_id == "two" else []}
        await graph.ainvoke(given, thread(thread_id=thread_id, run_id=run_id, label=f"of {run_id}"))

    await saver.adelete_for_runs(["two"], thread_id=thread_id)
    named = await db.pool.fetch("select metadata::text from checkpoints where thread_id = $1", thread_id)
    assert not [row for row in named if "of two" in row[0]]
    channels = await db.pool.fetchval(
        "select array_agg(distinct channel) from checkpoint_writes where run_id = 'two' and thread_id = $1", thread_id
    )
    assert channels == ["notes"]

    await saver.adelete_for_runs(["three"], thread_id=thread_id)
    assert (await graph.aget_state(config)).values["notes"] == ["one", "a"]
    assert await db.pool.fetchval("select count(*) from checkpoints where thread_id = $1", thread_id) == 3
    await saver.adelete_for_runs(["one"], thread_id=thread_id)

    for table in ("checkpoints", "checkpoint_values", "checkpoint_writes"):
        assert await db.pool.fetchval(f"select count(*) from {table} where thread_id = $1", thread_id) == 0


def compile_notes(saver: Any, snapshot_frequency: int) -> Any:
    """A graph with a channel that is stored as a chain of writes, with a snapshot now and then."""
    from langgraph.channels.delta import DeltaChannel

    def join(state: list[str], writes: list[list[str]]) -> list[str]:
        return [*state, *(note for write in writes for note in write)]

    class Notes(TypedDict):
        notes: Annotated[list[str], DeltaChannel(join, snapshot_frequency=snapshot_frequency)]
        log: Annotated[list[str], operator.add]

    builder = StateGraph(Notes)
    builder.add_node("a", lambda _: {"notes": ["a"], "log": ["a" * 300]})
    builder.add_edge(START, "a")

    return builder.compile(checkpointer=saver)


@pytest.mark.needs("langgraph", "1.2.0")
async def test_pruning_drops_unused_values_only(db, saver):
    from langgraph.channels.delta import DeltaChannel

    class Notes(TypedDict):
        notes: Annotated[list[str], DeltaChannel(lambda state, writes: [*state, *(n for w in writes for n in w)])]
        log: Annotated[list[str], operator.add]

    builder = StateGraph(Notes)
    builder.add_node("a", lambda _: {"notes": ["a"], "log": ["a" * 300]})
    builder.add_edge(START, "a")

    graph = builder.compile(checkpointer=saver)
    noted = thread()
    plain = thread()
    for turn in ("1", "2", "3"):
        await graph.ainvoke({"notes": [turn], "log": []}, noted)
        await chain(saver).ainvoke({"log": [turn], "big": "x", "hits": 0}, plain)

    full = (await graph.aget_state(noted)).values
    await saver.aprune([config["configurable"]["thread_id"] for config in (noted, plain)])
    assert (await graph.aget_state(noted)).values == full
    assert full["notes"] == ["1", "a", "2", "a", "3", "a"]
    plain_id = plain["configurable"]["thread_id"]
    kept = await db.pool.fetchval("select array_agg(channel) from checkpoint_values where thread_id = $1", plain_id)
    assert kept == ["log"]

    assert (await chain(saver).aget_state(plain)).values["log"] == ["1", "a", "b", "2", "a", "b", "3", "a", "b"]
    with pytest.raises(ValueError, match="unknown strategy"):
        await saver.aprune([], strategy="most")


async def test_many_threads_write_at_once(saver):
    graph = chain(saver)
    configs = [thread() for _ in range(20)]
    await asyncio.gather(*(graph.ainvoke({"log": [str(n)], "big": "", "hits": 0}, c) for n, c in enumerate(configs)))
    states = await asyncio.gather(*(graph.aget_state(config) for config in configs))
    assert [state.values["log"] for state in states] == [[str(n), "a", "b"] for n in range(20)]


async def test_two_branches_of_a_thread_do_not_mix(saver):
    graph = chain(saver)
    config = thread()
    await graph.ainvoke({"log": ["in"], "big": "", "hits": 0}, config)
    before_b = [state async for state in graph.aget_state_history(config)][1]
    left = await graph.aupdate_state(before_b.config, {"log": ["left"]})
    right = await graph.aupdate_state(before_b.config, {"log": ["right"]})
    assert (await graph.aget_state(left)).values["log"] == ["in", "a", "left"]

    assert (await graph.aget_state(right)).values["log"] == ["in", "a", "right"]


async def test_a_config_without_a_thread_is_refused_in_words(saver):
    with pytest.raises(ValueError, match="thread_id"):
        await saver.aget_tuple({"configurable": {}})


async def test_nothing_is_pickled(saver):
    class Odd:
        pass

    checkpoint = generate_checkpoint(channel_values={"x": Odd()}, channel_versions={"x": "1"})
    with pytest.raises(TypeError):
        await saver.aput(generate_config(), checkpoint, generate_metadata(), {"x": "1"})

    with pytest.raises(NotImplementedError, match="pickle"):
        saver.serde.loads_typed(("pickle", b"cos\nsystem\n(S'true'\ntR."))
