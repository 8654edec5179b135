"""Access filters in the database.

A filter has the same meaning in the process and in SQL, and holds at admission too.
"""

import itertools
import json
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.access.authentication import AccessPolicy
from portside.agent.access.handler_values import matches_filter
from portside.agent.access.service import Access
from portside.agent.sql import sql
from portside.agent.threads import records
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.access import Caller, Filter
from portside.agent.types.crons import ThreadCronCreate
from portside.agent.types.runs import RunCreate
from portside.agent.types.threads import ThreadCount, ThreadCreate, ThreadSearch
from portside.executor.access_filters import MAX_CONDITIONS, BadFilter, read_filter
from portside.kernel.db import Database
from portside.kernel.errors import Forbidden

STORED: list[dict[str, Any]] = [
    {},
    {"owner": "ada"},
    {"owner": "bob"},
    {"owner": ["ada"]},
    {"owner": {"is": "ada"}},
    {"owner": None},
    {"owner": True},
    {"owner": 1},
    {"owner": 1.5},
    {"owner": "ada", "team": "x"},
    {"members": ["ada", "bob"]},
    {"members": []},
    {"members": "ada"},
    {"members": [["ada"]]},
    {"members": [{"is": "ada", "since": 1}]},
    {"owner": "ADA"},
    {"owner": "o' \" \\ ; drop table threads"},
    {"owner": "x" * 400},
    {"OWNER": "ada"},
    {"a.b": "ada"},
]
WANTED: list[dict[str, Any]] = [
    {},
    {"owner": "ada"},
    {"owner": {"$eq": "ada"}},
    {"owner": None},
    {"owner": True},
    {"owner": 1},
    {"owner": 1.0},
    {"owner": ["ada"]},
    {"owner": "ada", "team": "x"},
    {"members": {"$contains": "ada"}},
    {"owner": {"$contains": "ada"}},
    {"members": {"$contains": ["bob", "ada"]}},
    {"members": {"$contains": []}},
    {"members": {"$contains": ["ada", "eve"]}},
    {"members": {"$contains": [["ada"]]}},
    {"members": {"$contains": [{"is": "ada"}]}},
    {"$or": [{"owner": "ada"}, {"members": {"$contains": "ada"}}]},
    {"$and": [{"owner": "ada"}, {"owner": "bob"}]},
    {"$and": [{"$or": [{"owner": "ada"}, {"team": "x"}]}, {"team": "x"}]},
    {"$or": [{}, {"owner": "eve"}]},
    {"owner": "o' \" \\ ; drop table threads"},
    {"owner": "x" * 400},
    {"owner": "a%"},
    {"a.b": "ada"},
    {"owner": "*"},
]


async def test_access_filter_matches_alike_in_sql_and_python(db: Database) -> None:
    made = {(await records.create_thread(db, ThreadCreate(metadata=each))).thread_id: each for each in STORED}
    for wanted in WANTED:
        read = read_filter(wanted)
        fitting = {thread_id for thread_id, metadata in made.items() if matches_filter(metadata, read)}
        page = await records.search_threads(db, ThreadSearch(limit=1000), read)
        assert {thread.thread_id for thread in page.items} == fitting, wanted
        assert page.total == len(fitting), wanted
        # A full page, and no page: here the total is a count.
        assert (await records.search_threads(db, ThreadSearch(limit=1), read)).total == len(fitting), wanted
        assert await records.count_threads(db, ThreadCount(), read) == len(fitting), wanted

        for thread_id, metadata in made.items():
            one = await db.fetchval(sql.thread_matches, thread_id=thread_id, access=read)
            assert one is (thread_id in fitting), (wanted, metadata)


async def test_access_filter_holds_among_more_threads_than_are_read_at_once(db: Database) -> None:
    await db.pool.execute(
        "insert into threads (thread_id, metadata) select gen_random_uuid(), jsonb_build_object("
        " 'owner', owner, 'team', case number % 2 when 0 then 'x' else 'y' end, 'members', array['m' || number % 2])"
        " from unnest(array['ada', 'bob']) owner, generate_series(1, 600) number"
    )

    for wanted, total in (
        ({"owner": "ada"}, 600),
        ({"owner": "ada", "team": "x"}, 300),
        ({"owner": "ada", "long": "x" * 400}, 0),
        ({"$or": [{"owner": "ada"}]}, 600),
        ({"owner": "ada", "members": {"$contains": "m1"}}, 300),
    ):
        read = read_filter(wanted)
        page = await records.search_threads(db, ThreadSearch(limit=1000), read)
        owners = {json.loads(bytes(thread.metadata))["owner"] for thread in page.items}
        assert owners == ({"ada"} if total else set()), wanted
        assert len(page.items) == page.total == total, wanted
        assert await records.count_threads(db, ThreadCount(), read) == total, wanted


