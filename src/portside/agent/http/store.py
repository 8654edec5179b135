"""Items of the store over HTTP."""

from typing import TypeVar

import msgspec
from starlette.responses import Response

from portside.agent.access.service import get_caller
from portside.agent.http.context import Context, Routes
from portside.agent.store.filters import UnsupportedOperator
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
from portside.executor.errors import EmbeddingFailed
from portside.kernel.codec import dump_api
from portside.kernel.errors import BadRequest

T = TypeVar("T", bound=msgspec.Struct)
routes = Routes("store")
# What an authorization handler gets of a request and may change: the name that it knows, and the field of the request.
PUT = {"namespace": "namespace", "key": "key", "value": "value", "index": "index", "ttl": "ttl"}
GET = {"namespace": "namespace", "key": "key", "refresh_ttl": "refresh_ttl"}
DELETE = {"namespace": "namespace", "key": "key"}
SEARCH = {
    "namespace": "namespace_prefix",
    "filter": "filter",
    "limit": "limit",
    "offset": "offset",
    "query": "query",
    "refresh_ttl": "refresh_ttl",
}
LIST = {
    "namespace": "prefix",
    "suffix": "suffix",
    "max_depth": "max_depth",
    "limit": "limit",
    "offset": "offset",
}


@routes.put("/store/items", raises=(BadRequest, TooManyTexts, EmbeddingFailed), status=204)
async def put_store_item(ctx: Context, body: ItemPut) -> None:
    """Store an item, or overwrite an existing one."""
    await ctx.services.store.put(await _authorize_store(ctx, "put", body, PUT))


@routes.get("/store/items", raises=(BadRequest,), returns=StoredItem | None)
async def get_store_item(ctx: Context, query: ItemQuery) -> Response:
    """Return an item, or null if there is none."""
    query = await _authorize_store(ctx, "get", query, GET)
    return Response(dump_api(await ctx.services.store.get(query)), media_type="application/json")


@routes.delete("/store/items", status=204)
async def delete_store_item(ctx: Context, body: ItemDelete) -> None:
    """Delete an item, whether or not it exists."""
    await ctx.services.store.delete(await _authorize_store(ctx, "delete", body, DELETE))


@routes.post("/store/items/search", read_only=True, raises=(UnsupportedOperator, EmbeddingFailed))
async def search_store_items(ctx: Context, body: ItemSearch) -> FoundItems:
    """Find items under a namespace, by their content or by meaning."""
    return await ctx.services.store.search(await _authorize_store(ctx, "search", body, SEARCH))


@routes.post("/store/namespaces", read_only=True)
async def list_store_namespaces(ctx: Context, body: NamespaceSearch) -> Namespaces:
    """List the namespaces that hold items."""
    return await ctx.services.store.list_namespaces(await _authorize_store(ctx, "list_namespaces", body, LIST))


async def _authorize_store(ctx: Context, action: str, body: T, fields: dict[str, str]) -> T:
    return await ctx.services.access.authorize_store(get_caller(ctx), action, body, fields)
