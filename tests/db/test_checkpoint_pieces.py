"""Values that are stored in pieces are what was put, byte for byte, whatever happens to a thread.

Every checkpoint is put into langgraph's in-memory saver as well, and compared with it.
"""

import asyncio
import contextlib
import copy
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_metadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from portside.agent.checkpoints.writer import CheckpointWriter, LeaseLost, RunAttempt
from portside.agent.encryption.ciphers import AesKeys
from portside.agent.encryption.codec import EncryptionCodec
from portside.agent.encryption.encryptor import Encryptor
from portside.agent.local_graphs import PostgresSaver
from portside.agent.threads.records import prune_threads
from portside.agent.types.threads import ThreadPrune
from portside.executor.encryption_handlers import CannotDecrypt
from portside.executor.graph_operations import read_history, reads_without_code
from portside.kernel.db import Database
from portside.kernel.user_json import dump_user

pytestmark = pytest.mark.usefixtures("patient_writes")


@pytest.fixture
async def url(agent_databases) -> str:
    return await agent_databases()


@pytest.fixture
async def db(url) -> AsyncIterator[Database]:
    database = await Database.connect(url, max_size=5, schema="portside")
    yield database
    await database.close()


@dataclass
class Note:
    text: str
    tags: list[str] = field(default_factory=list)


class Page(BaseModel):
    title: str
    numbers: list[int]


class Tee(PostgresSaver):
    """Puts everything into langgraph's saver for memory as well."""

    memory: InMemorySaver

    async def aput(self, config, checkpoint, metadata, new_versions):
        given = {**checkpoint, "channel_values": dict(checkpoint["channel_values"])}
        await self.memory.aput(config, given, metadata, new_versions)
        return await super().aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config, writes, task_id, task_path=""):
        await self.memory.aput_writes(config, writes, task_id, task_path)
        await super().aput_writes(config, writes, task_id, task_path)


def tee(db: Database, memory: InMemorySaver, **options: Any) -> Tee:
    """Return a saver as a new process has it."""
    made = Tee(db, **options)
    made.memory = memory
    return made


def copy_in_memory(memory: InMemorySaver, source: str, target: str) -> None:
    memory.storage[target] = memory.storage[source]
    for parts in (memory.blobs, memory.writes):
        for (of, *rest), part in list(parts.items()):
            if of == source:
                parts[target, *rest] = part


async def compare(saver: PostgresSaver, memory: InMemorySaver, thread_id: str) -> int:
    """Compare every checkpoint that is stored; return how many there are."""
    count = 0

    async for found in saver.alist({"configurable": {"thread_id": thread_id}}):
        wanted = memory.get_tuple(found.config)
        assert wanted is not None
        assert found.checkpoint["channel_versions"] == wanted.checkpoint["channel_versions"]
        values = {name: value for name, value in wanted.checkpoint["channel_values"].items() if value is not None}
        read = {name: value for name, value in found.checkpoint["channel_values"].items() if value is not None}
        assert read.keys() == values.keys()

        for name, value in values.items():
            assert read[name] == value
            assert saver.serde.dumps_typed(read[name]) == saver.serde.dumps_typed(value)

        # Those of a worker that lost its run are not stored.
        put = [(task, channel, saver.serde.dumps_typed(value)) for task, channel, value in wanted.pending_writes]
        for task, channel, value in found.pending_writes:
            assert (task, channel, saver.serde.dumps_typed(value)) in put

        count += 1

    return count


def text(rng: random.Random) -> str:
    return "".join(rng.choices("abcdefghij \N{GREEK SMALL LETTER ALPHA}", k=rng.choice((3, 40, 400, 2000))))


