"""What a task writes is stored once with the state that it leads to, and is read back byte for byte.

Copies, pruning and the deletion of runs keep each piece that a remaining write has a part of.
"""

import operator
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from langchain_core.messages import AIMessage
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

from portside.agent.checkpoints.writer import CheckpointWriter, RunAttempt
from portside.agent.encryption.ciphers import AesKeys
from portside.agent.encryption.codec import EncryptionCodec
from portside.agent.encryption.encryptor import Encryptor
from portside.agent.local_graphs import PostgresSaver
from portside.kernel.db import Database

RUNS = 12
BLOBS = (
    "select data from checkpoint_values union all select data from checkpoint_pieces union all"
    " select data from checkpoint_writes"
)


def words(name: str) -> str:
    return " ".join(f"{name} {number}" for number in range(60))


async def execute(db: Database, graph: Any, thread_id: str, given: Any) -> UUID:
    """Execute a run as a worker does; return its id."""
    attempt = RunAttempt(uuid4(), 1)
    await db.pool.execute(
        "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, attempt)"
        " values ($1, $2, $1, 'running', 'enqueue', 1)",
        attempt.run_id,
        UUID(thread_id),
    )

    configurable = {"thread_id": thread_id, "run_id": str(attempt.run_id)}
    saver = graph.checkpointer
    async with saver.writer.buffering(thread_id, attempt):
        with saver.remembering(thread_id):
            await graph.ainvoke(given, {"configurable": configurable, "metadata": {"run_attempt": 1}})

    await db.pool.execute("update runs set status = 'success' where run_id = $1", attempt.run_id)
    return attempt.run_id


async def converse(db: Database, **options: Any) -> tuple[PostgresSaver, str, list[UUID]]:
    """Execute some runs of a conversation, each in one batch; return the saver, the thread and the runs."""

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(words(f"thought {len(state['messages'])}"))]}

    async def reply(state: MessagesState) -> dict[str, Any]:
        # Two messages in one write, and one that is not in a list.
        number = len(state["messages"])
        return {"messages": [AIMessage(words(f"reply {number}")), AIMessage(words(f"more {number}"))]}

    thread_id = str(uuid4())
    runs = []
    await db.pool.execute("insert into threads (thread_id) values ($1)", UUID(thread_id))

    # The batch of a run is written at its end, however long it takes.
    saver = PostgresSaver(db, writer=CheckpointWriter(db, delay_s=600), **options)
    builder = StateGraph(MessagesState).add_node("think", think).add_node("reply", reply)

    graph = builder.add_edge(START, "think").add_edge("think", "reply").compile(checkpointer=saver)
    for number in range(12):
        given = {"messages": [{"role": "user", "content": words(f"question {number}")}]}
        runs.append(await execute(db, graph, thread_id, given))

    return saver, thread_id, runs


async def history(saver: PostgresSaver, thread_id: str) -> dict[str, tuple[Any, Any]]:
    """Return the values and the pending writes of each checkpoint."""
    return {
        found.checkpoint["id"]: (found.checkpoint["channel_values"], found.pending_writes)
        async for found in saver.alist({"configurable": {"thread_id": thread_id}})
    }


async def count_blobs_with(db: Database, text: str) -> int:
    return sum(text.encode() in row["data"] for row in await db.pool.fetch(BLOBS))


async def test_a_message_is_stored_once_with_its_input_and_its_write(db):
    saver, thread_id, _ = await converse(db)
    [latest] = [found async for found in saver.alist({"configurable": {"thread_id": thread_id}}, limit=1)]
    messages = latest.checkpoint["channel_values"]["messages"]
    assert len(messages) == 4 * RUNS

    for message in messages[-4:]:
        assert await count_blobs_with(db, message.content) == 1

    written = [
        value[0].content
        for _, writes in (await history(saver, thread_id)).values()
        for _, channel, value in writes
        if channel == "messages" and isinstance(value[0], AIMessage)
    ]

    said = [message.content for message in messages if message.type == "ai" and not message.content.startswith("more")]
    assert sorted(written) == sorted(said)


