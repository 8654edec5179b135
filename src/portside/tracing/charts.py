"""Charts of a workspace, in sections. `chart_data.py` computes what they show."""

from typing import Any
from uuid import UUID, uuid4

import msgspec

from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import NotFound
from portside.kernel.ids import uuid7
from portside.tracing.chart_data import check_points, check_series, compute_points, to_buckets
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
from portside.tracing.sql import sql

_FIRST_SECTION = "Charts"
_MAX_SECTIONS = 1000
_JSON_COLUMNS = ("series", "common_filters", "metadata")


class ChartNotFound(NotFound):
    """Chart not found"""  # noqa: D415 - the form of the other texts that clients know

    code = "chart_not_found"


class SectionNotFound(NotFound):
    """Section of charts not found"""  # noqa: D415 - the form of the other texts that clients know

    code = "chart_section_not_found"


async def create_section(db: Session, workspace_id: UUID, body: SectionRequest) -> Section:
    """Create a section, by default as the last one."""
    section_id = uuid7()
    await db.execute(sql.create_section, id=section_id, workspace_id=workspace_id, **msgspec.structs.asdict(body))
    return await _get_section(db, workspace_id, section_id)


async def list_sections(db: Session, workspace_id: UUID) -> list[Section]:
    """List the sections in their order, without their charts."""
    return await _fetch_sections(db, workspace_id)


async def update_section(db: Session, workspace_id: UUID, section_id: UUID, body: SectionPatch) -> Section:
    """Change a section; null leaves a field unchanged. Raises SectionNotFound."""
    owner = {"workspace_id": workspace_id, "section_id": section_id}
    await db.execute(sql.update_section, **owner, **msgspec.structs.asdict(body))
    return await _get_section(db, workspace_id, section_id)


async def delete_section(db: Session, workspace_id: UUID, section_id: UUID) -> None:
    """Delete a section and its charts. Raises SectionNotFound."""
    if not await db.execute(sql.delete_section, workspace_id=workspace_id, section_id=section_id):
        raise SectionNotFound


async def create_chart(db: Database, workspace_id: UUID, body: ChartRequest) -> Chart:
    """Create a chart, by default as the last of its section. Raises SectionNotFound, FilterInvalid, Invalid."""
    check_series(body.series, body.common_filters)
    chart_id = uuid7()
    async with db.transaction() as tx:
        section_id = body.section_id or await _ensure_section(tx, workspace_id)
        await _get_section(tx, workspace_id, section_id)
        values = {**_to_columns(body), "section_id": section_id}
        await tx.execute(sql.create_chart, id=chart_id, workspace_id=workspace_id, **values)
        return await _get_chart(tx, workspace_id, chart_id)


async def update_chart(db: Session, workspace_id: UUID, chart_id: UUID, body: ChartPatch) -> Chart:
    """Change a chart. Raises ChartNotFound, SectionNotFound, FilterInvalid and Invalid."""
    check_series(body.series or [], body.common_filters)
    if body.section_id is not None:
        await _get_section(db, workspace_id, body.section_id)

    await db.execute(sql.update_chart, workspace_id=workspace_id, chart_id=chart_id, **_to_columns(body))
    return await _get_chart(db, workspace_id, chart_id)


async def delete_chart(db: Session, workspace_id: UUID, chart_id: UUID) -> None:
    """Delete a chart. Raises ChartNotFound."""
    if not await db.execute(sql.delete_chart, workspace_id=workspace_id, chart_id=chart_id):
        raise ChartNotFound


async def get_chart(db: Session, workspace_id: UUID, chart_id: UUID, window: ChartWindow) -> Chart:
    """Return a chart with its data. Raises ChartNotFound and Invalid."""
    chart = await _get_chart(db, workspace_id, chart_id)
    await _add_data(db, workspace_id, [chart], window)
    return chart


async def get_section(db: Session, workspace_id: UUID, section_id: UUID, window: ChartWindow) -> Section:
    """Return a section with its charts and their data. Raises SectionNotFound and Invalid."""
    section = await _get_section(db, workspace_id, section_id)
    await _add_charts(db, workspace_id, [section], window)
    return section


async def get_sections(db: Session, workspace_id: UUID, window: SectionsWindow) -> Sections:
    """Return the sections with their charts and their data. Raises Invalid."""
    sections = await _fetch_sections(db, workspace_id, after_index=window.after_index)
    await _add_charts(db, workspace_id, sections, window)
    return Sections(sections)


async def preview_chart(db: Session, workspace_id: UUID, body: PreviewRequest) -> Preview:
    """Return the data of a chart that is not stored. Raises FilterInvalid and Invalid."""
    chart = body.chart
    check_series(chart.series, chart.common_filters)
    buckets = to_buckets(body.bucket_info)
    check_points([chart.series], buckets)

    return Preview(await compute_points(db, workspace_id, chart.series, chart.common_filters, buckets))


async def _add_charts(db: Session, workspace_id: UUID, sections: list[Section], window: ChartWindow) -> None:
    sections_by_id = {section.id: section for section in sections}
    rows = await db.fetch(sql.charts, workspace_id=workspace_id, ids=None, sections=sorted(sections_by_id))

    charts = [_to_chart(row) for row in rows]
    await _add_data(db, workspace_id, charts, window)
    for chart in charts:
        sections_by_id[chart.section_id].charts.append(chart)


async def _add_data(db: Session, workspace_id: UUID, charts: list[Chart], window: ChartWindow) -> None:
    buckets = to_buckets(window)
    if not window.omit_data:
        check_points([chart.series for chart in charts], buckets)
        for chart in charts:
            chart.data = await compute_points(db, workspace_id, chart.series, chart.common_filters, buckets)


async def _ensure_section(db: Session, workspace_id: UUID) -> UUID:
    sections = await _fetch_sections(db, workspace_id)
    if sections:
        return sections[0].id

    section = await create_section(db, workspace_id, SectionRequest(title=_FIRST_SECTION))
    return section.id


async def _get_section(db: Session, workspace_id: UUID, section_id: UUID) -> Section:
    sections = await _fetch_sections(db, workspace_id, [section_id])
    if not sections:
        raise SectionNotFound

    return sections[0]


async def _fetch_sections(
    db: Session, workspace_id: UUID, ids: list[UUID] | None = None, after_index: int | None = None
) -> list[Section]:
    page = {"ids": ids, "after_index": after_index, "limit": _MAX_SECTIONS}
    rows = await db.fetch(sql.sections, workspace_id=workspace_id, **page)
    return [Section(**dict(row), charts=[]) for row in rows]


async def _get_chart(db: Session, workspace_id: UUID, chart_id: UUID) -> Chart:
    rows = await db.fetch(sql.charts, workspace_id=workspace_id, ids=[chart_id], sections=None)
    if not rows:
        raise ChartNotFound

    return _to_chart(rows[0])


def _to_chart(row: Record) -> Chart:
    return msgspec.convert(dict(row), Chart)


def _to_columns(body: ChartRequest | ChartPatch) -> dict[str, Any]:
    """Return the columns of a chart. Series with the same id get new ones."""
    ids: set[UUID] = set()
    for series in body.series or ():
        if series.id in ids:
            series.id = uuid4()
        ids.add(series.id)

    values: dict[str, Any] = msgspec.structs.asdict(body)
    return {**values, **{name: msgspec.to_builtins(values[name]) for name in _JSON_COLUMNS}}
