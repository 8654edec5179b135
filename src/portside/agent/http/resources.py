"""Assistants, crons and store items over HTTP."""

from typing import Any, TypeVar
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from portside.agent.access.service import get_caller
from portside.agent.assistants.records import AssistantExists, AssistantNotFound
from portside.agent.crons.records import CronIsPaused, CronNotFound
from portside.agent.crons.schedules import preview
from portside.agent.http.services import PAGING, Context, Routes, take_page
from portside.agent.store.items import UnsupportedOperator
from portside.agent.store.search_index import TooManyTexts
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.assistants import (
    Assistant,
    AssistantCreate,
    AssistantDelete,
    AssistantFilter,
    AssistantPatch,
    AssistantSearch,
    AssistantVersion,
    DrawingQuery,
    GraphSchemas,
    LatestVersion,
    SelectedAssistant,
    SubgraphQuery,
    VersionSearch,
)
from portside.agent.types.crons import (
    Cron,
    CronCreate,
    CronFilter,
    CronPatch,
    CronPreview,
    CronSearch,
    CronTimes,
    SelectedCron,
    ThreadCronCreate,
)
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
from portside.executor.errors import EmbeddingFailed, GraphFailed
from portside.executor.requests import Drawing, Schemas
from portside.kernel.codec import dump_api
from portside.kernel.errors import BadRequest, Invalid, NotFound

routes = Routes("assistants")
# The fields of a request that an authorization handler gets, and may change.
CREATED = ("assistant_id", "graph_id", "config", "context", "metadata", "if_exists", "name")
SEARCHED = ("graph_id", "metadata", "limit", "offset")
COUNTED = ("graph_id", "metadata")
PATCHED = ("graph_id", "config", "context", "metadata", "name")


@routes.post("/assistants", raises=(BadRequest, NotFound, AssistantExists))
async def create_assistant(ctx: Context, body: AssistantCreate) -> Assistant:
    """Create an assistant of a graph."""
    request = body if body.assistant_id else replace(body, assistant_id=uuid4())
    body, visible = await ctx.services.access.authorize_request(get_caller(ctx), "assistants.create", request, CREATED)
    return await ctx.services.assistants.create(body, visible)


@routes.post("/assistants/search", read_only=True, raises=(NotFound,), response_headers=PAGING)
async def search_assistants(ctx: Context, body: AssistantSearch) -> list[SelectedAssistant]:
    """List the assistants that match, newest first by default."""
    body, visible = await ctx.services.access.authorize_request(get_caller(ctx), "assistants.search", body, SEARCHED)
    return take_page(ctx, await ctx.services.assistants.search(body, visible), body.offset or 0)


@routes.post("/assistants/count", read_only=True, raises=(NotFound,))
async def count_assistants(ctx: Context, body: AssistantFilter) -> int:
    """Count the assistants that match."""
    body, visible = await ctx.services.access.authorize_request(get_caller(ctx), "assistants.search", body, COUNTED)
    return await ctx.services.assistants.count(body, visible)


@routes.get("/assistants/{assistant_id}", raises=(AssistantNotFound,))
async def get_assistant(ctx: Context, assistant_id: UUID) -> Assistant:
    """Return an assistant."""
    await _authorize_read(ctx, assistant_id)
    return await ctx.services.assistants.get(assistant_id)


@routes.patch("/assistants/{assistant_id}", raises=(BadRequest, AssistantNotFound))
async def patch_assistant(ctx: Context, assistant_id: UUID, body: AssistantPatch) -> Assistant:
    """Change an assistant, which creates a new version of it."""
    body = await ctx.services.access.authorize_assistant_request(get_caller(ctx), "update", assistant_id, body, PATCHED)
    return await ctx.services.assistants.patch(assistant_id, body)


@routes.delete("/assistants/{assistant_id}", raises=(AssistantNotFound,), status=204)
async def delete_assistant(ctx: Context, assistant_id: UUID, query: AssistantDelete) -> None:
    """Delete an assistant with its versions and, on request, its threads; its runs are stopped."""
    access = ctx.services.access
    caller = get_caller(ctx)
    await access.authorize_assistant(caller, "delete", assistant_id)
    value = {"thread_id": None, "run_id": None}
    threads = await access.authorize(caller, "threads", "delete", value) if query.delete_threads else None

    await ctx.services.runs.delete_assistant(assistant_id, delete_threads=query.delete_threads, threads=threads)


@routes.post("/assistants/{assistant_id}/versions", read_only=True, raises=(AssistantNotFound,))
async def list_assistant_versions(ctx: Context, assistant_id: UUID, body: VersionSearch) -> list[AssistantVersion]:
    """List the versions of an assistant, newest first."""
    await _authorize_read(ctx, assistant_id, {"metadata": body.metadata or {}})
    return await ctx.services.assistants.versions(assistant_id, body)


