"""Examples as requests bring them: single ones, several, multipart bodies with files, and CSV."""

import asyncio
import csv
import io
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from portside.datasets.types import (
    AttachmentsOperations,
    DatasetRequest,
    ExampleFields,
    ExamplePatch,
    ExampleRequest,
    ExampleWrite,
    NewAttachment,
)
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from portside.kernel.http.vetting import read_json
from portside.kernel.ids import uuid7
from portside.tracing import encodings, multipart
from portside.tracing.fields import plain_text, uuid_of
from portside.tracing.links import UNKNOWN_TYPE

MAX_ROWS = 50_000
# Clients fill bodies by size, with three parts and more for each example.
MAX_PARTS = 500_000
_MAX_COLUMNS = 200
_DATASET_FIELDS = frozenset({"name", "id", "description", "data_type", "inputs_schema_definition",
                             "outputs_schema_definition"})  # fmt: skip
T = TypeVar("T")


class OwnedFields(ExampleFields):
    """An example of a multipart body that names datasets itself."""

    dataset_id: UUID | None = None
    id: UUID | None = None


class Upload(msgspec.Struct):
    """A file that becomes a dataset."""

    dataset: DatasetRequest
    examples: list[ExampleWrite]


async def read_upload(body: bytes, headers: Mapping[str, str], reader: Callable[[bytes, str], T]) -> T:
    """Undo the content encoding and hand body and content type to `reader`, off the event loop.

    Raises BodyTooLarge, EncodingBroken, EncodingUnknown and Invalid.
    """
    encoding, content_type = headers.get("content-encoding", ""), headers.get("content-type", "")
    return await asyncio.to_thread(lambda: reader(encodings.decode(body, encoding), content_type))


def from_request(body: ExampleRequest) -> ExampleWrite:
    """Turn the JSON of one new example into what is written."""
    fields = ExampleFields(**{name: getattr(body, name) for name in ExampleFields.__struct_fields__})
    return ExampleWrite(body.id or uuid7(), fields, body.inputs, body.outputs)


def from_patch(example_id: UUID, body: ExamplePatch) -> ExampleWrite:
    """Turn the JSON of a change into what is written."""
    fields = ExampleFields(metadata=body.metadata, split=body.split)
    return ExampleWrite(example_id, fields, body.inputs, body.outputs, [], body.attachments_operations)


def from_multipart(body: bytes, content_type: str) -> list[ExampleWrite]:
    """Read the parts `<example>`, `<example>.inputs`, `.outputs`, `.attachment.<name>`. Raises Invalid."""
    return [write for write, _ in from_owned_multipart(body, content_type)]


def from_owned_multipart(body: bytes, content_type: str) -> list[tuple[ExampleWrite, UUID | None]]:
    """Read the same where the part of an example may name its dataset. Raises Invalid."""
    writes: dict[UUID, ExampleWrite] = {}
    owners: dict[UUID, UUID | None] = {}
    for part in multipart.parse(body, content_type, max_parts=MAX_PARTS):
        id_text, _, field = part.name.partition(".")
        example_id = uuid_of(id_text, part.name[:200])
        if field == "":
            fields = convert(_object(part), OwnedFields, part.name)
            if example_id in writes:
                raise Invalid.field(["body", part.name], "two examples of one request have this id")
            writes[example_id] = ExampleWrite(example_id, fields)
            owners[example_id] = fields.dataset_id
            continue
        if example_id not in writes:
            raise Invalid.field(["body", part.name], "comes before the part of its example")
        _complete(writes[example_id], field, part)
    if not writes:
        raise Invalid.field(["body"], "holds no examples", "missing")
    return [(write, owners[example_id]) for example_id, write in writes.items()]


def from_csv(body: bytes, content_type: str) -> Upload:
    """Read a form with a CSV file, and which of its columns are inputs and outputs. Raises Invalid."""
    said: dict[str, Any] = {}
    keys: dict[str, list[str]] = {"input_keys": [], "output_keys": [], "metadata_keys": []}
    file: multipart.Part | None = None
    for part in multipart.parse(body, content_type):
        if part.name == "file":
            file = part
            continue
        text = plain_text(part.data.decode("utf-8", "replace"))
        if part.name in keys and text:
            keys[part.name].append(text)
        elif part.name.endswith("_definition"):
            said[part.name] = _object(part)
        elif part.name in _DATASET_FIELDS:
            said[part.name] = text
    if file is None:
        raise Invalid.field(["body", "file"], "Field required", "missing")
    if not keys["input_keys"]:
        raise Invalid.field(["body", "input_keys"], "Field required", "missing")
    said.setdefault("name", file.filename or "upload.csv")
    dataset = convert({name: value for name, value in said.items() if value is not None}, DatasetRequest, "body")
    return Upload(dataset, _rows(file.data, keys))


def _complete(write: ExampleWrite, field: str, part: multipart.Part) -> None:
    kind, _, name = field.partition(".")
    match kind:
        case "inputs" | "outputs" if not name:
            setattr(write, kind, _object(part))
        case "attachments_operations" if not name:
            write.operations = convert(_object(part), AttachmentsOperations, part.name)
        case "attachment" if name:
            mime_type = (plain_text(part.content_type.split(";")[0]) or UNKNOWN_TYPE)[:200]
            if any(file.name == name for file in write.attachments):
                raise Invalid.field(["body", part.name[:200]], "two attachments have this name")
            write.attachments.append(NewAttachment(name, mime_type, part.data))
        case _:
            raise Invalid.field(["body", part.name[:200]], "is not the name of a part that examples are made of")


def _object(part: multipart.Part) -> Any:
    """Read the JSON object of a part. Raises Invalid."""
    try:
        value = read_json(part.data)
    except Invalid as exc:
        where: list[str | int] = ["body", part.name[:200], *exc.problems[0].loc[1:]]
        raise Invalid.field(where, exc.problems[0].msg, exc.problems[0].type) from exc
    if not isinstance(value, dict):
        raise Invalid.field(["body", part.name[:200]], "must be a JSON object", "type_error")
    return value


def _rows(data: bytes, keys: dict[str, list[str]]) -> list[ExampleWrite]:
    """Read a CSV file; cells are texts."""
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        header = list(reader.fieldnames or [])
        for field, wanted in keys.items():
            if unknown := set(wanted) - set(header):
                raise Invalid.field(["body", field], f"the file has no column {min(unknown)[:200]}")
        if len(header) > _MAX_COLUMNS:
            raise Invalid.field(["body", "file"], f"a file has at most {_MAX_COLUMNS} columns")
        writes: list[ExampleWrite] = []
        for row in reader:
            if len(writes) == MAX_ROWS:
                raise Invalid.field(["body", "file"], f"a file has at most {MAX_ROWS} rows")
            picked = {field: {key: _cell(row[key]) for key in wanted} for field, wanted in keys.items()}
            fields = ExampleFields(metadata=picked["metadata_keys"] or None)
            writes.append(ExampleWrite(uuid7(), fields, picked["input_keys"], picked["output_keys"] or None))
    except (UnicodeDecodeError, csv.Error) as exc:
        raise Invalid.field(["body", "file"], f"cannot be read as CSV in UTF-8: {exc}") from exc
    return writes


def _cell(text: str | None) -> str:
    if text is not None and "\x00" in text:
        raise Invalid.field(["body", "file"], "must not hold a NUL character: it cannot be stored")
    return text or ""