def leaf(rng: random.Random) -> Any:
    make: list[Callable[[], Any]] = [
        lambda: AIMessage(text(rng), id=str(rng.random())),
        lambda: HumanMessage(text(rng), id=str(rng.random()), additional_kwargs={"n": rng.random()}),
        lambda: AIMessage([{"type": "text", "text": text(rng)}], response_metadata={"a": [1, {"b": None}]}),
        lambda: {"role": "user", "content": text(rng), "n": rng.randrange(3)},
        lambda: [text(rng), 1, 1.0, True],
        lambda: (text(rng), (1, 2)),
        lambda: Note(text(rng), ["x"]),
        lambda: Page(title=text(rng), numbers=[1, 2]),
        lambda: {text(rng)},
        lambda: text(rng),
        lambda: rng.choice((None, True, 1, 1.0, 0.0, -0.0, b"bytes", 2**63, "")),
    ]

    return rng.choice(make)()


def new_value(rng: random.Random) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return [AIMessage(text(rng), id=str(index)) for index in range(rng.randrange(60))]
    if kind == 1:
        return {text(rng)[:20]: leaf(rng) for _ in range(rng.randrange(30))}
    if kind == 2:
        return {"messages": [leaf(rng) for _ in range(rng.randrange(40))], "deep": {"er": {"est": [text(rng)] * 9}}}

    return [leaf(rng) for _ in range(rng.randrange(40))]


def change(rng: random.Random, value: Any) -> Any:
    """Return the next version of a value, as reducers and nodes make it."""
    if rng.random() < 0.1:
        return new_value(rng)

    if rng.random() < 0.15:
        value = copy.deepcopy(value)

    if isinstance(value, dict):
        return change_dict(rng, dict(value))

    return change_list(rng, list(value)) if isinstance(value, list) else leaf(rng)


def change_dict(rng: random.Random, made: dict[str, Any]) -> dict[str, Any]:
    name = rng.choice([*made, text(rng)[:20]])
    if rng.random() < 0.2:
        made.pop(name, None)
    elif isinstance(made.get(name), (dict, list)) and rng.random() < 0.9:
        made[name] = change(rng, made[name])
    else:
        made[name] = leaf(rng)

    return made


