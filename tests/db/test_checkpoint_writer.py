"""How checkpoints of runs are written to Postgres: batched, in time, and fenced by the attempt.

A run's checkpoints are in the database before its end is. A lost attempt, and a node that it left behind, write
nothing afterwards.
"""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata

from portside.agent.checkpoints import writer
from portside.agent.checkpoints.writer import CheckpointWriter, LeaseLost, RunAttempt
from portside.agent.engine import UNREADABLE, RunExecutor, RunLimits
from portside.agent.local_graphs import PostgresSaver
from portside.agent.queue.types import Cancellation, ClaimedRun
from portside.agent.streams.hub import Hub
from portside.agent.threads import records
from portside.agent.types.runs import CancelAction
from portside.executor.checkpoints.backend import Rows
from portside.executor.requests import Outcome
from portside.kernel.db import Database
from tests.conftest import eventually
from tests.db.test_checkpoints import chain

INPUT = {"log": ["in"], "big": "x" * 1000, "hits": 0}
pytestmark = pytest.mark.usefixtures("patient_writes")


@pytest.fixture
async def saver(db) -> PostgresSaver:
    return PostgresSaver(db)


async def start_attempt(db: Database, thread_id: str, *, attempt: int = 1) -> RunAttempt:
    """A run that a worker executes on this thread."""
    run_id = uuid4()
    await db.pool.execute("insert into threads (thread_id) values ($1) on conflict do nothing", UUID(thread_id))
    await db.pool.execute(
        "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, attempt)"
        " values ($1, $2, $1, 'running', 'enqueue', $3)",
        run_id,
        UUID(thread_id),
        attempt,
    )

    return RunAttempt(run_id, attempt)


async def count_checkpoints(db: Database, thread_id: str) -> int:
    return await db.pool.fetchval("select count(*) from checkpoints where thread_id = $1", thread_id)


def statements(db: Database) -> list[str]:
    seen: list[str] = []
    for name in ("fetchrow", "fetch", "execute"):
        original = getattr(db, name)

        def count(query, *, original=original, **values):
            seen.append(query.name)
            return original(query, **values)

        setattr(db, name, count)

    return seen


