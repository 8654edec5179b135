"""The routes of model prices, and of costs that are computed again after prices have changed."""

from uuid import UUID

from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.tracing import costs, prices
from portside.tracing.costs import (
    ModelInUse,
    ModelsQuery,
    Recomputation,
    RecomputationNotFound,
    RecomputationRequest,
)
from portside.tracing.prices import ModelPrice, PriceExists, PriceNotFound, PriceQuery, PriceRequest
from portside.tracing.projects import ProjectNotFound
from portside.tracing.services import Context, Routes

routes = Routes("prices")


@routes.get("/model-price-map", permission="projects:read", response_headers=("X-Pagination-Total",))
async def list_model_prices(ctx: Context, query: PriceQuery) -> list[ModelPrice]:
    """List the prices that apply in this workspace: its own first, then those of files."""
    page = await prices.list_prices(ctx.db, ctx.actor.workspace_id, query)
    ctx.headers["X-Pagination-Total"] = str(page.total)
    return page.prices


@routes.post(
    "/model-price-map",
    permission="workspaces:manage",
    raises=(PriceExists, Invalid),
    audit=Action("price.create", id_query="insert_price"),
)
async def create_model_price(ctx: Context, body: PriceRequest) -> ModelPrice:
    """Set a price for runs that are written from now on; it wins over prices of files."""
    return await prices.create_price(ctx.db, ctx.actor.workspace_id, body)


@routes.put(
    "/model-price-map/{price_id}",
    permission="workspaces:manage",
    raises=(PriceNotFound, PriceExists, Invalid),
    audit=Action("price.update"),
)
async def update_model_price(ctx: Context, price_id: UUID, body: PriceRequest) -> ModelPrice:
    """Replace a price of this workspace."""
    return await prices.update_price(ctx.db, ctx.actor.workspace_id, price_id, body)


@routes.delete(
    "/model-price-map/{price_id}",
    status=204,
    permission="workspaces:manage",
    raises=(PriceNotFound,),
    audit=Action("price.delete"),
)
async def delete_model_price(ctx: Context, price_id: UUID) -> None:
    """Remove a price of this workspace."""
    await prices.delete_price(ctx.db, ctx.actor.workspace_id, price_id)


@routes.get("/model-price-map/models", permission="projects:read")
async def list_used_models(ctx: Context, query: ModelsQuery) -> list[ModelInUse]:
    """List the models that runs named, with their usage: those without a price first."""
    return await costs.list_models(ctx.db, ctx.actor.workspace_id, query)


@routes.post(
    "/model-price-map/recomputations",
    permission="workspaces:manage",
    raises=(ProjectNotFound, Invalid),
    status=202,
    audit=Action("cost_recomputation.create", id_query="create_recomputation"),
)
async def start_recomputation(ctx: Context, body: RecomputationRequest = RecomputationRequest()) -> Recomputation:  # noqa: B008
    """Begin to compute the costs of past runs again by today's table of prices."""
    return await costs.start_recomputation(ctx.db, ctx.actor.workspace_id, body)


@routes.get("/model-price-map/recomputations", permission="projects:read")
async def list_recomputations(ctx: Context) -> list[Recomputation]:
    """List the latest recomputations with their progress."""
    return await costs.list_recomputations(ctx.db, ctx.actor.workspace_id)


@routes.get(
    "/model-price-map/recomputations/{recomputation_id}", permission="projects:read", raises=(RecomputationNotFound,)
)
async def get_recomputation(ctx: Context, recomputation_id: UUID) -> Recomputation:
    """Return a recomputation with its progress."""
    return await costs.get_recomputation(ctx.db, ctx.actor.workspace_id, recomputation_id)


@routes.delete(
    "/model-price-map/recomputations/{recomputation_id}",
    status=204,
    permission="workspaces:manage",
    raises=(RecomputationNotFound,),
    audit=Action("cost_recomputation.cancel"),
)
async def cancel_recomputation(ctx: Context, recomputation_id: UUID) -> None:
    """Stop a recomputation after its current batch."""
    await costs.cancel_recomputation(ctx.db, ctx.actor.workspace_id, recomputation_id)
