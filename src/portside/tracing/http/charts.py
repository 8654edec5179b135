"""The routes of charts and their sections."""

from uuid import UUID

from portside.kernel.errors import Invalid
from portside.kernel.http.audit_actions import Action
from portside.tracing import charts
from portside.tracing.chart_types import (
    Chart,
    ChartPatch,
    ChartRequest,
    ChartWindow,
    Preview,
    PreviewRequest,
    Section,
    SectionPatch,
    SectionRequest,
    Sections,
    SectionsWindow,
)
from portside.tracing.charts import ChartNotFound, SectionNotFound
from portside.tracing.filter_parser import FilterInvalid
from portside.tracing.services import Context, Routes

routes = Routes("charts")
_ON_WRITE = (ChartNotFound, SectionNotFound, FilterInvalid, Invalid)


@routes.post("/charts", permission="charts:read", read_only=True, raises=(Invalid,))
async def list_charts(ctx: Context, body: SectionsWindow) -> Sections:
    """Return all sections with their charts and data."""
    return await charts.get_sections(ctx.db, ctx.actor.workspace_id, body)


@routes.post(
    "/charts/create",
    permission="charts:create",
    raises=_ON_WRITE,
    audit=Action("chart.create", id_query="create_chart"),
)
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


@routes.post(
    "/charts/section", permission="charts:create", audit=Action("chart_section.create", id_query="create_section")
)
async def create_chart_section(ctx: Context, body: SectionRequest) -> Section:
    """Create a section of charts."""
    return await charts.create_section(ctx.db, ctx.actor.workspace_id, body)


@routes.post(
    "/charts/section/{section_id}", permission="charts:read", read_only=True, raises=(SectionNotFound, Invalid)
)
async def get_chart_section(ctx: Context, section_id: UUID, body: ChartWindow) -> Section:
    """Return a section with its charts and their data."""
    return await charts.get_section(ctx.db, ctx.actor.workspace_id, section_id, body)


@routes.patch(
    "/charts/section/{section_id}",
    permission="charts:update",
    raises=(SectionNotFound,),
    audit=Action("chart_section.update"),
)
async def update_chart_section(ctx: Context, section_id: UUID, body: SectionPatch) -> Section:
    """Change a section of charts; null leaves a field unchanged."""
    return await charts.update_section(ctx.db, ctx.actor.workspace_id, section_id, body)


@routes.delete(
    "/charts/section/{section_id}",
    status=204,
    permission="charts:delete",
    raises=(SectionNotFound,),
    audit=Action("chart_section.delete"),
)
async def delete_chart_section(ctx: Context, section_id: UUID) -> None:
    """Delete a section and its charts."""
    await charts.delete_section(ctx.db, ctx.actor.workspace_id, section_id)


@routes.post("/charts/{chart_id}", permission="charts:read", read_only=True, raises=(ChartNotFound, Invalid))
async def get_chart(ctx: Context, chart_id: UUID, body: ChartWindow) -> Chart:
    """Return a chart and its data."""
    return await charts.get_chart(ctx.db, ctx.actor.workspace_id, chart_id, body)


@routes.patch("/charts/{chart_id}", permission="charts:update", raises=_ON_WRITE, audit=Action("chart.update"))
async def update_chart(ctx: Context, chart_id: UUID, body: ChartPatch) -> Chart:
    """Change a chart; null leaves a field unchanged."""
    return await charts.update_chart(ctx.db, ctx.actor.workspace_id, chart_id, body)


@routes.delete(
    "/charts/{chart_id}", status=204, permission="charts:delete", raises=(ChartNotFound,), audit=Action("chart.delete")
)
async def delete_chart(ctx: Context, chart_id: UUID) -> None:
    """Delete a chart."""
    await charts.delete_chart(ctx.db, ctx.actor.workspace_id, chart_id)