def config(thread_id: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", **more}}


async def test_a_run_reads_once_and_writes_once(db):
    saver = PostgresSaver(db, writer=CheckpointWriter(db, delay_s=60))
    thread_id = str(uuid4())
    holder = await start_attempt(db, thread_id)
    seen = statements(db)

    async with saver.writer.buffering(thread_id, holder):
        await chain(saver).ainvoke(INPUT, config(thread_id))

    assert seen == ["read_checkpoint", "write_checkpoints"]
    assert await count_checkpoints(db, thread_id) == 4
    history = [state.values.get("hits") async for state in chain(saver).aget_state_history(config(thread_id))]
    assert history == [2, 1, 0, None]


async def test_concurrent_runs_share_a_write(db):
    saver = PostgresSaver(db, writer=CheckpointWriter(db, delay_s=60))
    thread_ids = [str(uuid4()) for _ in range(8)]
    holders = [await start_attempt(db, thread_id) for thread_id in thread_ids]
    seen = statements(db)
    all_done = asyncio.Barrier(len(thread_ids))

    async def run(thread_id: str, holder: RunAttempt) -> None:
        async with saver.writer.buffering(thread_id, holder):
            await chain(saver).ainvoke(INPUT, config(thread_id))
            # Nodes run in threads, so that the runs would end at any time.
            await all_done.wait()

    await asyncio.gather(*map(run, thread_ids, holders))
    assert seen.count("write_checkpoints") < len(thread_ids)
    assert [await count_checkpoints(db, thread_id) for thread_id in thread_ids] == [4] * 8


async def test_no_run_waits_for_the_large_rows_of_another(db, saver):
    large = str(uuid4())
    small = str(uuid4())
    holders = {thread_id: await start_attempt(db, thread_id) for thread_id in (large, small)}

    async def run(thread_id: str, text: str) -> None:
        async with saver.writer.buffering(thread_id, holders[thread_id]):
            await chain(saver).ainvoke({**INPUT, "big": text}, config(thread_id))

    async def is_being_written() -> bool:
        here = "datname = current_database() and wait_event_type = 'Lock' and query ~ 'of_current_runs'"
        return bool(await db.pool.fetchval(f"select exists (select from pg_stat_activity where {here})"))

    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute("select from runs where run_id = $1 for update", holders[large].run_id)
        writing = asyncio.create_task(run(large, "x" * 2_000_000))
        await eventually(is_being_written)

        await run(small, "x")
        assert (await count_checkpoints(db, large), await count_checkpoints(db, small)) == (0, 4)

    await writing
    assert await count_checkpoints(db, large) == 4
    history = [state.values.get("hits") async for state in chain(saver).aget_state_history(config(large))]
    assert history == [2, 1, 0, None]


async def test_rollback_removes_checkpoints_that_were_on_their_way(db, saver):
    """A client cancelled the run while the writer had its last checkpoints."""
    thread_id = str(uuid4())
    may_write = asyncio.Event()
    holder = (await start_attempt(db, thread_id))._replace(flush_events=may_write.wait)
    own = {"run_id": str(holder.run_id), "run_attempt": 1}
    invoked = asyncio.Event()

    async def run() -> None:
        async with saver.writer.buffering(thread_id, holder):
            await chain(saver).ainvoke(INPUT, {**config(thread_id, run_id=str(holder.run_id)), "metadata": own})
            invoked.set()

    executing = asyncio.create_task(run())
    # The graph first reads its thread, where nothing was written.
    await asyncio.wait_for(invoked.wait(), 60)
    await asyncio.sleep(0)
    executing.cancel()
    await asyncio.wait([executing])

    async def read_outcome(_request: object) -> Outcome:
        return UNREADABLE

    graphs: Any = SimpleNamespace(writer=saver.writer, facts={}, read_outcome=read_outcome)
    executor = RunExecutor(db, graphs, Hub(keep_s=60), limits=RunLimits(60), webhook_due=asyncio.Event())
    kwargs = dict.fromkeys(
        ("input", "command", "context", "stream_mode", "subgraphs", "interrupt_before", "interrupt_after", "durability")
    )

    claimed = ClaimedRun(
        run_id=holder.run_id,
        thread_id=UUID(thread_id),
        assistant_id=uuid4(),
        attempt=1,
        is_temporary=False,
        kwargs={**kwargs, "config": {"configurable": {"graph_id": "g"}, "metadata": {}}},
    )

    ending = asyncio.create_task(executor.finish_cancelled(claimed, Cancellation(CancelAction.ROLLBACK, "")))
    # Long enough for a deletion that waits for nothing.
    await asyncio.wait([ending], timeout=0.5)
    may_write.set()
    assert (await asyncio.wait_for(ending, 60)).status == "rolled_back"
    await saver.writer.batches.flush()
    assert await count_checkpoints(db, thread_id) == 0


async def test_rows_of_an_ephemeral_run_are_not_written(db, saver, monkeypatch):
    monkeypatch.setattr(writer, "NEW_THREAD_DELAY_S", 60)
    thread_id = str(uuid4())
    holder = (await start_attempt(db, thread_id))._replace(is_ephemeral=True)
    seen = statements(db)

    async with saver.writer.buffering(thread_id, holder):
        result = await chain(saver).ainvoke(INPUT, config(thread_id))

    assert result["hits"] == 2
    assert seen == []
    assert await count_checkpoints(db, thread_id) == 0


async def test_a_run_that_is_cut_off_keeps_its_finished_steps(db, saver):
    thread_id = str(uuid4())
    holder = (await start_attempt(db, thread_id))._replace(is_ephemeral=True)
    with pytest.raises(asyncio.CancelledError):
        async with saver.writer.buffering(thread_id, holder):
            await chain(saver).ainvoke(INPUT, config(thread_id))
            raise asyncio.CancelledError

    assert await count_checkpoints(db, thread_id) == 4


@pytest.mark.parametrize("change", ["attempt = attempt + 1", "status = 'pending'"])
async def test_run_that_continues_elsewhere_writes_no_checkpoints(db, saver, change):
    thread_id = str(uuid4())
    holder = await start_attempt(db, thread_id)
    with pytest.raises(LeaseLost):
        async with saver.writer.buffering(thread_id, holder):
            await db.pool.execute(f"update runs set {change}")
            await chain(saver).ainvoke(INPUT, config(thread_id))

    assert await count_checkpoints(db, thread_id) == 0


async def test_failed_checkpoint_of_one_run_does_not_block_others(db, saver):
    good = str(uuid4())
    bad = str(uuid4())
    holders = {thread_id: await start_attempt(db, thread_id) for thread_id in (good, bad)}

    async def put(thread_id: str, task: str) -> None:
        async with saver.writer.buffering(thread_id, holders[thread_id]):
            await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})
            place = config(thread_id, checkpoint_id="1")
            await saver.aput_writes(place, [("log", "x")], task)

    ended = await asyncio.gather(put(good, "task"), put(bad, "task \0"), return_exceptions=True)
    assert ended[0] is None
    assert isinstance(ended[1], asyncpg.PostgresError)
    assert (await count_checkpoints(db, good), await count_checkpoints(db, bad)) == (1, 0)


