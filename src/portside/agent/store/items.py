"""The items of the store, asked for in batches: one statement for each kind of operation.

Knows langgraph's operations and the database's rows. It belongs to no event loop but its database's: the graphs have
one on theirs, the API has one on its own.
"""

from collections.abc import Sequence
from typing import Any

from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

from portside.agent.encryption.codec import refuse_sealed_search
from portside.agent.sql import sql
from portside.agent.store.filters import compile_filter
from portside.agent.store.names import Pattern, beyond, check_key, check_namespace, joined, pattern_of
from portside.agent.store.search_index import SearchIndex, StoreSetup
from portside.agent.store.values import json_text, value_text
from portside.agent.types.store import MAX_TTL_MINUTES
from portside.kernel.codec import load
from portside.kernel.db import Database, Record

MAX_INT = 2_147_483_647
Columns = dict[str, list[Any]]


class Items:
    """Reads, finds and writes items. All methods raise ValueError for an operation that makes no sense."""

    def __init__(self, db: Database, setup: StoreSetup) -> None:
        self.setup = setup
        self._db = db

    async def get(self, ops: Sequence[GetOp]) -> list[Record | None]:
        """Return the item of each operation, or None."""
        for op in ops:
            check_namespace(op.namespace)
            check_key(op.key)
        rows = await self._db.fetch(
            sql.get_items,
            namespaces=[joined(op.namespace) for op in ops],
            keys=[op.key for op in ops],
            refreshes=[op.refresh_ttl for op in ops],
        )
        found: list[Record | None] = [None] * len(ops)
        for row in rows:
            found[row["place"] - 1] = row
        return found

    async def search(self, ops: Sequence[SearchOp]) -> list[list[Record]]:
        """Return what each operation finds. Raises EmbeddingFailed, and Invalid for a filter on what is encrypted."""
        for op in ops:
            await refuse_sealed_search(self._db, op.filter)
        index = self.setup.index
        by_meaning = [number for number, op in enumerate(ops) if op.query and index]
        others = [number for number in range(len(ops)) if number not in by_meaning]
        found: list[list[Record]] = [[] for _ in ops]
        if others:
            rows = await self._db.fetch(sql.search_items, **_search_columns([ops[number] for number in others]))
            _sort_in(found, others, rows)
        if by_meaning and index:
            columns = _search_columns([ops[number] for number in by_meaning])
            columns["embeddings"] = [await index.embedder.embed_query(ops[number].query or "") for number in by_meaning]
            rows = await self._db.fetch(sql.search_items_by_meaning, **columns, generation=index.generation)
            _sort_in(found, by_meaning, rows)
        return found

    async def list_namespaces(self, ops: Sequence[ListNamespacesOp]) -> list[list[tuple[str, ...]]]:
        """Return the namespaces that each operation asks for, in order."""
        patterns = [pattern_of(op.match_conditions) for op in ops]
        walked = [number for number, pattern in enumerate(patterns) if pattern and pattern.is_prefix]
        matched = [number for number, pattern in enumerate(patterns) if pattern and not pattern.is_prefix]
        found: list[list[tuple[str, ...]]] = [[] for _ in ops]
        if walked:
            columns = _listing_columns(ops, patterns, walked)
            _sort_names_in(found, walked, await self._db.fetch(sql.walk_namespaces, **columns))
        if matched:
            columns = _listing_columns(ops, patterns, matched) | _pattern_columns(patterns, matched)
            _sort_names_in(found, matched, await self._db.fetch(sql.match_namespaces, **columns))
        return found

    async def write(self, ops: Sequence[PutOp]) -> None:
        """Store and delete items, all of them or none; of several writes of one item the last counts.

        Raises EmbeddingFailed.
        """
        latest = list({(op.namespace, op.key): op for op in ops}.values())
        columns = _write_columns(latest)
        index = self.setup.index
        if index is None or all(op.value is None for op in latest):
            await self._db.execute(sql.write_items, **columns)
        else:
            await self._write_indexed(index, latest, columns)

    async def _write_indexed(self, index: SearchIndex, ops: Sequence[PutOp], columns: Columns) -> None:
        given = [
            (number, load(content), None if op.index is None else op.index or [])
            for number, (op, content) in enumerate(zip(ops, columns["contents"], strict=True), 1)
            if content is not None
        ]
        vectors = await index.vectors_of(given)
        await self._db.execute(
            sql.write_indexed_items,
            **columns,
            owners=vectors.owners,
            places=vectors.places,
            embeddings=vectors.embeddings,
            generation=index.generation,
        )


