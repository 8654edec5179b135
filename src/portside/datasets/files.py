"""Examples in request bodies and in files: JSON and multipart bodies, CSV uploads, and downloads.

Downloads (CSV, JSON lines, the formats of OpenAI's tools) are written while the examples of one version are read.
"""

import csv
import io
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from portside.datasets.attachments import MAX_ATTACHMENTS
from portside.datasets.sql import sql
from portside.datasets.types import (
    AttachmentsOperations,
    DatasetRequest,
    ExampleFields,
    ExamplePatch,
    ExampleRequest,
    ExampleWrite,
    NewAttachment,
)
from portside.kernel.db import Database, Record
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.escaping import escape_formula, restore
from portside.kernel.http.decode import convert
from portside.kernel.http.json_validation import read_json
from portside.kernel.ids import uuid7
from portside.kernel.large_reads import start_streaming
from portside.tracing.bodies import UNKNOWN_TYPE, FormPart, parse_multipart
from portside.tracing.fields import parse_uuid, to_plain_text

MAX_ROWS = 50_000
# Clients limit bodies by size, and send three or more parts for each example.
MAX_PARTS = 500_000
_MAX_COLUMNS = 200
_DATASET_FIELDS = frozenset(
    {"name", "id", "description", "data_type", "inputs_schema_definition", "outputs_schema_definition"}
)
DatasetVersion = dict[str, Any]
"""The query parameters for the examples of a dataset at a version."""
_CHUNK_BYTES = 32_768
_ROLES = {"human": "user", "ai": "assistant", "chat": "user", "AIMessageChunk": "assistant"}


class OwnedFields(ExampleFields):
    """An example in a multipart body that names its dataset."""

    dataset_id: UUID | None = None
    id: UUID | None = None


class Upload(msgspec.Struct):
    """A CSV file to create a dataset from."""

    dataset: DatasetRequest
    examples: list[ExampleWrite]


def to_write(body: ExampleRequest) -> ExampleWrite:
    """Return the write of one new example."""
    fields = ExampleFields(**{name: getattr(body, name) for name in ExampleFields.__struct_fields__})
    return ExampleWrite(id=body.id or uuid7(), fields=fields, inputs=body.inputs, outputs=body.outputs)


def to_change(example_id: UUID, body: ExamplePatch) -> ExampleWrite:
    """Return the write of a change."""
    fields = ExampleFields(metadata=body.metadata, split=body.split)
    return ExampleWrite(
        id=example_id,
        fields=fields,
        inputs=body.inputs,
        outputs=body.outputs,
        operations=body.attachments_operations,
    )


def parse_examples(body: bytes, content_type: str) -> list[ExampleWrite]:
    """Parse the parts `<example>`, `<example>.inputs`, `.outputs`, `.attachment.<name>`. Raises Invalid."""
    return [write for write, _ in parse_owned_examples(body, content_type)]


def parse_owned_examples(body: bytes, content_type: str) -> list[tuple[ExampleWrite, UUID | None]]:
    """Parse the same parts; the part of an example may name its dataset. Raises Invalid."""
    writes: dict[UUID, ExampleWrite] = {}
    datasets: dict[UUID, UUID | None] = {}
    for part in parse_multipart(body, content_type, max_parts=MAX_PARTS):
        id_text, _, field = part.name.partition(".")
        example_id = parse_uuid(id_text, part.name[:200])
        if field == "":
            fields = convert(_decode_part(part), OwnedFields, part.name)
            if example_id in writes:
                raise Invalid.field(["body", part.name], "two examples of one request have this id; send it once")

            writes[example_id] = ExampleWrite(example_id, fields)
            datasets[example_id] = fields.dataset_id
            continue

        if example_id not in writes:
            raise Invalid.field(["body", part.name], "must come after the part of its example")

        _add_part(writes[example_id], field, part)

    if not writes:
        raise Invalid.field(["body"], "holds no examples", "missing")

    return [(write, datasets[example_id]) for example_id, write in writes.items()]


