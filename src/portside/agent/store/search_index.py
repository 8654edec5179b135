"""The search index: which texts of an item are embedded, and the table that keeps their vectors.

A configuration with another model, other dimensions or other fields begins a new generation. Vectors of an older one
are never compared again; `chores.ReindexItems` replaces them.
"""

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec
from langgraph.store.base import get_text_at_path

from portside.agent.config import AgentConfig, StoreIndex, StoreTtl
from portside.agent.sql import sql
from portside.agent.store.embeddings import Embedder, load_embedder
from portside.kernel.db import Database, Transaction
from portside.kernel.errors import BadRequest, UserMistake

MAX_TEXTS = 1000


class TooManyTexts(BadRequest, ValueError):
    """An item has more texts to embed than an item may have; name fewer fields."""

    code = "too_many_texts"


class Vectors(msgspec.Struct):
    """Vectors of several items: whose each is, and its place among that item's."""

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
    """How this server's store searches and forgets."""

    ttl: StoreTtl | None = None
    index: SearchIndex | None = None

    @property
    def default_ttl(self) -> float | None:
        """How long an item lives that nothing else is said of, in minutes; None is for ever."""
        return self.ttl.default_ttl if self.ttl else None

    @property
    def refresh_on_read(self) -> bool:
        """Whether reading an item prolongs its life unless the reader says otherwise."""
        return self.ttl.refresh_on_read if self.ttl else True


def texts_of(value: Any, fields: Sequence[str]) -> list[str]:
    """Return the texts of a value that the fields name; empty ones mean nothing. Raises TooManyTexts."""
    texts = [text for field in fields for text in get_text_at_path(value, field) if text.strip()]
    if len(texts) > MAX_TEXTS:
        raise TooManyTexts(f"The index fields name {len(texts)} texts of one item; at most {MAX_TEXTS} can be embedded")
    return texts


async def open_setup(db: Database, config: AgentConfig) -> StoreSetup:
    """Make the store ready as it is configured. Raises UserMistake that says what is missing."""
    index = config.store.index
    if index is None:
        return StoreSetup(config.store.ttl)
    embedder = load_embedder(config, index)
    return StoreSetup(config.store.ttl, SearchIndex(embedder, await open_generation(db, index), index.fields))


async def open_generation(db: Database, index: StoreIndex) -> int:
    """Make the table of vectors where it is missing, and return the generation that this configuration writes.

    Raises UserMistake when Postgres has no vectors.
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