def _write_columns(ops: Sequence[PutOp]) -> Columns:
    for op in ops:
        check_namespace(op.namespace)
        check_key(op.key)
        if not op.namespace:
            raise ValueError("Namespace cannot be empty.")
        if op.ttl is not None and not 0 < op.ttl <= MAX_TTL_MINUTES:
            raise ValueError(f"ttl must be more than 0 minutes and at most {MAX_TTL_MINUTES}, but it is {op.ttl}")
    return {
        "namespaces": [joined(op.namespace) for op in ops],
        "keys": [op.key for op in ops],
        "contents": [None if op.value is None else value_text(op.value) for op in ops],
        "ttls": [op.ttl for op in ops],
        "fields": [None if op.index is None else json_text(op.index or [], "the index fields") for op in ops],
    }


def _search_columns(ops: Sequence[SearchOp]) -> Columns:
    for op in ops:
        check_namespace(op.namespace_prefix)
    filters = [compile_filter(op.filter) for op in ops]
    return {
        "prefixes": [joined(op.namespace_prefix) for op in ops],
        "beyonds": [beyond(op.namespace_prefix) for op in ops],
        "contains": [wanted.contains for wanted in filters],
        "paths": [wanted.path for wanted in filters],
        "operands": [wanted.operands for wanted in filters],
        "filters": [wanted.rest for wanted in filters],
        "limits": [_count("limit", op.limit) for op in ops],
        "offsets": [_count("offset", op.offset) for op in ops],
        "refreshes": [op.refresh_ttl for op in ops],
    }


def _listing_columns(
    ops: Sequence[ListNamespacesOp], patterns: Sequence[Pattern | None], numbers: Sequence[int]
) -> Columns:
    prefixes = [pattern.prefix for number in numbers if (pattern := patterns[number])]
    chosen = [ops[number] for number in numbers]
    return {
        "prefixes": [joined(prefix) for prefix in prefixes],
        "beyonds": [beyond(prefix) for prefix in prefixes],
        "depths": [MAX_INT if op.max_depth is None else _count("max_depth", op.max_depth) for op in chosen],
        "limits": [_count("limit", op.limit) for op in chosen],
        "offsets": [_count("offset", op.offset) for op in chosen],
    }


def _pattern_columns(patterns: Sequence[Pattern | None], numbers: Sequence[int]) -> Columns:
    chosen = [pattern for number in numbers if (pattern := patterns[number])]
    return {
        "fixed_places": [".".join(map(str, pattern.labels)) for pattern in chosen],
        "fixed_labels": [joined(list(pattern.labels.values())) for pattern in chosen],
        "least_depths": [pattern.least_depth for pattern in chosen],
    }


def _count(name: str, number: int) -> int:
    if number < 0:
        raise ValueError(f"{name} must not be negative, but it is {number}")
    return min(number, MAX_INT)


def _sort_in(found: list[list[Record]], numbers: Sequence[int], rows: Sequence[Record]) -> None:
    for row in rows:
        found[numbers[row["place"] - 1]].append(row)


def _sort_names_in(found: list[list[tuple[str, ...]]], numbers: Sequence[int], rows: Sequence[Record]) -> None:
    for row in rows:
        found[numbers[row["place"] - 1]].append(tuple(row["namespace"]))
