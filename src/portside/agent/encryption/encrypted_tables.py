"""The tables that hold ciphertext: pages of rows that an older key encrypted, and what of them may be encrypted."""

from collections.abc import Callable
from typing import Any, NamedTuple

from portside.agent.encryption.locations import (
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    EVENTS,
    body_binding,
    events_binding,
    piece_binding,
    value_binding,
    write_binding,
)
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.kernel.db import Query, Record

_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class BlobColumn(NamedTuple):
    """A column of ciphertext."""

    column: str
    target: ModelField
    binding: Callable[[Record], bytes]
    """What binds the ciphertext to its row."""
    replace: Query
    """The statement that replaces it."""
    keys: tuple[str, ...]
    """The columns by which that statement finds the row."""


class EncryptedTable(NamedTuple):
    """A table, and what in it may be encrypted."""

    name: str
    """The name that `document_statements` knows."""
    page: Query
    """Returns a page of its rows that an older key encrypted."""
    start: dict[str, tuple[str, Any]]
    """By parameter, the column that it compares, and a value before all others."""
    documents: tuple[str, ...] = ()
    blob: BlobColumn | None = None


_FIRST_CHECKPOINT = {"after": ("thread_id", ""), "after_ns": ("checkpoint_ns", ""), "after_id": ("checkpoint_id", "")}
ENCRYPTED_TABLES = (
    EncryptedTable(
        name="threads",
        page=sql.threads_of_older_keys,
        start={"after": ("thread_id", _FIRST_ID)},
        documents=("metadata", "config", "values", "interrupts", "error"),
    ),
    EncryptedTable(
        name="runs",
        page=sql.runs_of_older_keys,
        start={"after": ("run_id", _FIRST_ID)},
        documents=("metadata", "kwargs", "error"),
    ),
    EncryptedTable(
        name="assistants",
        page=sql.assistants_of_older_keys,
        start={"after": ("assistant_id", _FIRST_ID)},
        documents=("metadata", "config", "context"),
    ),
    EncryptedTable(
        name="assistant_versions",
        page=sql.assistant_versions_of_older_keys,
        start={"after": ("assistant_id", _FIRST_ID), "after_version": ("version", -1)},
        documents=("metadata", "config", "context"),
    ),
    EncryptedTable(
        name="crons",
        page=sql.crons_of_older_keys,
        start={"after": ("cron_id", _FIRST_ID)},
        documents=("metadata", "payload", "owner"),
    ),
    EncryptedTable(
        name="items",
        page=sql.items_of_older_keys,
        start={"after_namespace": ("namespace", []), "after_key": ("key", "")},
        documents=("value",),
    ),
    EncryptedTable(
        name="checkpoints",
        page=sql.checkpoints_of_older_keys,
        start=_FIRST_CHECKPOINT,
        documents=("metadata",),
        blob=BlobColumn(
            column="body",
            target=CHECKPOINT_BODY,
            binding=lambda row: body_binding(row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]),
            replace=sql.replace_checkpoint_body,
            keys=("thread_id", "checkpoint_ns", "checkpoint_id"),
        ),
    ),
    EncryptedTable(
        name="values",
        page=sql.values_of_older_keys,
        start={
            "after": ("thread_id", ""),
            "after_ns": ("checkpoint_ns", ""),
            "after_channel": ("channel", ""),
            "after_version": ("version", ""),
        },
        blob=BlobColumn(
            column="data",
            target=CHECKPOINT_VALUE,
            binding=lambda row: value_binding(row["thread_id"], row["checkpoint_ns"], row["channel"]),
            replace=sql.replace_checkpoint_value,
            keys=("thread_id", "checkpoint_ns", "channel"),
        ),
    ),
    EncryptedTable(
        name="pieces",
        page=sql.pieces_of_older_keys,
        start={"after": ("thread_id", ""), "after_series": ("series", -1), "after_number": ("number", -1)},
        blob=BlobColumn(
            column="data",
            target=CHECKPOINT_PIECE,
            binding=lambda row: piece_binding(row["thread_id"], row["series"], row["number"]),
            replace=sql.replace_checkpoint_piece,
            keys=("thread_id", "series", "number"),
        ),
    ),
    EncryptedTable(
        name="writes",
        page=sql.writes_of_older_keys,
        # Special writes have negative indexes, but no task has an empty id.
        start={**_FIRST_CHECKPOINT, "after_task": ("task_id", ""), "after_idx": ("idx", 0)},
        blob=BlobColumn(
            column="data",
            target=CHECKPOINT_WRITE,
            binding=lambda row: write_binding(
                (row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]), row["task_id"], row["channel"]
            ),
            replace=sql.replace_checkpoint_write,
            keys=("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "channel"),
        ),
    ),
    EncryptedTable(
        name="webhook_deliveries",
        page=sql.webhooks_of_older_keys,
        start={"after": ("run_id", _FIRST_ID)},
        documents=("values", "metadata", "kwargs", "error"),
    ),
    EncryptedTable(
        name="chunks",
        page=sql.chunks_of_older_keys,
        start={"after": ("thread_id", _FIRST_ID), "after_number": ("number", -1)},
        blob=BlobColumn(
            column="body",
            target=EVENTS,
            binding=lambda row: events_binding(row["thread_id"]),
            replace=sql.replace_stream_chunk,
            keys=("thread_id", "number"),
        ),
    ),
)