async def test_batch_times_out_once_if_the_database_stops_answering(db, monkeypatch):
    monkeypatch.setattr(writer, "WRITE_TIMEOUT_S", 0.01)
    saver = PostgresSaver(db, writer=CheckpointWriter(db, delay_s=3600))
    holders = {thread_id: await start_attempt(db, thread_id) for thread_id in (str(uuid4()) for _ in range(3))}
    all_have_rows = asyncio.Barrier(len(holders))
    calls = 0

    async def fetch(query, **values):
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncpg.ConnectionDoesNotExistError("the connection was closed")

        await asyncio.Event().wait()

    async def put(thread_id: str) -> None:
        async with saver.writer.buffering(thread_id, holders[thread_id]):
            await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})
            await all_have_rows.wait()

    monkeypatch.setattr(db, "fetch", fetch)
    ended = await asyncio.gather(*map(put, holders), return_exceptions=True)
    assert [type(each) for each in ended] == [TimeoutError] * 3
    assert calls == 2


async def test_with_durability_sync_a_step_is_stored_before_the_next_begins(db, saver):
    thread_id = str(uuid4())
    holder = await start_attempt(db, thread_id)
    async with saver.writer.buffering(thread_id, holder):
        stream = chain(saver).astream(INPUT, config(thread_id), stream_mode="values", durability="sync")
        seen = [await count_checkpoints(db, thread_id) async for _ in stream]

    assert seen == sorted(seen)
    assert seen[-1] >= 3


async def test_rows_are_written_during_a_long_run(db, saver):
    thread_id = str(uuid4())
    async with saver.writer.buffering(thread_id, await start_attempt(db, thread_id)):
        await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})

        async def is_stored() -> bool:
            return await count_checkpoints(db, thread_id) == 1

        await eventually(is_stored)


async def test_run_that_has_no_rows_for_a_while_writes_them_later(db, saver):
    thread_id = str(uuid4())
    seen = statements(db)
    async with saver.writer.buffering(thread_id, await start_attempt(db, thread_id)):
        # The batch that the run joined when it began.
        await saver.writer.batches.flush()
        assert "write_checkpoints" not in seen
        await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})

        async def is_stored() -> bool:
            return await count_checkpoints(db, thread_id) == 1

        await eventually(is_stored)


async def test_rows_of_a_new_thread_are_written_when_its_run_takes_longer(db, saver, monkeypatch):
    monkeypatch.setattr(writer, "NEW_THREAD_DELAY_S", 0)
    thread_id = str(uuid4())

    async def has(count: int) -> bool:
        return await count_checkpoints(db, thread_id) == count

    async with saver.writer.buffering(thread_id, (await start_attempt(db, thread_id))._replace(is_ephemeral=True)):
        for count in (1, 2):
            await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})
            await eventually(lambda count=count: has(count))


