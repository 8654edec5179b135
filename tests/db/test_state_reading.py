"""Reading and caching states of threads.

A cached state always equals a freshly computed one, whoever changed it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.local_graphs import LocalGraphs, PostgresSaver
from portside.agent.sql import sql
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.threads.reading import MAX_BATCH, CheckpointNotFound
from portside.agent.threads.records import ThreadNotFound
from portside.agent.threads.states import States
from portside.agent.types.access import ANYONE, Caller
from portside.agent.types.states import Checkpoint, StateAtCheckpoint, StatePatch, StateUpdate
from portside.agent.types.threads import ThreadCreate, ThreadPatch, ThreadPrune
from portside.executor.load import GraphFactory, Graphs
from portside.kernel.codec import load
from portside.kernel.db import Database
from tests.db.test_checkpoint_writer import start_attempt

LATEST = StateAtCheckpoint(Checkpoint(), None, None)
MEMORY_BYTES = 1_000_000


class Note(TypedDict, total=False):
    text: str
    said: str


def ask(state: Note) -> Note:
    return {"said": interrupt(state["text"])}


NOTES = (
    StateGraph(Note).add_node("keep", lambda _: {}).add_node("ask", ask).add_edge(START, "keep").add_edge("keep", "ask")
)
GRAPHS = {
    "notes": NOTES.compile(),
    "other": StateGraph(Note).add_node("another", lambda _: {}).add_edge(START, "another").compile(),
    "made": GraphFactory(lambda config: NOTES.compile(), "made"),
}


class Process(NamedTuple):
    """What a server has of states, with connections of its own."""

    db: Database
    engine: LocalGraphs
    states: States

    @property
    def remembered(self) -> int:
        """How many bytes of answers it remembers."""
        return self.states._reader._cache.size

    async def state(self, thread_id: UUID, caller: Caller = ANYONE) -> Any:
        """The state as a client gets it."""
        return load(await self.states.read_json(thread_id, LATEST, caller))

    async def work(self, graph_id: str, act: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do something with a graph."""

        async def working() -> Any:
            async with self.engine.runs._graphs.open(graph_id) as graph:
                return await act(graph)

        return await self.engine._loops[0].call(working())


async def process(url: str, memory_bytes: int = MEMORY_BYTES) -> Process:
    connect = partial(Database.connect, url, max_size=4, schema="portside")
    db = await connect()
    engine = await LocalGraphs.start(
        Graphs(GRAPHS, {}), connect, make_saver=partial(PostgresSaver, writer=CheckpointWriter(db))
    )

    return Process(db, engine, States(db, engine.states, Hub(keep_s=1), memory_bytes=memory_bytes))


@pytest.fixture
async def processes(agent_databases) -> AsyncIterator[list[Process]]:
    """One that is asked, another that changes things, and one that remembers nothing."""
    url = await agent_databases()
    made = [await process(url), await process(url), await process(url, 0)]
    yield made

    for one in made:
        await one.engine.close()
        await one.db.close()


async def note(by: Process, graph_id: str = "notes") -> UUID:
    """A thread that waits for an answer."""
    thread_id = uuid4()
    await records.create_thread(by.db, ThreadCreate(thread_id, {"graph_id": graph_id}))
    await by.work(graph_id, lambda graph: graph.ainvoke({"text": "first"}, config(thread_id)))
    return thread_id


def config(thread_id: UUID, **more: Any) -> Any:
    return {"configurable": {"thread_id": str(thread_id), "checkpoint_ns": "", **more}}


async def update(by: Process, thread_id: UUID, text: str = "second") -> None:
    await by.states.update(thread_id, StateUpdate({"text": text}, as_node="keep"))


async def patch(by: Process, thread_id: UUID) -> None:
    await by.states.patch(thread_id, StatePatch({"looked": True}))


async def go_on(by: Process, thread_id: UUID) -> None:
    await by.work("notes", lambda graph: graph.ainvoke(Command(resume="yes"), config(thread_id)))


async def ask_again(by: Process, thread_id: UUID) -> None:
    """Replace the question that waits in the same place, as a task does that is interrupted once more."""
    at = (await by.state(thread_id))["checkpoint_id"]
    task = (await by.state(thread_id))["tasks"][0]["id"]
    named = config(thread_id, checkpoint_id=at)

    async def write(graph: Any) -> None:
        stored = await graph.checkpointer.aget_tuple(named)
        [question] = [value for _, channel, value in stored.pending_writes if channel == "__interrupt__"]
        question[0].value = "another question"
        await graph.checkpointer.aput_writes(named, [("__interrupt__", question)], task)

    await by.work("notes", write)


async def forget_questions(by: Process, thread_id: UUID) -> None:
    await by.db.pool.execute("delete from checkpoint_writes where thread_id = $1", str(thread_id))


async def keep_latest(by: Process, thread_id: UUID) -> None:
    await records.prune_threads(by.db, ThreadPrune([thread_id], "keep_latest"))


