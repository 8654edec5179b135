"""Datasets: created, listed, changed, deleted, and shared by links."""

from typing import Any
from uuid import UUID, uuid4

import msgspec
from asyncpg import UniqueViolationError
from msgspec import UNSET

from portside.datasets.errors import DatasetExists, DatasetNotFound, SharedDatasetNotFound
from portside.datasets.schemas import DatasetSchemas, check_schema, check_values
from portside.datasets.sql import sql
from portside.datasets.types import Dataset, DatasetPatch, DatasetQuery, DatasetRequest, DatasetShare
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.http.routes import refuse_field
from portside.kernel.ids import uuid7
from portside.tracing.fields import read_query_object

_SCHEMA_FIELDS = ("inputs_schema_definition", "outputs_schema_definition")
_CHECK_BATCH = 500


async def create_dataset(db: Session, workspace_id: UUID, body: DatasetRequest) -> Dataset:
    """Create a dataset. Raises DatasetExists and Invalid."""
    for name in ("transformations", "tag_value_ids"):
        if getattr(body, name):
            raise refuse_field(name, "is not supported; leave it out")

    for name in _SCHEMA_FIELDS:
        if (schema := getattr(body, name)) is not None:
            check_schema(schema, name)

    extra = body.extra
    if body.metadata is not None:
        extra = {**(extra or {}), "metadata": body.metadata}

    dataset_id = await db.fetchval(
        sql.create_dataset,
        workspace_id=workspace_id,
        id=body.id or uuid7(),
        name=body.name,
        description=body.description,
        data_type=body.data_type,
        extra=extra,
        inputs_schema=_encode(body.inputs_schema_definition),
        outputs_schema=_encode(body.outputs_schema_definition),
    )
    if dataset_id is None:
        raise DatasetExists

    return await get_dataset(db, workspace_id, dataset_id)


async def list_datasets(db: Session, workspace_id: UUID, query: DatasetQuery) -> list[Dataset]:
    """List datasets, newest first unless the query sorts them. Raises Invalid."""
    rows = await db.fetch(
        sql.list_datasets,
        workspace_id=workspace_id,
        ids=query.id,
        name=query.name,
        name_contains=query.name_contains,
        data_types=query.data_type,
        metadata=read_query_object(query.metadata, "metadata"),
        sort_by=query.sort_by,
        descending=query.sort_by_desc,
        limit=query.limit,
        offset=query.offset,
    )

    return [_to_dataset(row) for row in rows]


async def get_dataset(db: Session, workspace_id: UUID, dataset_id: UUID) -> Dataset:
    """Return a dataset. Raises DatasetNotFound."""
    datasets = await list_datasets(db, workspace_id, DatasetQuery(id=[dataset_id]))
    if not datasets:
        raise DatasetNotFound

    return datasets[0]


async def update_dataset(db: Database, workspace_id: UUID, dataset_id: UUID, patch: DatasetPatch) -> Dataset:
    """Change a dataset. Raises DatasetNotFound, DatasetExists, and Invalid if examples violate a schema."""
    if patch.transformations:
        raise refuse_field("transformations", "is not supported; leave it out")

    schemas = {name: getattr(patch, name) for name in _SCHEMA_FIELDS}
    for name, schema in schemas.items():
        if isinstance(schema, dict):
            check_schema(schema, name)

    values = {name: None if value is UNSET else value for name, value in msgspec.structs.asdict(patch).items()}
    try:
        async with db.transaction() as tx:
            await lock_dataset(tx, workspace_id, dataset_id)
            await tx.fetchval(
                sql.update_dataset,
                workspace_id=workspace_id,
                dataset_id=dataset_id,
                name=patch.name,
                sets_description=patch.description is not UNSET,
                description=values["description"],
                sets_metadata=patch.metadata is not UNSET,
                metadata=values["metadata"],
                sets_inputs_schema=schemas["inputs_schema_definition"] is not UNSET,
                inputs_schema=_encode(values["inputs_schema_definition"]),
                sets_outputs_schema=schemas["outputs_schema_definition"] is not UNSET,
                outputs_schema=_encode(values["outputs_schema_definition"]),
            )

            # A schema that is removed or left as it is needs no check.
            new_schemas = [schema if isinstance(schema, dict) else None for schema in schemas.values()]
            await _check_examples(tx, workspace_id, dataset_id, DatasetSchemas(*new_schemas))
    except UniqueViolationError as exc:
        raise DatasetExists from exc

    return await get_dataset(db, workspace_id, dataset_id)


