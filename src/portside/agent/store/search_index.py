"""The search index: the embedding of the configuration, the texts of items that it embeds, and the table of vectors.

The vectors that the embedding returns are checked, so that no malformed one is stored.

A configuration with another model, other dimensions or other fields starts a new generation. Vectors of an older one
are never compared again; `ReindexItems` replaces them.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import asyncpg
import msgspec

from portside.agent.config import AgentConfig, StoreIndex, StoreTtl
from portside.agent.encryption.codec import is_undecryptable
from portside.agent.sql import sql
from portside.executor.errors import EmbeddingFailed
from portside.kernel.codec import load
from portside.kernel.db import Database, Record, Transaction
from portside.kernel.errors import BadRequest, UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
MAX_TEXTS = 1000
# Less than `IDLE_IN_TRANSACTION_S` of `kernel.db`, after which Postgres ends a transaction.
KEEP_ALIVE_S = 15.0


class Embeds(Protocol):
    """The embedding of the project, which is called where the project's code runs (`executor/embeddings.py`)."""

    def use_running_loop(self) -> None:
        """Call asynchronous embeddings on the running loop from now on."""
        ...

    async def embed_documents(self, texts: list[str]) -> Any:
        """Return the vectors of texts. Raises EmbeddingFailed."""
        ...

    async def embed_query(self, text: str) -> Any:
        """Return the vector of a search query. Raises EmbeddingFailed."""
        ...


class Embedder:
    """Converts texts to vectors, in the text form of Postgres."""

    def __init__(self, source: str, embeddings: Embeds, dims: int) -> None:
        self._source = source
        self._embeddings = embeddings
        self._dims = dims

    def use_running_loop(self) -> None:
        """Call asynchronous embeddings on the running loop from now on."""
        self._embeddings.use_running_loop()

    async def embed(self, texts: Sequence[str]) -> list[str]:
        """Return the vector of each text; equal texts are embedded once. Raises EmbeddingFailed."""
        unique = list(dict.fromkeys(texts))
        if not unique:
            return []

        vectors = await self._embeddings.embed_documents(unique)
        if len(vectors) != len(unique):
            raise self._failure(f"it returned {len(vectors)} vectors for {len(unique)} texts")

        vectors_by_text = dict(zip(unique, map(self._to_text_form, vectors), strict=True))
        return [vectors_by_text[text] for text in texts]

    async def embed_query(self, text: str) -> str:
        """Return the vector of a search query. Raises EmbeddingFailed."""
        return self._to_text_form(await self._embeddings.embed_query(text))

    def _to_text_form(self, vector: Any) -> str:
        try:
            numbers = [float(number) for number in vector]
        except (TypeError, ValueError) as exc:
            raise self._failure(f"it returned something other than a list of numbers: {exc}") from exc

        if len(numbers) != self._dims:
            raise self._failure(f"it returned {len(numbers)} dimensions, but store.index.dims says {self._dims}")
        if not all(map(math.isfinite, numbers)):
            raise self._failure("it returned numbers that are not finite")

        return f"[{','.join(map(repr, numbers))}]"

    def _failure(self, why: str) -> EmbeddingFailed:
        return EmbeddingFailed.of(self._source, why)


class TooManyTexts(BadRequest, ValueError):
    """An item has more texts to embed than the limit; name fewer fields."""

    code = "too_many_texts"


class Vectors(msgspec.Struct):
    """The vectors of several items: for each vector the number of its item, and its position within the item."""

    owners: list[int] = []
    places: list[int] = []
    embeddings: list[str] = []


class SearchIndex:
    """Embeds items for one generation of the index."""

    def __init__(self, embedder: Embedder, generation: int, fields: Sequence[str]) -> None:
        self.embedder = embedder
        self.generation = generation
        self._fields = list(fields)

    async def embed_fields(self, items: Sequence[tuple[int, Any, list[str] | None]]) -> Vectors:
        """Embed items, each given by a number, its value and the fields to embed, None for those of the configuration.

        Raises EmbeddingFailed and TooManyTexts.
        """
        vectors = Vectors()
        texts: list[str] = []

        for owner, value, fields in items:
            item_texts = list_texts(value, self._fields if fields is None else fields)
            texts += item_texts
            vectors.owners += [owner] * len(item_texts)
            vectors.places += range(len(item_texts))

        vectors.embeddings = await self.embedder.embed(texts)
        return vectors


class StoreSetup(msgspec.Struct, frozen=True):
    """The configuration of this server's store."""

    ttl: StoreTtl | None = None
    index: SearchIndex | None = None

    @property
    def default_ttl(self) -> float | None:
        """The lifetime of items without one of their own, in minutes; None is unlimited."""
        return self.ttl.default_ttl if self.ttl else None

    @property
    def refresh_on_read(self) -> bool:
        """Whether reading an item renews its lifetime, unless the request says otherwise."""
        return self.ttl.refresh_on_read if self.ttl else True


