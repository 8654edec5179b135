"""The search index: the embedding of the configuration, the texts of items that it embeds, and the table of vectors.

The embedding must neither block the API nor store nonsense. An asynchronous one runs on the loop of the graphs, because
it may hold clients that belong to one loop; a synchronous one runs in a thread. What it returns and raises is checked.

A configuration with another model, other dimensions or other fields starts a new generation. Vectors of an older one
are never compared again; `ReindexItems` replaces them.
"""

import asyncio
import importlib
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

import asyncpg
import msgspec
from langchain_core.embeddings import Embeddings
from langgraph.store.base import get_text_at_path
from langgraph.store.base.embed import EmbeddingsLambda, ensure_embeddings

from portside.agent.config import AgentConfig, StoreIndex, StoreTtl
from portside.agent.encryption.codec import is_undecryptable
from portside.agent.sql import sql
from portside.executor.imports import add_to_path, import_named, named_failure
from portside.kernel.codec import load
from portside.kernel.db import Database, Record, Transaction
from portside.kernel.errors import BadRequest, PortsideError, UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
MAX_TEXTS = 1000


EMBED_LABEL = "store.index.embed"


EMBEDDING_TIMEOUT_S = 60.0


# The packages of these providers would download a tokenizer, to measure texts before they send them.
UNMEASURED = ("openai", "azure_openai")


class EmbeddingFailed(PortsideError):
    """The store could not embed an item or a query; the message says why."""

    status = 502
    code = "embedding_failed"


class Embedder:
    """Converts texts to vectors, in the text form of Postgres."""

    def __init__(self, source: str, embeddings: Embeddings, dims: int) -> None:
        self._source = source
        self._embeddings = embeddings
        self._dims = dims
        self._is_async = _is_async(embeddings)
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_running_loop(self) -> None:
        """Call asynchronous embeddings on the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    async def embed(self, texts: Sequence[str]) -> list[str]:
        """Return the vector of each text; equal texts are embedded once. Raises EmbeddingFailed."""
        unique = list(dict.fromkeys(texts))
        if not unique:
            return []
        vectors = await self._call(lambda: self._embeddings.aembed_documents(unique))
        if len(vectors) != len(unique):
            raise self._failure(f"it returned {len(vectors)} vectors for {len(unique)} texts")
        written = dict(zip(unique, map(self._written, vectors), strict=True))
        return [written[text] for text in texts]

    async def embed_query(self, text: str) -> str:
        """Return the vector of a search query. Raises EmbeddingFailed."""
        return self._written(await self._call(lambda: self._embeddings.aembed_query(text)))

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(EMBEDDING_TIMEOUT_S):
                if not self._is_async or self._loop in (None, asyncio.get_running_loop()):
                    return _sized(await call())
                return _sized(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_await(call), self._loop)))
        except TimeoutError as exc:
            raise self._failure(str(exc) or f"it did not return within {EMBEDDING_TIMEOUT_S:.0f} s") from exc
        except Exception as exc:
            raise self._failure(f"{type(exc).__name__}: {exc}") from exc

    def _written(self, vector: Any) -> str:
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
        return EmbeddingFailed(f"the embedding {self._source} of the store failed: {why}")


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

    async def vectors_of(self, items: Sequence[tuple[int, Any, list[str] | None]]) -> Vectors:
        """Embed items, each given by a number, its value and the fields to embed, None for those of the configuration.

        Raises EmbeddingFailed and TooManyTexts.
        """
        found = Vectors()
        texts: list[str] = []
        for owner, value, fields in items:
            own = texts_of(value, self._fields if fields is None else fields)
            texts += own
            found.owners += [owner] * len(own)
            found.places += range(len(own))
        found.embeddings = await self.embedder.embed(texts)
        return found


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


def texts_of(value: Any, fields: Sequence[str]) -> list[str]:
    """Return the non-empty texts of a value that the fields name. Raises TooManyTexts."""
    texts = [text for field in fields for text in get_text_at_path(value, field) if text.strip()]
    if len(texts) > MAX_TEXTS:
        raise TooManyTexts(f"The index fields name {len(texts)} texts of one item; at most {MAX_TEXTS} can be embedded")
    return texts


async def open_setup(db: Database, config: AgentConfig) -> StoreSetup:
    """Prepare the store as configured. Raises UserMistake that says what is missing."""
    index = config.store.index
    if index is None:
        return StoreSetup(config.store.ttl)
    embedder = load_embedder(config, index)
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


T = TypeVar("T")


def load_embedder(config: AgentConfig, index: StoreIndex) -> Embedder:
    """Load what `store.index.embed` names: a provider's model, or a function of the project. Raises UserMistake."""
    module = index.embed.rpartition(":")[0]
    if module.endswith(".py") or "/" in module or "." in module:
        exported = import_named(config.project, EMBED_LABEL, index.embed, add_to_path(config.project))
    else:
        exported = _load_provider(config, index.embed)
    if not isinstance(exported, Embeddings) and not callable(exported):
        raise UserMistake(
            f"{config.file}: {EMBED_LABEL} ({index.embed}) is of type {type(exported).__name__}; name a function that "
            "takes a list of texts and returns a list of vectors"
        )
    return Embedder(index.embed, ensure_embeddings(exported), index.dims)


def _load_provider(config: AgentConfig, source: str) -> Embeddings:
    if ":" not in source:
        raise UserMistake(
            f'{config.file}: {EMBED_LABEL} is "{source}"; it must be like "openai:text-embedding-3-small" '
            'or "./embed.py:embed"'
        )
    try:
        init_embeddings = importlib.import_module("langchain.embeddings").init_embeddings
    except ImportError as exc:
        raise UserMistake(
            f"{config.file}: {EMBED_LABEL} ({source}) needs the package langchain, which is not installed; add it "
            "and the provider's own package to the project's dependencies"
        ) from exc
    options = {"check_embedding_ctx_length": False} if source.partition(":")[0] in UNMEASURED else {}
    try:
        made: Embeddings = init_embeddings(source, **options)
    except Exception as exc:
        raise named_failure(config.project, EMBED_LABEL, source, exc) from exc
    return made


def _is_async(embeddings: Embeddings) -> bool:
    if isinstance(embeddings, EmbeddingsLambda):
        return hasattr(embeddings, "afunc")
    return type(embeddings).aembed_documents is not Embeddings.aembed_documents


async def _await(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _sized(vectors: Any) -> Any:
    """Raise TypeError for a value without a length: it is neither a vector nor a list of vectors."""
    len(vectors)
    return vectors


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
                await tx.execute(sql.index_items, **await self._indexed(rows), generation=self._index.generation)
        if rows:
            log.info("store items were embedded again", items=len(rows), generation=self._index.generation)
        return Status(did={"indexed": len(rows)}, again=self._after != (-1, -1))

    async def _indexed(self, rows: list[Record]) -> dict[str, list[Any]]:
        vectors = await self._index.vectors_of([(row["id"], load(row["value"]), row["index_fields"]) for row in rows])
        return {
            "ids": [row["id"] for row in rows],
            "revisions": [row["revision"] for row in rows],
            "owners": vectors.owners,
            "places": vectors.places,
            "embeddings": vectors.embeddings,
        }