@routes.post("/assistants/{assistant_id}/latest", raises=(AssistantNotFound,))
async def set_latest_version(
    ctx: Context, assistant_id: UUID, query: LatestVersion, body: LatestVersion | None = None
) -> Assistant:
    """Restore a version of an assistant."""
    version = (body and body.version) or query.version
    if version is None:
        raise Invalid.field(["body", "version"], "Field required", "missing")

    await ctx.services.access.authorize_assistant(get_caller(ctx), "update", assistant_id, {"version": version})
    return await ctx.services.assistants.set_latest(assistant_id, version)


@routes.get("/assistants/{assistant_id}/graph", raises=(AssistantNotFound, GraphFailed))
async def get_assistant_graph(ctx: Context, assistant_id: str, query: DrawingQuery) -> Drawing:
    """Return the nodes and edges of a graph, named by its id or an assistant's."""
    if not ctx.services.access.is_open:
        await _authorize_read(ctx, (await ctx.services.assistants.find(assistant_id)).assistant_id)
    return await ctx.services.descriptions.draw(assistant_id, query.xray, get_caller(ctx))


@routes.get("/assistants/{assistant_id}/schemas", raises=(AssistantNotFound, GraphFailed))
async def get_assistant_schemas(ctx: Context, assistant_id: UUID) -> GraphSchemas:
    """Return the JSON schemas of an assistant's graph."""
    await _authorize_read(ctx, assistant_id)
    return await ctx.services.descriptions.schemas(assistant_id, get_caller(ctx))


@routes.get("/assistants/{assistant_id}/subgraphs", raises=(AssistantNotFound, GraphFailed))
async def list_subgraphs(ctx: Context, assistant_id: UUID, query: SubgraphQuery) -> dict[str, Schemas]:
    """Return the JSON schemas of the subgraphs, by the node that contains each."""
    await _authorize_read(ctx, assistant_id)
    return await ctx.services.descriptions.subgraphs(assistant_id, None, recurse=query.recurse, caller=get_caller(ctx))


@routes.get("/assistants/{assistant_id}/subgraphs/{namespace}", raises=(AssistantNotFound, GraphFailed))
async def get_subgraph(ctx: Context, assistant_id: UUID, namespace: str, query: SubgraphQuery) -> dict[str, Schemas]:
    """Return the JSON schemas of the subgraph at a namespace, such as `parent|child`."""
    await _authorize_read(ctx, assistant_id)
    return await ctx.services.descriptions.subgraphs(
        assistant_id, namespace, recurse=query.recurse, caller=get_caller(ctx)
    )


async def _authorize_read(ctx: Context, assistant_id: UUID, value: dict[str, Any] | None = None) -> None:
    await ctx.services.access.authorize_assistant(get_caller(ctx), "read", assistant_id, value or {"metadata": {}})


cron_routes = Routes("crons")
# The fields of a request that a project's handler sees and may change.
CRONS_SEARCHED = ("assistant_id", "thread_id", "metadata", "limit", "offset")
CRONS_COUNTED = ("assistant_id", "thread_id", "metadata")
CRONS_PATCHED = ("metadata", "schedule")
NO_FIELDS = CronFilter()


@cron_routes.post("/runs/crons", raises=(AssistantNotFound, BadRequest))
async def create_cron(ctx: Context, body: CronCreate) -> Cron:
    """Create a cron whose runs get a thread each."""
    return await _create(ctx, None, body)


@cron_routes.post("/threads/{thread_id}/runs/crons", raises=(AssistantNotFound, ThreadNotFound, BadRequest))
async def create_thread_cron(ctx: Context, thread_id: UUID, body: ThreadCronCreate) -> Cron:
    """Create a cron whose runs go to one thread."""
    return await _create(ctx, thread_id, body)


async def _create(ctx: Context, thread_id: UUID | None, body: CronCreate | ThreadCronCreate) -> Cron:
    body, grant = await ctx.services.access.authorize_cron_create(
        get_caller(ctx), thread_id, body, msgspec.to_builtins(body)
    )
    return await ctx.services.crons.create(thread_id, body, grant)


@cron_routes.post("/runs/crons/search", read_only=True, response_headers=PAGING)
async def search_crons(ctx: Context, body: CronSearch) -> list[SelectedCron]:
    """List the crons that match, newest first by default."""
    body, filters = await ctx.services.access.authorize_cron_search(get_caller(ctx), body, CRONS_SEARCHED)
    return take_page(ctx, await ctx.services.crons.search(body, filters), body.offset or 0)


@cron_routes.post("/runs/crons/count", read_only=True)
async def count_crons(ctx: Context, body: CronFilter) -> int:
    """Count the crons that match."""
    body, filters = await ctx.services.access.authorize_cron_search(get_caller(ctx), body, CRONS_COUNTED)
    return await ctx.services.crons.count(body, filters)


