"""Examples: reads at a version of their dataset, also by share links, and writes.

A request that changes examples makes one version of their dataset, or changes nothing. A stored state of an example is
never changed: it ends where the next version begins, so earlier versions stay readable. An example may take its inputs,
outputs and attachments from a run.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from portside.datasets.attachments import AttachmentIds, check_names, link_attachments, store_attachments
from portside.datasets.datasets import create_dataset, get_dataset, lock_dataset, open_share
from portside.datasets.errors import ExampleElsewhere, ExampleExists, ExampleNotFound
from portside.datasets.files import Upload, to_change
from portside.datasets.schemas import DatasetSchemas, Location, check_values
from portside.datasets.sql import sql
from portside.datasets.types import (
    Changed,
    Dataset,
    Example,
    ExampleQuery,
    ExamplesChanged,
    ExampleWrite,
    NamedPatch,
    NewAttachment,
    SharedExampleQuery,
    SplitsRequest,
)
from portside.datasets.versions import begin_version, resolve_moment
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import Invalid
from portside.tracing.attachments import DownloadLinks
from portside.tracing.conditions import ConditionBuilder, apply_condition, require_all
from portside.tracing.fields import read_query_object, to_utc
from portside.tracing.filters import FilterSchema, PairedFields, compile_filter

SPLITS = "dataset_split"
_DEFAULT_SPLIT = "base"
_MAX_METADATA_BYTES = 256 * 1024
ATTACHMENTS = "attachment_urls"
_PREVIEWS = frozenset({"inputs_preview", "outputs_preview"})
EVERYTHING = frozenset(Example.__struct_fields__) - _PREVIEWS
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
    searched_fields={"inputs": sql.when_inputs_searched, "outputs": sql.when_outputs_searched},
    metadata=sql.when_holds,
    metadata_key=sql.when_has_key,
)


# Reads.


async def list_examples(db: Session, workspace_id: UUID, query: ExampleQuery, links: DownloadLinks) -> list[Example]:
    """List examples, last changed first unless the query orders them.

    Raises FilterInvalid, Invalid and VersionNotFound.
    """
    moment = await resolve_moment(db, workspace_id, query.dataset, query.as_of)
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
        condition = require_all([condition, compile_filter(query.filter, builder, EXAMPLE_FILTERS)])

    page: dict[str, Any] = {"limit": query.limit, "offset": query.offset}
    listing = sql.recent_examples

    if query.order != "recent":
        listing = sql.ordered_examples
        page |= {"order_by": query.order, "seed": str(query.random_seed or 0.0)}

    listing, values = apply_condition(listing, condition, **page)
    ids = [row["id"] for row in await db.fetch(listing, **values)]
    return await get_examples(db, workspace_id, ids, moment, links, fields=_select_fields(query))


async def list_shared_examples(
    db: Session, token: UUID, query: SharedExampleQuery, links: DownloadLinks
) -> list[Example]:
    """List the examples of a shared dataset. Raises SharedDatasetNotFound and what `list_examples` raises."""
    workspace_id, dataset_id = await open_share(db, token)
    full_query = ExampleQuery(dataset=dataset_id, **msgspec.structs.asdict(query))
    return await list_examples(db, workspace_id, full_query, links)


async def get_example(
    db: Session, workspace_id: UUID, example_id: UUID, as_of: str | None, links: DownloadLinks
) -> Example:
    """Return an example at a version. Raises ExampleNotFound, Invalid and VersionNotFound."""
    dataset_id = await db.fetchval(sql.dataset_of_example, workspace_id=workspace_id, example_id=example_id)
    if dataset_id is None:
        raise ExampleNotFound

    moment = await resolve_moment(db, workspace_id, dataset_id, as_of)
    examples = await get_examples(db, workspace_id, [example_id], moment, links, fields=EVERYTHING)
    if not examples:
        raise ExampleNotFound

    return examples[0]


async def get_examples(  # noqa: PLR0913 - one read with many parameters
    db: Session,
    workspace_id: UUID,
    ids: list[UUID],
    moment: datetime | None,
    links: DownloadLinks,
    *,
    fields: frozenset[str],
) -> list[Example]:
    """Return the examples of these ids that exist at a moment, in this order, with these fields."""
    rows = await db.fetch(sql.examples_by_id, workspace_id=workspace_id, ids=ids, as_of=moment, fields=sorted(fields))
    examples = {row["id"]: _to_example(row, fields) for row in rows}
    if ATTACHMENTS in fields:
        ids_by_example = {row["id"]: _read_attachment_ids(row) for row in rows}
        attachments_by_example = await link_attachments(db, workspace_id, ids_by_example, links)
        for example_id, attachments in attachments_by_example.items():
            examples[example_id].attachment_urls = attachments

    return [examples[example_id] for example_id in ids if example_id in examples]


async def list_splits(db: Session, workspace_id: UUID, dataset_id: UUID, as_of: str | None) -> list[str]:
    """List the splits of a dataset at a version. Raises Invalid and VersionNotFound."""
    moment = await resolve_moment(db, workspace_id, dataset_id, as_of)
    rows = await db.fetch(sql.list_splits, workspace_id=workspace_id, dataset_id=dataset_id, as_of=moment)
    return [row["split"] for row in rows]


def _select_fields(query: ExampleQuery) -> frozenset[str]:
    """Return the selected fields; by default everything but attachments. Raises Invalid."""
    if query.select is None:
        return frozenset({"id"}) if query.exclude_default_fields else EVERYTHING - {ATTACHMENTS}
    if unknown := set(query.select) - EVERYTHING - _PREVIEWS:
        raise Invalid.field(["query", "select"], f"examples have no field {min(unknown)[:100]}", "enum")

    return frozenset(query.select) | ({"id"} if query.exclude_default_fields else _DEFAULT_FIELDS)


def _read_attachment_ids(row: Record) -> AttachmentIds:
    return {name: UUID(attachment_id) for name, attachment_id in row["attachments"].items()}


def _to_example(row: Record, names: frozenset[str]) -> Example:
    fields: dict[str, Any] = {name: row[name] for name in names if name in row}
    fields["id"] = row["id"]

    if "name" in names:
        fields["name"] = f"#{row['id'].hex[:4]} @ {row['dataset_name']}"

    for name in ("inputs", "outputs"):
        if name in names:
            fields[name] = None if row[name] is None else msgspec.Raw(row[name].encode())

    return Example(**{name: fields.get(name, UNSET) for name in EVERYTHING | _PREVIEWS})


# Writes.


async def fill_from_runs(db: Session, workspace_id: UUID, writes: Sequence[ExampleWrite]) -> list[ExampleWrite]:
    """Return the writes, completed with the data of their source runs. Raises Invalid for an unknown run."""
    with_source = [write for write in writes if _uses_source_run(write)]
    ids = [_get_source_run(write) for write in with_source]
    rows = await db.fetch(sql.source_runs, workspace_id=workspace_id, ids=ids) if ids else []

    runs = {row["id"]: row for row in rows}
    filled = []
    for write in writes:
        if not _uses_source_run(write):
            filled.append(write)
            continue

        run_id = _get_source_run(write)
        if run_id not in runs:
            raise Invalid.field(["body", str(write.id), "source_run_id"], f"no run {run_id} exists in this workspace")

        files = await _read_run_attachments(db, workspace_id, run_id, write)
        changes: dict[str, Any] = {"attachments": [*write.attachments, *files]}
        if write.fields.use_source_run_io:
            changes["inputs"] = write.inputs or _decode_object(runs[run_id]["inputs"]) or {}
            changes["outputs"] = write.outputs or _decode_object(runs[run_id]["outputs"])

        filled.append(msgspec.structs.replace(write, **changes))

    return filled


def _uses_source_run(write: ExampleWrite) -> bool:
    return write.fields.use_source_run_io or bool(write.fields.use_source_run_attachments)


def _get_source_run(write: ExampleWrite) -> UUID:
    if write.fields.source_run_id is None:
        raise Invalid.field(["body", str(write.id), "source_run_id"], "Field required", "missing")
    return write.fields.source_run_id


async def _read_run_attachments(
    db: Session, workspace_id: UUID, run_id: UUID, write: ExampleWrite
) -> list[NewAttachment]:
    names = None if write.fields.use_source_run_io else write.fields.use_source_run_attachments
    rows = await db.fetch(sql.attachments_of_run, workspace_id=workspace_id, run_id=run_id, names=names)
    names_in_request = {file.name for file in write.attachments}
    return [NewAttachment(**dict(row)) for row in rows if row["name"] not in names_in_request]


def _decode_object(text: str | None) -> Any:
    """Decode JSON text. A run may hold any value, an example holds objects: other values are wrapped."""
    value = None if text is None else msgspec.json.decode(text)
    return value if value is None or isinstance(value, dict) else {"value": value}


class _State(msgspec.Struct, kw_only=True):
    """An example in the new version."""

    id: UUID
    created_at: datetime | None
    position: int
    inputs: Any
    outputs: Any
    metadata: dict[str, Any]
    source_run_id: UUID | None
    attachments: AttachmentIds


class VersionWriter:
    """Writes one version of a dataset, whose row is locked until the transaction ends.

    `moment` is the time of a version that is carried over from another server.
    """

    def __init__(
        self,
        tx: Transaction,
        workspace_id: UUID,
        dataset_id: UUID,
        schemas: DatasetSchemas,
        *,
        moment: datetime | None = None,
    ) -> None:
        self._tx = tx
        self._moment = moment
        self._owner = {"workspace_id": workspace_id, "dataset_id": dataset_id}
        self._schemas = schemas

    async def add(self, writes: Sequence[ExampleWrite]) -> Changed:
        """Write new examples. Raises ExampleExists and Invalid."""
        _refuse_duplicate_ids(writes)
        if rows := await self._existing_rows([write.id for write in writes]):
            raise _build_exists(rows)

        filled = await fill_from_runs(self._tx, self._owner["workspace_id"], writes)
        states = [await self._new(write, index) for index, write in enumerate(filled)]
        await self._check(states)

        return await self._write(states)

    async def change(self, writes: Sequence[ExampleWrite]) -> Changed:
        """Change existing examples; null leaves a field unchanged.

        Raises ExampleNotFound, ExampleElsewhere and Invalid.
        """
        _refuse_duplicate_ids(writes)
        rows = await self._existing_rows([write.id for write in writes])
        if missing := {write.id for write in writes} - set(rows):
            await self._refuse_moves(missing)
            raise ExampleNotFound(f"Example not found: {min(missing)}")

        states = [await self._changed(rows[write.id], write) for write in writes]
        await self._check(states)
        return await self._write(states)

    async def put(self, writes: Sequence[ExampleWrite]) -> Changed:
        """Write new examples and change existing ones. Raises ExampleExists, ExampleElsewhere and Invalid."""
        _refuse_duplicate_ids(writes)
        rows = await self._existing_rows([write.id for write in writes])
        await self._refuse_moves({write.id for write in writes} - set(rows))
        filled = await fill_from_runs(self._tx, self._owner["workspace_id"], writes)

        states = [
            await (self._changed(rows[write.id], write) if write.id in rows else self._new(write, index))
            for index, write in enumerate(filled)
        ]

        await self._check(states)
        return await self._write(states)

    async def move_split(self, body: SplitsRequest) -> None:
        """Add examples to a split, or remove them. Raises ExampleNotFound."""
        rows = await self._existing_rows(body.examples)
        if missing := set(body.examples) - set(rows):
            raise ExampleNotFound(f"Example not found: {min(missing)}")

        states = []
        for row in rows.values():
            splits = [split for split in _get_splits(row["metadata"]) if split != body.split_name]
            if not body.remove:
                splits.append(body.split_name)

            if splits != _get_splits(row["metadata"]):
                state = _to_state(row)
                state.metadata = {**state.metadata, SPLITS: splits}
                states.append(state)

        if states:
            await self._write(states)

    async def remove(self, ids: Sequence[UUID]) -> int:
        """Delete examples in a new version; return how many existed."""
        if not await self._existing_rows(ids):
            return 0

        as_of = await begin_version(self._tx, **self._owner, moment=self._moment)
        return await self._tx.execute(sql.end_examples, **self._owner, ids=list(ids), as_of=as_of)

    async def forget(self, ids: Sequence[UUID]) -> None:
        """Remove examples from every version, with attachments that no other example has."""
        await self._tx.execute(sql.forget_examples, **self._owner, ids=list(ids))
        await self._tx.execute(sql.forget_attachments, **self._owner)

    async def _existing_rows(self, ids: Iterable[UUID]) -> dict[UUID, Record]:
        rows = await self._tx.fetch(sql.examples_to_change, **self._owner, ids=list(ids))
        return {row["id"]: row for row in rows}

    async def _refuse_moves(self, ids: Collection[UUID]) -> None:
        """Raise ExampleElsewhere if one of the examples is in another dataset: examples do not move."""
        workspace_id = self._owner["workspace_id"]
        rows = await self._tx.fetch(sql.datasets_of_present_examples, workspace_id=workspace_id, ids=list(ids))
        if rows:
            raise _build_elsewhere(rows[0]["id"], rows[0]["dataset_id"])

    async def _new(self, write: ExampleWrite, position: int) -> _State:
        if write.inputs is None:
            raise Invalid.field(["body", str(write.id), "inputs"], "Field required", "missing")

        if write.operations is not None:
            where = ["body", str(write.id), "attachments_operations"]
            raise Invalid.field(where, "a new example has no attachments to keep or rename")

        return _State(
            id=write.id,
            created_at=None if write.fields.created_at is None else to_utc(write.fields.created_at, "created_at"),
            position=position,
            inputs=write.inputs,
            outputs=write.outputs,
            metadata=_build_metadata(write, {}),
            source_run_id=write.fields.source_run_id,
            attachments=await self._merge_attachments(write, {}),
        )

    async def _changed(self, row: Record, write: ExampleWrite) -> _State:
        state = _to_state(row)
        state.inputs = state.inputs if write.inputs is None else write.inputs
        state.outputs = state.outputs if write.outputs is None else write.outputs
        state.metadata = _build_metadata(write, state.metadata)
        state.attachments = await self._merge_attachments(write, state.attachments)

        return state

    async def _merge_attachments(self, write: ExampleWrite, existing: AttachmentIds) -> AttachmentIds:
        """Return the attachments of an example after a request: stored and renamed ones, and new ones.

        New attachments without operations replace the existing ones.
        """
        names = dict(existing)
        where: Location = ["body", str(write.id), "attachments"]
        operations = write.operations
        if operations is not None:
            if unknown := ({*operations.rename, *operations.retain} - set(existing)):
                raise Invalid.field([*where, min(unknown)], "the example has no attachment of this name")

            names = {name: existing[name] for name in operations.retain}
            names.update({new: existing[old] for old, new in operations.rename.items()})
        elif write.attachments:
            names = {}

        new_names = [file.name for file in write.attachments]
        check_names([*names, *new_names], where)
        ids = await store_attachments(self._tx, **self._owner, files=write.attachments)
        names.update(zip(new_names, ids, strict=True))

        return names

    async def _check(self, states: Sequence[_State]) -> None:
        if self._schemas != DatasetSchemas():
            values: list[tuple[Location, Any, Any]] = [
                (["body", str(state.id)], _decode(state.inputs), _decode(state.outputs)) for state in states
            ]
            await check_values(self._schemas, values)

    async def _write(self, states: Sequence[_State]) -> Changed:
        as_of = await begin_version(self._tx, **self._owner, moment=self._moment)
        ids = [state.id for state in states]
        await self._tx.execute(sql.end_examples, **self._owner, ids=ids, as_of=as_of)

        rows = await self._tx.fetch(
            sql.write_examples,
            **self._owner,
            since=as_of,
            id=ids,
            created_at=[state.created_at or as_of for state in states],
            position=[state.position for state in states],
            inputs=[_encode(state.inputs) for state in states],
            outputs=[None if state.outputs is None else _encode(state.outputs) for state in states],
            metadata=[_encode(state.metadata) for state in states],
            source_run_id=[state.source_run_id for state in states],
            attachments=[_encode(state.attachments) for state in states],
        )
        if len(rows) < len(states):
            raise _build_exists(set(ids) - {row["id"] for row in rows})

        return Changed(count=len(ids), example_ids=ids, as_of=as_of)


async def open_writer(
    tx: Transaction, workspace_id: UUID, dataset_id: UUID, moment: datetime | None = None
) -> VersionWriter:
    """Lock a dataset to change its examples. Raises DatasetNotFound."""
    schemas = await lock_dataset(tx, workspace_id, dataset_id)
    return VersionWriter(tx, workspace_id, dataset_id, schemas, moment=moment)


async def add_examples(db: Database, workspace_id: UUID, dataset_id: UUID, writes: Sequence[ExampleWrite]) -> Changed:
    """Write new examples. Raises DatasetNotFound, ExampleExists and Invalid."""
    async with db.transaction() as tx:
        writer = await open_writer(tx, workspace_id, dataset_id)
        return await writer.add(writes)


async def change_examples(
    db: Database, workspace_id: UUID, dataset_id: UUID, writes: Sequence[ExampleWrite]
) -> Changed:
    """Change examples of a dataset. Raises DatasetNotFound, ExampleNotFound, ExampleElsewhere and Invalid."""
    async with db.transaction() as tx:
        writer = await open_writer(tx, workspace_id, dataset_id)
        return await writer.change(writes)


async def put_examples(
    db: Database,
    workspace_id: UUID,
    writes: Iterable[tuple[ExampleWrite, UUID | None]],
    moment: datetime | None = None,
) -> Changed:
    """Create or change examples in the datasets that they name, at the moment of a version of another server.

    Raises DatasetNotFound, ExampleExists, ExampleElsewhere and Invalid.
    """
    changes: list[Changed] = []
    async with db.transaction() as tx:
        for dataset_id, writes_to_dataset in _group_by_dataset(writes):
            writer = await open_writer(tx, workspace_id, dataset_id, moment)
            changes.append(await writer.put(writes_to_dataset))

    ids = [example_id for change in changes for example_id in change.example_ids]
    return Changed(count=len(ids), example_ids=ids, as_of=max(change.as_of for change in changes))


async def add_to_datasets(
    db: Database, workspace_id: UUID, writes: Iterable[tuple[ExampleWrite, UUID | None]]
) -> list[UUID]:
    """Write new examples to the datasets that they name, all or none. Raises what `add_examples` raises."""
    ids: list[UUID] = []
    async with db.transaction() as tx:
        for dataset_id, writes_to_dataset in _group_by_dataset(writes):
            writer = await open_writer(tx, workspace_id, dataset_id)
            change = await writer.add(writes_to_dataset)
            ids += change.example_ids

    return ids


async def change_in_any_dataset(db: Database, workspace_id: UUID, patches: Sequence[NamedPatch]) -> ExamplesChanged:
    """Change examples in any datasets. Raises ExampleNotFound, ExampleElsewhere and Invalid."""
    async with db.transaction() as tx:
        ids = [patch.id for patch in patches]
        rows = await tx.fetch(sql.datasets_of_present_examples, workspace_id=workspace_id, ids=ids)

        datasets = {row["id"]: row["dataset_id"] for row in rows}
        for patch in patches:
            if patch.id not in datasets:
                raise ExampleNotFound(f"Example not found: {patch.id}")
            if patch.dataset_id not in {None, datasets[patch.id]}:
                raise _build_elsewhere(patch.id, datasets[patch.id])

        changes = [(to_change(patch.id, patch), datasets[patch.id]) for patch in patches]
        for dataset_id, writes in _group_by_dataset(changes):
            writer = await open_writer(tx, workspace_id, dataset_id)
            await writer.change(writes)

    return ExamplesChanged(f"{len(ids)} examples updated", len(ids), ids)


async def move_split(db: Database, workspace_id: UUID, dataset_id: UUID, body: SplitsRequest) -> list[str]:
    """Add examples to a split or remove them, and return all splits. Raises DatasetNotFound, ExampleNotFound."""
    async with db.transaction() as tx:
        writer = await open_writer(tx, workspace_id, dataset_id)
        await writer.move_split(body)
        return await list_splits(tx, workspace_id, dataset_id, None)


async def create_from_file(db: Database, workspace_id: UUID, upload: Upload) -> Dataset:
    """Create a dataset with the examples of a file, or nothing. Raises DatasetExists and Invalid."""
    async with db.transaction() as tx:
        dataset = await create_dataset(tx, workspace_id, upload.dataset)
        if upload.examples:
            writer = await open_writer(tx, workspace_id, dataset.id)
            await writer.add(upload.examples)

        return await get_dataset(tx, workspace_id, dataset.id)


async def delete_example(db: Database, workspace_id: UUID, example_id: UUID) -> None:
    """Delete an example. Raises ExampleNotFound."""
    if not await delete_examples(db, workspace_id, [example_id], hard=False):
        raise ExampleNotFound


async def delete_examples(
    db: Database, workspace_id: UUID, ids: Sequence[UUID], *, hard: bool, moment: datetime | None = None
) -> int:
    """Delete examples in any datasets; `hard` removes them from every version. Return how many existed.

    Raises Invalid if `moment`, that of a version of another server, is not the latest.
    """
    count = 0
    async with db.transaction() as tx:
        rows = await tx.fetch(sql.examples_in_datasets, workspace_id=workspace_id, ids=list(ids))
        ids_by_dataset: dict[UUID, list[UUID]] = {}
        for row in rows:
            ids_by_dataset.setdefault(row["dataset_id"], []).append(row["id"])

        for dataset_id, example_ids in ids_by_dataset.items():
            writer = await open_writer(tx, workspace_id, dataset_id, moment)
            count += await writer.remove(example_ids)
            if hard:
                await writer.forget(example_ids)

    return count


def _group_by_dataset(
    writes: Iterable[tuple[ExampleWrite, UUID | None]],
) -> list[tuple[UUID, list[ExampleWrite]]]:
    """Group writes by dataset, in the order of ids, so that two requests lock datasets in the same order."""
    groups: dict[UUID, list[ExampleWrite]] = {}
    for write, dataset_id in writes:
        if dataset_id is None:
            raise Invalid.field(["body", str(write.id), "dataset_id"], "Field required", "missing")
        groups.setdefault(dataset_id, []).append(write)

    return sorted(groups.items())


def _get_splits(metadata: dict[str, Any]) -> list[str]:
    """Return the splits of an example."""
    splits = metadata.get(SPLITS)
    return splits if isinstance(splits, list) else []


def _build_metadata(write: ExampleWrite, existing: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata after a request. An example stays in its splits unless the request names others."""
    fields = write.fields
    metadata = dict(existing if fields.metadata is None else fields.metadata)
    if isinstance(fields.split, str):
        metadata[SPLITS] = [fields.split]
    elif fields.split is not None:
        metadata[SPLITS] = list(dict.fromkeys(fields.split))
    elif isinstance(metadata.get(SPLITS), str):
        metadata[SPLITS] = [metadata[SPLITS]]
    elif SPLITS not in metadata:
        metadata[SPLITS] = existing.get(SPLITS, [_DEFAULT_SPLIT])

    if len(msgspec.json.encode(metadata)) > _MAX_METADATA_BYTES:
        raise Invalid.field(["body", str(write.id), "metadata"], f"has more than {_MAX_METADATA_BYTES} bytes")

    return metadata


def _to_state(row: Record) -> _State:
    fields = {**dict(row), "attachments": _read_attachment_ids(row)}
    for name in ("inputs", "outputs"):
        fields[name] = None if row[name] is None else msgspec.Raw(row[name].encode())

    return _State(**fields)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _build_elsewhere(example_id: UUID, dataset_id: UUID) -> ExampleElsewhere:
    return ExampleElsewhere(
        f"The example {example_id} is in the dataset {dataset_id}, and examples do not move; name its own dataset."
    )


def _build_exists(ids: Iterable[UUID]) -> ExampleExists:
    return ExampleExists(f"An example of the id {min(ids)} exists already; change it, or send another id.")


def _decode(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def _refuse_duplicate_ids(writes: Sequence[ExampleWrite]) -> None:
    ids: set[UUID] = set()
    for write in writes:
        if write.id in ids:
            raise Invalid.field(["body", str(write.id)], "two examples of one request have this id; send it once")
        ids.add(write.id)
