"""The items of the store: operations in batches, one statement for each kind of operation.

`json_values` says how a value is stored, and `filters` how a filter is evaluated.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from portside.agent.encryption.codec import refuse_encrypted_search
from portside.agent.sql import sql
from portside.agent.store.filters import compile_filter
from portside.agent.store.json_values import to_json_text, to_value_text
from portside.agent.store.names import NamespacePattern, build_pattern, check_key, check_namespace, joined, upper_bound
from portside.agent.store.operations import GetOp, ListNamespacesOp, PutOp, SearchOp, read_op, run_batch
from portside.agent.store.search_index import ReindexItems, SearchIndex, StoreSetup
from portside.agent.types.store import MAX_TTL_MINUTES
from portside.kernel.codec import load
from portside.kernel.db import Database, Record
from portside.kernel.reconcile import Status, Task

MAX_INT = 2_147_483_647
Columns = dict[str, list[Any]]


class Items:
    """Reads, finds and writes items. All methods raise ValueError for a bad operation."""

    def __init__(self, db: Database, setup: StoreSetup) -> None:
        self.setup = setup
        self.db = db

    async def get(self, ops: Sequence[GetOp]) -> list[Record | None]:
        """Return the item of each operation, or None."""
        for op in ops:
            check_namespace(op.namespace)
            check_key(op.key)

        rows = await self.db.fetch(
            sql.get_items,
            namespaces=[joined(op.namespace) for op in ops],
            keys=[op.key for op in ops],
            refreshes=[op.refresh_ttl for op in ops],
        )

        items: list[Record | None] = [None] * len(ops)
        for row in rows:
            items[row["place"] - 1] = row

        return items

    async def search(self, ops: Sequence[SearchOp]) -> list[list[Record]]:
        """Return what each operation finds. Raises EmbeddingFailed, and Invalid for a filter on encrypted keys."""
        for op in ops:
            await refuse_encrypted_search(self.db, op.filter)

        index = self.setup.index
        by_meaning = [number for number, op in enumerate(ops) if op.query and index]
        by_content = [number for number in range(len(ops)) if number not in by_meaning]
        results: list[list[Record]] = [[] for _ in ops]
        if by_content:
            rows = await self.db.fetch(
                sql.search_items, **_build_search_columns([ops[number] for number in by_content])
            )
            _distribute(results, by_content, rows)

        if by_meaning and index:
            columns = _build_search_columns([ops[number] for number in by_meaning])
            columns["embeddings"] = [await index.embedder.embed_query(ops[number].query or "") for number in by_meaning]
            rows = await self.db.fetch(sql.search_items_by_meaning, **columns, generation=index.generation)
            _distribute(results, by_meaning, rows)

        return results

    async def list_namespaces(self, ops: Sequence[ListNamespacesOp]) -> list[list[tuple[str, ...]]]:
        """Return the namespaces that match each operation, sorted."""
        patterns = [build_pattern(op.match_conditions) for op in ops]
        prefix_numbers = [number for number, pattern in enumerate(patterns) if pattern and pattern.is_prefix]
        pattern_numbers = [number for number, pattern in enumerate(patterns) if pattern and not pattern.is_prefix]

        results: list[list[tuple[str, ...]]] = [[] for _ in ops]
        if prefix_numbers:
            columns = _build_listing_columns(ops, patterns, prefix_numbers)
            _distribute_names(results, prefix_numbers, await self.db.fetch(sql.walk_namespaces, **columns))

        if pattern_numbers:
            columns = _build_listing_columns(ops, patterns, pattern_numbers) | _build_pattern_columns(
                patterns, pattern_numbers
            )
            _distribute_names(results, pattern_numbers, await self.db.fetch(sql.match_namespaces, **columns))

        return results

    async def write(self, ops: Sequence[PutOp]) -> None:
        """Store and delete items, all or none; of several writes of one item the last wins. Raises EmbeddingFailed."""
        latest = list({(op.namespace, op.key): op for op in ops}.values())
        columns = _build_write_columns(latest)
        index = self.setup.index
        if index is None or all(op.value is None for op in latest):
            await self.db.execute(sql.write_items, **columns)
        else:
            await self._write_indexed(index, latest, columns)

    async def _write_indexed(self, index: SearchIndex, ops: Sequence[PutOp], columns: Columns) -> None:
        items = [
            (number, load(content), None if op.index is None else op.index or [])
            for number, (op, content) in enumerate(zip(ops, columns["contents"], strict=True), 1)
            if content is not None
        ]

        vectors = await index.embed_fields(items)
        await self.db.execute(
            sql.write_indexed_items,
            **columns,
            owners=vectors.owners,
            places=vectors.places,
            embeddings=vectors.embeddings,
            generation=index.generation,
        )


def get_ttl_config(setup: StoreSetup) -> dict[str, Any] | None:
    """Return the lifetimes of items as langgraph's stores describe them."""
    if setup.ttl is None:
        return None

    lifetimes = {"refresh_on_read": setup.ttl.refresh_on_read, "default_ttl": setup.ttl.default_ttl}
    return {**lifetimes, "omit_expired": True}