def parse_csv(body: bytes, content_type: str) -> Upload:
    """Parse a form with a CSV file and the names of its input and output columns. Raises Invalid."""
    fields: dict[str, Any] = {}
    keys: dict[str, list[str]] = {"input_keys": [], "output_keys": [], "metadata_keys": []}
    file: FormPart | None = None

    for part in parse_multipart(body, content_type):
        if part.name == "file":
            file = part
            continue

        text = to_plain_text(part.data.decode("utf-8", "replace"))
        if part.name in keys and text:
            keys[part.name].append(text)
        elif part.name.endswith("_definition"):
            fields[part.name] = _decode_part(part)
        elif part.name in _DATASET_FIELDS:
            fields[part.name] = text

    if file is None:
        raise Invalid.field(["body", "file"], "Field required", "missing")
    if not keys["input_keys"]:
        raise Invalid.field(["body", "input_keys"], "Field required", "missing")

    fields.setdefault("name", file.filename or "upload.csv")
    present_fields = {name: value for name, value in fields.items() if value is not None}
    return Upload(
        dataset=convert(present_fields, DatasetRequest, "body"),
        examples=_read_rows(file.data, keys),
    )


def _add_part(write: ExampleWrite, field: str, part: FormPart) -> None:
    kind, _, name = field.partition(".")
    match kind:
        case "inputs" | "outputs" if not name:
            setattr(write, kind, _decode_part(part))
        case "attachments_operations" if not name:
            write.operations = convert(_decode_part(part), AttachmentsOperations, part.name)
        case "attachment" if name:
            # Checked here and not only before the write: the names below are compared with each other.
            if len(write.attachments) == MAX_ATTACHMENTS:
                problem = f"an example has at most {MAX_ATTACHMENTS} attachments"
                raise Invalid.field(["body", part.name[:200]], problem)

            mime_type = (to_plain_text(part.content_type.split(";")[0]) or UNKNOWN_TYPE)[:200]
            if any(file.name == name for file in write.attachments):
                raise Invalid.field(["body", part.name[:200]], "two attachments have this name")

            write.attachments.append(NewAttachment(name, mime_type, part.data))
        case _:
            raise Invalid.field(
                ["body", part.name[:200]],
                "is not the name of a part of an example: use ID, ID.inputs, ID.outputs, ID.attachment.NAME or "
                "ID.attachments_operations",
            )


def _decode_part(part: FormPart) -> Any:
    """Decode the JSON object of a part. Raises Invalid."""
    try:
        value = read_json(part.data)
    except Invalid as exc:
        where: list[str | int] = ["body", part.name[:200], *exc.problems[0].loc[1:]]
        raise Invalid.field(where, exc.problems[0].msg, exc.problems[0].type) from exc

    if not isinstance(value, dict):
        raise Invalid.field(["body", part.name[:200]], "must be a JSON object", "type_error")

    return value


def _read_rows(data: bytes, keys: dict[str, list[str]]) -> list[ExampleWrite]:
    """Parse a CSV file; every cell is text."""
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        header = list(reader.fieldnames or [])
        for field, columns in keys.items():
            if unknown := set(columns) - set(header):
                raise Invalid.field(["body", field], f"the file has no column {min(unknown)[:200]}")

        if len(header) > _MAX_COLUMNS:
            raise Invalid.field(["body", "file"], f"a file has at most {_MAX_COLUMNS} columns")

        writes: list[ExampleWrite] = []
        for row in reader:
            if len(writes) == MAX_ROWS:
                raise Invalid.field(["body", "file"], f"a file has at most {MAX_ROWS} rows")

            cells = {field: {key: _read_cell(row[key]) for key in columns} for field, columns in keys.items()}
            fields = ExampleFields(metadata=cells["metadata_keys"] or None)
            writes.append(
                ExampleWrite(
                    id=uuid7(), fields=fields, inputs=cells["input_keys"], outputs=cells["output_keys"] or None
                )
            )
    except (UnicodeDecodeError, csv.Error) as exc:
        raise Invalid.field(["body", "file"], f"cannot be read as CSV in UTF-8: {exc}") from exc

    return writes


def _read_cell(text: str | None) -> str:
    if text is not None and "\x00" in text:
        raise Invalid.field(["body", "file"], "a cell holds a NUL character, which cannot be stored; remove it")
    return restore(text or "")


class NotConversations(BadRequest):
    """An example of this dataset is not a conversation and has no such format; download jsonl or csv."""

    code = "not_conversations"