async def roll_back(by: Process, thread_id: UUID) -> None:
    """Remove what a run left, so that what was before it is the latest again."""
    run_id = str(uuid4())
    written_to = config(thread_id, run_id=run_id) | {"metadata": {"run_id": run_id}}
    await by.work("notes", lambda graph: graph.aupdate_state(written_to, {"text": "gone"}, as_node="keep"))
    await by.work("notes", lambda graph: graph.checkpointer.adelete_for_runs([run_id], thread_id=str(thread_id)))


async def change_graph(by: Process, thread_id: UUID) -> None:
    await records.patch_thread(by.db, thread_id, ThreadPatch({"graph_id": "other"}))


async def begin_anew(by: Process, thread_id: UUID) -> None:
    """Delete the thread, and make it again under the same id."""
    await records.delete_thread(by.db, thread_id)
    await records.create_thread(by.db, ThreadCreate(thread_id, {"graph_id": "notes"}))
    await by.work("notes", lambda graph: graph.aupdate_state(config(thread_id), {"text": "anew"}, as_node="keep"))


CHANGES = (
    update,
    patch,
    go_on,
    ask_again,
    forget_questions,
    keep_latest,
    roll_back,
    change_graph,
    begin_anew,
)
CHANGES_NOTHING = {keep_latest, roll_back}


@pytest.mark.parametrize("changed_by", [0, 1], ids=["the same process", "another process"])
async def test_every_change_invalidates_the_cached_state(processes, changed_by):
    asked = processes[0]
    forgetful = processes[2]
    for change in CHANGES:
        thread_id = await note(processes[1])
        before = [await asked.state(thread_id) for _ in range(2)]
        await change(processes[changed_by], thread_id)
        after = [await asked.state(thread_id) for _ in range(2)]
        assert after == [await forgetful.state(thread_id)] * 2, change.__name__
        assert (after == before) is (change in CHANGES_NOTHING), change.__name__


async def test_changes_of_a_locked_thread_do_not_block_others(processes):
    locked = await note(processes[0])
    free = await note(processes[0])
    async with processes[1].db.transaction() as tx:
        await tx.fetchval(sql.lock_thread, thread_id=locked)
        waiting = [asyncio.create_task(update(processes[0], locked, str(n))) for n in range(4)]
        async with asyncio.timeout(120):
            await update(processes[0], free)

        assert not any(task.done() for task in waiting)

    await asyncio.gather(*waiting)
    assert (await processes[0].state(locked))["values"]["text"] in {"0", "1", "2", "3"}


async def test_steps_of_another_process_invalidate_the_cached_state(processes):
    asked, other, forgetful = processes
    thread_id = await note(other)
    for number in range(20):
        await update(other, thread_id, str(number))
        assert (await asked.state(thread_id))["values"] == {"text": str(number)}

    assert await asked.state(thread_id) == await forgetful.state(thread_id)


async def test_rollback_during_a_read_is_not_cached(processes):
    asked, other, forgetful = processes
    thread_id = await note(other)

    async def read_on() -> None:
        for _ in range(30):
            await asked.state(thread_id)

    async def change_on() -> None:
        for _ in range(10):
            await roll_back(other, thread_id)

    await asyncio.gather(read_on(), change_on())
    assert await asked.state(thread_id) == await forgetful.state(thread_id)


async def test_deleted_thread_is_404_and_copy_has_its_own_ids(processes):
    asked, other, forgetful = processes
    thread_id = await note(other)
    before = await asked.state(thread_id)
    copied = (await records.copy_thread(other.db, thread_id)).thread_id
    assert (await asked.state(copied))["checkpoint"] == before["checkpoint"] | {"thread_id": str(copied)}
    assert await asked.state(copied) == await forgetful.state(copied)
    await records.delete_thread(other.db, thread_id)

    with pytest.raises(ThreadNotFound):
        await asked.state(thread_id)


async def test_a_deleted_checkpoint_that_later_ones_are_read_with_cannot_be_read_itself(processes):
    """A rollback leaves it, emptied, as long as later ones need it."""
    asked = processes[0]
    thread_id = await note(asked)
    at = (await asked.state(thread_id))["checkpoint_id"]
    await update(asked, thread_id)
    named = StateAtCheckpoint(Checkpoint(at), None, None)
    assert load(await asked.states.read_json(thread_id, named))["values"]["text"] == "first"

    empty = """update checkpoints set metadata = '{"source": "deleted"}' where checkpoint_id = $1"""
    await asked.db.pool.execute(empty, at)
    with pytest.raises(CheckpointNotFound):
        await asked.states.read_json(thread_id, named)


async def test_unwritten_checkpoints_of_this_process_are_read(processes, monkeypatch):
    monkeypatch.setattr(processes[0].engine.writer.batches, "_delay_s", 60)
    asked = processes[0]
    thread_id = await note(asked)
    await asked.state(thread_id)

    holder = await start_attempt(asked.db, str(thread_id))

    async with asked.engine.writer.buffering(str(thread_id), holder):
        written_to = config(thread_id)
        await asked.work("notes", lambda graph: graph.aupdate_state(written_to, {"text": "staged"}, as_node="keep"))
        assert (await asked.state(thread_id))["values"] == {"text": "staged"}