async def test_unknown_condition_matches_nothing(db: Database) -> None:
    thread = await records.create_thread(db, ThreadCreate(metadata={"owner": "ada"}))
    for rest in ([{"op": "not"}], [{}], [{"op": "any", "of": []}]):
        access = {"equal": {}, "rest": rest}
        assert await db.fetchval(sql.thread_matches, thread_id=thread.thread_id, access=access) is False


@pytest.mark.parametrize(
    "given",
    [
        {"$not": {}},
        {"$or": []},
        {"$or": {"a": 1}},
        {"$and": "x"},
        {"owner": {}},
        {"owner": {"$gt": 1}},
        {"owner": {"$eq": 1, "is": 2}},
        {1: "x"},
        {"$or": [{"a": 1}] * (MAX_CONDITIONS + 1)},
        {str(n): n for n in range(MAX_CONDITIONS + 1)},
        {"a": {"$contains": list(range(MAX_CONDITIONS + 1))}},
        {"$or": [1]},
        json.loads('{"$and":[' * 11 + "{}" + "]}" * 11),
    ],
)
def test_bad_filter_is_refused(given: dict[Any, Any]) -> None:
    with pytest.raises(BadFilter):
        read_filter(given)


def test_filters_have_a_depth_of_ten_at_most() -> None:
    deepest = json.loads('{"$and":[' * 9 + '{"owner": "ada"}' + "]}" * 9)
    assert matches_filter({"owner": "ada"}, read_filter(deepest))
    with pytest.raises(BadFilter, match="at most 10 objects deep"):
        read_filter({"$and": [deepest]})


def test_ids_in_filters_become_strings() -> None:
    owner = uuid4()
    assert matches_filter({"owner": str(owner)}, read_filter({"owner": owner}))


def test_the_order_of_conditions_makes_no_difference() -> None:
    parts = [{"owner": "ada"}, {"team": "x"}, {"members": {"$contains": "b"}}]
    metadata = {"owner": "ada", "team": "x", "members": ["b"]}
    for ordered in itertools.permutations(parts):
        assert matches_filter(metadata, read_filter({"$and": list(ordered)}))
        assert not matches_filter({**metadata, "members": []}, read_filter({"$and": list(ordered)}))


