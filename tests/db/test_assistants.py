"""Assistants in the database: those of the graphs at each start, versions, what goes with them, and the indexes."""

import asyncio
from uuid import uuid4, uuid5

import pytest

from portside.agent.assistants.records import SYSTEM_NAMESPACE, AssistantNotFound, Assistants
from portside.agent.checkpoints.postgres_backend import PostgresBackend
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import load_config
from portside.agent.executors.start import start_graphs
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.store.items import Items
from portside.agent.store.search_index import StoreSetup
from portside.agent.types.assistants import AssistantCreate, AssistantPatch, AssistantSearch, VersionSearch
from portside.executor.load import Graphs
from portside.kernel.db import Database
from tests.db.graph_runs import Words, graph, sub1

ECHO = uuid5(SYSTEM_NAMESPACE, "echo")


def build_assistants(db: Database, **descriptions: str | None) -> Assistants:
    graphs = {graph_id: graph(Words, sub1) for graph_id in descriptions}
    return Assistants(db, Graphs(graphs, descriptions).facts())


async def test_every_graph_has_an_assistant_at_start(db):
    assistants = build_assistants(db, echo="Says it again", other=None)
    await asyncio.gather(*(assistants.create_system_assistants() for _ in range(4)))
    made = await assistants.get(ECHO)
    assert (made.name, made.description, made.version) == ("echo", "Says it again", 1)
    assert [version.version for version in await assistants.versions(ECHO, VersionSearch())] == [1]

    await assistants.patch(ECHO, AssistantPatch(name="mine", description="My own"))
    await assistants.create_system_assistants()
    kept = await assistants.get(ECHO)
    assert (kept.name, kept.description, kept.version) == ("mine", "My own", 2)
    assert kept == await assistants.resolve("echo")

    await assistants.delete(ECHO, delete_threads=False)
    with pytest.raises(AssistantNotFound, match="Thread or assistant not found"):
        await assistants.resolve("echo")

    await assistants.create_system_assistants()
    back = await assistants.get(ECHO)
    assert (back.name, back.version) == ("echo", 1)
    assert [version.name for version in await assistants.versions(ECHO, VersionSearch())] == ["echo"]


async def test_orchestrator_knows_the_languages_of_its_graphs_before_an_executor_connects(db, tmp_path):
    """Otherwise it would let a graph continue a thread that a graph of another language has begun."""
    (tmp_path / "langgraph.json").write_text('{"graphs": {"echo": "./echo.py:graph", "script": "./script.ts"}}')
    backend = PostgresBackend(db, writer=CheckpointWriter(db))
    settings = AgentSettings(tier="orchestrator")
    graphs = await start_graphs(load_config(tmp_path / "langgraph.json"), settings, backend, Items(db, StoreSetup()))

    await graphs.close()
    assert {name: facts.language for name, facts in graphs.facts.items()} == {"echo": "Python", "script": "JavaScript"}


async def test_later_description_of_a_graph_is_shown(db):
    await build_assistants(db, echo=None).create_system_assistants()
    assistants = build_assistants(db, echo="Now it has one")
    await assistants.create_system_assistants()
    assert (await assistants.get(ECHO)).description == "Now it has one"
    assert (await assistants.set_latest(ECHO, 1)).description == "Now it has one"


async def test_delete_assistant_deletes_its_threads_with_active_runs_only(db):
    assistants = build_assistants(db, echo=None)
    one, two = [(await assistants.create(AssistantCreate(graph_id="echo"))).assistant_id for _ in range(2)]
    async with db.pool.acquire() as connection:
        for assistant_id in (one, two):
            thread_id = uuid4()
            await connection.execute(
                "insert into threads (thread_id, metadata, active_runs) values ($1, $2, 1)",
                thread_id,
                {"assistant_id": str(assistant_id)},
            )

            await connection.execute(
                "insert into runs (run_id, thread_id, assistant_id, status, multitask_strategy)"
                " values ($1, $2, $3, 'running', 'enqueue')",
                uuid4(),
                thread_id,
                assistant_id,
            )

        await assistants.delete(one, delete_threads=True)
        left = await connection.fetch("select t.metadata from threads t join runs using (thread_id)")
        assert [row["metadata"]["assistant_id"] for row in left] == [str(two)]
        assert await connection.fetchval("select count(*) from assistant_versions") == 1


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ({"name": "%needle%"}, "assistants_by_name"),
        ({"metadata": {"n": 7}}, "assistants_by_metadata"),
        ({"graph_id": "rare"}, "assistants_of_graph"),
        ({}, "assistants_by_creation"),
    ],
)
async def test_searches_are_served_by_indexes(db, query, index):
    async with db.pool.acquire() as connection:
        await connection.execute(
            """
            insert into assistants (assistant_id, graph_id, name, metadata, created_at)
            select gen_random_uuid(), 'echo', md5(n::text), jsonb_build_object('n', n), now() - make_interval(secs => n)
            from generate_series(1, 5000) n
            """
        )

        await connection.execute("vacuum analyze assistants")
        values = {"metadata": None, "graph_id": None, "name": None, "access": None, **query}
        arguments = sql.search_assistants.arguments({**values, "order": "created_at desc", "limit": 10, "offset": 0})
        plan = await connection.fetch("explain " + sql.search_assistants.sql, *arguments)

    assert index in "\n".join(row[0] for row in plan)


async def test_ties_have_one_order_on_every_page(db):
    assistants = build_assistants(db, echo=None)
    async with db.pool.acquire() as connection:
        await connection.execute(
            "insert into assistants (assistant_id, graph_id, name) "
            "select gen_random_uuid(), 'echo', 'same' from generate_series(1, 30)"
        )

    for sort_by in ("name", "created_at"):
        seen = []

        for offset in range(0, 30, 7):
            page = await assistants.search(AssistantSearch(limit=7, offset=offset, sort_by=sort_by))
            assert page.total == 30
            seen += [each.assistant_id for each in page.items]

        assert len(set(seen)) == 30