async def test_a_step_waits_until_its_rows_are_written_while_many_others_wait(db, monkeypatch):
    """What graphs write faster than the database stores it would fill the memory of the server."""
    monkeypatch.setattr(writer, "PENDING_LIMIT_BYTES", 0)
    saver = PostgresSaver(db, writer=CheckpointWriter(db, delay_s=3600))
    thread_id = str(uuid4())
    async with saver.writer.buffering(thread_id, await start_attempt(db, thread_id)):
        await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})
        assert await count_checkpoints(db, thread_id) == 1


@pytest.mark.parametrize("is_new", [False, True])
async def test_ended_run_leaves_no_buffer_and_its_rows_are_refused(db, saver, is_new):
    thread_id = str(uuid4())
    owner = (await start_attempt(db, thread_id))._replace(is_ephemeral=is_new)
    async with saver.writer.buffering(thread_id, owner):
        buffer = saver.writer.buffers.get(thread_id)
        await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})
        assert saver.writer.pending_bytes > 0

    assert saver.writer.buffers.get(thread_id) is None
    assert saver.writer.pending_bytes == 0
    with pytest.raises(LeaseLost):
        await buffer.put("", Rows())


async def test_rows_that_are_put_on_another_loop_while_others_are_written_are_all_stored(db):
    """As graphs put them: in their own thread, as fast as they come."""
    saver = PostgresSaver(db, writer=CheckpointWriter(db, delay_s=0))
    thread_id = str(uuid4())
    holder = await start_attempt(db, thread_id)

    async def put_many() -> None:
        for _ in range(300):
            await saver.aput(build_config(holder, thread_id), generate_checkpoint(), generate_metadata(), {})

    async with saver.writer.buffering(thread_id, holder):
        await asyncio.to_thread(lambda: asyncio.run(put_many()))

    assert await count_checkpoints(db, thread_id) == 300
    assert saver.writer.pending_bytes == 0


async def test_a_run_reads_back_what_it_just_wrote(db, saver):
    thread_id = str(uuid4())
    async with saver.writer.buffering(thread_id, await start_attempt(db, thread_id)):
        checkpoint = generate_checkpoint()
        written = await saver.aput(config(thread_id), checkpoint, generate_metadata(), {})
        found = await saver.aget_tuple(written)
        assert found is not None
        assert found.checkpoint["id"] == checkpoint["id"]


@pytest.mark.parametrize("is_new", [False, True])
async def test_run_lists_what_it_just_wrote(db, saver, is_new):
    thread_id = str(uuid4())
    async with saver.writer.buffering(thread_id, (await start_attempt(db, thread_id))._replace(is_ephemeral=is_new)):
        checkpoint = generate_checkpoint()
        await saver.aput(config(thread_id), checkpoint, generate_metadata(), {})
        assert [found.checkpoint["id"] async for found in saver.alist(config(thread_id))] == [checkpoint["id"]]


async def test_the_channels_names_may_hold_any_character(saver):
    names = ['quote " and \\ slash', "brace {a,b}", "comma, null", "NULL", ""]
    checkpoint = generate_checkpoint(
        channel_values={name: ["long"] for name in names}, channel_versions=dict.fromkeys(names, "1")
    )
    written = await saver.aput(generate_config(), checkpoint, generate_metadata(), dict.fromkeys(names, "1"))
    found = await saver.aget_tuple(written)
    assert found is not None

    assert found.checkpoint["channel_values"] == checkpoint["channel_values"]


async def test_nothing_is_left_of_a_thread_that_is_deleted_while_its_run_writes(db, saver):
    """Wherever the deletion falls: before a write, or while one is under way."""

    async def write_until_refused(thread_id: str, begun: asyncio.Event) -> None:
        with pytest.raises(LeaseLost):
            async with saver.writer.buffering(thread_id, await start_attempt(db, thread_id)):
                while True:
                    await chain(saver).ainvoke(INPUT, config(thread_id), durability="sync")
                    begun.set()

    threads = [(str(uuid4()), asyncio.Event()) for _ in range(10)]
    writers = [asyncio.create_task(write_until_refused(*thread)) for thread in threads]

    for thread_id, begun in threads:
        await begun.wait()
        await records.delete_thread(db, UUID(thread_id))

    await asyncio.gather(*writers)

    for table in ("checkpoints", "checkpoint_values", "checkpoint_writes"):
        assert await db.pool.fetchval(f"select count(*) from {table}") == 0, table


