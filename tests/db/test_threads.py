"""Threads on Postgres: lifetimes and their sweeper, pruning, copies, searches compared with a plain scan.

An expired thread that is deleted has no run; its lifetime counts from its last change.
"""

import asyncio
import contextlib
import itertools
import json
import operator
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from langgraph.graph import START, StateGraph
from msgspec import UNSET
from typing_extensions import TypedDict

from portside.agent.config import ThreadTtl
from portside.agent.local_graphs import PostgresSaver
from portside.agent.queue.types import Admission
from portside.agent.sql import sql
from portside.agent.threads import long_values, records
from portside.agent.threads.records import ExpiredThreads, ThreadNotFound, set_default_lifetime
from portside.agent.threads.searches import ThreadSearches
from portside.agent.types.access import Filter
from portside.agent.types.threads import ThreadCount, ThreadCreate, ThreadPatch, ThreadPrune, ThreadSearch, Ttl
from portside.kernel.db import Database, Session, lazy_transaction
from portside.kernel.errors import Invalid
from tests.db.queued import admit_run

TABLES = ("checkpoints", "checkpoint_values", "checkpoint_writes")
NO_FILTERS = dict.fromkeys(("ids", "metadata", "values", "status", "access"))


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def graph(db: Database) -> Any:
    builder = StateGraph(Log)
    builder.add_node("a", lambda _: {"log": ["a"]})
    builder.add_node("b", lambda _: {"log": ["b"]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")

    return builder.compile(checkpointer=PostgresSaver(db))


def at(thread_id: UUID) -> dict[str, Any]:
    return {"configurable": {"thread_id": str(thread_id)}}


async def create_thread(db: Database, *, ttl: Ttl | float | None = None, age_minutes: float = 0, runs: int = 0) -> UUID:
    """Make a thread with a history that changed last some time ago."""
    thread_id: UUID = (await records.create_thread(db, ThreadCreate(ttl=ttl))).thread_id  # type: ignore[assignment]
    await graph(db).ainvoke({"log": ["in"]}, at(thread_id))
    await db.pool.execute(
        "update threads set updated_at = now() - make_interval(secs => $2 * 60), active_runs = $3 where thread_id = $1",
        thread_id,
        age_minutes,
        runs,
    )

    return thread_id


async def count_rows(db: Database, thread_id: UUID) -> list[int]:
    """Count what a thread still has in each table of its memory."""
    return [
        await db.pool.fetchval(f"select count(*) from {table} where thread_id = $1", str(thread_id)) for table in TABLES
    ]


async def lives(db: Database, thread_id: UUID) -> bool:
    return await db.pool.fetchval("select exists (select from threads where thread_id = $1)", thread_id)


def sweeper(db: Database, **more: Any) -> ExpiredThreads:
    return ExpiredThreads(db, ThreadTtl(**more))


async def test_expired_threads_are_deleted_with_checkpoints(db):
    expired = await create_thread(db, ttl=5, age_minutes=6)
    young = await create_thread(db, ttl=5)
    plain = await create_thread(db, age_minutes=6)
    status = await sweeper(db).activate()
    assert (status.did, status.again) == ({"deleted": 1, "pruned": 0}, False)
    assert [await lives(db, one) for one in (expired, young, plain)] == [False, True, True]
    assert await count_rows(db, expired) == [0, 0, 0]

    assert (await sweeper(db).activate()).did == {"deleted": 0, "pruned": 0}


async def test_a_deleted_thread_leaves_no_piece_of_its_values(db):
    thread_id = await create_thread(db)
    insert = "insert into checkpoint_pieces (thread_id, series, number, leaves, data) values ($1, 1, 0, 1, '')"
    await db.pool.execute(insert, str(thread_id))
    await records.delete_thread(db, thread_id)
    count = "select count(*) from checkpoint_pieces where thread_id = $1"
    assert await db.pool.fetchval(count, str(thread_id)) == 0


async def test_keep_latest_prunes_once_until_the_thread_changes(db):
    thread_id = await create_thread(db, ttl=Ttl(5, "keep_latest"), age_minutes=6)
    assert (await sweeper(db).activate()).did == {"deleted": 0, "pruned": 1}
    assert (await count_rows(db, thread_id))[0] == 1
    assert (await sweeper(db).activate()).did == {"deleted": 0, "pruned": 0}
    assert (await graph(db).ainvoke({"log": ["more"]}, at(thread_id)))["log"] == ["in", "a", "b", "more", "a", "b"]
    await db.pool.execute("update threads set updated_at = now() - interval '7 minutes'")
    assert (await sweeper(db).activate()).did == {"deleted": 0, "pruned": 1}

    assert (await graph(db).aget_state(at(thread_id))).values["log"] == ["in", "a", "b", "more", "a", "b"]


@pytest.mark.parametrize("strategy", ["delete", "keep_latest"])
async def test_a_busy_thread_does_not_expire(db, strategy):
    thread_id = await create_thread(db, ttl=Ttl(5, strategy), age_minutes=6, runs=1)
    before = await count_rows(db, thread_id)
    assert (await sweeper(db).activate()).did == {"deleted": 0, "pruned": 0}
    assert await count_rows(db, thread_id) == before


async def test_sweep_is_bounded_and_runs_again(db):
    for _ in range(3):
        await create_thread(db, ttl=5, age_minutes=6)

    task = sweeper(db, sweep_limit=2)
    assert [((await task.activate()).did["deleted"]) for _ in range(3)] == [2, 1, 0]
    assert (await sweeper(db, sweep_limit=1).activate()).again is False


async def test_concurrent_sweeps_skip_locked_threads(db):
    threads = [await create_thread(db, ttl=Ttl(5, "keep_latest"), age_minutes=6) for _ in range(4)]
    statuses = await asyncio.gather(*(sweeper(db, sweep_limit=2).activate() for _ in range(4)))
    assert sum(status.did["pruned"] for status in statuses) == 4
    assert [(await count_rows(db, one))[0] for one in threads] == [1] * 4


async def test_default_lifetime_applies_at_creation(db):
    before = await create_thread(db)
    await set_default_lifetime(db, ThreadTtl(default_ttl=15, strategy="keep_latest"))
    await set_default_lifetime(db, ThreadTtl(default_ttl=15, strategy="keep_latest"))
    after = await create_thread(db)
    own = await create_thread(db, ttl=3)

    # However a thread is made, as an admission makes it here.
    bare = uuid4()
    await db.pool.execute("insert into threads (thread_id) values ($1)", bare)
    await set_default_lifetime(db, ThreadTtl())
    shown = [(await records.get_thread(db, one, with_ttl=True)).ttl for one in (before, after, own, bare)]

    assert [one and (one.ttl_minutes, one.strategy) for one in shown] == [
        UNSET,
        (15, "keep_latest"),
        (3, "delete"),
        (15, "keep_latest"),
    ]


async def test_huge_default_lifetime_is_capped(db):
    await set_default_lifetime(db, ThreadTtl(default_ttl=1e300))
    ttl = (await records.get_thread(db, await create_thread(db), with_ttl=True)).ttl
    assert ttl.expires_at > "2900"


async def test_a_patch_may_change_the_lifetime_alone(db):
    thread_id = await create_thread(db, ttl=Ttl(5, "keep_latest"), age_minutes=6)
    await records.patch_thread(db, thread_id, ThreadPatch(metadata={"a": 1}))
    await records.patch_thread(db, thread_id, ThreadPatch(ttl=9))
    thread = await records.get_thread(db, thread_id, with_ttl=True)
    assert (thread.ttl.ttl_minutes, thread.ttl.strategy, bytes(thread.metadata)) == (9, "delete", b'{"a": 1}')


async def test_the_lifetime_of_a_thread_with_times_of_another_server_counts_from_its_import(db):
    old = datetime(2020, 1, 2, tzinfo=UTC)
    times = {"created_at": old, "updated_at": old}
    mortal, immortal = [await records.create_thread(db, ThreadCreate(ttl=ttl, **times)) for ttl in (5, None)]
    assert (await sweeper(db).activate()).did == {"deleted": 0, "pruned": 0}
    assert [thread.created_at == thread.updated_at for thread in (mortal, immortal)] == [False, True]


async def test_copy_is_a_consistent_snapshot(db):
    source = await create_thread(db, ttl=7)
    copy = await records.copy_thread(db, source)
    assert await count_rows(db, copy.thread_id) == await count_rows(db, source)
    assert (await graph(db).aget_state(at(copy.thread_id))).values == {"log": ["in", "a", "b"]}
    assert (await records.get_thread(db, copy.thread_id, with_ttl=True)).ttl.ttl_minutes == 7
    count = await db.pool.fetchval("select count(*) from threads")

    with pytest.raises(ThreadNotFound):
        await records.copy_thread(db, uuid4())

    assert await db.pool.fetchval("select count(*) from threads") == count


async def test_concurrent_prunes_in_opposite_orders_do_not_deadlock(db):
    threads = [await create_thread(db) for _ in range(4)]
    requests = [ThreadPrune(threads, "keep_latest"), ThreadPrune(threads[::-1], "keep_latest")] * 2
    for pruned in await asyncio.gather(*(records.prune_threads(db, request) for request in requests)):
        assert sorted(pruned) == sorted(threads)

    deleted = await asyncio.gather(*(records.prune_threads(db, ThreadPrune(one)) for one in (threads, threads[::-1])))
    assert sorted(itertools.chain(*deleted)) == sorted(threads)


async def test_state_change_is_atomic(db):
    thread_id = await create_thread(db)
    before = await count_rows(db, thread_id)

    opened = graph(db)
    with pytest.raises(ZeroDivisionError):
        async with lazy_transaction(db, ignore) as tx:
            inside = opened.copy({"checkpointer": PostgresSaver(tx)})
            await inside.aupdate_state(at(thread_id), {"log": ["lost"]}, as_node="b")
            assert (await inside.aget_state(at(thread_id))).values["log"][-1] == "lost"
            raise ZeroDivisionError

    assert await count_rows(db, thread_id) == before
    async with lazy_transaction(db, ignore) as tx:
        saver = PostgresSaver(tx)
        states = [saver.aget_tuple(at(thread_id)) for _ in range(5)]
        assert len({one.checkpoint["id"] for one in await asyncio.gather(*states)}) == 1

        with pytest.raises(TypeError):
            await saver.acopy_thread(str(thread_id), str(uuid4()))


async def ignore(_: Session) -> None: ...


async def test_a_state_change_begins_with_the_first_statement(db):
    """Until then it holds no connection; what its beginning raises is raised, whatever the graph makes of it."""
    thread_id = await create_thread(db)
    begun = []

    async def refuse(tx: Session) -> None:
        begun.append(await tx.fetchval(sql.lock_thread, thread_id=thread_id))
        raise ThreadNotFound

    async with lazy_transaction(db, refuse):
        pass

    assert begun == []
    with pytest.raises(ThreadNotFound):
        async with lazy_transaction(db, refuse) as tx:
            with pytest.raises(ThreadNotFound):
                await PostgresSaver(tx).aget_tuple(at(thread_id))
            raise ValueError

    with pytest.raises(ThreadNotFound):
        async with lazy_transaction(db, refuse) as tx:
            with contextlib.suppress(ThreadNotFound):
                await PostgresSaver(tx).aget_tuple(at(thread_id))

    assert begun == [0, 0]
    with pytest.raises(RuntimeError, match="the transaction is over"):
        await tx.fetchval(sql.lock_thread, thread_id=thread_id)


async def list_thread_ids(db: Database, where: str, order: str) -> list[UUID]:
    rows = await db.pool.fetch(f"select thread_id from threads where {where} order by {order}")
    return [row["thread_id"] for row in rows]


FILTERS = {
    "true": {},
    "metadata @> '{\"n\": 1}'": {"metadata": {"n": 1}},
    '"values" @> \'{"l": [{"n": 2}]}\'': {"values": {"l": [{"n": 2}]}},
    "status = 'idle'": {"status": "idle"},
    'metadata @> \'{"graph_id": "g1"}\'': {"metadata": {"graph_id": "g1"}},
    'metadata @> \'{"graph_id": "g1", "assistant_id": "a0", "n": 1}\'': {
        "metadata": {"graph_id": "g1", "assistant_id": "a0", "n": 1}
    },
    "metadata @> '{\"assistant_id\": 1}'": {"metadata": {"assistant_id": 1}},
    "status = 'error' and metadata @> '{\"n\": 1}'": {"status": "error", "metadata": {"n": 1}},
    "false": {"ids": [UUID(int=1)]},
}


async def test_every_search_returns_the_rows_of_a_scan_in_a_stable_order(db):
    await db.pool.execute(
        """insert into threads (thread_id, metadata, status, "values", updated_at)
        select gen_random_uuid(), jsonb_build_object(
                   'n', n % 3, 'graph_id', 'g' || n % 2,
                   'assistant_id', case n % 3 when 0 then to_jsonb('a' || n % 2) when 1 then '"a0"' else '1' end
               ), (array['idle', 'error'])[1 + n % 2],
               jsonb_build_object('l', jsonb_build_array(jsonb_build_object('n', n % 4))),
               now() - make_interval(secs => n / 5)
        from generate_series(1, 60) n"""
    )

    for (where, wanted), by in itertools.product(FILTERS.items(), ("updated_at", "created_at", "thread_id", "status")):
        for order in ("asc", "desc"):
            found: list[Any] = []

            for offset in (0, 20, 40, 60):
                query = ThreadSearch(**wanted, sort_by=by, sort_order=order, limit=20, offset=offset, select=[by])
                query.select = ["thread_id"]
                page = await records.search_threads(db, query)
                found += [thread.thread_id for thread in page.items]
                assert page.total == await db.pool.fetchval(f"select count(*) from threads where {where}")

            assert sorted(found) == sorted(await list_thread_ids(db, where, "1")), (where, by, order)
            place = {one: n for n, one in enumerate(await list_thread_ids(db, "true", f"{by}, 1"))}
            keys = await db.pool.fetch(f"select thread_id, dense_rank() over (order by {by}) as rank from threads")
            ranks = {row["thread_id"]: row["rank"] for row in keys}
            shown = [ranks[one] for one in found]
            assert shown == sorted(shown, reverse=order == "desc"), (where, by, order, place)


MANY = {
    "metadata @> '{\"half\": 1}'": {"metadata": {"half": 1}},
    'metadata @> \'{"half": 1, "graph_id": "g1"}\' and status = \'error\'': {
        "metadata": {"half": 1, "graph_id": "g1"},
        "status": "error",
    },
    '"values" @> \'{"half": 1}\' and metadata @> \'{"rare": 1}\'': {"values": {"half": 1}, "metadata": {"rare": 1}},
    '"values" @> \'{"half": 1}\'': {"values": {"half": 1}},
}


async def test_a_search_that_finds_more_than_a_few_finds_all_of_them(db):
    await db.pool.execute(
        """insert into threads (thread_id, metadata, status, "values", updated_at)
        select gen_random_uuid(), jsonb_build_object('half', n % 2, 'rare', n % 400, 'graph_id', 'g' || n % 3),
               (array['idle', 'error'])[1 + n % 5 / 4], jsonb_build_object('half', n % 2),
               now() - make_interval(secs => n / 5)
        from generate_series(1, 1200) n"""
    )

    for (where, wanted), by in itertools.product(MANY.items(), ("updated_at", "status")):
        for order in ("asc", "desc"):
            opposite = {"asc": "desc", "desc": "asc"}[order]
            ties = f"updated_at {opposite}, thread_id {order}" if by == "status" else f"thread_id {opposite}"
            expected = await list_thread_ids(db, where, f"{by} {order}, {ties}")
            query = ThreadSearch(**wanted, sort_by=by, sort_order=order, limit=1000, select=["thread_id"])
            page = await records.search_threads(db, query)
            assert ([thread.thread_id for thread in page.items], page.total) == (expected, len(expected)), (where, by)

    hidden = ThreadSearch(metadata={"half": 1}, limit=1000)
    assert (await records.search_threads(db, hidden, {"equal": {"half": 0}, "rest": []})).total == 0
    assert (await records.search_threads(db, hidden, {"equal": {"half": 1}, "rest": []})).total == 600


ACCESS: tuple[Filter, ...] = (
    {"equal": {"owner": "ada"}, "rest": []},
    {"equal": {"owner": "ada", "n": 1}, "rest": []},
    {"equal": {"deep": {"a": 1}}, "rest": []},
    {"equal": {}, "rest": [{"op": "has", "key": "members", "values": ["bob"]}]},
    {"equal": {"owner": "ada"}, "rest": [{"op": "has", "key": "members", "values": ["bob"]}]},
    {"equal": {}, "rest": [{"op": "unknown"}]},
)


@pytest.mark.parametrize("count", [60, 1200], ids=["few", "many"])
async def test_every_search_and_count_keeps_to_the_filter_of_the_caller(db, count):
    await db.pool.execute(
        """insert into threads (thread_id, metadata, status, "values", updated_at)
        select gen_random_uuid(), jsonb_build_object(
                   'all', true, 'owner', (array['ada', 'bob'])[1 + n % 2], 'n', n % 3,
                   'deep', jsonb_build_object('a', n % 5, 'b', 1),
                   'members', case n % 7 when 0 then '["bob", "cleo"]' when 1 then '"bob"' else '["cleo"]' end::jsonb
               ), (array['idle', 'error'])[1 + n % 2], jsonb_build_object('all', true, 'v', n % 2), now()
        from generate_series(1, $1) n""",
        count,
    )
    some = await list_thread_ids(db, "true", "1 limit 30")
    wanted: dict[str, Any] = {
        "true": {},
        "metadata @> '{\"all\": true}'": {"metadata": {"all": True}},
        "metadata @> '{\"n\": 2}' and status = 'idle'": {"metadata": {"n": 2}, "status": "idle"},
        '"values" @> \'{"v": 1}\'': {"values": {"v": 1}},
    }

    for access in ACCESS:
        for where, query in [*wanted.items(), ("thread_id = any ($2)", {"ids": some})]:
            arguments = [access, some] if "ids" in query else [access]
            rows = await db.pool.fetch(
                f"select thread_id from threads where {where} and matches_access(metadata, $1)", *arguments
            )
            expected = {row["thread_id"] for row in rows}
            page = await records.search_threads(db, ThreadSearch(**query, limit=1000, select=["thread_id"]), access)
            assert ({thread.thread_id for thread in page.items}, page.total) == (expected, len(expected)), (
                where,
                access,
            )
            if "ids" not in query:
                assert await records.count_threads(db, ThreadCount(**query), access) == len(expected), (where, access)


async def test_count_of_common_metadata_reads_no_documents(db):
    await db.pool.execute(
        """insert into threads (thread_id, metadata, "values")
        select gen_random_uuid(), jsonb_build_object('all', true, 'n', n), jsonb_build_object('all', true, 'n', n)
        from generate_series(1, 3000) n"""
    )

    await db.pool.execute("analyze threads")
    query = "select calls from pg_stat_xact_user_functions where funcname = 'indexed_fields'"
    async with db.transaction() as tx:
        await tx.connection.execute("set local track_functions = 'all'")
        before = await tx.connection.fetchval(query) or 0
        for field in ("metadata", "values"):
            page = await records.search_threads(Session(tx.connection), ThreadSearch(**{field: {"all": True}}))
            assert (len(page.items), page.total) == (10, 3000)

        assert await tx.connection.fetchval(query) < before + 100


ODD = (
    "1",
    "1.0",
    '"1"',
    '"1.0"',
    "null",
    "true",
    "false",
    '""',
    '"a:\\"b"',
    f'"{"long" * 200}"',
    "1e500",
    "-0.0",
    "12e-1",
    "[]",
    "{}",
    "[1]",
    '{"a": 1}',
    '{"a": 1, "b": {"c": null}}',
    '[{"a": 1}, 2]',
)
INSERT = """insert into threads (thread_id, metadata, "values") values ($1, $2::text::jsonb, $3::text::jsonb)"""
FIND = "find_threads(null, $1::text::jsonb, $2::text::jsonb, null, 'updated_at desc', $3, 0)"


async def test_unusual_metadata_is_found_by_containment(db):
    for whole in ("null", "[1]", '"text"', *(f'{{"k": {value}, "other": 1}}' for value in ODD)):
        await db.pool.execute(INSERT, uuid4(), whole if whole.startswith("{") else "{}", whole)

    for value, field in itertools.product(ODD, ("metadata", "values")):
        for wanted in (f'{{"k": {value}}}', f'{{"k": {value}, "other": 1.0}}', f'{{"k:": {value}}}'):
            scan = f"""select thread_id from threads where "{field}" @> $1::text::jsonb order by updated_at desc, 1"""
            expected = [row["thread_id"] for row in await db.pool.fetch(scan, wanted)]
            asked = (wanted, None) if field == "metadata" else (None, wanted)
            found = await db.pool.fetchval(f"select thread_ids from {FIND}", *asked, 99)
            assert found == expected, (field, wanted)
            assert await db.pool.fetchval(f"select total from {FIND}", *asked, 0) == len(expected), (field, wanted)


async def blocks_read(db: Database, fields: list[str]) -> int:
    """Count the blocks that one page takes."""
    values = {
        "ids": None,
        "metadata": None,
        "values": None,
        "status": None,
        "sort": "updated_at desc",
        "limit": 10,
        "offset": 0,
        "fields": fields,
        "extract": None,
        "access": None,
        "matched_ids": None,
    }

    query = sql.search_threads
    plan = await db.pool.fetchval(f"explain (analyze, buffers, format json) {query.sql}", *query.arguments(values))
    node = json.loads(plan)[0]["Plan"]

    return node["Shared Hit Blocks"] + node["Shared Read Blocks"]


async def test_a_page_without_values_does_not_read_them(db):
    await db.pool.execute(
        """insert into threads (thread_id, "values")
        select gen_random_uuid(), jsonb_build_object('text', string_agg(md5(n::text), ''))
        from generate_series(1, 20000) n"""
    )

    without = [await blocks_read(db, ["thread_id", "metadata"]) for _ in range(2)][1]
    assert await blocks_read(db, ["values"]) > without + 50


async def long_thread(db: Database, **metadata: Any) -> UUID:
    """Make a thread whose row names a long list."""
    thread_id: UUID = (await records.create_thread(db, ThreadCreate(metadata=metadata))).thread_id  # type: ignore[assignment]
    row = """{"n": 1}""", """{"messages": "1"}"""
    await db.pool.execute(
        'update threads set "values" = $2, long_values = $3 where thread_id = $1', thread_id, *map(json.loads, row)
    )

    return thread_id


async def test_search_by_a_long_list_reads_only_threads_that_may_match(db, monkeypatch):
    """Any client may ask for it, so it does not read what the caller may not see, and not without a limit."""
    read: list[UUID] = []

    async def listed(_: Session, thread_id: UUID, versions: Any) -> list[str]:
        read.append(thread_id)
        return ['"messages": ["hi"]' for _ in versions]

    monkeypatch.setattr(long_values, "_read_entries", listed)
    monkeypatch.setattr(long_values, "MAX_SCANNED", 2)
    # A look that a slow machine takes long for is no refusal.
    monkeypatch.setattr(long_values, "SCAN_S", 600.0)
    mine = [await long_thread(db, owner="me", k=k) for k in range(2)]

    for _ in range(3):
        await long_thread(db, owner="other")

    visible: Filter = {"equal": {"owner": "me"}, "rest": []}
    wanted = {"messages": ["hi"]}

    async def found(values: Any, access: Filter | None = visible, **more: Any) -> set[UUID]:
        read.clear()
        matching = await long_values.find_matching_threads(
            db, {**NO_FILTERS, "values": values, "access": access, **more}
        )
        assert set(read) == set(matching or ())
        return set(read)

    assert await found(wanted) == set(mine)
    assert await found(wanted | {"n": 1}) == set(mine)
    assert await found(wanted | {"n": 2}) == set()
    assert await found(wanted, None, ids=mine[:1]) == {mine[0]}
    assert await found(wanted, None, metadata={"k": 1}) == {mine[1]}
    assert await found(wanted, status="busy") == set()

    for search in (
        records.search_threads(db, ThreadSearch(values=wanted)),
        records.count_threads(db, ThreadCount(values=wanted)),
    ):
        with pytest.raises(Invalid) as refused:
            await search

        [problem] = refused.value.problems
        assert problem.loc == ["body", "values", "messages"]
        assert "more than 2 threads" in problem.msg

    monkeypatch.setattr(long_values, "SCAN_S", -1.0)
    with pytest.raises(Invalid, match="narrow the search by ids"):
        await found(wanted)


async def test_an_empty_search_has_a_total(db):
    page = await records.search_threads(db, ThreadSearch())
    assert (page.items, page.total) == ([], 0)


@pytest.mark.parametrize(
    "query",
    [
        ThreadSearch(),
        ThreadSearch(status="busy"),
        ThreadSearch(metadata={"a": 1}),
        ThreadSearch(values={"v": 1}),
        ThreadSearch(ids=[UUID(int=0)]),
    ],
    ids=["all", "by status", "by metadata", "by values", "by ids"],
)
async def test_the_thread_of_a_stateless_run_is_not_found(db, query):
    """It goes with its run; searches for what people keep neither show nor count it."""
    kept = await admit(db, temporary=False)
    gone = await admit(db, temporary=True)
    await db.pool.execute("""update threads set "values" = '{"v": 1}'""")
    if query.ids:
        query = ThreadSearch(ids=[kept, gone])

    page = await records.search_threads(db, query)
    assert ([thread.thread_id for thread in page.items], page.total) == ([kept], 1)


async def test_a_new_thread_is_busy_with_its_run(db):
    """It is written once, and looks as one that was there before its run."""
    before = (await records.create_thread(db, ThreadCreate())).thread_id
    shown = [await read_thread(db, await admit(db, temporary=False, thread_id=one)) for one in (before, None)]
    assert shown[0] == shown[1]
    assert shown[0]["status"] == "busy"


async def admit(db: Database, *, temporary: bool, thread_id: Any = None) -> UUID:
    admission = Admission(
        run_id=uuid4(),
        thread_id=thread_id or uuid4(),
        assistant_id=uuid4(),
        metadata={},
        kwargs={},
        strategy="enqueue",
        thread_metadata={"a": 1},
        thread_config={"tags": ["b"]},
        create_thread=thread_id is None,
        is_temporary=temporary,
        delay_s=0.0,
    )

    return (await admit_run(db, admission, uuid4(), starts=True)).thread_id


async def read_thread(db: Database, thread_id: UUID) -> dict[str, Any]:
    moments = {"created_at", "updated_at", "state_updated_at", "thread_id"}
    row = await db.pool.fetchrow("select * from threads where thread_id = $1", thread_id)
    return {name: value for name, value in row.items() if name not in moments}


async def test_identical_concurrent_searches_share_a_result(db):
    """Whoever asks after a change sees it, however many searches are under way."""
    searches = ThreadSearches(db)
    busy = ThreadSearch(status="busy")
    idle = ThreadSearch(status="idle")
    pages = await asyncio.gather(*(searches.search(query) for query in (busy, idle) * 10))
    assert {page.total for page in pages} == {0}
    assert len({id(page) for page in pages}) < len(pages)

    for total in range(1, 6):
        under_way = [asyncio.create_task(searches.search(idle)) for _ in range(3)]
        await asyncio.sleep(0)
        await records.create_thread(db, ThreadCreate())
        assert (await searches.search(idle)).total == total
        await asyncio.gather(*under_way)

    mine = searches.search(idle, Filter({"equal": {"owner": "me"}, "rest": []}))
    assert [page.total for page in await asyncio.gather(mine, searches.search(idle))] == [0, 5]