async def test_unchanged_state_is_answered_from_the_cache(processes):
    asked, other, forgetful = processes
    thread_id = await note(other)
    await update(other, thread_id, "long " * 100)
    before = await asked.state(thread_id)

    # The values of a version never change, so a changed one shows who reads it.
    await other.db.pool.execute("update checkpoint_values set data = '\\xc0' where thread_id = $1", str(thread_id))
    assert await asked.state(thread_id) == before != await forgetful.state(thread_id)
    selected = StateAtCheckpoint(Checkpoint(), None, ["next"])
    assert load(await asked.states.read_json(thread_id, selected, ANYONE)) == {"next": ["ask"]}
    assert forgetful.remembered == 0 < asked.remembered <= MEMORY_BYTES


async def test_cached_state_is_not_shared_between_users(processes):
    asked, other, _ = processes
    made = await note(other, "made")
    fixed = await note(other)
    await asked.state(made)
    assert asked.remembered == 0

    callers = [Caller(identity="a", user={"identity": "a", "plan": plan}) for plan in ("free", "paid")]
    sizes = []
    for caller in [*callers, Caller(identity="b", user={"identity": "b"})]:
        await asked.state(fixed, caller)
        sizes.append(asked.remembered)

    assert sizes[0] == sizes[1] < sizes[2]


async def test_a_factory_gets_the_configuration_of_the_last_run_without_its_place_and_its_caller(processes):
    reader = processes[0]
    thread_id = await note(reader, "made")
    configurable = {
        "mine": 1,
        "__internal": 2,
        "run_id": "r",
        "checkpoint_id": "c",
        "checkpoint_ns": "n",
        "checkpoint_map": {},
        "langgraph_request_id": "q",
        "langgraph_auth_user": {"identity": "ada"},
        "langgraph_auth_user_id": "ada",
        "langgraph_auth_permissions": ["all"],
    }
    await reader.db.pool.execute(
        "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, kwargs)"
        " values (gen_random_uuid(), $1, gen_random_uuid(), 'success', 'enqueue', $2)",
        thread_id,
        {"config": {"tags": ["t"], "configurable": configurable}},
    )

    for caller in (ANYONE, Caller("bob", user={"identity": "bob"})):
        found = await reader.states._reader.get_config(thread_id, "made", None, caller)
        assert found["tags"] == ["t"]
        shown = found["configurable"]
        assert shown.items() >= {"mine": 1, "thread_id": str(thread_id), "checkpoint_ns": ""}.items()
        assert not shown.keys() & {"run_id", "checkpoint_id", "checkpoint_map", "langgraph_request_id", "__internal"}
        assert "ada" not in str(shown)


async def test_concurrent_reads_return_their_own_states(processes):
    asked, other, _ = processes
    threads = [await note(other) for _ in range(3)]
    for number, thread_id in enumerate(threads):
        await update(other, thread_id, str(number))

    nobody = uuid4()
    for _ in range(2):
        asks = [threads[n % 3] for n in range(3 * MAX_BATCH)]
        found = await asyncio.gather(*map(asked.state, asks), asked.state(nobody), return_exceptions=True)
        assert [one["values"]["text"] for one in found[:-1]] == [str(n % 3) for n in range(3 * MAX_BATCH)]
        assert isinstance(found[-1], ThreadNotFound)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        (sql.read_states, {"thread_ids": [uuid4()], "namespaces": [""], "checkpoint_ids": [None], "known": [None]}),
        (
            sql.join_long_values,
            {"rows": ["{}"], "lists": ["{}"], "extracteds": [None], "matching": None, "extract": None},
        ),
        (sql.read_stream_chunks, {"thread_ids": [uuid4()], "cursors": [0], "limit": 10, "page_bytes": 1000}),
        (sql.get_items, {"namespaces": ["a.b"], "keys": ["k"], "refreshes": [False]}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_statements_over_arrays_are_not_planned_for_each_execution(db, query, values):
    async with db.pool.acquire() as connection:
        for _ in range(10):
            await connection.fetch(query.sql, *query.arguments(values))

        planned = "select generic_plans, custom_plans from pg_prepared_statements where statement = $1"
        # Postgres plans five times before it decides.
        assert tuple(await connection.fetchrow(planned, query.sql)) == (5, 5)


async def test_read_during_the_end_of_a_batch_joins_the_next(processes):
    asked, other, _ = processes
    thread_id = await note(other)
    for _ in range(50):
        await asyncio.gather(*(asked.state(thread_id) for _ in range(2)))
        first = asyncio.create_task(asked.state(thread_id))
        second = asyncio.create_task(asked.state(thread_id))
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)

        async with asyncio.timeout(60):
            assert await asked.state(thread_id) == await first == await second