async def test_events_are_written_before_the_checkpoint_after_them(db, saver):
    """Whoever goes on from the checkpoint does not tell it again."""
    thread_id = str(uuid4())
    holder = await start_attempt(db, thread_id)
    order: list[int] = []

    async def written() -> None:
        order.append(await count_checkpoints(db, thread_id))

    async with saver.writer.buffering(thread_id, holder._replace(flush_events=written)):
        for _ in range(3):
            await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})
            await saver.aget_tuple(config(thread_id))

    assert order[:3] == [0, 1, 2]


def build_config(holder: RunAttempt, thread_id: str) -> Any:
    return config(thread_id, run_id=str(holder.run_id)) | {"metadata": {"run_attempt": holder.attempt}}


async def test_writes_of_an_abandoned_node_are_refused(db, saver):
    """Its run has let go of the thread, and another run may have it."""
    thread_id = str(uuid4())
    left_behind = await start_attempt(db, thread_id)
    await db.pool.execute("update runs set status = 'interrupted'")

    late = build_config(left_behind, thread_id)
    with pytest.raises(LeaseLost):
        await saver.aput(late, generate_checkpoint(), generate_metadata(), {})

    next_one = await start_attempt(db, thread_id)
    async with saver.writer.buffering(thread_id, next_one):
        with pytest.raises(LeaseLost):
            await saver.aput(late, generate_checkpoint(), generate_metadata(), {})
        await saver.aput(build_config(next_one, thread_id), generate_checkpoint(), generate_metadata(), {})

    assert await count_checkpoints(db, thread_id) == 1


async def test_writes_of_an_earlier_attempt_are_refused_while_the_next_one_writes(db, saver):
    """Its node was left behind in this process, and the run was started again here."""
    thread_id = str(uuid4())
    first = await start_attempt(db, thread_id)
    second = first._replace(attempt=2)
    await db.pool.execute("update runs set attempt = 2")

    async with saver.writer.buffering(thread_id, second):
        with pytest.raises(LeaseLost):
            await saver.aput(build_config(first, thread_id), generate_checkpoint(), generate_metadata(), {})
        await saver.aput(build_config(second, thread_id), generate_checkpoint(), generate_metadata(), {})

    assert await count_checkpoints(db, thread_id) == 1


async def test_lost_run_that_stops_late_leaves_the_buffer_of_the_next_run(db, saver):
    thread_id = str(uuid4())
    lost = await start_attempt(db, thread_id)
    await db.pool.execute("update runs set status = 'interrupted'")
    next_one = await start_attempt(db, thread_id)
    stopping = saver.writer.buffering(thread_id, lost)

    await stopping.__aenter__()
    async with saver.writer.buffering(thread_id, next_one):
        await stopping.__aexit__(None, None, None)
        assert saver.writer.is_buffering(UUID(thread_id))

    assert not saver.writer.is_buffering(UUID(thread_id))


async def test_failed_read_reaches_the_executor(db, saver):
    thread_id = str(uuid4())
    holder = await start_attempt(db, thread_id)

    async def go_on() -> None:
        async with saver.writer.buffering(thread_id, holder):
            await db.pool.execute("alter view checkpoint_tuples rename to elsewhere")
            try:
                await saver.aget_tuple(config(thread_id))
            except asyncpg.UndefinedTableError:
                return

            pytest.fail("the read went well")

    with pytest.raises(asyncpg.UndefinedTableError):
        await go_on()


async def test_failed_write_of_an_ephemeral_thread_is_reported(db, saver):
    """The graph may have taken it for a mistake of its own."""
    thread_id = str(uuid4())
    holder = await start_attempt(db, thread_id)
    await db.pool.execute("update runs set attempt = 2")

    with pytest.raises(LeaseLost):
        async with saver.writer.buffering(thread_id, holder._replace(is_ephemeral=True)):
            await saver.aput(config(thread_id), generate_checkpoint(), generate_metadata(), {})
            with contextlib.suppress(LeaseLost):
                await saver.aget_tuple(config(thread_id))
