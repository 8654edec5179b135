"""The store over HTTP."""

from typing import TypeVar

import msgspec
from starlette.responses import Response

from portside.agent.access.service import Access, caller_of
from portside.agent.store.embeddings import EmbeddingFailed
from portside.agent.store.filters import UnsupportedOperator
from portside.agent.store.requests import StoreRequests
from portside.agent.store.search_index import TooManyTexts
from portside.agent.types.store import (
    FoundItems,
    ItemDelete,
    ItemPut,
    ItemQuery,
    ItemSearch,
    Namespaces,
    NamespaceSearch,
    StoredItem,
)
from portside.kernel.codec import dump_api
from portside.kernel.errors import BadRequest
from portside.kernel.http.routes import Context, Routes

T = TypeVar("T", bound=msgspec.Struct)
routes = Routes("store")


def _named(*names: str, namespace: str = "namespace") -> dict[str, str]:
    return {"namespace": namespace, **{name: name for name in names}}


# What of a request a handler is told, and may change, by the names that handlers know.
PUT = _named("key", "value", "index", "ttl")
GET = _named("key", "refresh_ttl")
DELETE = _named("key")
SEARCH = _named("filter", "limit", "offset", "query", "refresh_ttl", namespace="namespace_prefix")
LIST = _named("suffix", "max_depth", "limit", "offset", namespace="prefix")


@routes.put("/store/items", raises=(BadRequest, TooManyTexts, EmbeddingFailed), status=204)
async def put_item(ctx: Context, body: ItemPut) -> None:
    """Store an item, or overwrite the one that is there."""
    await ctx.get(StoreRequests).put(await _scope(ctx, "put", body, PUT))


@routes.get("/store/items", raises=(BadRequest,), returns=StoredItem | None)
async def get_item(ctx: Context, query: ItemQuery) -> Response:
    """Return an item, or null where there is none."""
    query = await _scope(ctx, "get", query, GET)
    return Response(dump_api(await ctx.get(StoreRequests).get(query)), media_type="application/json")


@routes.delete("/store/items", status=204)
async def delete_item(ctx: Context, body: ItemDelete) -> None:
    """Delete an item, whether it is there or not."""
    await ctx.get(StoreRequests).delete(await _scope(ctx, "delete", body, DELETE))


@routes.post("/store/items/search", raises=(UnsupportedOperator, EmbeddingFailed))
async def search_items(ctx: Context, body: ItemSearch) -> FoundItems:
    """Find items under a namespace, by what they hold or by what they mean."""
    return await ctx.get(StoreRequests).search(await _scope(ctx, "search", body, SEARCH))


@routes.post("/store/namespaces")
async def list_namespaces(ctx: Context, body: NamespaceSearch) -> Namespaces:
    """List the namespaces that hold items."""
    return await ctx.get(StoreRequests).list_namespaces(await _scope(ctx, "list_namespaces", body, LIST))


async def _scope(ctx: Context, action: str, body: T, fields: dict[str, str]) -> T:
    return await ctx.get(Access).scope(caller_of(ctx), action, body, fields)