async def test_no_search_count_or_deletion_reaches_what_hangs_on_hidden_threads(db: Database) -> None:
    """Each statement has the filter by itself: runs, crons, and the threads that go with an assistant."""
    access = read_filter({"owner": "ada"})
    assistant_id = uuid4()
    cron_id = uuid4()
    await db.pool.execute(
        "insert into assistants (assistant_id, graph_id, name) values ($1, 'echo', 'shared')", assistant_id
    )

    threads = {}
    for owner in ("ada", "bob"):
        metadata = {"owner": owner, "assistant_id": str(assistant_id)}
        thread_id = (await records.create_thread(db, ThreadCreate(metadata=metadata))).thread_id
        threads[owner] = thread_id

        for status in ("pending", "error"):
            await db.pool.execute(
                "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy, kwargs)"
                " values ($1, $2, $3, $4, 'enqueue', $5)",
                uuid4(),
                thread_id,
                assistant_id,
                status,
                {"config": {"configurable": {"cron_id": str(cron_id)}}},
            )

        await db.pool.execute(
            "insert into crons (cron_id, assistant_id, thread_id, schedule, payload)"
            " values ($1, $2, $3, '@yearly', $4)",
            uuid4(),
            assistant_id,
            thread_id,
            {},
        )

    hidden = {"thread_id": threads["bob"]}
    shown: dict[str, Any] = {"thread_id": None}
    of_anybody = {"assistant_id": None, "access": access, "limit": 10, "offset": 0}
    statuses = ["pending", "error"]
    for query, values in (
        (sql.search_active_runs, {}),
        (sql.search_failed_runs, {}),
        (sql.search_runs_of_cron, {"cron_id": cron_id, **shown}),
        (sql.search_runs_of_cron, {"cron_id": cron_id, **hidden}),
        (sql.search_runs_of_thread, {"run_id": None, **hidden}),
    ):
        found = await db.fetch(query, statuses=statuses, **of_anybody, **values)
        assert {run["thread_id"] for run in found} <= {threads["ada"]}, query.name
        assert bool(found) is (values.get("thread_id") is None), query.name

    for row in await db.pool.fetch("select cron_id, thread_id from crons"):
        is_shown = await db.fetchval(sql.cron_matches, cron_id=row["cron_id"], access=None, thread_access=access)
        assert is_shown is (row["thread_id"] == threads["ada"])
        # A cron has metadata of its own, which these lack.
        assert not await db.fetchval(sql.cron_matches, cron_id=row["cron_id"], access=access, thread_access=None)

    crons = {"assistant_id": None, "is_enabled": None, "metadata": None, "access": None, "thread_access": access}
    order = {"sort_by": "cron_id", "is_descending": False, "limit": 10, "offset": 0}
    assert [cron["thread_id"] for cron in await db.fetch(sql.search_crons, **crons, **shown, **order)] == [
        threads["ada"]
    ]
    assert await db.fetchval(sql.count_crons, **crons, **shown) == 1
    assert await db.fetch(sql.search_crons, **crons, **hidden, **order) == []
    assert await db.fetchval(sql.count_crons, **crons, **hidden) == 0

    gone = await db.fetchval(sql.delete_assistant, assistant_id=assistant_id, delete_threads=True, access=access)
    assert gone == [threads["ada"]]
    assert [row["thread_id"] for row in await db.pool.fetch("select thread_id from threads")] == [threads["bob"]]


class Judge:
    """Handlers that change nothing, and return a filter."""

    def __init__(self, access: Filter | None) -> None:
        self._access = access
        self.events: list[str] = []

    async def decide(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        self.events.append(f"{resource}.{action}")
        return self._access


async def test_runs_and_crons_are_granted_with_the_filter_of_the_handlers(db: Database) -> None:
    """What admits a run checks the thread again: it may have changed hands, or a cron fires months later."""
    of_ada = read_filter({"owner": "ada"})
    ada = Caller("ada", user={"identity": "ada"})
    thread_id = (await records.create_thread(db, ThreadCreate(metadata={"owner": "ada"}))).thread_id
    hidden = (await records.create_thread(db, ThreadCreate(metadata={"owner": "bob"}))).thread_id

    assistants = SimpleNamespace(find_cached=find_assistant, is_system=lambda _: True)
    judge = Judge(of_ada)
    access = Access(db, assistants, AccessPolicy(handlers=judge))  # type: ignore[arg-type]
    body = RunCreate(assistant_id="echo", on_not_exist="create")
    grant = await access.authorize_run(ada, thread_id, body)
    assert (grant.caller, grant.thread, grant.new_thread, grant.creates) == (ada, of_ada, None, False)
    assert (await access.authorize_run(ada, hidden, body)).thread == of_ada

    # A thread that is missing has to be created as the caller may create one.
    with pytest.raises(Forbidden):
        await access.authorize_run(ada, uuid4(), body)
    assert judge.events[-2:] == ["threads.create_run", "threads.create"]

    cron = ThreadCronCreate(assistant_id="echo", schedule="@daily", metadata={"owner": "ada"})
    _, cron_grant = await access.authorize_cron_create(ada, thread_id, cron, {"assistant_id": "echo"})
    assert (cron_grant.caller, cron_grant.thread) == (ada, of_ada)
    with pytest.raises(ThreadNotFound):
        await access.authorize_cron_create(ada, hidden, cron, {"assistant_id": "echo"})
    with pytest.raises(Forbidden):
        ownerless = ThreadCronCreate(assistant_id="echo", schedule="@daily")
        await access.authorize_cron_create(ada, thread_id, ownerless, {"assistant_id": "echo"})


async def find_assistant(_name: str) -> Any:
    return SimpleNamespace(assistant_id=uuid4())
