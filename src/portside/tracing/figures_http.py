"""The routes of charts, of model prices and of costs that are computed again."""

from uuid import UUID

from portside.kernel.errors import Invalid
from portside.tracing import charts, costs, prices
from portside.tracing.charts import (
    Chart,
    ChartNotFound,
    ChartPatch,
    ChartRequest,
    ChartWindow,
    Preview,
    PreviewRequest,
    Section,
    SectionNotFound,
    SectionPatch,
    SectionRequest,
    Sections,
    SectionsWindow,
)
from portside.tracing.costs import (
    ModelInUse,
    ModelsQuery,
    Recomputation,
    RecomputationNotFound,
    RecomputationRequest,
)
from portside.tracing.filters import FilterInvalid
from portside.tracing.prices import ModelPrice, PriceExists, PriceNotFound, PriceQuery, PriceRequest
from portside.tracing.projects import ProjectNotFound
from portside.tracing.services import Context, Routes

routes = Routes("figures")
_ON_WRITE = (ChartNotFound, SectionNotFound, FilterInvalid, Invalid)

# Charts


@routes.post("/charts", permission="charts:read", read_only=True, raises=(Invalid,))
async def show_charts(ctx: Context, body: SectionsWindow) -> Sections:
    """Return all sections with their charts and data."""
    return await charts.show_sections(ctx.db, ctx.actor.workspace_id, body)


@routes.post("/charts/create", permission="charts:create", raises=_ON_WRITE)
async def create_chart(ctx: Context, body: ChartRequest) -> Chart:
    """Create a chart."""
    return await charts.create_chart(ctx.db, ctx.actor.workspace_id, body)


@routes.post("/charts/preview", permission="charts:read", read_only=True, raises=(FilterInvalid, Invalid))
async def preview_chart(ctx: Context, body: PreviewRequest) -> Preview:
    """Return the data of a chart that is not stored."""
    return await charts.preview_chart(ctx.db, ctx.actor.workspace_id, body)


@routes.get("/charts/section", permission="charts:read")
async def list_chart_sections(ctx: Context) -> list[Section]:
    """List the sections of charts, without their charts."""
    return await charts.list_sections(ctx.db, ctx.actor.workspace_id)


@routes.post("/charts/section", permission="charts:create")
async def create_chart_section(ctx: Context, body: SectionRequest) -> Section:
    """Create a section of charts."""
    return await charts.create_section(ctx.db, ctx.actor.workspace_id, body)


@routes.post(
    "/charts/section/{section_id}", permission="charts:read", read_only=True, raises=(SectionNotFound, Invalid)
)
async def show_chart_section(ctx: Context, section_id: UUID, body: ChartWindow) -> Section:
    """Return a section with its charts and their data."""
    return await charts.show_section(ctx.db, ctx.actor.workspace_id, section_id, body)


@routes.patch("/charts/section/{section_id}", permission="charts:update", raises=(SectionNotFound,))
async def update_chart_section(ctx: Context, section_id: UUID, body: SectionPatch) -> Section:
    """Change a section of charts; null leaves a field unchanged."""
    return await charts.update_section(ctx.db, ctx.actor.workspace_id, section_id, body)


@routes.delete("/charts/section/{section_id}", status=204, permission="charts:delete", raises=(SectionNotFound,))
async def delete_chart_section(ctx: Context, section_id: UUID) -> None:
    """Delete a section and its charts."""
    await charts.delete_section(ctx.db, ctx.actor.workspace_id, section_id)


@routes.post("/charts/{chart_id}", permission="charts:read", read_only=True, raises=(ChartNotFound, Invalid))
async def show_chart(ctx: Context, chart_id: UUID, body: ChartWindow) -> Chart:
    """Return a chart and its data."""
    return await charts.show_chart(ctx.db, ctx.actor.workspace_id, chart_id, body)


@routes.patch("/charts/{chart_id}", permission="charts:update", raises=_ON_WRITE)
async def update_chart(ctx: Context, chart_id: UUID, body: ChartPatch) -> Chart:
    """Change a chart; null leaves a field unchanged."""
    return await charts.update_chart(ctx.db, ctx.actor.workspace_id, chart_id, body)


@routes.delete("/charts/{chart_id}", status=204, permission="charts:delete", raises=(ChartNotFound,))
async def delete_chart(ctx: Context, chart_id: UUID) -> None:
    """Delete a chart."""
    await charts.delete_chart(ctx.db, ctx.actor.workspace_id, chart_id)


# Prices


@routes.get("/model-price-map", permission="projects:read", response_headers=("X-Pagination-Total",))
async def list_model_prices(ctx: Context, query: PriceQuery) -> list[ModelPrice]:
    """List the prices that apply in this workspace: its own first, then those of files."""
    page = await prices.list_prices(ctx.db, ctx.actor.workspace_id, query)
    ctx.headers["X-Pagination-Total"] = str(page.total)
    return page.prices


@routes.post("/model-price-map", permission="workspaces:manage", raises=(PriceExists, Invalid))
async def create_model_price(ctx: Context, body: PriceRequest) -> ModelPrice:
    """Set a price for runs that are written from now on; it wins over prices of files."""
    return await prices.create_price(ctx.db, ctx.actor.workspace_id, body)


@routes.put("/model-price-map/{price_id}", permission="workspaces:manage", raises=(PriceNotFound, PriceExists, Invalid))
async def update_model_price(ctx: Context, price_id: UUID, body: PriceRequest) -> ModelPrice:
    """Replace a price of this workspace."""
    return await prices.update_price(ctx.db, ctx.actor.workspace_id, price_id, body)


@routes.delete("/model-price-map/{price_id}", status=204, permission="workspaces:manage", raises=(PriceNotFound,))
async def delete_model_price(ctx: Context, price_id: UUID) -> None:
    """Remove a price of this workspace."""
    await prices.delete_price(ctx.db, ctx.actor.workspace_id, price_id)


@routes.get("/model-price-map/models", permission="projects:read")
async def list_models_in_use(ctx: Context, query: ModelsQuery) -> list[ModelInUse]:
    """List the models that runs named, with their usage: those without a price first."""
    return await costs.list_models(ctx.db, ctx.actor.workspace_id, query)


@routes.post(
    "/model-price-map/recomputations", permission="workspaces:manage", raises=(ProjectNotFound, Invalid), status=202
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
async def show_recomputation(ctx: Context, recomputation_id: UUID) -> Recomputation:
    """Return a recomputation with its progress."""
    return await costs.show_recomputation(ctx.db, ctx.actor.workspace_id, recomputation_id)


@routes.delete(
    "/model-price-map/recomputations/{recomputation_id}",
    status=204,
    permission="workspaces:manage",
    raises=(RecomputationNotFound,),
)
async def cancel_recomputation(ctx: Context, recomputation_id: UUID) -> None:
    """Stop a recomputation after its current batch."""
    await costs.cancel_recomputation(ctx.db, ctx.actor.workspace_id, recomputation_id)