async def delete_dataset(db: Session, workspace_id: UUID, dataset_id: UUID) -> None:
    """Delete a dataset with its examples and versions; experiments on it stay. Raises DatasetNotFound."""
    if not await db.execute(sql.delete_dataset, workspace_id=workspace_id, dataset_id=dataset_id):
        raise DatasetNotFound


async def empty_workspace(db: Session, workspace_id: UUID) -> None:
    """Delete all datasets of a workspace, with their examples and comparisons."""
    await db.execute(sql.empty_workspace, workspace_id=workspace_id)


async def lock_dataset(tx: Transaction, workspace_id: UUID, dataset_id: UUID) -> DatasetSchemas:
    """Lock a dataset until the transaction ends, and return its schemas. Raises DatasetNotFound."""
    row = await tx.fetchrow(sql.lock_dataset, workspace_id=workspace_id, dataset_id=dataset_id)
    if row is None:
        raise DatasetNotFound

    return DatasetSchemas(_decode(row["inputs_schema"]), _decode(row["outputs_schema"]))


async def share_dataset(db: Session, workspace_id: UUID, dataset_id: UUID) -> DatasetShare:
    """Share a dataset; a shared dataset keeps its token. Raises DatasetNotFound."""
    await db.execute(sql.share_dataset, workspace_id=workspace_id, dataset_id=dataset_id, share_token=uuid4())
    share = await _find_share(db, workspace_id, dataset_id)
    if share is None:
        raise DatasetNotFound

    return share


async def get_share(db: Session, workspace_id: UUID, dataset_id: UUID) -> DatasetShare:
    """Return the share of a dataset. Raises DatasetNotFound if it is not shared."""
    share = await _find_share(db, workspace_id, dataset_id)
    if share is None:
        raise DatasetNotFound("The dataset is not shared.")

    return share


async def unshare_dataset(db: Session, workspace_id: UUID, dataset_id: UUID) -> None:
    """Stop sharing a dataset; no error if it is not shared."""
    await db.execute(sql.unshare_dataset, workspace_id=workspace_id, dataset_id=dataset_id)


async def open_share(db: Session, token: UUID) -> tuple[UUID, UUID]:
    """Return the workspace and the dataset of a share token. Raises SharedDatasetNotFound."""
    row = await db.fetchrow(sql.shared_dataset, share_token=token)
    if row is None:
        raise SharedDatasetNotFound

    return row["workspace_id"], row["dataset_id"]


async def _find_share(db: Session, workspace_id: UUID, dataset_id: UUID) -> DatasetShare | None:
    """Return the share of a dataset; None if it is not shared."""
    token = await db.fetchval(sql.share_of_dataset, workspace_id=workspace_id, dataset_id=dataset_id)
    return None if token is None else DatasetShare(dataset_id, token)


async def _check_examples(tx: Transaction, workspace_id: UUID, dataset_id: UUID, schemas: DatasetSchemas) -> None:
    """Check stored examples against new schemas. Raises Invalid."""
    if schemas.inputs is None and schemas.outputs is None:
        return

    batch: list[tuple[list[str | int], Any, Any]] = []
    owner = {"workspace_id": workspace_id, "dataset_id": dataset_id}
    async for row in tx.stream_by_size(sql.bytes_of_examples, sql.some_examples, **owner, as_of=None):
        batch.append((["examples", str(row["id"])], _decode(row["inputs"]), _decode(row["outputs"])))
        if len(batch) == _CHECK_BATCH:
            await check_values(schemas, batch)
            batch = []

    await check_values(schemas, batch)


def _to_dataset(row: Record) -> Dataset:
    fields: dict[str, Any] = dict(row)
    extra = fields.pop("extra") or {}
    schemas = {f"{name}_definition": _decode(fields.pop(name)) for name in ("inputs_schema", "outputs_schema")}
    return Dataset(**fields, **schemas, metadata=extra.get("metadata"))


def _encode(value: dict[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