async def write_csv(db: Database, version: DatasetVersion) -> AsyncIterator[str]:
    """Yield a CSV file with a column for each key; a key of both inputs and outputs gets a prefix."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    rows = await db.fetch(sql.columns_of_dataset, **version)
    columns = [(row["is_output"], row["key"]) for row in rows]
    keys = [key for _, key in columns]

    header = []
    for is_output, key in columns:
        side = "outputs" if is_output else "inputs"
        header.append(escape_formula(key if keys.count(key) == 1 else f"{side}.{key}"))

    writer.writerow(header)

    async for row in db.stream_by_size(sql.bytes_of_examples, sql.some_examples, **version):
        values = (_decode(row["inputs"]), _decode(row["outputs"]) or {})
        writer.writerow(_to_cell(values[is_output].get(key)) for is_output, key in columns)

        if buffer.tell() >= _CHUNK_BYTES:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()

    yield buffer.getvalue()


async def write_lines(db: Database, version: DatasetVersion, form: Callable[[Record], Any]) -> AsyncIterator[bytes]:
    """Yield one line of JSON for each example. Raises what `form` raises, before the first line if it is the first."""
    chunk = bytearray()
    async for row in db.stream_by_size(sql.bytes_of_examples, sql.some_examples, **version):
        chunk += msgspec.json.encode(form(row)) + b"\n"
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()

    yield bytes(chunk)


async def check_conversations(db: Database, version: DatasetVersion) -> None:
    """Check every example before the download begins, because an error in the middle of a file cannot be reported.

    Raises NotConversations.
    """
    start_streaming()
    async for row in db.stream_by_size(sql.bytes_of_examples, sql.some_examples, **version):
        to_finetuning(row)


def build_version(workspace_id: UUID, dataset_id: UUID, as_of: datetime) -> DatasetVersion:
    """Return a version to write to a file.

    Files are written in several statements, so `as_of` must be a moment at which nothing changes any more.
    """
    return {"workspace_id": workspace_id, "dataset_id": dataset_id, "as_of": as_of}


def to_line(row: Record) -> dict[str, Any]:
    """Return an example as a line of JSON."""
    inputs = msgspec.Raw((row["inputs"] or "null").encode())
    outputs = msgspec.Raw((row["outputs"] or "null").encode())
    return {"id": row["id"], "inputs": inputs, "outputs": outputs, "metadata": row["metadata"]}


def to_finetuning(row: Record) -> dict[str, Any]:
    """Return an example in the format of OpenAI's fine-tuning. Raises NotConversations."""
    return {"messages": [*_read_input_messages(row), *_read_output_messages(row)]}


def to_evaluation(row: Record) -> dict[str, Any]:
    """Return an example in the format of OpenAI's evaluations. Raises NotConversations."""
    texts = [_to_text(message.get("content")) for message in _read_output_messages(row)]
    return {"input": _read_input_messages(row), "ideal": "".join(texts)}


def _to_text(content: Any) -> str:
    """Return the text of a message: of a list its text blocks, and nothing where a message only calls tools."""
    if isinstance(content, list):
        return "".join(_to_text(part.get("text") if isinstance(part, Mapping) else part) for part in content)
    return content if isinstance(content, str) else ""


def _read_input_messages(row: Record) -> list[dict[str, Any]]:
    return _to_messages(_decode(row["inputs"]), ("messages", "input"), "user")


def _read_output_messages(row: Record) -> list[dict[str, Any]]:
    outputs = _decode(row["outputs"])
    return _to_messages(outputs, ("messages", "message", "output"), "assistant") if outputs else []


def _to_messages(values: Any, names: tuple[str, ...], role: str) -> list[dict[str, Any]]:
    content = next((values[name] for name in names if isinstance(values, Mapping) and name in values), None)
    if isinstance(content, str):
        return [{"role": role, "content": content}]

    parts = content if isinstance(content, list) else [content]
    if not parts:
        raise NotConversations

    return [_to_message(part) for part in parts]


def _to_message(part: Any) -> dict[str, Any]:
    """Convert a message of OpenAI or LangChain."""
    if isinstance(part, Mapping) and isinstance(part.get("role"), str):
        return dict(part)

    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise NotConversations

    data = part["data"] if isinstance(part.get("data"), Mapping) else part
    if "content" not in data:
        raise NotConversations

    message = {"role": _ROLES.get(kind, kind), "content": data["content"]}
    extra = data.get("additional_kwargs")
    if isinstance(extra, Mapping):
        message |= extra

    return message


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    return escape_formula(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