@cron_routes.post("/runs/crons/preview", read_only=True)
async def preview_cron(ctx: Context, body: CronPreview) -> CronTimes:
    """Return the next times of a schedule, which need not belong to a cron yet."""
    await ctx.services.access.authorize(get_caller(ctx), "crons", "search", {"metadata": {}})
    return preview(body)


@cron_routes.get("/runs/crons/{cron_id}", raises=(CronNotFound,))
async def get_cron(ctx: Context, cron_id: UUID) -> Cron:
    """Return a cron."""
    await _authorize_cron(ctx, "read", cron_id)
    return await ctx.services.crons.get(cron_id)


@cron_routes.patch("/runs/crons/{cron_id}", raises=(AssistantNotFound, BadRequest, CronNotFound))
async def patch_cron(ctx: Context, cron_id: UUID, body: CronPatch) -> Cron:
    """Change a cron, pause it or resume it."""
    access = ctx.services.access
    caller = get_caller(ctx)
    if body.assistant_id is not None and not access.is_open:
        await access.authorize_assistant_use(caller, body.assistant_id)

    body, filters = await access.authorize_cron(caller, "update", cron_id, body, CRONS_PATCHED)
    if not access.is_open:
        await ctx.services.crons.check(cron_id, filters)

    return await ctx.services.crons.patch(cron_id, body)


@cron_routes.post("/runs/crons/{cron_id}/run", raises=(CronNotFound, CronIsPaused), status=202)
async def run_cron_now(ctx: Context, cron_id: UUID) -> Cron:
    """Run a cron once at once, as its owner; its schedule stays."""
    await _authorize_cron(ctx, "update", cron_id)
    return await ctx.services.crons.run_now(cron_id)


@cron_routes.delete("/runs/crons/{cron_id}", raises=(CronNotFound,), status=204)
async def delete_cron(ctx: Context, cron_id: UUID) -> None:
    """Delete a cron. The runs that it created stay."""
    await _authorize_cron(ctx, "delete", cron_id)
    await ctx.services.crons.delete(cron_id)


async def _authorize_cron(ctx: Context, action: str, cron_id: UUID) -> None:
    access = ctx.services.access
    if not access.is_open:
        _, filters = await access.authorize_cron(get_caller(ctx), action, cron_id, NO_FIELDS)
        await ctx.services.crons.check(cron_id, filters)


T = TypeVar("T", bound=msgspec.Struct)
store_routes = Routes("store")


def _named(*names: str, namespace: str = "namespace") -> dict[str, str]:
    return {"namespace": namespace, **{name: name for name in names}}


# The fields of a request that an authorization handler gets and may change, by the names that handlers know.
PUT = _named("key", "value", "index", "ttl")
GET = _named("key", "refresh_ttl")
DELETE = _named("key")
SEARCH = _named("filter", "limit", "offset", "query", "refresh_ttl", namespace="namespace_prefix")
LIST = _named("suffix", "max_depth", "limit", "offset", namespace="prefix")


@store_routes.put("/store/items", raises=(BadRequest, TooManyTexts, EmbeddingFailed), status=204)
async def put_item(ctx: Context, body: ItemPut) -> None:
    """Store an item, or overwrite an existing one."""
    await ctx.services.store.put(await _authorize_store(ctx, "put", body, PUT))


@store_routes.get("/store/items", raises=(BadRequest,), returns=StoredItem | None)
async def get_item(ctx: Context, query: ItemQuery) -> Response:
    """Return an item, or null if there is none."""
    query = await _authorize_store(ctx, "get", query, GET)
    return Response(dump_api(await ctx.services.store.get(query)), media_type="application/json")


@store_routes.delete("/store/items", status=204)
async def delete_item(ctx: Context, body: ItemDelete) -> None:
    """Delete an item, whether or not it exists."""
    await ctx.services.store.delete(await _authorize_store(ctx, "delete", body, DELETE))


@store_routes.post("/store/items/search", read_only=True, raises=(UnsupportedOperator, EmbeddingFailed))
async def search_items(ctx: Context, body: ItemSearch) -> FoundItems:
    """Find items under a namespace, by their content or by meaning."""
    return await ctx.services.store.search(await _authorize_store(ctx, "search", body, SEARCH))


@store_routes.post("/store/namespaces", read_only=True)
async def list_namespaces(ctx: Context, body: NamespaceSearch) -> Namespaces:
    """List the namespaces that hold items."""
    return await ctx.services.store.list_namespaces(await _authorize_store(ctx, "list_namespaces", body, LIST))


async def _authorize_store(ctx: Context, action: str, body: T, fields: dict[str, str]) -> T:
    return await ctx.services.access.authorize_store(get_caller(ctx), action, body, fields)