def list_texts(value: Any, fields: Sequence[str]) -> list[str]:
    """Return the non-empty texts of a value that the fields name. Raises TooManyTexts."""
    # A server that embeds nothing has no need of langgraph.
    from langgraph.store.base import get_text_at_path

    texts = [text for field in fields for text in get_text_at_path(value, field) if text.strip()]
    if len(texts) > MAX_TEXTS:
        raise TooManyTexts(f"The index fields name {len(texts)} texts of one item; at most {MAX_TEXTS} can be embedded")

    return texts


async def open_setup(db: Database, config: AgentConfig, embeddings: Embeds | None = None) -> StoreSetup:
    """Prepare the store as configured; the embedding is loaded here if it is not given.

    Raises UserMistake that says what is missing.
    """
    index = config.store.index
    if index is None:
        return StoreSetup(config.store.ttl)

    if embeddings is None:
        from portside.executor.embeddings import load_embeddings

        embeddings = load_embeddings(config.project, index.embed)

    embedder = Embedder(index.embed, embeddings, index.dims)
    return StoreSetup(config.store.ttl, SearchIndex(embedder, await open_generation(db, index), index.fields))


async def open_generation(db: Database, index: StoreIndex) -> int:
    """Create the table of vectors if it is missing, and return the generation that this configuration writes.

    Raises UserMistake if Postgres lacks the extension.
    """
    try:
        async with db.transaction() as tx:
            await tx.execute(sql.lock_search_index)
            await _install_vector(tx)
            await tx.execute(sql.make_store_vectors)
            generation: int = await tx.fetchval(
                sql.open_generation, embed=index.embed, dims=index.dims, fields=index.fields
            )
    except (asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFileError, asyncpg.InsufficientPrivilegeError) as exc:
        raise UserMistake(
            "store.index needs the Postgres extension `vector` (pgvector 0.7 or newer): install it on the database "
            'server, and as a superuser run "create extension vector schema public" in the database of this agent; or '
            f"remove store.index. Postgres says: {exc}"
        ) from exc

    return generation


async def _install_vector(tx: Transaction) -> None:
    if await tx.fetchval(sql.find_vector_type):
        return

    await tx.execute(sql.install_vector)

    if not await tx.fetchval(sql.find_vector_type):
        raise UserMistake(
            "store.index needs the Postgres extension `vector` in the schema public, but it is installed in another "
            'one: run "alter extension vector set schema public" as a superuser'
        )


class ReindexItems(Task):
    """Embeds the items that have no vectors of this generation.

    Items that cannot be embedded are skipped until the next round, so that one bad item does not block the others.
    """

    every_s: ClassVar[float] = 60.0
    batch: ClassVar[int] = 64

    def __init__(self, db: Database, index: SearchIndex) -> None:
        super().__init__()
        self._db = db
        self._index = index
        self._after = (-1, -1)

    async def activate(self) -> Status:
        """Embed one batch. Raises EmbeddingFailed."""
        async with self._db.transaction() as tx:
            # The lock is held during the embedding: otherwise two processes would pay for it twice.
            if not await tx.fetchval(sql.claim_reindexing):
                return Status()

            rows = await tx.fetch(
                sql.list_items_to_index,
                generation=self._index.generation,
                after_generation=self._after[0],
                after_id=self._after[1],
                limit=self.batch,
            )

            self._after = (rows[-1]["indexed_by"], rows[-1]["id"]) if len(rows) == self.batch else (-1, -1)
            # An item that cannot be decrypted has nothing to embed.
            rows = [row for row in rows if not is_undecryptable(load(row["value"]))]
            if rows:
                await tx.execute(
                    sql.index_items, **await self._embed_within(tx, rows), generation=self._index.generation
                )

        if rows:
            log.info("store items were embedded again", items=len(rows), generation=self._index.generation)

        return Status(did={"indexed": len(rows)}, again=self._after != (-1, -1))

    async def _embed_within(self, tx: Transaction, rows: list[Record]) -> dict[str, list[Any]]:
        """Embed items, however long that takes, and keep the transaction from being ended as idle meanwhile."""
        embedding = asyncio.ensure_future(self._embed_rows(rows))
        try:
            while not (await asyncio.wait([embedding], timeout=KEEP_ALIVE_S))[0]:
                await tx.fetchval(sql.keep_transaction)
            return embedding.result()
        finally:
            embedding.cancel()

    async def _embed_rows(self, rows: list[Record]) -> dict[str, list[Any]]:
        vectors = await self._index.embed_fields([(row["id"], load(row["value"]), row["index_fields"]) for row in rows])
        return {
            "ids": [row["id"] for row in rows],
            "revisions": [row["revision"] for row in rows],
            "owners": vectors.owners,
            "places": vectors.places,
            "embeddings": vectors.embeddings,
        }
