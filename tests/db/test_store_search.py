"""Search by meaning on Postgres: vectors, generations of the index, and missing requirements at start.

Vectors of two generations are never compared.
"""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import PutOp, SearchOp, ensure_embeddings
from langgraph.store.memory import InMemoryStore

from portside.agent.config import AgentConfig, StoreConfig, StoreIndex
from portside.agent.local_store import PostgresStore
from portside.agent.store import search_index
from portside.agent.store.search_index import (
    Embedder,
    ReindexItems,
    SearchIndex,
    StoreSetup,
    TooManyTexts,
    open_generation,
    open_setup,
)
from portside.executor.embeddings import ProjectEmbeddings, load_embeddings
from portside.executor.errors import EmbeddingFailed
from portside.kernel.db import Database
from portside.kernel.errors import UserMistake
from portside.kernel.migrations import migrate
from tests.conftest import eventually

THINGS = ("cat", "dog", "tea")


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(text.count(thing)) for thing in THINGS] for text in texts]


async def aembed(texts: list[str]) -> list[list[float]]:
    return embed(texts)


class Model(Embeddings):
    """A model of langchain's that knows synchronous calls only."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return [0.0, 0.0, 1.0]


async def create_index(
    db: Database, function: Any = aembed, *, dims: int = 3, fields: list[str] | None = None
) -> StoreSetup:
    config = StoreIndex(embed=f"./embed.py:{getattr(function, '__name__', 'model')}", dims=dims, fields=fields or ["$"])
    embeddings = function if isinstance(function, Embeddings) else ensure_embeddings(function)
    generation = await open_generation(db, config)
    embedder = Embedder(config.embed, ProjectEmbeddings(config.embed, embeddings), dims)
    return StoreSetup(index=SearchIndex(embedder, generation, config.fields))


async def search(store: PostgresStore, query: str, **options: Any) -> list[tuple[str, float]]:
    hits = await store.asearch(("s",), query=query, **options)
    return [(hit.key, None if hit.score is None else round(hit.score, 2)) for hit in hits]


@pytest.mark.parametrize("function", [embed, aembed])
async def test_scores_equal_those_of_the_memory_store(db: Database, function: Any):
    fields = ["text", "tags[*]", "meta.note", "list[0].t"]
    store = PostgresStore(db, await create_index(db, function, fields=fields))
    memory = InMemoryStore(index={"dims": 3, "embed": function, "fields": fields})

    ops = [
        PutOp(("s",), "text", {"text": "cat cat dog"}),
        PutOp(("s",), "tags", {"tags": ["tea", "dog", "cat dog", ""]}),
        PutOp(("s", "deeper"), "note", {"meta": {"note": "cat"}, "other": "tea"}),
        PutOp(("s",), "first", {"list": [{"t": "dog tea"}, {"t": "cat"}]}),
        PutOp(("s",), "own", {"text": "tea", "mine": "cat dog tea"}, ["mine"]),
        PutOp(("t",), "elsewhere", {"text": "cat cat"}),
        PutOp(("r",), "elsewhere too", {"text": "cat cat cat"}),
    ]

    await store.abatch(ops)
    await memory.abatch(ops)

    for query in ("cat", "dog", "tea cat", "dog dog tea"):
        theirs = {hit.key: hit.score for hit in await memory.asearch(("s",), query=query)}
        ours = await store.asearch(("s",), query=query)
        assert {hit.key: hit.score for hit in ours} == pytest.approx(theirs, abs=1e-6)
        assert [hit.score for hit in ours] == sorted((hit.score for hit in ours), reverse=True)
        assert [hit.key for hit in await store.asearch(("s",), query=query, limit=2, offset=1)] == [
            h.key for h in ours[1:3]
        ]


async def test_only_indexed_items_are_found_by_meaning_and_a_rewrite_drops_old_vectors(db: Database):
    store = PostgresStore(db, await create_index(db, fields=["tags[*]"]))
    await store.aput(("s",), "a", {"tags": ["cat", "dog", "tea"]})
    await store.aput(("s",), "b", {"tags": ["cat"]}, index=False)
    await store.aput(("s",), "c", {"untagged": "cat"})
    await store.aput(("s",), "d", {"tags": ["", " "]})
    assert await search(store, "tea") == [("a", 1.0)]
    await store.aput(("s",), "a", {"tags": ["dog"]})
    assert await search(store, "tea") == [("a", 0.0)]
    assert await search(store, "a query whose vector has no direction") == [("a", 0.0)]

    assert await db.pool.fetchval("select count(*) from store_vectors") == 1
    await store.aput(("s",), "a", {"tags": ["dog"]}, index=[])
    assert await search(store, "dog") == []
    await store.aput(("s",), "a", {"tags": ["dog"]})
    await store.adelete(("s",), "a")
    assert await db.pool.fetchval("select count(*) from store_vectors") == 0
    assert await search(store, "") == [("d", None), ("c", None), ("b", None)]


async def test_search_by_meaning_finds_no_expired_item_and_renews_lifetimes_on_request(db: Database):
    store = PostgresStore(db, await create_index(db, fields=["text"]))
    for key in ("expired", "lives"):
        await store.aput(("s",), key, {"text": "cat"}, ttl=600)

    age = "update store_items set expires_at = now() + $1 * interval '1 min' where key = $2"
    await db.pool.execute(age, -1, "expired")
    await db.pool.execute(age, 9, "lives")
    left = "select round(extract(epoch from expires_at - now()) / 60)::int from store_items where key = 'lives'"

    assert await search(store, "cat", refresh_ttl=False) == [("lives", 1.0)]
    assert await db.pool.fetchval(left) == 9
    assert await search(store, "cat", refresh_ttl=True) == [("lives", 1.0)]
    assert await db.pool.fetchval(left) == 600


async def test_batches_mix_searches_and_equal_texts_are_embedded_once(db: Database):
    asked: list[str] = []

    async def counted(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return embed(texts)

    store = PostgresStore(db, await create_index(db, counted, fields=["text"]))
    await store.abatch([PutOp(("s", str(number)), "k", {"text": "cat", "n": number}) for number in range(5)])
    assert asked == ["cat"]
    results = await store.abatch(
        [SearchOp(("s",), query="dog"), SearchOp(("s", "3")), SearchOp(("s",), {"n": {"$lt": 2}}, query="cat")]
    )
    assert [len(result) for result in results] == [5, 1, 2]

    assert [hit.score for hit in results[2]] == [1.0, 1.0]
    assert results[1][0].score is None


async def test_concurrent_writers_leave_no_stale_vectors(db: Database):
    store = PostgresStore(db, await create_index(db, fields=["tags[*]"]))
    writes = [store.aput(("s",), "k", {"tags": [THINGS[number % 3]] * (number % 7 + 1)}) for number in range(30)]
    await asyncio.gather(*writes)

    tags = (await store.aget(("s",), "k")).value["tags"]
    for thing in THINGS:
        assert await search(store, thing) == [("k", 1.0 if thing in tags else 0.0)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RuntimeError("no credit"), "RuntimeError: no credit"),
        ([[1.0, 2.0]], "2 dimensions, but store.index.dims says 3"),
        ([], "0 vectors for 1 texts"),
        ([[1.0, 2.0, float("nan")]], "not finite"),
        ([["a", "b", "c"]], "other than a list of numbers"),
        (7, "TypeError"),
    ],
)
async def test_bad_embedding_is_an_error_and_stores_nothing(db: Database, answer: Any, said: str):
    async def broken(_: list[str]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    store = PostgresStore(db, await create_index(db, broken))
    with pytest.raises(EmbeddingFailed, match=r"the embedding \./embed\.py:broken of the store failed") as failed:
        await store.abatch([PutOp(("s",), "k", {"a": 1}), PutOp(("s",), "gone", None)])

    assert said in str(failed.value)
    assert await store.asearch(()) == []


async def test_an_item_has_a_bounded_number_of_texts(db: Database):
    store = PostgresStore(db, await create_index(db, fields=["tags[*]"]))
    with pytest.raises(TooManyTexts):
        await store.aput(("s",), "k", {"tags": ["cat"] * 1001})

    await store.aput(("s",), "k", {"tags": ["cat"] * 1000})


async def test_slow_embedding_does_not_block_other_calls(db: Database):
    go = asyncio.Event()

    async def slow(texts: list[str]) -> list[list[float]]:
        await go.wait()
        return embed(texts)

    store = PostgresStore(db, await create_index(db, slow, fields=["text"]))
    writing = asyncio.create_task(store.aput(("s",), "slow", {"text": "cat"}))
    await store.aput(("s",), "quick", {})
    assert (await store.aget(("s",), "quick")).key == "quick"
    assert not writing.done()
    go.set()
    await writing

    assert await search(store, "cat") == [("slow", 1.0)]


async def test_new_or_changed_index_embeds_existing_items(db: Database):
    plain = PostgresStore(db, StoreSetup())
    await plain.abatch([PutOp(("s",), str(number), {"text": "cat"}) for number in range(5)])
    await plain.aput(("s",), "never", {"text": "cat"}, index=False)
    await plain.aput(("s",), "expired", {"text": "cat"}, ttl=1)
    await db.pool.execute("update store_items set expires_at = now() where key = 'expired'")
    first = await create_index(db, embed, fields=["text"])
    old = PostgresStore(db, first)
    assert await search(old, "cat") == []
    chore = ReindexItems(db, first.index)
    chore.batch = 4

    assert [(status.did["indexed"], status.again) for status in [await chore.activate(), await chore.activate()]] == [
        (4, True),
        (2, False),
    ]

    assert len(await search(old, "cat")) == 5
    assert (await chore.activate()).did == {"indexed": 0}

    def other(texts: list[str]) -> list[list[float]]:
        return [[*vector, 1.0] for vector in embed(texts)]

    second = await create_index(db, other, dims=4, fields=["text"])
    assert second.index.generation == first.index.generation + 1
    assert (await create_index(db, other, dims=4, fields=["text"])).index.generation == second.index.generation
    new = PostgresStore(db, second)

    await new.aput(("s",), "new", {"text": "dog"})
    assert [key for key, _ in await search(new, "dog")] == ["new"]
    assert len(await search(old, "cat")) == 5
    await ReindexItems(db, second.index).activate()
    assert len(await search(new, "cat")) == 6
    await old.aput(("s",), "0", {"text": "tea"})
    assert len(await search(new, "cat")) == 5

    assert (await ReindexItems(db, second.index).activate()).did == {"indexed": 1}
    assert (await ReindexItems(db, first.index).activate()).did == {"indexed": 0}
    assert (await create_index(db, embed, fields=["text"])).index.generation == second.index.generation + 1


async def test_item_that_cannot_be_embedded_is_skipped_for_a_round(db: Database):
    plain = PostgresStore(db, StoreSetup())
    for number in range(4):
        await plain.aput(("s",), str(number), {"text": "poison" if number == 1 else "cat"})

    def picky(texts: list[str]) -> list[list[float]]:
        if any("poison" in text for text in texts):
            raise ValueError("I will not read this")
        return embed(texts)

    setup = await create_index(db, picky, fields=["text"])
    chore = ReindexItems(db, setup.index)
    chore.batch = 2

    with pytest.raises(EmbeddingFailed):
        await chore.activate()

    assert (await chore.activate()).did == {"indexed": 2}
    assert len(await search(PostgresStore(db, setup), "cat")) == 2


async def test_transaction_is_not_idle_during_a_long_embedding(db: Database, monkeypatch):
    """Postgres ends transactions that are idle for a minute."""
    monkeypatch.setattr(search_index, "KEEP_ALIVE_S", 0.01)
    await PostgresStore(db, StoreSetup()).aput(("s",), "k", {"text": "cat"})
    waiting = "select max(state_change) from pg_stat_activity where state = 'idle in transaction' and xact_start < $1"

    async def long(texts: list[str]) -> list[list[float]]:
        began = await db.pool.fetchval("select clock_timestamp()")

        async def was_active_since() -> bool:
            changed_at = await db.pool.fetchval(f"{waiting} and datname = current_database()", began)
            return changed_at is not None and changed_at > began

        await eventually(was_active_since)
        return embed(texts)

    setup = await create_index(db, long, fields=["text"])
    assert (await ReindexItems(db, setup.index).activate()).did == {"indexed": 1}


async def test_item_written_during_reindexing_keeps_its_new_value(db: Database):
    plain = PostgresStore(db, StoreSetup())
    await plain.aput(("s",), "k", {"text": "cat"})

    async def overtaken(texts: list[str]) -> list[list[float]]:
        await plain.aput(("s",), "k", {"text": "dog"})
        return embed(texts)

    setup = await create_index(db, overtaken, fields=["text"])
    await ReindexItems(db, setup.index).activate()
    assert await db.pool.fetchval("select count(*) from store_vectors") == 0
    assert (await plain.aget(("s",), "k")).value == {"text": "dog"}


async def test_concurrent_starts_agree_on_a_generation(db: Database):
    index = StoreIndex(embed="./embed.py:embed", dims=3)
    assert set(await asyncio.gather(*(open_generation(db, index) for _ in range(5)))) == {1}


async def test_each_part_of_the_configuration_has_a_generation(db: Database):
    """Vectors of another model, of other dimensions or of other fields cannot be compared."""
    index = StoreIndex(embed="./embed.py:embed", dims=3, fields=["text"])
    assert [await open_generation(db, index) for _ in range(2)] == [1, 1]

    for number, change in enumerate(({"embed": "./embed.py:other"}, {"dims": 4}, {"fields": ["title"]})):
        changed = msgspec.structs.replace(index, **change)
        assert await open_generation(db, changed) == 2 * number + 2
        assert await open_generation(db, index) == 2 * number + 3


async def test_a_langchain_model_may_embed(db: Database):
    store = PostgresStore(db, await create_index(db, Model(), fields=["text"]))
    await store.aput(("s",), "k", {"text": "cat tea"})
    assert await search(store, "its questions are of another kind") == [("k", 0.71)]


async def test_missing_pgvector_error_says_what_to_install(fresh_database):
    url = await fresh_database()
    admin = await asyncpg.connect(url)
    name = await admin.fetchval("select current_database()")
    await admin.execute(f"create role {name} login password 'x'; grant all on database {name} to {name}")

    query = url.partition("?")[2]
    db = await Database.connect(f"postgresql://{name}:x@/{name}?{query}", max_size=2, schema="portside")
    try:
        await migrate(db, ["portside.agent"], schema="portside")
        with pytest.raises(UserMistake, match=r"pgvector.*create extension vector"):
            await open_generation(db, StoreIndex(embed="./e.py:e", dims=3))

        await admin.execute("create schema hidden; create extension vector schema hidden")
        with pytest.raises(UserMistake, match=r"pgvector|alter extension vector set schema public"):
            await open_generation(db, StoreIndex(embed="./e.py:e", dims=3))

        await admin.execute("alter extension vector set schema public")
        assert await open_generation(db, StoreIndex(embed="./e.py:e", dims=3)) == 1
    finally:
        await db.close()
        await admin.execute(f"drop owned by {name} cascade; drop role {name}")
        await admin.close()


def config(folder: Path, embedding: str) -> AgentConfig:
    index = StoreIndex(embed=embedding, dims=3)
    return AgentConfig(
        file=folder / "langgraph.json", graphs={}, dependencies=[], env={}, store=StoreConfig(index=index)
    )


@pytest.mark.parametrize(
    ("embedding", "said"),
    [
        ("openai:text-embedding-3-small", "langchain, which is not installed"),
        ("nothing", "must be like"),
        ("./missing.py:embed", "does not exist"),
        ("./store_embed_example.py:absent", "has no 'absent'"),
        ("./store_embed_example.py:number", "is of type int"),
        ("./store_embed_broken.py:embed", "ZeroDivisionError"),
        ("no_such_module.inside:embed", "does not load"),
    ],
)
def test_unloadable_embedding_is_a_clear_error(tmp_path: Path, monkeypatch, embedding: str, said: str):
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "store_embed_example.py").write_text(
        "number = 7\ndef embed(texts): return [[1, 2, 3] for _ in texts]\n"
    )
    (tmp_path / "store_embed_broken.py").write_text("1 / 0\n")

    configured = config(tmp_path, embedding)
    with pytest.raises(UserMistake) as mistake:
        load_embeddings(configured.project, configured.store.index.embed)

    assert said in str(mistake.value)
    assert "store.index.embed" in str(mistake.value)


async def test_a_configured_index_is_opened(db: Database, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "store_embed_good.py").write_text("def embed(texts): return [[1, 2, 3] for _ in texts]\n")
    setup = await open_setup(db, config(tmp_path, "store_embed_good.py:embed"))
    store = PostgresStore(db, setup)

    await store.aput(("s",), "k", {"a": 1})
    assert await search(store, "anything") == [("k", 1.0)]
