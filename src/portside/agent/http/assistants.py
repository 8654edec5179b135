"""Assistants over HTTP."""

from uuid import UUID

from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.http.paging import show_page
from portside.agent.types.assistants import Assistant, AssistantSearch
from portside.kernel.http.routes import Context, Routes, refuse_field

routes = Routes("assistants")


@routes.get("/assistants/{assistant_id}", raises=(AssistantNotFound,))
async def get_assistant(ctx: Context, assistant_id: UUID) -> Assistant:
    """Return an assistant."""
    return await ctx.get(Assistants).get(assistant_id)


@routes.post("/assistants/search")
async def search_assistants(ctx: Context, body: AssistantSearch) -> list[Assistant]:
    """List the assistants that match, newest first."""
    if body.select:
        raise refuse_field("select", "not available yet")
    return show_page(ctx, await ctx.get(Assistants).search(body), body.offset)
