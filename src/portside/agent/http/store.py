"""The store over HTTP."""

from starlette.responses import Response

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

routes = Routes("store")


@routes.put("/store/items", raises=(BadRequest, TooManyTexts, EmbeddingFailed), status=204)
async def put_item(ctx: Context, body: ItemPut) -> None:
    """Store an item, or overwrite the one that is there."""
    await ctx.get(StoreRequests).put(body)


@routes.get("/store/items", raises=(BadRequest,), returns=StoredItem | None)
async def get_item(ctx: Context, query: ItemQuery) -> Response:
    """Return an item, or null where there is none."""
    return Response(dump_api(await ctx.get(StoreRequests).get(query)), media_type="application/json")


@routes.delete("/store/items", status=204)
async def delete_item(ctx: Context, body: ItemDelete) -> None:
    """Delete an item, whether it is there or not."""
    await ctx.get(StoreRequests).delete(body)


@routes.post("/store/items/search", raises=(UnsupportedOperator, EmbeddingFailed))
async def search_items(ctx: Context, body: ItemSearch) -> FoundItems:
    """Find items under a namespace, by what they hold or by what they mean."""
    return await ctx.get(StoreRequests).search(body)


@routes.post("/store/namespaces")
async def list_namespaces(ctx: Context, body: NamespaceSearch) -> Namespaces:
    """List the namespaces that hold items."""
    return await ctx.get(StoreRequests).list_namespaces(body)
