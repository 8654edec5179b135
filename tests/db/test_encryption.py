"""What happens to a database that was written under another key."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata
from structlog.testing import capture_logs

from portside.agent.encryption.ciphers import AesKeys
from portside.agent.encryption.codec import EncryptionCodec, prepare_codec, raise_if_undecryptable
from portside.agent.encryption.encryptor import Encryptor, build_encryptor
from portside.agent.encryption.key_renewal import RenewedKeys
from portside.agent.encryption.locations import EVENTS, events_binding, identify_row
from portside.agent.local_graphs import PostgresSaver
from portside.agent.queue import statements
from portside.agent.queue.types import Admission, ClaimedRun, RunResult
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.agent.streams.bus import open_bus
from portside.agent.streams.chunks import EventBatch, pack_events, unpack_events
from portside.agent.streams.events import LOST, LOST_EVENTS, StreamEvent
from portside.agent.streams.postgres_log import LogWriter
from portside.agent.threads import searches
from portside.agent.threads.reading import StateReader
from portside.agent.threads.records import create_thread, get_thread, patch_thread, search_threads
from portside.agent.types.runs import MultitaskStrategy, RunStatus
from portside.agent.types.threads import ThreadCreate, ThreadPatch, ThreadSearch, ThreadStatus
from portside.executor.encryption_handlers import CannotDecrypt, EncryptionFailed
from portside.kernel.db import Database
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from tests.db.queued import admit_run, end_run
from tests.streaming_processes import Process, start

OLD = "o" * 32
NEW = "n" * 32
SEARCH = ThreadSearch(limit=100)


def encryptor(keys: str, names: str = "*") -> Encryptor:
    made = build_encryptor(AgentSettings(graph_aes_key=keys, graph_aes_json_keys=names))
    assert made is not None
    return made


@asynccontextmanager
async def open_database(url: str, under: Encryptor | None) -> AsyncIterator[Database]:
    codec = None if under is None else EncryptionCodec(under)
    database = await Database.connect(url, max_size=2, schema="portside", codec=codec)
    try:
        await prepare_codec(database)
        yield database
    finally:
        await database.close()


async def test_wrong_key_is_a_clear_error_and_both_keys_read_everything(agent_databases):
    url = await agent_databases()
    async with open_database(url, None) as db:
        plain = await create_thread(db, ThreadCreate(metadata={"title": "before"}))

    async with open_database(url, encryptor(OLD)) as db:
        thread = await create_thread(db, ThreadCreate(metadata={"title": "swordfish"}))

    async with open_database(url, encryptor(NEW)) as db:
        with pytest.raises(CannotDecrypt, match="which this server does not have"):
            await get_thread(db, thread.thread_id)

    async with open_database(url, encryptor(f"{NEW},{OLD}")) as db:
        await patch_thread(db, thread.thread_id, ThreadPatch(metadata={"other": 1}))
        page = await search_threads(db, ThreadSearch())
        assert sorted(bytes(found.metadata) for found in page.items) == [
            b'{"other":1,"title":"swordfish"}',
            b'{"title": "before"}',
        ]

        assert plain.thread_id in {found.thread_id for found in page.items}


def old_envelope(value: Any, key: str) -> dict[str, Any]:
    """What a version before bound envelopes wrote."""
    encrypted = AesKeys(OLD.encode()).encrypt(json.dumps(value).encode(), key.encode())
    return {"__sealed__": {"aes": base64.b64encode(encrypted).decode(), "of": key}}


async def test_envelopes_stored_before_encryption_stay_data(agent_databases):
    url = await agent_databases()
    thread_id = uuid7()
    stolen = await encryptor(OLD).encrypt_document(
        {"title": "swordfish"}, ModelField("thread", "metadata"), identify_row({"thread_id": uuid7()})
    )

    forged: list[Any] = [
        {"__sealed__": 1},
        {"title": {"__sealed__": {"plain": 1}}},
        {"title": [old_envelope("swordfish", "title")]},
        {"title": old_envelope("swordfish", "title")},
        old_envelope("swordfish", "title"),
    ]

    async with open_database(url, None) as db:
        threads = [await create_thread(db, ThreadCreate(metadata=each)) for each in forged]
        await create_thread(db, ThreadCreate(thread_id=thread_id, metadata=stolen))

    async with open_database(url, encryptor(OLD)) as db:
        shown = {one.thread_id: json.loads(bytes(one.metadata)) for one in (await search_threads(db, SEARCH)).items}
        assert [shown[thread.thread_id] for thread in threads] == forged
        assert "moved to another field or row" in shown[thread_id]["__unreadable__"]

        for thread, given in zip(threads, forged, strict=True):
            await patch_thread(db, thread.thread_id, ThreadPatch(metadata={"title": "herring"}))
            changed = await get_thread(db, thread.thread_id)
            assert json.loads(bytes(changed.metadata)) == {**given, "title": "herring"}


async def test_unbound_envelopes_of_an_older_database_decrypt(agent_databases):
    url = await agent_databases()
    async with open_database(url, None) as db:
        thread = await create_thread(db, ThreadCreate(metadata={"title": old_envelope("swordfish", "title")}))
        await db.pool.execute("update encryption set may_contain_unbound = true")

    async with open_database(url, encryptor(f"{NEW},{OLD}")) as db:
        assert bytes((await get_thread(db, thread.thread_id)).metadata) == b'{"title":"swordfish"}'
        await patch_thread(db, thread.thread_id, ThreadPatch(metadata={"title": "herring"}))
        stored = await db.pool.fetchval("select metadata -> 'title' from threads")
        assert stored["__sealed__"].keys() == {"v", "aes"}

    async with open_database(url, encryptor(NEW)) as db:
        assert bytes((await get_thread(db, thread.thread_id)).metadata) == b'{"title":"herring"}'


async def test_new_database_accepts_no_unbound_envelopes(agent_databases):
    async with open_database(await agent_databases(), encryptor(OLD)) as db:
        assert db.codec.encryptor.accepts_unbound is False


async def test_events_moved_to_another_thread_do_not_decrypt(agent_databases):
    own = encryptor(OLD)
    async with open_database(await agent_databases(), own) as db:
        first, second = [(await create_thread(db, ThreadCreate())).thread_id for _ in range(2)]
        body = await own.encrypt_blob(pack_events([]), EVENTS, events_binding(first))
        await db.execute(
            sql.append_stream_chunks,
            thread_ids=[first, second],
            run_ids=[uuid7(), uuid7()],
            attempts=[1, 1],
            bodies=[body, body],
            writer=uuid4(),
        )

        page = {"cursors": [0, 0], "limit": 9, "page_bytes": 1_000_000}
        rows = await db.fetch(sql.read_stream_chunks, thread_ids=[first, second], **page)
        assert {row["thread_id"]: row["body"] for row in rows} == {first: pack_events([]), second: None}

        with pytest.raises(CannotDecrypt, match="moved"):
            await db.fetchval(sql.last_stream_chunk, thread_id=second)


async def test_events_are_encrypted_whoever_caused_them_and_never_go_over_redis(agent_databases):
    lost: list[Any] = []
    async with open_database(await agent_databases(), encryptor(OLD)) as db:
        thread_id = (await create_thread(db, ThreadCreate())).thread_id
        writer = LogWriter(db, uuid4(), on_written=lambda _: None, on_lost=lambda *what: lost.append(what))
        for number, run_id in enumerate((uuid7(), None)):
            event = StreamEvent("values", f"{number}-0", b'"a word that nobody may read"')
            writer.write(EventBatch(thread_id, run_id, 1, [event]))

        await writer.flush()
        bodies = await db.pool.fetch("select body from stream_chunks")
        assert len(bodies) == 2
        assert not any(b"nobody may read" in row["body"] for row in bodies)
        page = {"cursors": [0], "limit": 9, "page_bytes": 1_000_000}
        rows = await db.fetch(sql.read_stream_chunks, thread_ids=[thread_id], **page)
        assert all(b"nobody may read" in row["body"] for row in rows)

        bus = await open_bus(db, AgentSettings(redis_uri="redis://127.0.0.1:1"), "postgres://unused")
        assert not bus.carries_chunks
        await writer.close()

    assert lost == []


async def test_events_that_cannot_be_encrypted_are_lost_and_not_written_in_clear(agent_databases, monkeypatch):
    lost: list[Any] = []
    async with open_database(await agent_databases(), encryptor(OLD)) as db:
        thread_id = (await create_thread(db, ThreadCreate())).thread_id
        writer = LogWriter(db, uuid4(), on_written=lambda _: None, on_lost=lambda *what: lost.append(what))

        async def fail(*_: Any) -> bytes:
            raise EncryptionFailed("the key service is down")

        monkeypatch.setattr(Encryptor, "encrypt_blob", fail)
        writer.write(EventBatch(thread_id, None, 1, [StreamEvent("values", "1-0", b'"a word"')]))
        await writer.flush()
        assert lost == [(thread_id, None)]
        [row] = await db.pool.fetch("select body from stream_chunks")
        assert [event.name for event in unpack_events(row["body"])] == [LOST]
        await writer.close()


async def test_nothing_that_is_decrypted_is_cached_or_shared(agent_databases, monkeypatch):
    """Callers may decrypt in different contexts."""
    graphs: Any = None
    searched = []

    async def search(*given: Any) -> Any:
        searched.append(given)
        return await search_threads(*given)

    monkeypatch.setattr(searches, "search_threads", search)
    async with open_database(await agent_databases(), encryptor(OLD)) as db:
        assert StateReader(db, graphs, cache_bytes=1_000_000)._cache._states.maxsize == 0
        of_thread = searches.ThreadSearches(db)
        await asyncio.gather(*(of_thread.search(SEARCH) for _ in range(5)))
        assert len(searched) == 5


@pytest.mark.parametrize("names", ["*", "title,word"])
async def test_webhook_payload_decrypts_in_the_outbox(agent_databases, names):
    worker = uuid4()
    async with open_database(await agent_databases(), encryptor(OLD, names)) as db:
        asked = admission("swordfish")
        asked.kwargs["webhook"] = "http://127.0.0.1:9/never"
        thread = await create_thread(db, ThreadCreate(thread_id=asked.thread_id, metadata={"word": "of the thread"}))
        await admit_run(db, asked, worker, starts=True)

        run = ClaimedRun(
            run_id=asked.run_id,
            thread_id=thread.thread_id,
            assistant_id=asked.assistant_id,
            kwargs={},
            attempt=1,
            is_temporary=False,
        )

        ending = RunResult(
            status=RunStatus.ERROR,
            thread_status=ThreadStatus.ERROR,
            values=b'{"word":"swordfish"}',
            interrupts={},
            error={"error": "E", "message": "swordfish"},
        )

        await end_run(db, worker, run, ending)
        [owed] = await db.fetch(sql.claim_webhooks, claim_s=60.0, busy_hosts=[], limit=9)
        assert owed["kwargs"]["input"] == {"word": "swordfish"}
        assert owed["kwargs"]["config"]["metadata"]["word"] == owed["metadata"]["word"] == "of the thread"
        assert owed["error"]["message"] == owed["values"]["word"] == "swordfish"
        shown = await get_thread(db, thread.thread_id)
        assert json.loads(bytes(shown.error))["message"] == "swordfish"

        [row] = await db.fetch(sql.run_statuses, run_ids=[run.run_id])
        assert row["error"]["message"] == "swordfish"


def admission(word: str) -> Admission:
    configurable = {"graph_id": "agent", "secret": word}
    kwargs: dict[str, Any] = {"input": {"word": word}, "config": {"configurable": configurable, "metadata": {}}}
    return Admission(
        run_id=uuid4(),
        thread_id=uuid4(),
        assistant_id=uuid4(),
        metadata={"title": word},
        kwargs=kwargs,
        strategy=MultitaskStrategy.ENQUEUE,
        thread_metadata={"graph_id": "agent", "title": word},
        create_thread=True,
        is_temporary=False,
        delay_s=0.0,
    )


async def test_undecryptable_run_is_claimed_with_a_reason(agent_databases):
    url = await agent_databases()
    async with open_database(url, encryptor(OLD)) as db:
        await admit_run(db, admission("swordfish"), uuid4(), starts=False)

    async with open_database(url, encryptor(NEW)) as db:
        await admit_run(db, admission("herring"), uuid4(), starts=False)
        with capture_logs() as logged:
            unreadable, fine = await statements.claim_runs(db, uuid4(), 10)

    # The log names the row, and has nothing of what is in it.
    [line] = [line for line in logged if line["event"] == "a row cannot be decrypted"]
    assert (line.pop("column"), line.pop("run_id")) == ("kwargs", str(unreadable.run_id))
    assert line.keys() == {"event", "log_level", "query", "reason", "thread_id", "assistant_id"}

    with pytest.raises(CannotDecrypt, match="which this server does not have"):
        raise_if_undecryptable(unreadable.kwargs)

    assert unreadable.kwargs["config"]["configurable"]["graph_id"] == "agent"
    raise_if_undecryptable(fine.kwargs)
    assert fine.kwargs["input"] == {"word": "herring"}


async def test_checkpoints_are_encrypted_and_clear_labels_are_found(agent_databases):
    url = await agent_databases()
    config = generate_config()
    checkpoint = generate_checkpoint(channel_values={"x": ["swordfish"] * 100}, channel_versions={"x": "1"})
    async with open_database(url, encryptor(OLD)) as db:
        saver = PostgresSaver(db, encryptor=encryptor(OLD))
        metadata = generate_metadata(title="swordfish", run_id="r1")
        placed = await saver.aput(config, checkpoint, metadata, {"x": "1"})
        await saver.aput_writes(placed, [("x", "swordfish")], "task")

        read = await saver.aget_tuple(placed)
        assert read is not None
        assert read.checkpoint["channel_values"] == {"x": ["swordfish"] * 100}
        assert read.metadata["title"] == "swordfish"
        assert read.pending_writes == [("task", "x", "swordfish")]
        assert [found.config async for found in saver.alist(config, filter={"run_id": "r1"})] == [read.config]

        stored = await db.pool.fetch(
            "select body as data from checkpoints union all select data from checkpoint_values"
            " union all select data from checkpoint_writes"
        )

        assert len(stored) == 3
        assert not any(b"swordfish" in row["data"] for row in stored)

    async with open_database(url, encryptor(NEW)) as db:
        with pytest.raises(CannotDecrypt):
            await PostgresSaver(db, encryptor=encryptor(NEW)).aget_tuple(placed)


@pytest.mark.parametrize(
    "access",
    [
        {"equal": {"title": "x"}, "rest": []},
        {"equal": {}, "rest": [{"op": "any", "of": [{"op": "has", "key": "title", "values": ["x"]}]}]},
    ],
    ids=["equal", "nested"],
)
async def test_access_filter_on_encrypted_key_is_refused(agent_databases, access):
    async with open_database(await agent_databases(), encryptor(OLD, "title")) as db:
        thread = await create_thread(db, ThreadCreate(metadata={"title": "x", "owner": "ada"}))
        with pytest.raises(Invalid, match="'title' is encrypted"):
            await db.fetchval(sql.thread_matches, thread_id=thread.thread_id, access=access)

        with pytest.raises(Invalid, match="'title' is encrypted"):
            filters = [None, json.dumps(access)]
            await db.fetch(sql.threads_that_match, thread_ids=[thread.thread_id] * 2, filters=filters)

        clear = {"equal": {"owner": "ada"}, "rest": []}
        assert await db.fetchval(sql.thread_matches, thread_id=thread.thread_id, access=clear)


async def test_a_value_that_changed_meanwhile_is_not_replaced(agent_databases):
    """A handler, or a newer key, replaces what was read; somebody may have written since."""
    config = generate_config()
    checkpoint = generate_checkpoint(channel_values={"x": ["a"] * 100}, channel_versions={"x": "1"})
    async with open_database(await agent_databases(), None) as db:
        thread_id = (await create_thread(db, ThreadCreate(metadata={"title": {"is": "old"}}))).thread_id
        saver = PostgresSaver(db)
        placed = await saver.aput(config, checkpoint, generate_metadata(title={"is": "old"}), {"x": "1"})
        await saver.aput_writes(placed, [("x", "a")], "task")

        assistant_id = uuid4()
        item = {"namespace": ["n"], "key": "k"}
        title = {"title": {"is": "old"}}
        for statement, values in (
            ("insert into store_items (namespace, key, value) values ($1, $2, $3)", (["n"], "k", title)),
            (
                "insert into assistants (assistant_id, graph_id, name, metadata) values ($1, 'a', 'a', $2)",
                (assistant_id, title),
            ),
            ("insert into stream_chunks (thread_id, number, writer, body) values ($1, 1, $1, 'old')", (thread_id,)),
            (
                "insert into checkpoint_pieces (thread_id, series, number, leaves, data) values ($1, 1, 1, 1, 'old')",
                ("t",),
            ),
        ):
            await db.pool.execute(statement, *values)

        body, data, write = await db.pool.fetchrow(
            "select c.body, v.data, w.data from checkpoints c, checkpoint_values v, checkpoint_writes w"
        )

        ids = {name: placed["configurable"][name] for name in ("thread_id", "checkpoint_ns", "checkpoint_id")}
        of_channel = {"thread_id": ids["thread_id"], "checkpoint_ns": ids["checkpoint_ns"], "channel": "x"}
        in_metadata = {"field": "metadata", "path": ["title"]}
        in_value = {"field": "value", "path": ["title"]}
        for query, keys, old, new in (
            (sql.replace_in_threads, {"thread_id": thread_id, **in_metadata}, {"is": "old"}, {"is": "new"}),
            (sql.replace_in_assistants, {"assistant_id": assistant_id, **in_metadata}, {"is": "old"}, {"is": "new"}),
            (sql.replace_in_items, {**item, **in_value}, {"is": "old"}, {"is": "new"}),
            (sql.replace_in_checkpoints, {**ids, **in_metadata}, {"is": "old"}, {"is": "new"}),
            (sql.replace_checkpoint_body, ids, body, b"new"),
            (sql.replace_checkpoint_value, of_channel, data, b"new"),
            (sql.replace_checkpoint_write, {**ids, "task_id": "task", "channel": "x"}, write, b"new"),
            (sql.replace_checkpoint_piece, {"thread_id": "t", "series": 1, "number": 1}, b"old", b"new"),
            (sql.replace_stream_chunk, {"thread_id": thread_id, "number": 1}, b"old", b"new"),
        ):
            assert await db.execute(query, **keys, old=new, new=old) == 0, query.name
            assert await db.execute(query, **keys, old=old, new=new) == 1, query.name
            assert await db.execute(query, **keys, old=old, new=new) == 0, query.name


async def test_a_key_is_not_called_unused_while_a_value_of_it_stays(agent_databases):
    async with open_database(await agent_databases(), encryptor(OLD)) as db:
        first, second = [await create_thread(db, ThreadCreate(metadata={"title": "swordfish"})) for _ in range(2)]
        moved = "update threads set metadata = (select metadata from threads where thread_id = $1) where thread_id = $2"
        await db.pool.execute(moved, first.thread_id, second.thread_id)

        own = encryptor(f"{NEW},{OLD}")
        renewal = RenewedKeys(db.pool, own, own.keys)
        with capture_logs() as logged:
            while (await renewal.activate()).again:
                pass

        assert [line["log_level"] for line in logged] == ["error"]
        assert "cannot be decrypted and stay as they are" in logged[0]["event"]

        # Hours later it looks again. The value is gone by then.
        assert (await renewal.activate()).did == {}
        await db.pool.execute("delete from threads where thread_id = $1", second.thread_id)
        renewal._next_pass_at = 0.0
        with capture_logs() as logged:
            while (await renewal.activate()).again:
                pass

        assert [line["log_level"] for line in logged] == ["warning"]
        assert "remove them from GRAPH_AES_KEY" in logged[0]["event"]


async def test_followers_of_events_that_cannot_be_decrypted_learn_that_some_are_missing(agent_databases):
    url = await agent_databases()
    async with open_database(url, encryptor(OLD)) as old, open_database(url, encryptor(NEW)) as new:
        here = Process(old)
        there = Process(new)
        for process in (here, there, here):
            await process.transport._renew()

        begun = start()
        follower = await there.hub.follow_thread(begun.thread_id, frozenset({"run_modes"}), None)
        here.hub.begin(begun)
        await here.transport.flush()
        await there.transport._subscriptions.read()

        there.hub.drop_thread(begun.thread_id)
        received = b"".join([chunk async for chunk in follower])
        for process in (here, there):
            await process.transport.close()

    assert received == LOST_EVENTS
