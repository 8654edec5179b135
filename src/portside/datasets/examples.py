"""Examples, read: one, or those of a dataset at a version, also by share links."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from portside.datasets.attachments import AttachmentIds, link_attachments
from portside.datasets.datasets import open_share
from portside.datasets.errors import ExampleNotFound
from portside.datasets.sql import sql
from portside.datasets.types import Example, ExampleQuery, SharedExampleQuery
from portside.datasets.versions import resolve_as_of
from portside.kernel.db import Record, Session
from portside.kernel.errors import Invalid
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import ConditionBuilder, all_of, apply_condition
from portside.tracing.fields import read_query_object
from portside.tracing.filters import FilterSchema, PairedFields, compile_filter

ATTACHMENTS = "attachment_urls"
EVERYTHING = frozenset(Example.__struct_fields__)
_DEFAULT_FIELDS = frozenset({"id", "dataset_id", "name", "inputs", "created_at", "modified_at"})
EXAMPLE_FILTERS = FilterSchema(
    texts={
        "id": sql.when_id,
        "source_run_id": sql.when_source_run_id,
        "inputs": sql.when_inputs,
        "outputs": sql.when_outputs,
    },
    numbers={},
    times={"created_at": sql.when_created_at, "modified_at": sql.when_modified_at},
    pairs={"metadata": PairedFields(sql.when_metadata, ("key", "value"))},
    searched=sql.when_searched,
    metadata=sql.when_holds,
    metadata_key=sql.when_has_key,
)


async def list_examples(db: Session, workspace_id: UUID, query: ExampleQuery, links: DownloadLinks) -> list[Example]:
    """List examples, last changed first unless the query orders them.

    Raises FilterInvalid, Invalid and VersionNotFound.
    """
    moment = await resolve_as_of(db, workspace_id, query.dataset, query.as_of)
    builder = ConditionBuilder()
    condition = builder.build(
        sql.when_listed,
        workspace_id=workspace_id,
        dataset_id=query.dataset,
        ids=query.id,
        as_of=moment,
        metadata=read_query_object(query.metadata, "metadata"),
        splits=query.splits,
    )
    if query.filter:
        condition = all_of([condition, compile_filter(query.filter, builder, EXAMPLE_FILTERS)])
    page: dict[str, Any] = {"limit": query.limit, "offset": query.offset}
    listing = sql.recent_examples
    if query.order != "recent":
        listing = sql.ordered_examples
        page |= {"order_by": query.order, "seed": str(query.random_seed or 0.0)}
    listing, values = apply_condition(listing, condition, **page)
    ids = [row["id"] for row in await db.fetch(listing, **values)]
    return await show_examples(db, workspace_id, ids, moment, links, shown=_shown_fields(query))


async def list_shared_examples(
    db: Session, token: UUID, query: SharedExampleQuery, links: DownloadLinks
) -> list[Example]:
    """List the examples of a shared dataset. Raises SharedDatasetNotFound and what `list_examples` raises."""
    workspace_id, dataset_id = await open_share(db, token)
    full_query = ExampleQuery(dataset=dataset_id, **msgspec.structs.asdict(query))
    return await list_examples(db, workspace_id, full_query, links)


async def show_example(
    db: Session, workspace_id: UUID, example_id: UUID, as_of: str | None, links: DownloadLinks
) -> Example:
    """Return an example at a version. Raises ExampleNotFound, Invalid and VersionNotFound."""
    dataset_id = await db.fetchval(sql.dataset_of_example, workspace_id=workspace_id, example_id=example_id)
    moment = await resolve_as_of(db, workspace_id, dataset_id, as_of)
    found = await show_examples(db, workspace_id, [example_id], moment, links, shown=EVERYTHING)
    if not found:
        raise ExampleNotFound
    return found[0]


async def show_examples(  # noqa: PLR0913 - one read with many parameters
    db: Session,
    workspace_id: UUID,
    ids: list[UUID],
    moment: datetime | None,
    links: DownloadLinks,
    *,
    shown: frozenset[str],
) -> list[Example]:
    """Return the examples of these ids that exist at a moment, in this order, with the fields that are `shown`."""
    rows = await db.fetch(sql.examples_by_id, workspace_id=workspace_id, ids=ids, as_of=moment, shown=sorted(shown))
    found = {row["id"]: _example(row, shown) for row in rows}
    if ATTACHMENTS in shown:
        linked = await link_attachments(db, workspace_id, {row["id"]: _names(row) for row in rows}, links)
        for example_id, attachments in linked.items():
            found[example_id].attachment_urls = attachments
    return [found[example_id] for example_id in ids if example_id in found]


async def list_splits(db: Session, workspace_id: UUID, dataset_id: UUID, as_of: str | None) -> list[str]:
    """List the splits of a dataset at a version. Raises Invalid and VersionNotFound."""
    moment = await resolve_as_of(db, workspace_id, dataset_id, as_of)
    rows = await db.fetch(sql.list_splits, workspace_id=workspace_id, dataset_id=dataset_id, as_of=moment)
    return [row["split"] for row in rows]


def _shown_fields(query: ExampleQuery) -> frozenset[str]:
    """Return the selected fields; by default everything but attachments. Raises Invalid."""
    if query.select is None:
        return frozenset({"id"}) if query.exclude_default_fields else EVERYTHING - {ATTACHMENTS}
    if unknown := set(query.select) - EVERYTHING:
        raise Invalid.field(["query", "select"], f"examples have no field {min(unknown)[:100]}", "enum")
    return frozenset(query.select) | ({"id"} if query.exclude_default_fields else _DEFAULT_FIELDS)


def _names(row: Record) -> AttachmentIds:
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