class StoreBatches:
    """Runs batches of operations that executors send, and returns plain data.

    An item is a map with its value as JSON. Reads see the state before the batch.
    """

    def __init__(self, items: Items) -> None:
        self._items = items

    async def run(self, operations: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Any]:
        """Run operations, each a kind and its fields. Raises ValueError, Invalid and EmbeddingFailed."""
        return await run_batch(
            [read_op(kind, fields) for kind, fields in operations],
            (
                (GetOp, self._get),
                (SearchOp, self._search),
                (ListNamespacesOp, self._items.list_namespaces),
                (PutOp, self._put),
            ),
        )

    async def _get(self, ops: Sequence[GetOp]) -> list[Any]:
        return [_to_plain_item(row) if row else None for row in await self._items.get(ops)]

    async def _search(self, ops: Sequence[SearchOp]) -> list[Any]:
        results = await self._items.search(ops)
        return [[{**_to_plain_item(row), "score": row["score"]} for row in rows] for rows in results]

    async def _put(self, ops: Sequence[PutOp]) -> list[Any]:
        await self._items.write(ops)
        return [None] * len(ops)


def _to_plain_item(row: Record) -> dict[str, Any]:
    times = {name: row[name].isoformat() for name in ("created_at", "updated_at")}
    return {"namespace": tuple(row["namespace"]), "key": row["key"], **times, "value": row["value"].encode()}


def _build_write_columns(ops: Sequence[PutOp]) -> Columns:
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
        "contents": [None if op.value is None else to_value_text(op.value) for op in ops],
        "ttls": [op.ttl for op in ops],
        "fields": [None if op.index is None else to_json_text(op.index or [], "the index fields") for op in ops],
    }


def _build_search_columns(ops: Sequence[SearchOp]) -> Columns:
    for op in ops:
        check_namespace(op.namespace_prefix)

    filters = [compile_filter(op.filter) for op in ops]
    return {
        "prefixes": [joined(op.namespace_prefix) for op in ops],
        "upper_bounds": [upper_bound(op.namespace_prefix) for op in ops],
        "contains": [compiled.contains for compiled in filters],
        "paths": [compiled.path for compiled in filters],
        "operands": [compiled.operands for compiled in filters],
        "filters": [compiled.rest for compiled in filters],
        "limits": [_bound_count("limit", op.limit) for op in ops],
        "offsets": [_bound_count("offset", op.offset) for op in ops],
        "refreshes": [op.refresh_ttl for op in ops],
    }


def _build_listing_columns(
    ops: Sequence[ListNamespacesOp], patterns: Sequence[NamespacePattern | None], numbers: Sequence[int]
) -> Columns:
    prefixes = [pattern.prefix for number in numbers if (pattern := patterns[number])]
    listed = [ops[number] for number in numbers]
    return {
        "prefixes": [joined(prefix) for prefix in prefixes],
        "upper_bounds": [upper_bound(prefix) for prefix in prefixes],
        "depths": [MAX_INT if op.max_depth is None else _bound_count("max_depth", op.max_depth) for op in listed],
        "limits": [_bound_count("limit", op.limit) for op in listed],
        "offsets": [_bound_count("offset", op.offset) for op in listed],
    }


def _build_pattern_columns(patterns: Sequence[NamespacePattern | None], numbers: Sequence[int]) -> Columns:
    selected = [pattern for number in numbers if (pattern := patterns[number])]
    return {
        "fixed_places": [".".join(map(str, pattern.labels)) for pattern in selected],
        "fixed_labels": [joined(list(pattern.labels.values())) for pattern in selected],
        "least_depths": [pattern.least_depth for pattern in selected],
    }


def _bound_count(name: str, number: int) -> int:
    if number < 0:
        raise ValueError(f"{name} must not be negative, but it is {number}")
    return min(number, MAX_INT)


def _distribute(results: list[list[Record]], numbers: Sequence[int], rows: Sequence[Record]) -> None:
    for row in rows:
        results[numbers[row["place"] - 1]].append(row)


def _distribute_names(results: list[list[tuple[str, ...]]], numbers: Sequence[int], rows: Sequence[Record]) -> None:
    for row in rows:
        results[numbers[row["place"] - 1]].append(tuple(row["namespace"]))


class ExpiredItems(Task):
    """Deletes expired items; reads already ignore them."""

    every_s: ClassVar[float] = 300.0
    deletes = True
    batch: ClassVar[int] = 1000

    def __init__(self, db: Database, setup: StoreSetup) -> None:
        super().__init__(every_s=setup.ttl.sweep_interval_minutes * 60 if setup.ttl else None)
        self._db = db

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted = await self._db.execute(sql.delete_expired_items, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


def build_store_tasks(db: Database, setup: StoreSetup) -> list[Task]:
    """Return the background tasks of a store."""
    tasks: list[Task] = [ExpiredItems(db, setup)]
    if setup.index is not None:
        tasks.append(ReindexItems(db, setup.index))

    return tasks
