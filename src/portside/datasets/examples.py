"""Examples, read: one, or those of a dataset as they were at a version."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from portside.datasets.attachments import Links, Names, link_attachments
from portside.datasets.datasets import read_object
from portside.datasets.errors import ExampleNotFound
from portside.datasets.filters import EXAMPLES
from portside.datasets.sql import sql
from portside.datasets.types import Example, ExampleQuery
from portside.datasets.versions import find_moment
from portside.kernel.db import Record, Session
from portside.kernel.errors import Invalid
from portside.tracing.conditions import Conditions, all_of, narrow
from portside.tracing.filters import read_filter

ATTACHMENTS = "attachment_urls"
EVERYTHING = frozenset(Example.__struct_fields__)
_BY_DEFAULT = frozenset({"id", "dataset_id", "name", "inputs", "created_at", "modified_at"})


async def list_examples(db: Session, workspace_id: UUID, query: ExampleQuery, links: Links) -> list[Example]:
    """List examples, what was changed last first unless the query says otherwise.

    Raises FilterInvalid, Invalid and VersionNotFound.
    """
    moment = await find_moment(db, workspace_id, query.dataset, query.as_of)
    conditions = Conditions()
    asked = conditions.of(
        sql.when_asked,
        workspace_id=workspace_id,
        dataset_id=query.dataset,
        ids=query.id,
        as_of=moment,
        metadata=read_object(query.metadata, "metadata"),
        splits=query.splits,
    )
    if query.filter:
        asked = all_of([asked, read_filter(query.filter, conditions, EXAMPLES)])
    page: dict[str, Any] = {"limit": query.limit, "offset": query.offset}
    listing = sql.recent_examples
    if query.order != "recent":
        listing = sql.ordered_examples
        page |= {"order_by": query.order, "seed": str(query.random_seed or 0.0)}
    listing, values = narrow(listing, asked, **page)
    ids = [row["id"] for row in await db.fetch(listing, **values)]
    return await show_examples(db, workspace_id, ids, moment, links, shown=_shown_fields(query))


async def show_example(db: Session, workspace_id: UUID, example_id: UUID, as_of: str | None, links: Links) -> Example:
    """Return an example as it was at a version. Raises ExampleNotFound, Invalid and VersionNotFound."""
    dataset_id = await db.fetchval(sql.dataset_of_example, workspace_id=workspace_id, example_id=example_id)
    moment = await find_moment(db, workspace_id, dataset_id, as_of)
    found = await show_examples(db, workspace_id, [example_id], moment, links, shown=EVERYTHING)
    if not found:
        raise ExampleNotFound
    return found[0]


async def show_examples(  # noqa: PLR0913 - the question has as many parts
    db: Session, workspace_id: UUID, ids: list[UUID], moment: datetime | None, links: Links, *, shown: frozenset[str]
) -> list[Example]:
    """Return the examples of these ids that there were at a moment, in this order, and what is `shown` of them."""
    rows = await db.fetch(sql.examples_by_id, workspace_id=workspace_id, ids=ids, as_of=moment, shown=sorted(shown))
    found = {row["id"]: _example(row, shown) for row in rows}
    if ATTACHMENTS in shown:
        linked = await link_attachments(db, workspace_id, {row["id"]: _names(row) for row in rows}, links)
        for example_id, attachments in linked.items():
            found[example_id].attachment_urls = attachments
    return [found[example_id] for example_id in ids if example_id in found]


async def list_splits(db: Session, workspace_id: UUID, dataset_id: UUID, as_of: str | None) -> list[str]:
    """List the splits of a dataset at a version. Raises Invalid and VersionNotFound."""
    moment = await find_moment(db, workspace_id, dataset_id, as_of)
    rows = await db.fetch(sql.list_splits, workspace_id=workspace_id, dataset_id=dataset_id, as_of=moment)
    return [row["split"] for row in rows]


def _shown_fields(query: ExampleQuery) -> frozenset[str]:
    """Return what to show: everything but attachments, unless fields were selected. Raises Invalid."""
    if query.select is None:
        return frozenset({"id"}) if query.exclude_default_fields else EVERYTHING - {ATTACHMENTS}
    if unknown := set(query.select) - EVERYTHING:
        raise Invalid.field(["query", "select"], f"examples have no field {min(unknown)[:100]}", "enum")
    return frozenset(query.select) | ({"id"} if query.exclude_default_fields else _BY_DEFAULT)


def _names(row: Record) -> Names:
    return {name: UUID(attachment_id) for name, attachment_id in row["attachments"].items()}


def _example(row: Record, shown: frozenset[str]) -> Example:
    fields: dict[str, Any] = {name: row[name] for name in shown if name in row}
    fields["id"] = row["id"]
    if "name" in shown:
        fields["name"] = f"#{row['id'].hex[:4]} @ {row['dataset_name']}"
    for name in ("inputs", "outputs"):
        if name in shown:
            fields[name] = None if row[name] is None else msgspec.Raw(row[name].encode())
    return Example(**{name: fields.get(name, UNSET) for name in EVERYTHING})
