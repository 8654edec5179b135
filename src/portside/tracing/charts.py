"""Charts of a workspace, in sections: stored, changed, deleted, looked at (contract: hosted API, section f.4)."""

from typing import Any
from uuid import UUID, uuid4

import msgspec

from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import NotFound
from portside.kernel.ids import uuid7
from portside.tracing.chart_data import check_series, read_data, read_span
from portside.tracing.chart_types import (
    Chart,
    ChartPatch,
    ChartRequest,
    Preview,
    PreviewRequest,
    Section,
    SectionPatch,
    SectionRequest,
    Sections,
    SectionsView,
    View,
)
from portside.tracing.sql import sql

_FIRST_SECTION = "Charts"
_MAX_SECTIONS = 1000
_JSON = ("series", "common_filters", "metadata")


class ChartNotFound(NotFound):
    """Chart not found"""  # noqa: D415 - the form of the other texts that clients know

    code = "chart_not_found"


class SectionNotFound(NotFound):
    """Section of charts not found"""  # noqa: D415 - the form of the other texts that clients know

    code = "chart_section_not_found"


async def create_section(db: Session, workspace_id: UUID, body: SectionRequest) -> Section:
    """Make a section; without an index it is the last one."""
    section_id = uuid7()
    await db.execute(sql.create_section, id=section_id, workspace_id=workspace_id, **msgspec.structs.asdict(body))
    return await _section(db, workspace_id, section_id)


async def list_sections(db: Session, workspace_id: UUID) -> list[Section]:
    """List the sections in their order, without their charts."""
    return await _sections(db, workspace_id)


async def update_section(db: Session, workspace_id: UUID, section_id: UUID, body: SectionPatch) -> Section:
    """Change a section; null means unchanged. Raises SectionNotFound."""
    owner = {"workspace_id": workspace_id, "section_id": section_id}
    await db.execute(sql.update_section, **owner, **msgspec.structs.asdict(body))
    return await _section(db, workspace_id, section_id)


async def delete_section(db: Session, workspace_id: UUID, section_id: UUID) -> None:
    """Delete a section and its charts. Raises SectionNotFound."""
    if not await db.execute(sql.delete_section, workspace_id=workspace_id, section_id=section_id):
        raise SectionNotFound


async def create_chart(db: Database, workspace_id: UUID, body: ChartRequest) -> Chart:
    """Make a chart; without an index it is the last of its section. Raises SectionNotFound, FilterInvalid, Invalid."""
    check_series(body.series, body.common_filters)
    chart_id = uuid7()
    async with db.transaction() as tx:
        section_id = body.section_id or await _first_section(tx, workspace_id)
        await _section(tx, workspace_id, section_id)
        values = {**_stored(body), "section_id": section_id}
        await tx.execute(sql.create_chart, id=chart_id, workspace_id=workspace_id, **values)
        return await _chart(tx, workspace_id, chart_id)


async def update_chart(db: Session, workspace_id: UUID, chart_id: UUID, body: ChartPatch) -> Chart:
    """Change a chart; null means unchanged. Raises ChartNotFound, SectionNotFound, FilterInvalid and Invalid."""
    check_series(body.series or [], body.common_filters)
    if body.section_id is not None:
        await _section(db, workspace_id, body.section_id)
    await db.execute(sql.update_chart, workspace_id=workspace_id, chart_id=chart_id, **_stored(body))
    return await _chart(db, workspace_id, chart_id)


async def delete_chart(db: Session, workspace_id: UUID, chart_id: UUID) -> None:
    """Delete a chart. Raises ChartNotFound."""
    if not await db.execute(sql.delete_chart, workspace_id=workspace_id, chart_id=chart_id):
        raise ChartNotFound


async def show_chart(db: Session, workspace_id: UUID, chart_id: UUID, view: View) -> Chart:
    """Return a chart with its data. Raises ChartNotFound and Invalid."""
    return (await _with_data(db, workspace_id, [await _chart(db, workspace_id, chart_id)], view))[0]


async def show_section(db: Session, workspace_id: UUID, section_id: UUID, view: View) -> Section:
    """Return a section with its charts and their data. Raises SectionNotFound and Invalid."""
    return (await _with_charts(db, workspace_id, [await _section(db, workspace_id, section_id)], view))[0]


async def show_sections(db: Session, workspace_id: UUID, view: SectionsView) -> Sections:
    """Return the sections with their charts and their data. Raises Invalid."""
    found = await _sections(db, workspace_id, after_index=view.after_index)
    return Sections(await _with_charts(db, workspace_id, found, view))


async def preview_chart(db: Session, workspace_id: UUID, body: PreviewRequest) -> Preview:
    """Return what a chart would show. Raises FilterInvalid and Invalid."""
    check_series(body.chart.series, body.chart.common_filters)
    span = read_span(body.bucket_info)
    return Preview(await read_data(db, workspace_id, body.chart.series, body.chart.common_filters, span))


async def _with_charts(db: Session, workspace_id: UUID, sections: list[Section], view: View) -> list[Section]:
    found = {section.id: section for section in sections}
    rows = await db.fetch(sql.charts, workspace_id=workspace_id, ids=None, sections=sorted(found))
    for chart in await _with_data(db, workspace_id, [_read(row) for row in rows], view):
        found[chart.section_id].charts.append(chart)
    return sections


async def _with_data(db: Session, workspace_id: UUID, charts: list[Chart], view: View) -> list[Chart]:
    span = read_span(view)
    if not view.omit_data:
        for chart in charts:
            chart.data = await read_data(db, workspace_id, chart.series, chart.common_filters, span)
    return charts


async def _first_section(db: Session, workspace_id: UUID) -> UUID:
    found = await _sections(db, workspace_id)
    return found[0].id if found else (await create_section(db, workspace_id, SectionRequest(title=_FIRST_SECTION))).id


async def _section(db: Session, workspace_id: UUID, section_id: UUID) -> Section:
    found = await _sections(db, workspace_id, [section_id])
    if not found:
        raise SectionNotFound
    return found[0]


async def _sections(
    db: Session, workspace_id: UUID, ids: list[UUID] | None = None, after_index: int | None = None
) -> list[Section]:
    within = {"ids": ids, "after_index": after_index, "limit": _MAX_SECTIONS}
    rows = await db.fetch(sql.sections, workspace_id=workspace_id, **within)
    return [Section(**dict(row), charts=[]) for row in rows]


async def _chart(db: Session, workspace_id: UUID, chart_id: UUID) -> Chart:
    rows = await db.fetch(sql.charts, workspace_id=workspace_id, ids=[chart_id], sections=None)
    if not rows:
        raise ChartNotFound
    return _read(rows[0])


def _read(row: Record) -> Chart:
    return msgspec.convert(dict(row), Chart)


def _stored(body: ChartRequest | ChartPatch) -> dict[str, Any]:
    """Return the columns of a chart; no two of its series have one id."""
    taken: set[UUID] = set()
    for series in body.series or ():
        if series.id in taken:
            series.id = uuid4()
        taken.add(series.id)
    values: dict[str, Any] = msgspec.structs.asdict(body)
    return {**values, **{name: msgspec.to_builtins(values[name]) for name in _JSON}}
