"""Datasets as files: CSV, lines of JSON, and the forms that OpenAI's tools read. Written while they are read."""

import csv
import io
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from portside.datasets.sql import sql
from portside.kernel.db import Database, Record
from portside.kernel.errors import BadRequest

_CHUNK_BYTES = 32_768
_ROLES = {"human": "user", "ai": "assistant", "chat": "user", "AIMessageChunk": "assistant"}
Place = dict[str, Any]


class NotConversations(BadRequest):
    """An example of this dataset is no conversation, so that it has no such form; take jsonl or csv."""

    code = "not_conversations"


async def write_csv(db: Database, place: Place) -> AsyncIterator[str]:
    """Yield a CSV file: a column for each key of inputs and outputs, which says so where both have it."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    async with db.transaction(isolation="repeatable_read") as tx:
        columns = [(row["is_output"], row["key"]) for row in await tx.fetch(sql.columns_of_dataset, **place)]
        keys = [key for _, key in columns]
        writer.writerow(
            key if keys.count(key) == 1 else f"{'outputs' if is_output else 'inputs'}.{key}"
            for is_output, key in columns
        )
        async for row in tx.stream(sql.stream_examples, **place):
            held = (_value(row["inputs"]), _value(row["outputs"]) or {})
            writer.writerow(_cell(held[is_output].get(key)) for is_output, key in columns)
            if buffer.tell() >= _CHUNK_BYTES:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
    yield buffer.getvalue()


async def write_lines(db: Database, place: Place, form: Callable[[Record], Any]) -> AsyncIterator[bytes]:
    """Yield one line of JSON for each example. Raises what `form` raises, before the first line if it is the first."""
    chunk = bytearray()
    async with db.transaction() as tx:
        async for row in tx.stream(sql.stream_examples, **place):
            chunk += msgspec.json.encode(form(row)) + b"\n"
            if len(chunk) >= _CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
    yield bytes(chunk)


async def check_conversations(db: Database, place: Place) -> None:
    """Raise NotConversations unless every example has the forms of OpenAI: nothing is said of a file half written."""
    async with db.transaction() as tx:
        async for row in tx.stream(sql.stream_examples, **place):
            as_finetuning(row)


def place_of(workspace_id: UUID, dataset_id: UUID, as_of: datetime | None) -> Place:
    """Name the examples of a dataset at a version."""
    return {"workspace_id": workspace_id, "dataset_id": dataset_id, "as_of": as_of}


def as_line(row: Record) -> dict[str, Any]:
    """Return an example as a line of JSON."""
    inputs, outputs = (msgspec.Raw((row[name] or "null").encode()) for name in ("inputs", "outputs"))
    return {"id": row["id"], "inputs": inputs, "outputs": outputs, "metadata": row["metadata"]}


def as_finetuning(row: Record) -> dict[str, Any]:
    """Return an example as OpenAI's fine-tuning reads it. Raises NotConversations."""
    return {"messages": [*_asked(row), *_answered(row)]}


def as_evaluation(row: Record) -> dict[str, Any]:
    """Return an example as OpenAI's evaluations read it. Raises NotConversations."""
    return {"input": _asked(row), "ideal": "".join(str(message["content"]) for message in _answered(row))}


def _asked(row: Record) -> list[dict[str, Any]]:
    return _messages(_value(row["inputs"]), ("messages", "input"), "user")


def _answered(row: Record) -> list[dict[str, Any]]:
    outputs = _value(row["outputs"])
    return _messages(outputs, ("messages", "message", "output"), "assistant") if outputs else []


def _messages(held: Any, names: tuple[str, ...], role: str) -> list[dict[str, Any]]:
    found = next((held[name] for name in names if isinstance(held, Mapping) and name in held), None)
    if isinstance(found, str):
        return [{"role": role, "content": found}]
    parts = found if isinstance(found, list) else [found]
    if not parts:
        raise NotConversations
    return [_message(part) for part in parts]


def _message(part: Any) -> dict[str, Any]:
    """Read a message as OpenAI or as LangChain writes it."""
    if isinstance(part, Mapping) and isinstance(part.get("role"), str):
        return dict(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise NotConversations
    data = part["data"] if isinstance(part.get("data"), Mapping) else part
    if "content" not in data:
        raise NotConversations
    extra = data.get("additional_kwargs")
    return {"role": _ROLES.get(kind, kind), "content": data["content"], **(extra if isinstance(extra, Mapping) else {})}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
