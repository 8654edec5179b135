"""The store that graphs are given: langgraph's interface over the items of this server.

Each call is a statement of its own on a connection of its own, so that a slow embedding of one run holds up no other,
and a mistake of one is not everybody's. `abatch` puts operations of a kind into one statement.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, GetOp, ListNamespacesOp, Op, PutOp, Result, SearchOp, TTLConfig

from portside.agent.store.items import Items
from portside.agent.store.search_index import StoreSetup
from portside.agent.store.values import item_of, search_item_of
from portside.kernel.db import Database

T = TypeVar("T")
_METHODS = {GetOp: "get", SearchOp: "search", PutOp: "put", ListNamespacesOp: "list_namespaces"}


class PostgresStore(BaseStore):
    """Keeps items in Postgres. Make it on the event loop that its database was connected on."""

    supports_ttl = True

    def __init__(self, db: Database, setup: StoreSetup) -> None:
        self._items = Items(db, setup)
        self._loop = asyncio.get_running_loop()
        self.ttl_config = _ttl_config(setup)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations; reads see what was there before the batch. Raises ValueError and EmbeddingFailed."""
        work = self._do(list(ops))
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do as `abatch`, from another thread. Raises InvalidStateError on the loop that would have to do it."""
        asked = list(ops)
        self._refuse_own_loop(asked)
        return asyncio.run_coroutine_threadsafe(self._do(asked), self._loop).result()

    async def _do(self, ops: Sequence[Op]) -> list[Result]:
        results: list[Result] = [None] * len(ops)
        for kind, answer in (
            (GetOp, self._get),
            (SearchOp, self._search),
            (ListNamespacesOp, self._items.list_namespaces),
            (PutOp, self._put),
        ):
            numbers = [number for number, op in enumerate(ops) if isinstance(op, kind)]
            if numbers:
                answers = await _answered(answer, [ops[number] for number in numbers])
                for number, result in zip(numbers, answers, strict=True):
                    results[number] = result
        return results

    async def _get(self, ops: Sequence[GetOp]) -> list[Any]:
        return [item_of(row) if row else None for row in await self._items.get(ops)]

    async def _search(self, ops: Sequence[SearchOp]) -> list[Any]:
        return [[search_item_of(row) for row in rows] for rows in await self._items.search(ops)]

    async def _put(self, ops: Sequence[PutOp]) -> list[Any]:
        await self._items.write(ops)
        return [None] * len(ops)

    def _refuse_own_loop(self, ops: Sequence[Op]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return
        if here is self._loop:
            method = _METHODS.get(type(ops[0]), "batch") if len(ops) == 1 else "batch"
            if isinstance(ops[0], PutOp) and len(ops) == 1 and ops[0].value is None:
                method = "delete"
            raise asyncio.InvalidStateError(
                "Synchronous calls to PostgresStore detected in the main event loop. This can lead to deadlocks or "
                "performance issues. Please use the asynchronous interface for main thread operations. "
                f"Specifically, replace `store.{method}(...)` with `await store.a{method}(...)`"
            )


async def _answered(answer: Callable[[Any], Coroutine[Any, Any, list[Any]]], ops: list[Op]) -> list[Any]:
    return await answer(ops)


def _ttl_config(setup: StoreSetup) -> TTLConfig | None:
    if setup.ttl is None:
        return None
    return TTLConfig(refresh_on_read=setup.ttl.refresh_on_read, default_ttl=setup.ttl.default_ttl, omit_expired=True)


def make_store(setup: StoreSetup) -> Callable[[Database], Coroutine[Any, Any, BaseStore]]:
    """Return what makes the graphs' store on the loop that the graphs run on."""

    async def make(db: Database) -> BaseStore:
        if setup.index is not None:
            setup.index.embedder.settle()
        return PostgresStore(db, setup)

    return make
