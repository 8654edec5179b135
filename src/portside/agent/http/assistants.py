"""Assistants over HTTP, and what their graphs look like."""

from typing import Any
from uuid import UUID, uuid4

from msgspec.structs import replace

from portside.agent.access.service import Access, caller_of
from portside.agent.assistants.descriptions import Descriptions, GraphFailed
from portside.agent.assistants.records import AssistantExists, AssistantNotFound, Assistants
from portside.agent.http.paging import PAGING, show_page
from portside.agent.runs.service import Runs
from portside.agent.types.assistants import (
    Assistant,
    AssistantCreate,
    AssistantDelete,
    AssistantFilter,
    AssistantPatch,
    AssistantSearch,
    AssistantVersion,
    Drawing,
    DrawingQuery,
    GraphSchemas,
    LatestVersion,
    Schemas,
    SelectedAssistant,
    SubgraphQuery,
    VersionSearch,
)
from portside.kernel.errors import BadRequest, Invalid, NotFound
from portside.kernel.http.routes import Context, Routes

routes = Routes("assistants")
# What of a request a handler is told, and may change.
CREATED = ("assistant_id", "graph_id", "config", "context", "metadata", "if_exists", "name")
SEARCHED = ("graph_id", "metadata", "limit", "offset")
COUNTED = ("graph_id", "metadata")
PATCHED = ("graph_id", "config", "context", "metadata", "name")


@routes.post("/assistants", raises=(BadRequest, NotFound, AssistantExists))
async def create_assistant(ctx: Context, body: AssistantCreate) -> Assistant:
    """Make an assistant of a graph."""
    named = body if body.assistant_id else replace(body, assistant_id=uuid4())
    body, seen = await ctx.get(Access).shape(caller_of(ctx), "assistants.create", named, CREATED)
    return await ctx.get(Assistants).create(body, seen)


@routes.post("/assistants/search", raises=(NotFound,), headers=PAGING)
async def search_assistants(ctx: Context, body: AssistantSearch) -> list[SelectedAssistant]:
    """List the assistants that match, newest first unless told otherwise."""
    body, seen = await ctx.get(Access).shape(caller_of(ctx), "assistants.search", body, SEARCHED)
    return show_page(ctx, await ctx.get(Assistants).search(body, seen), body.offset or 0)


@routes.post("/assistants/count", raises=(NotFound,))
async def count_assistants(ctx: Context, body: AssistantFilter) -> int:
    """Count the assistants that match."""
    body, seen = await ctx.get(Access).shape(caller_of(ctx), "assistants.search", body, COUNTED)
    return await ctx.get(Assistants).count(body, seen)


@routes.get("/assistants/{assistant_id}", raises=(AssistantNotFound,))
async def get_assistant(ctx: Context, assistant_id: UUID) -> Assistant:
    """Return an assistant."""
    await _see(ctx, assistant_id)
    return await ctx.get(Assistants).get(assistant_id)


@routes.patch("/assistants/{assistant_id}", raises=(BadRequest, AssistantNotFound))
async def patch_assistant(ctx: Context, assistant_id: UUID, body: AssistantPatch) -> Assistant:
    """Change an assistant, which makes a new version of it."""
    body = await ctx.get(Access).shape_assistant(caller_of(ctx), "update", assistant_id, body, PATCHED)
    return await ctx.get(Assistants).patch(assistant_id, body)


@routes.delete("/assistants/{assistant_id}", raises=(AssistantNotFound,), status=204)
async def delete_assistant(ctx: Context, assistant_id: UUID, query: AssistantDelete) -> None:
    """Delete an assistant with its versions, and its threads where that is asked for; its runs are stopped."""
    access, caller = ctx.get(Access), caller_of(ctx)
    await access.see_assistant(caller, "delete", assistant_id)
    asked = {"thread_id": None, "run_id": None}
    threads = await access.may(caller, "threads", "delete", asked) if query.delete_threads else None
    await ctx.get(Runs).delete_assistant(assistant_id, delete_threads=query.delete_threads, threads=threads)


@routes.post("/assistants/{assistant_id}/versions", raises=(AssistantNotFound,))
async def list_assistant_versions(ctx: Context, assistant_id: UUID, body: VersionSearch) -> list[AssistantVersion]:
    """List the versions of an assistant, newest first."""
    await _see(ctx, assistant_id, {"metadata": body.metadata or {}})
    return await ctx.get(Assistants).versions(assistant_id, body)


@routes.post("/assistants/{assistant_id}/latest", raises=(AssistantNotFound,))
async def set_latest_version(
    ctx: Context, assistant_id: UUID, query: LatestVersion, body: LatestVersion | None = None
) -> Assistant:
    """Make an assistant what it was in a version."""
    version = (body and body.version) or query.version
    if version is None:
        raise Invalid.field(["body", "version"], "Field required", "missing")
    await ctx.get(Access).see_assistant(caller_of(ctx), "update", assistant_id, {"version": version})
    return await ctx.get(Assistants).set_latest(assistant_id, version)


@routes.get("/assistants/{assistant_id}/graph", raises=(AssistantNotFound, GraphFailed))
async def get_assistant_graph(ctx: Context, assistant_id: str, query: DrawingQuery) -> Drawing:
    """Return the nodes and edges of a graph, by an assistant's id or the graph's."""
    if not ctx.get(Access).is_open:
        await _see(ctx, (await ctx.get(Assistants).find(assistant_id)).assistant_id)
    return await ctx.get(Descriptions).draw(assistant_id, query.xray, caller_of(ctx))


@routes.get("/assistants/{assistant_id}/schemas", raises=(AssistantNotFound, GraphFailed))
async def get_assistant_schemas(ctx: Context, assistant_id: UUID) -> GraphSchemas:
    """Return the JSON schemas of an assistant's graph."""
    await _see(ctx, assistant_id)
    return await ctx.get(Descriptions).schemas(assistant_id, caller_of(ctx))


@routes.get("/assistants/{assistant_id}/subgraphs", raises=(AssistantNotFound, GraphFailed))
async def list_subgraphs(ctx: Context, assistant_id: UUID, query: SubgraphQuery) -> dict[str, Schemas]:
    """Return the JSON schemas of the subgraphs, by the node that holds each."""
    await _see(ctx, assistant_id)
    return await ctx.get(Descriptions).subgraphs(assistant_id, None, recurse=query.recurse, caller=caller_of(ctx))


@routes.get("/assistants/{assistant_id}/subgraphs/{namespace}", raises=(AssistantNotFound, GraphFailed))
async def get_subgraph(ctx: Context, assistant_id: UUID, namespace: str, query: SubgraphQuery) -> dict[str, Schemas]:
    """Return the JSON schemas of the subgraph at a namespace, such as `parent|child`."""
    await _see(ctx, assistant_id)
    return await ctx.get(Descriptions).subgraphs(assistant_id, namespace, recurse=query.recurse, caller=caller_of(ctx))


async def _see(ctx: Context, assistant_id: UUID, value: dict[str, Any] | None = None) -> None:
    await ctx.get(Access).see_assistant(caller_of(ctx), "read", assistant_id, value or {"metadata": {}})
