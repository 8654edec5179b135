"""Assistants over HTTP, with their versions, and what their graphs look like."""

from typing import Any
from uuid import UUID, uuid4

from msgspec.structs import replace

from portside.agent.access.service import get_caller
from portside.agent.assistants.records import AssistantExists, AssistantNotFound
from portside.agent.http.context import PAGING, Context, Routes, take_page
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
from portside.executor.errors import GraphFailed
from portside.executor.requests import Drawing, Schemas
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
async def update_assistant(ctx: Context, assistant_id: UUID, body: AssistantPatch) -> Assistant:
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
async def set_latest_assistant_version(
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
        assistant = await ctx.services.assistants.find(assistant_id)
        await _authorize_read(ctx, assistant.assistant_id)

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
