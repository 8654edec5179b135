"""The store that graphs of this process see.

Each call of it is a statement on a connection of its own: a slow embedding of one run delays no other, and an error
stays with its call.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from portside.agent.store import operations
from portside.agent.store.items import Items, get_ttl_config
from portside.agent.store.operations import run_batch
from portside.agent.store.search_index import StoreSetup
from portside.kernel.codec import load
from portside.kernel.db import Database, Record

_METHODS = {GetOp: "get", SearchOp: "search", PutOp: "put", ListNamespacesOp: "list_namespaces"}


class PostgresStore(BaseStore):
    """Keeps items in Postgres. Create it on the event loop of its database."""

    supports_ttl = True

    def __init__(self, db: Database, setup: StoreSetup) -> None:
        self._items = Items(db, setup)
        self._loop = asyncio.get_running_loop()
        self.ttl_config = cast("TTLConfig | None", get_ttl_config(setup))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run several operations; reads see the state before the batch. Raises ValueError and EmbeddingFailed."""
        work = self._do(list(ops))
        if asyncio.get_running_loop() is self._loop:
            return await work

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run `abatch` from another thread. Raises InvalidStateError on the loop that would have to run it."""
        operations = list(ops)
        self._refuse_own_loop(operations)
        return asyncio.run_coroutine_threadsafe(self._do(operations), self._loop).result()

    async def _do(self, ops: Sequence[Op]) -> list[Result]:
        try:
            return await run_batch(
                ops,
                (
                    (GetOp, self._get),
                    (SearchOp, self._search),
                    (ListNamespacesOp, self._items.list_namespaces),
                    (PutOp, self._put),
                ),
            )
        except operations.InvalidNamespaceError as exc:
            raise InvalidNamespaceError(str(exc)) from exc

    # langgraph's operations have the same fields as those of `store.operations`, so they are passed on unchanged.
    async def _get(self, ops: Any) -> list[Any]:
        return [to_item(row) if row else None for row in await self._items.get(ops)]

    async def _search(self, ops: Any) -> list[Any]:
        return [[to_search_item(row) for row in rows] for rows in await self._items.search(ops)]

    async def _put(self, ops: Any) -> list[Any]:
        await self._items.write(ops)
        return [None] * len(ops)

    def _refuse_own_loop(self, ops: Sequence[Op]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return

        if here is self._loop:
            method = "batch"
            if len(ops) == 1:
                is_deletion = isinstance(ops[0], PutOp) and ops[0].value is None
                method = "delete" if is_deletion else _METHODS.get(type(ops[0]), "batch")

            # langgraph's own stores raise the same error with the same words.
            raise asyncio.InvalidStateError(
                "Synchronous calls to PostgresStore detected in the main event loop. This can lead to deadlocks or "
                "performance issues. Please use the asynchronous interface for main thread operations. "
                f"Specifically, replace `store.{method}(...)` with `await store.a{method}(...)`"
            )


def build_store_factory(setup: StoreSetup) -> Callable[[Database], Coroutine[Any, Any, BaseStore]]:
    """Return a factory for the graphs' store, to be called on the loop of the graphs."""

    async def make(db: Database) -> BaseStore:
        if setup.index is not None:
            setup.index.embedder.use_running_loop()
        return PostgresStore(db, setup)

    return make


def to_item(row: Record) -> Item:
    """Return langgraph's item of a row."""
    return Item(**_item_fields(row))


def to_search_item(row: Record) -> SearchItem:
    """Return langgraph's search result of a row."""
    return SearchItem(**_item_fields(row), score=row["score"])


def _item_fields(row: Record) -> dict[str, Any]:
    return {
        "namespace": tuple(row["namespace"]),
        "key": row["key"],
        "value": load(row["value"]),
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }
