"""The store at 100,000 items: reads, searches, listings and writes, each as the server does it.

`python -m bench.store [POSTGRES_URL]`; without an address, the embedded Postgres of a temporary folder is used. Eight
tenths of the items are memories of 20,000 users, four each; the rest is one large namespace.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from langgraph.store.base import GetOp, PutOp, ensure_embeddings

from portside.agent.config import StoreIndex
from portside.agent.local_store import PostgresStore
from portside.agent.store.search_index import Embedder, SearchIndex, StoreSetup, open_generation
from portside.executor.embeddings import ProjectEmbeddings
from portside.kernel.db import Database
from portside.kernel.embedded import EmbeddedPostgres
from portside.kernel.migrations import migrate

ITEMS = 100_000
USERS = 20_000
FILL = """
insert into store_items (namespace, key, value, updated_at, indexed_by)
select
    case when i <= $1 * 0.8 then array['users', 'u' || i % $2, 'memories'] else array['docs'] end, 'k' || i,
    jsonb_build_object('text', repeat(md5(i::text), 6), 'kind', (array['a', 'b', 'c'])[1 + i % 3], 'n', i),
    now() - i * interval '1 s', 1
from generate_series(1, $1::int) i"""
# Two hundred vectors over and over: what is measured is comparing them, and making them takes longer.
FILL_VECTORS = """
with made as (
    select n, array_agg(random() - 0.5)::real[]::vector as embedding
    from generate_series(0, 199) n, generate_series(1, $1::int) group by n
)
insert into store_vectors select s.id, 0, 1, m.embedding from store_items s join made m on m.n = s.id % 200"""


async def measure(name: str, call: Callable[[], Awaitable[Any]], times: int = 15) -> None:
    for _ in range(6):
        await call()

    took = []
    for _ in range(times):
        begun = time.perf_counter()
        await call()
        took.append(time.perf_counter() - begun)

    print(f"{name:44} {sorted(took)[times // 2] * 1000:9.2f} ms")


async def measure_plain(store: PostgresStore) -> None:
    numbers = iter(range(10**9))
    await measure("get", lambda: store.aget(("users", "u77", "memories"), "k77"))
    await measure("get 100 in a batch", lambda: store.abatch([GetOp(("docs",), f"k{90_000 + n}") for n in range(100)]))
    await measure("search, a user's 4 items", lambda: store.asearch(("users", "u77")))
    await measure("search, 20,000 items under the prefix", lambda: store.asearch(("docs",)))
    await measure("search, 80,000 items under the prefix", lambda: store.asearch(("users",)))
    await measure("search, everything", lambda: store.asearch(()))

    await measure("filter n = 77 in 80,000", lambda: store.asearch(("users",), filter={"n": 77}))
    await measure("filter n > 79,990 in 80,000", lambda: store.asearch(("users",), filter={"n": {"$gt": 79_990}}))
    await measure("filter n is null in 80,000", lambda: store.asearch(("users",), filter={"n": None}))
    await measure("namespaces, first 100 of 20,001", store.alist_namespaces)
    await measure("namespaces, to depth 1", lambda: store.alist_namespaces(max_depth=1))
    await measure("namespaces, by suffix", lambda: store.alist_namespaces(suffix=("memories",)))
    await measure("put", lambda: store.aput(("new",), f"{next(numbers)}", {"text": "x" * 200}))

    await measure(
        "put 100 in a batch",
        lambda: store.abatch([PutOp(("new",), f"{next(numbers)}", {"text": "x" * 200}) for _ in range(100)]),
    )


async def measure_meaning(db: Database, dims: int) -> None:
    async def embed(texts: list[str]) -> list[list[float]]:
        return [[random.random() - 0.5 for _ in range(dims)] for _ in texts]

    await db.pool.execute("truncate store_vectors")
    await db.pool.execute(FILL_VECTORS, dims)
    await db.pool.execute("vacuum analyze store_vectors")
    setup = StoreSetup(
        index=SearchIndex(Embedder("bench", ProjectEmbeddings("bench", ensure_embeddings(embed)), dims), 1, ["text"])
    )
    store = PostgresStore(db, setup)

    size = await db.pool.fetchval("select pg_size_pretty(pg_total_relation_size('store_vectors'))")
    print(f"\n{dims} dimensions, {size}")
    await measure("by meaning, a user's 4 items", lambda: store.asearch(("users", "u77"), query="q"))
    await measure("by meaning, 20,000 items", lambda: store.asearch(("docs",), query="q"), 5)
    await measure("by meaning, 80,000 items", lambda: store.asearch(("users",), query="q"), 5)
    await measure("by meaning, 100,000 items", lambda: store.asearch((), query="q"), 5)
    await measure("put with a vector", lambda: store.aput(("new",), "k", {"text": "x" * 200}))


async def bench(url: str) -> None:
    db = await Database.connect(url, schema="portside")
    await migrate(db, ["portside.agent"], schema="portside")
    await open_generation(db, StoreIndex(embed="bench", dims=3))
    await db.pool.execute(FILL, ITEMS, USERS)
    await db.pool.execute("vacuum analyze store_items")
    await measure_plain(PostgresStore(db, StoreSetup()))

    for dims in (384, 1536):
        await measure_meaning(db, dims)

    await db.close()


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(bench(sys.argv[1]))
        return

    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder))
        try:
            url = server.acquire()
            asyncio.run(bench(url))
        finally:
            server.release()


if __name__ == "__main__":
    main()