def change_list(rng: random.Random, made: list[Any]) -> list[Any]:
    at = rng.randrange(len(made) + 1)
    changes: dict[str, Callable[[], Any]] = {
        "append": lambda: made.append(leaf(rng)),
        "extend": lambda: made.extend(leaf(rng) for _ in range(10)),
        "insert": lambda: made.insert(at, leaf(rng)),
        "replace": lambda: made.__setitem__(slice(at, at + 1), [leaf(rng)]),
        "remove": lambda: made.__delitem__(slice(at, at + 1)),
        "trim": lambda: made.__delitem__(slice(0, at // 2)),
        "shuffle": lambda: rng.shuffle(made),
        "mutate": lambda: mutate(rng, made[at]) if at < len(made) else None,
        "keep": lambda: None,
    }

    changes[rng.choice([*["append"] * 6, *changes])]()
    return made


def mutate(rng: random.Random, item: Any) -> None:
    """Change an object in its place, as nodes do by mistake."""
    if isinstance(item, (AIMessage, HumanMessage)):
        if rng.random() < 0.5:
            item.content = text(rng)
        else:
            item.additional_kwargs["changed"] = rng.random()
    elif isinstance(item, dict):
        item["changed"] = rng.random()
    elif isinstance(item, Note):
        item.tags.append("more")


class Conversation:
    """A thread whose values change at random, together with what happens to threads."""

    def __init__(self, rng: random.Random, new_saver: Callable[[], Tee]) -> None:
        self.rng = rng
        self.new_saver = new_saver
        self.saver = new_saver()
        self.thread_id = str(uuid4())
        self.start: Any = {"configurable": {"thread_id": self.thread_id, "checkpoint_ns": ""}}
        self.latest = self.start
        self.written: list[Any] = []

        self.values: dict[str, Any] = {}
        self.versions: dict[str, str] = {}

    async def step(self, number: int) -> None:
        action = self.rng.choice(["fork", "restart", "prune", "delete", *["read"] * 8, *["put"] * 30])
        run_ids = [f"run-{self.rng.randrange(number + 1) // 5}"]
        if action == "fork" and self.written:
            self.latest = self.rng.choice(self.written)
        elif action == "restart":
            self.saver = self.new_saver()
        elif action == "prune":
            await self.saver.aprune([self.thread_id])
            await self.find_latest()
        elif action == "delete":
            await self.saver.adelete_for_runs(run_ids, thread_id=self.thread_id)
            await self.find_latest()

        if action != "put":
            found = await self.saver.aget_tuple(self.latest)
            self.values = dict(found.checkpoint["channel_values"]) if found else {}
            self.versions = dict(found.checkpoint["channel_versions"]) if found else {}

        await self.put(f"run-{number // 5}")

    async def find_latest(self) -> None:
        self.written = [found.config async for found in self.saver.alist(self.start)]
        self.latest = self.written[0] if self.written else self.start

    async def put(self, run_id: str) -> None:
        new: dict[str, str] = {}
        for name in self.rng.sample(["a", "b", "c"], k=self.rng.choice((1, 1, 2))):
            before = self.values.get(name)
            self.values[name] = new_value(self.rng) if before is None else change(self.rng, before)
            self.versions[name] = new[name] = self.saver.get_next_version(self.versions.get(name), None)

        checkpoint = generate_checkpoint(channel_values=dict(self.values), channel_versions=dict(self.versions))
        self.latest = await self.saver.aput(self.latest, checkpoint, generate_metadata(run_id=run_id), new)
        self.written.append(self.latest)


@pytest.mark.parametrize(
    ("is_encrypted", "steps"), [(False, 60), (False, 150), (True, 150)], ids=["clear", "clear and long", "encrypted"]
)
async def test_every_state_equals_that_of_the_saver_for_memory(db, is_encrypted, steps):
    options: dict[str, Any] = {}
    if is_encrypted:
        options["encryptor"] = Encryptor(keys=AesKeys(b"k" * 32))
        db.codec = EncryptionCodec(options["encryptor"])

    memory = InMemorySaver(serde=PostgresSaver(db).serde)
    # Always the same states: whether values are cut must not depend on chance.
    rng = random.Random(steps)

    conversation = Conversation(rng, lambda: tee(db, memory, **options))
    for number in range(steps):
        await conversation.step(number)

    saver = conversation.saver
    thread_id = conversation.thread_id
    written = conversation.written
    assert await compare(tee(db, memory, **options), memory, thread_id) == len(written)
    copied = str(uuid4())

    await saver.acopy_thread(thread_id, copied)
    await saver.adelete_thread(thread_id)
    copy_in_memory(memory, thread_id, copied)
    assert await compare(saver, memory, copied) == len(written)
    assert await db.pool.fetchval("select count(*) from checkpoint_pieces") > 0
    await saver.aprune([copied])
    assert await compare(saver, memory, copied) == 1
    await saver.adelete_thread(copied)
    assert await db.pool.fetchval("select count(*) from checkpoint_pieces") == 0


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    notes: dict[str, list[str]]
    found: Annotated[list[dict[str, Any]], lambda left, right: [*left, *right]]


def large_graph(rng: random.Random, saver: Any) -> Any:
    """A graph that replaces and removes messages, grows a dict, fans out, and has a subgraph with memory of its own."""

    def talk(state: State) -> dict[str, Any]:
        made: list[Any] = [AIMessage(text(rng)) for _ in range(rng.randrange(4))]
        if state["messages"] and rng.random() < 0.3:
            made.append(RemoveMessage(rng.choice(state["messages"]).id))
        elif state["messages"] and rng.random() < 0.3:
            made.append(AIMessage(text(rng), id=state["messages"][0].id))

        return {"messages": made}

    def note(state: State) -> dict[str, Any]:
        notes = {name: list(lines) for name, lines in (state.get("notes") or {}).items()}
        notes.setdefault(f"topic {rng.randrange(5)}", []).append(text(rng))
        return {"notes": notes}

    def look(state: dict[str, Any]) -> dict[str, Any]:
        return {"found": [{"word": state["word"], "text": text(rng)}]}

    inner = StateGraph(MessagesState)
    inner.add_node("talk", talk)
    inner.add_edge(START, "talk")
    inner.add_edge("talk", END)

    builder = StateGraph(State)
    builder.add_node("talk", talk)
    builder.add_node("note", note)
    builder.add_node("look", look)
    builder.add_node("inner", inner.compile(checkpointer=True))
    builder.add_edge(START, "talk")
    builder.add_edge("talk", "note")

    builder.add_conditional_edges("note", lambda _: [Send("look", {"word": str(index)}) for index in range(3)])
    builder.add_edge("look", "inner")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("runs", [12, 25])
async def test_graphs_that_fork_and_lose_their_worker_keep_every_state(db, runs):
    rng = random.Random(runs)
    memory = InMemorySaver(serde=PostgresSaver(db).serde)
    thread_id = str(uuid4())
    await db.pool.execute("insert into threads (thread_id) values ($1)", UUID(thread_id))

    in_pieces = "select exists (select from checkpoint_values where channel = 'messages' and pieces is not null)"
    shared = 0

    was_cut = False
    for number in range(runs):
        # What the others do depends on when their threads and the database get CPU. The last one goes on from all that
        # they have left, and always leaves values in pieces, and writes that share these.
        is_last = number == runs - 1
        given = [HumanMessage(text(rng))]
        if is_last:
            given = [HumanMessage(f"{part} " * 1000) for part in range(4)]

        # Some runs write all in one batch, and others step by step.
        saver = tee(db, memory, writer=CheckpointWriter(db, delay_s=600 if is_last else rng.choice((0, 600))))
        graph = large_graph(rng, saver)
        config: dict[str, Any] = {"configurable": {"thread_id": thread_id}}

        # The first turns leave no state if they lose their worker before anything was written.
        earlier = [state.config async for state in graph.aget_state_history(config)]
        if earlier and not is_last and rng.random() < 0.2:
            config = rng.choice(earlier)

        attempt = RunAttempt(uuid4(), 1)
        await db.pool.execute(
            "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, attempt)"
            " values ($1, $2, $1, 'running', 'enqueue', 1)",
            attempt.run_id,
            UUID(thread_id),
        )

        config["configurable"] = {**config["configurable"], "run_id": str(attempt.run_id)}
        config["metadata"] = {"run_attempt": 1}

        is_lost = not is_last and rng.random() < 0.3
        with contextlib.suppress(LeaseLost):
            async with saver.writer.buffering(thread_id, attempt):
                steps = graph.astream({"messages": given}, config, stream_mode="values")
                with saver.remembering(thread_id):
                    async for _ in steps:
                        await asyncio.sleep(0)
                        if is_lost and rng.random() < 0.3:
                            await db.pool.execute("update runs set attempt = 2 where run_id = $1", attempt.run_id)

        await db.pool.execute("delete from runs where run_id = $1", attempt.run_id)
        shared += await db.pool.fetchval("select count(*) from checkpoint_writes where shared is not null")
        was_cut = was_cut or await db.pool.fetchval(in_pieces)

        if not is_last and rng.random() < 0.1:
            await saver.adelete_for_runs([str(attempt.run_id)], thread_id=thread_id)

        if not is_last and rng.random() < 0.1:
            await PostgresSaver(db).aprune([thread_id])

    states = await compare(PostgresSaver(db), memory, thread_id)
    assert states > 0
    graph = large_graph(rng, PostgresSaver(db))
    assert reads_without_code(graph)
    wanted = dump_user(await read_history(graph, {"configurable": {"thread_id": thread_id}}, limit=1000))

    with graph.checkpointer.reading_for_json(is_for_json=True):
        history = await read_history(graph, {"configurable": {"thread_id": thread_id}}, limit=1000)

    assert any(type(message) is dict for state in history for message in state["values"]["messages"])
    assert dump_user(history) == wanted
    assert shared > 0
    assert was_cut

    await copies_and_prunes_keep_writes(db, memory, thread_id, states)


async def copies_and_prunes_keep_writes(db: Database, memory: InMemorySaver, thread_id: str, states: int) -> None:
    # A copy has all parts that the thread's writes share with its pieces.
    copied = str(uuid4())
    await PostgresSaver(db).acopy_thread(thread_id, copied)
    copy_in_memory(memory, thread_id, copied)
    of_copy = "select count(*) from checkpoint_writes where thread_id = $1"
    assert await db.pool.fetchval(f"{of_copy} and shared is not null", copied) > 0
    assert await compare(PostgresSaver(db), memory, copied) == states

    # What waits for the next step of a thread keeps its pieces when the thread is pruned.
    saver = tee(db, memory)
    latest = await saver.aget_tuple({"configurable": {"thread_id": copied}})
    assert latest is not None
    longer = [*latest.checkpoint["channel_values"]["messages"], AIMessage("x" * 500, id="more")]
    await saver.aput_writes(latest.config, [("messages", longer)], "next")
    assert await db.pool.fetchval(f"{of_copy} and pieces is not null and task_id = 'next'", copied) == 1
    await saver.aprune([copied])
    assert await compare(PostgresSaver(db), memory, copied) > 0
    pruned = await PostgresSaver(db).aget_tuple({"configurable": {"thread_id": copied}})
    assert pruned is not None
    assert [value for task, _channel, value in pruned.pending_writes or () if task == "next"] == [longer]


class SharedThreads:
    """Threads that runs write to while other tasks prune, copy, read, convert and take runs from their workers."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.rng = random.Random(random.randrange(2**32))
        self.memory = InMemorySaver(serde=PostgresSaver(db).serde)
        self.threads = [str(uuid4()) for _ in range(3)]
        self.done: Counter[str] = Counter()
        self.is_over = False

    async def talk(self, thread_id: str) -> None:
        """Execute runs, of which some fork. While one is active, the thread is locked as by an admission."""
        key = UUID(thread_id)
        await self.db.pool.execute("insert into threads (thread_id) values ($1)", key)

        for _ in range(12):
            await self.db.pool.execute("update threads set active_runs = 1 where thread_id = $1", key)
            try:
                await self._run(thread_id, RunAttempt(uuid4(), 1))
            finally:
                await self.db.pool.execute("delete from runs where thread_id = $1", key)
                await self.db.pool.execute("update threads set active_runs = 0 where thread_id = $1", key)

    async def _run(self, thread_id: str, attempt: RunAttempt) -> None:
        saver = tee(self.db, self.memory, writer=CheckpointWriter(self.db, delay_s=self.rng.choice((0, 600))))
        graph = large_graph(self.rng, saver)
        config: dict[str, Any] = {"configurable": {"thread_id": thread_id}}

        earlier = [state.config async for state in graph.aget_state_history(config)]
        if earlier and self.rng.random() < 0.4:
            config = self.rng.choice(earlier)

        await self.db.pool.execute(
            "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, attempt)"
            " values ($1, $2, $1, 'running', 'enqueue', 1)",
            attempt.run_id,
            UUID(thread_id),
        )

        config["configurable"] = {**config["configurable"], "run_id": str(attempt.run_id)}
        config["metadata"] = {"run_attempt": 1}
        try:
            async with saver.writer.buffering(thread_id, attempt):
                with saver.remembering(thread_id):
                    await graph.ainvoke({"messages": [HumanMessage(text(self.rng))]}, config)
        except LeaseLost:
            self.done["lost"] += 1

    async def repeat(self, act: Callable[[], Awaitable[str | None]]) -> None:
        while not self.is_over:
            if (outcome := await act()) is not None:
                self.done[outcome] += 1
            await asyncio.sleep(0.005)

    async def prune(self) -> str | None:
        request = ThreadPrune(thread_ids=[UUID(one) for one in self.threads], strategy="keep_latest")
        return "pruned" if await prune_threads(self.db, request) else None

    async def kill(self) -> str | None:
        """Take a run from its worker."""
        if self.rng.random() < 0.1:
            await self.db.pool.execute("update runs set attempt = attempt + 1 where thread_id = $1", UUID(self.one()))
        return None

    async def store_whole(self) -> str | None:
        """Store the values of a thread as they were before there were pieces."""
        converted = await self.db.pool.fetch(
            "update checkpoint_values v set pieces = null, data = v.data || (joined_pieces(v.thread_id, v.pieces)).data"
            " where thread_id = $1 and pieces is not null and random() < 0.1 returning 1",
            self.one(),
        )

        return "converted" if converted else None

    async def copy(self) -> str | None:
        copied = str(uuid4())
        source = self.one()
        await PostgresSaver(self.db).acopy_thread(source, copied)

        copies = [found async for found in PostgresSaver(self.db).alist({"configurable": {"thread_id": copied}})]
        for found in copies:
            here = {**found.config["configurable"], "thread_id": source}
            wanted = self.memory.get_tuple({"configurable": here})
            assert wanted is not None

            for name, value in found.checkpoint["channel_values"].items():
                assert value == wanted.checkpoint["channel_values"][name]

        await PostgresSaver(self.db).adelete_thread(copied)
        return "copied" if copies else None

    async def read(self) -> str | None:
        return "read" if await compare(PostgresSaver(self.db), self.memory, self.one()) else None

    def one(self) -> str:
        return self.rng.choice(self.threads)


async def test_every_state_is_kept_while_other_tasks_prune_convert_and_take_runs(url):
    db = await Database.connect(url, max_size=10, schema="portside")
    try:
        shared = SharedThreads(db)
        acts = (shared.prune, shared.kill, shared.store_whole, shared.copy, shared.read)
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(shared.repeat(act)) for act in acts]
            try:
                async with asyncio.TaskGroup() as talks:
                    for thread_id in shared.threads:
                        talks.create_task(shared.talk(thread_id))
            finally:
                shared.is_over = True

            await asyncio.gather(*others)

        for thread_id in shared.threads:
            assert await compare(PostgresSaver(db), shared.memory, thread_id) > 0

        assert min(shared.done[name] for name in ("pruned", "converted", "copied", "read")) > 0, shared.done
        dangling = "select count(*) from checkpoint_values v cross join used_pieces(v.pieces, v.shared) u cross join"
        dangling += " generate_series(u.first, u.next - 1) n where not exists (select from checkpoint_pieces p"
        dangling += " where p.thread_id = v.thread_id and p.series = u.series and p.number = n)"
        assert await db.pool.fetchval(dangling) == 0
    finally:
        await db.close()


async def test_a_growing_list_stores_what_is_new_once(db):
    saver = PostgresSaver(db)
    config = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    messages = [AIMessage("x" * 500, id=str(index)) for index in range(10)]
    before = 0
    for turn in range(60):
        if turn % 20 == 10:
            saver = PostgresSaver(db)  # another process

        if turn:
            found = await saver.aget_tuple(config)
            messages = [*found.checkpoint["channel_values"]["messages"], AIMessage("y" * 500, id=f"turn {turn}")]

        version = saver.get_next_version(None, None)
        checkpoint = generate_checkpoint(channel_values={"messages": messages}, channel_versions={"messages": version})
        config = await saver.aput(config, checkpoint, generate_metadata(), {"messages": version})

        size = await db.pool.fetchval(
            "select (select sum(length(data)) from checkpoint_values) + coalesce(sum(length(data)), 0)"
            " from checkpoint_pieces"
        )

        if turn > 1:
            assert size - before < 1000

        before = size

    ranges = await db.pool.fetchval("select max(cardinality(pieces)) / 3 from checkpoint_values")
    assert ranges == 4


async def test_a_list_that_many_processes_extend_stays_in_few_ranges(db):
    config: dict[str, Any] = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    messages: list[Any] = [{"number": index, "text": "x" * 100} for index in range(100)]
    for turn in range(150):
        saver = PostgresSaver(db)
        if turn:
            found = await saver.aget_tuple(config)
            assert found.checkpoint["channel_values"]["messages"] == messages
            messages = [*found.checkpoint["channel_values"]["messages"], {"number": turn, "text": "y" * 100}]

        version = saver.get_next_version(None, None)
        checkpoint = generate_checkpoint(channel_values={"messages": messages}, channel_versions={"messages": version})
        config = await saver.aput(config, checkpoint, generate_metadata(), {"messages": version})

    stored = await db.pool.fetchrow(
        "select max(cardinality(pieces)) / 3 as ranges,"
        " (select sum(length(data)) from checkpoint_pieces) as bytes from checkpoint_values"
    )

    assert 2 < stored["ranges"] <= 48
    assert stored["bytes"] < 4 * len(saver.serde.dumps_typed(messages)[1])


async def test_a_value_in_the_old_form_is_read_and_cut_when_it_grows(db):
    saver = PostgresSaver(db)
    thread_id = str(uuid4())
    config: dict[str, Any] = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    messages = [AIMessage("x" * 500, id=str(index)) for index in range(10)]
    version = saver.get_next_version(None, None)
    checkpoint = generate_checkpoint(channel_values={"messages": messages}, channel_versions={"messages": version})
    config = await saver.aput(config, checkpoint, generate_metadata(), {"messages": version})

    assert await db.pool.fetchval("select count(*) from checkpoint_values where pieces is null") == 1
    saver = PostgresSaver(db)
    found = await saver.aget_tuple({"configurable": {"thread_id": thread_id}})
    messages = [*found.checkpoint["channel_values"]["messages"], AIMessage("more")]
    version = saver.get_next_version(version, None)
    checkpoint = generate_checkpoint(channel_values={"messages": messages}, channel_versions={"messages": version})

    await saver.aput(config, checkpoint, generate_metadata(), {"messages": version})
    assert await db.pool.fetchval("select count(*) from checkpoint_values where pieces is not null") == 1
    found = await PostgresSaver(db).aget_tuple({"configurable": {"thread_id": thread_id}})
    assert found.checkpoint["channel_values"]["messages"] == messages


async def test_pieces_are_encrypted_by_themselves_and_read_under_a_newer_key(url):
    async def opened(*keys: bytes) -> tuple[Database, PostgresSaver]:
        encryptor = Encryptor(keys=AesKeys(*keys))
        database = await Database.connect(url, max_size=2, schema="portside", codec=EncryptionCodec(encryptor))
        return database, PostgresSaver(database, encryptor=encryptor)

    old = b"o" * 32
    new = b"n" * 32
    config: dict[str, Any] = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
    messages: list[Any] = [AIMessage("swordfish " * 50, id=str(index)) for index in range(10)]
    for keys in ((old,), (old,), (new, old), (new, old)):
        db, saver = await opened(*keys)
        found = await saver.aget_tuple(config)
        if found is not None:
            assert found.checkpoint["channel_values"]["messages"] == messages
            messages = [*found.checkpoint["channel_values"]["messages"], AIMessage("swordfish " * 50)]

        version = saver.get_next_version(None, None)
        checkpoint = generate_checkpoint(channel_values={"messages": messages}, channel_versions={"messages": version})
        config = await saver.aput(config, checkpoint, generate_metadata(), {"messages": version})
        stored = await db.pool.fetch("select data from checkpoint_pieces union all select data from checkpoint_values")
        assert not any(b"swordfish" in row["data"] for row in stored)
        await db.close()

    db, saver = await opened(new, old)
    assert await db.pool.fetchval("select max(cardinality(pieces)) / 3 from checkpoint_values") == 3

    # A piece that is moved elsewhere does not decrypt.
    await db.pool.execute(
        "update checkpoint_pieces p set data = o.data from checkpoint_pieces o"
        " where p.series = o.series and p.number = 0 and o.number = 1"
    )

    with pytest.raises(CannotDecrypt):
        await saver.aget_tuple(config)

    await db.close()