async def test_copies_and_deletions_keep_what_remaining_writes_need(db):
    saver, thread_id, runs = await converse(db)
    before = await history(saver, thread_id)
    copied = str(uuid4())
    await saver.acopy_thread(thread_id, copied)
    assert await history(saver, copied) == before
    await saver.adelete_for_runs([str(runs[-2])], thread_id=thread_id)

    after = await history(saver, thread_id)
    # The checkpoint before the deleted run loses the writes of that run only.
    assert after and all(after[name] == before[name] for name in after)
    assert 0 < len(after) < len(before)
    assert await history(saver, copied) == before
    await saver.aprune([thread_id, copied])

    [kept] = (await history(saver, copied)).values()
    assert kept == before[max(before)]
    await saver.adelete_thread(thread_id)
    await saver.adelete_thread(copied)
    assert await db.pool.fetchval("select count(*) from checkpoint_pieces") == 0


async def test_a_write_keeps_the_piece_of_a_deleted_checkpoint(db):
    saver, thread_id, _ = await converse(db)
    before = await history(saver, thread_id)
    name = max(name for name, (_, writes) in before.items() if writes)
    await db.pool.execute(
        'update checkpoints set metadata = metadata || \'{"run_id": "other"}\' where checkpoint_id > $1', name
    )
    await saver.adelete_for_runs(["other"], thread_id=thread_id)

    after = await history(saver, thread_id)
    assert max(after) == name
    assert after == {each: before[each] for each in before if each <= name}
    await saver.aprune([thread_id])
    assert await history(saver, thread_id) == {name: before[name]}


async def test_nothing_is_shared_where_data_is_encrypted(db):
    encryptor = Encryptor(keys=AesKeys(b"k" * 32))
    db.codec = EncryptionCodec(encryptor)
    saver, thread_id, _ = await converse(db, encryptor=encryptor)
    assert await count_blobs_with(db, "question 3") == 0
    assert await db.pool.fetchval("select count(*) from checkpoint_writes where shared is not null") == 0
    assert len(await history(saver, thread_id)) == 4 * RUNS


class Notes(TypedDict):
    notes: list[dict[str, str]]
    topics: dict[str, list[str]]


async def test_writes_of_whole_lists_store_what_is_new(db):
    """A node that returns the whole list, one that returns the whole dict, and a function that saves all it has."""
    rows = "select sum(length(data)) from checkpoint_writes", "select sum(length(data)) from checkpoint_pieces"

    async def note(state: Notes) -> dict[str, Any]:
        notes = state.get("notes") or []
        topics = state.get("topics") or {}
        name = f"topic {len(notes) % 3}"
        added = {**topics, name: [*topics.get(name, []), words(f"line {len(notes)}")]}
        return {"notes": [*notes, {"text": words(f"note {len(notes)}")}], "topics": added}

    @entrypoint()
    async def remember(text: str, *, previous: list[dict[str, str]] | None = None) -> Any:
        return entrypoint.final(value=None, save=[*(previous or []), {"text": text}])

    noting = StateGraph(Notes).add_node("note", note).add_edge(START, "note").compile()
    for graph, given in ((noting, {}), (remember, None)):
        thread_id = str(uuid4())
        saver = PostgresSaver(db)
        await db.pool.execute("insert into threads (thread_id) values ($1)", UUID(thread_id))

        copied = graph.copy({"checkpointer": saver})
        grown = []
        for number in range(20):
            before = [await db.pool.fetchval(query) or 0 for query in rows]
            text = words(f"given {number}") if given is None else given
            await execute(db, copied, thread_id, text)
            after = [await db.pool.fetchval(query) or 0 for query in rows]

            grown.append(sum(after) - sum(before))

        # Each turn adds the same, although the state is twenty times as large.
        assert max(grown[-5:]) < 10_000
        cut = await db.pool.fetchval(
            "select count(*) from checkpoint_writes where pieces is not null and thread_id = $1", thread_id
        )
        assert cut > 10
        found = await history(PostgresSaver(db), thread_id)
        assert len(found) >= 40

        copy_id = str(uuid4())
        await saver.acopy_thread(thread_id, copy_id)
        assert await history(saver, copy_id) == found
        await saver.aprune([copy_id])
        assert list((await history(saver, copy_id)).values()) == [found[max(found)]]
        await saver.adelete_thread(thread_id)
        await saver.adelete_thread(copy_id)

        assert await db.pool.fetchval("select count(*) from checkpoint_pieces") == 0


class Library(TypedDict):
    pages: list[str]
    shelf: dict[str, Any]
    count: int


PAGES = [f"page {number}: " + words(str(number)) * 40 for number in range(80)]


async def test_a_large_state_of_which_one_field_changes_stores_that_field(db):
    size = sum(len(page) for page in PAGES)

    async def read(state: Library) -> dict[str, Any]:
        count = state.get("count", 0) + 1
        if count == 1:
            return {"pages": PAGES, "shelf": {"pages": list(PAGES), "read": 0}, "count": count}

        return {"shelf": {**state["shelf"], "read": count}, "count": count}

    saver = PostgresSaver(db)
    thread_id = str(uuid4())
    await db.pool.execute("insert into threads (thread_id) values ($1)", UUID(thread_id))

    graph = StateGraph(Library).add_node("read", read).add_edge(START, "read").compile(checkpointer=saver)
    stored = []
    for _ in range(5):
        await execute(db, graph, thread_id, {})
        stored.append(await db.pool.fetchval(f"select sum(length(data)) from ({BLOBS}) blobs"))

    # The value that comes first is whole, and the next one is cut.
    assert stored[-1] - stored[1] < size // 10
    found = await history(PostgresSaver(db), thread_id)
    assert found[max(found)][0]["shelf"] == {"pages": PAGES, "read": 5}
    assert found[max(found)][0]["pages"] == PAGES


@pytest.mark.needs("langgraph", "1.2.0")
async def test_channels_that_store_their_changes_keep_every_state(db):
    from langgraph.channels.delta import DeltaChannel

    class Changes(TypedDict):
        notes: Annotated[list[str], DeltaChannel(lambda state, writes: [*state, *(n for w in writes for n in w)])]
        log: Annotated[list[str], operator.add]

    async def note(state: Changes) -> dict[str, Any]:
        return {"notes": [words(f"note {len(state['notes'])}")], "log": [words(f"log {len(state['log'])}")]}

    saver = PostgresSaver(db)
    thread_id = str(uuid4())
    await db.pool.execute("insert into threads (thread_id) values ($1)", UUID(thread_id))

    graph = StateGraph(Changes).add_node("note", note).add_edge(START, "note").compile(checkpointer=saver)
    for number in range(12):
        await execute(db, graph, thread_id, {"notes": [f"given {number}"], "log": []})

    assert await db.pool.fetchval("select count(*) from checkpoint_values where pieces is not null") > 0
    fresh = graph.copy({"checkpointer": PostgresSaver(db)})
    config: Any = {"configurable": {"thread_id": thread_id}}
    wanted = [each for number in range(12) for each in (f"given {number}", words(f"note {2 * number + 1}"))]
    state = await fresh.aget_state(config)
    assert state.values == {"notes": wanted, "log": [words(f"log {number}") for number in range(12)]}
    states = [each async for each in fresh.aget_state_history(config)]
    ended = [each.values for each in states if not each.next]
    assert [(len(values["notes"]), len(values["log"])) for values in ended] == [(2 * n, n) for n in range(12, 0, -1)]
    assert all(values["notes"] == wanted[: len(values["notes"])] for values in ended)

    await saver.aprune([thread_id])
    assert (await fresh.aget_state(config)).values == state.values
