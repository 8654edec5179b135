"""Where an encrypted value is stored: its row, its field, and its path inside the document.

AES binds the location to a value as associated data, so ciphertext that is moved elsewhere does not decrypt. The names
below are therefore part of the data at rest: renaming one makes stored values unreadable.

Database functions move some values without decrypting them, so all locations that they may move a value between share
one name. A thread and its runs count as one row: their metadata, values and errors are merged and copied into each
other, and into the outbox of webhooks. An assistant and its versions count as one row, and its `context` is the
`configurable` of its config.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from portside.agent.sql.declarations import ModelField
from portside.kernel.user_json import dump_user

Row = tuple[str, ...]
Path = tuple[str, ...]

# Columns that may hold documents, as values or as JSON text, and columns of ciphertext that is not JSON.
DOCUMENT_COLUMNS = frozenset(
    {"config", "context", "error", "interrupts", "kwargs", "metadata", "owner", "payload", "value", "values"}
)
BLOB_COLUMNS = frozenset({"body", "value_datas", "write_datas"})
CHECKPOINT_BODY = ModelField("checkpoint", "checkpoint")
CHECKPOINT_VALUE = ModelField("checkpoint", "channel_values")
CHECKPOINT_PIECE = ModelField("checkpoint", "pieces")
CHECKPOINT_WRITE = ModelField("checkpoint", "writes")
EVENTS = ModelField("run", "events")

# By the kind of a row, the models whose fields may be stored in it.
_MODELS = {
    "thread": frozenset({"thread", "run", "assistant"}),
    "checkpoint": frozenset({"checkpoint"}),
    "assistant": frozenset({"assistant"}),
    "cron": frozenset({"cron"}),
    "item": frozenset({"store"}),
}
_ALIASES = {"configurable": "context"}

# Keys that SQL reads, by the field of their document; they are stored in clear.
_IDS = frozenset(
    {"run_id", "thread_id", "graph_id", "assistant_id", "user_id", "checkpoint_id", "run_attempt", "cron_id"}
)
_STEPS = frozenset({"source", "step", "parents", "counters_since_delta_snapshot"})
_CLEAR = {
    "metadata": _IDS | {"created_by"},
    "configurable": _IDS,
    "kwargs": frozenset({"langsmith_tracer", "encryption_context", "temporary", "resumable", "webhook"}),
    "payload": frozenset({"assistant_id", "encryption_context"}),
}
# SQL finds the tasks of the A2A protocol by labels with the second prefix.
_SYSTEM_PREFIXES = ("langgraph_", "a2a.")
# Has a system prefix, but identifies a person.
_NOT_SYSTEM = "langgraph_auth_user"
# Keys that hold documents of their own, by the field of the outer document.
_NESTED = {"kwargs": ("config",), "config": ("configurable", "metadata")}
# Keys that must not be encrypted by name, because statements look inside them.
STRUCTURE = (
    _IDS
    | _STEPS
    | {"config", "configurable", "metadata", "langsmith_tracer", "encryption_context", "created_by", "webhook"}
)


class Location(NamedTuple):
    """A location inside a document that is stored in a field of a row."""

    row: Row
    field: str
    path: Path = ()

    def at(self, key: str) -> "Location":
        """Return the location of a key."""
        return Location(self.row, self.field, (*self.path, key))

    def inside(self, key: str) -> "Location":
        """Return the location of what a key holds; a nested document begins a path of its own."""
        if not self.path and key in _NESTED.get(self.field, ()):
            return Location(self.row, key)
        return self.at(key)

    @property
    def associated_data(self) -> bytes:
        """The associated data that AES binds to a value at this location."""
        return dump_user([*self.row, _ALIASES.get(self.field, self.field), *self.path])

    def accepts(self, model_field: ModelField) -> bool:
        """Whether a value that was encrypted for a model's field may be stored here."""
        is_same = _ALIASES.get(model_field.field, model_field.field) == _ALIASES.get(self.field, self.field)
        return is_same and model_field.model in _MODELS[self.row[0]]


def identify_row(values: Mapping[str, Any]) -> Row:
    """Return the row that columns or parameters identify."""
    if "cron_id" in values:
        return ("cron", str(values["cron_id"]))

    if "namespace" in values:
        # Some statements join the labels of a namespace by periods.
        namespace = values["namespace"]
        return ("item", namespace if isinstance(namespace, str) else ".".join(namespace), values["key"])

    if "checkpoint_ns" in values:
        return ("checkpoint", values["thread_id"], values["checkpoint_ns"])
    if "thread_id" in values:
        return ("thread", str(values["thread_id"]))

    return ("assistant", str(values["assistant_id"]))


def nested_documents(field: str, value: Mapping[str, Any]) -> list[str]:
    """Return the keys of a document that hold documents of their own."""
    return [key for key in _NESTED.get(field, ()) if isinstance(value.get(key), dict)]


def stays_clear(model: str, field: str, key: str) -> bool:
    """Whether a key belongs to the server, and SQL has to read it."""
    if key in _CLEAR.get(field, ()) or (model == "checkpoint" and key in _STEPS):
        return True
    return field in {"metadata", "configurable"} and key.startswith(_SYSTEM_PREFIXES) and key != _NOT_SYSTEM


def body_binding(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> bytes:
    """Return the associated data of a checkpoint's body."""
    return dump_user(["checkpoint", thread_id, checkpoint_ns, checkpoint_id])


def value_binding(thread_id: str, checkpoint_ns: str, channel: str) -> bytes:
    """Return the associated data of a channel's values."""
    return dump_user(["value", thread_id, checkpoint_ns, channel])


def piece_binding(thread_id: str, series: int, number: int) -> bytes:
    """Return the associated data of a piece of a channel's values."""
    return dump_user(["piece", thread_id, series, number])


def write_binding(checkpoint: tuple[str, str, str], task_id: str, channel: str) -> bytes:
    """Return the associated data of a pending write; `checkpoint` is its thread, its namespace and its id."""
    return dump_user(["write", *checkpoint, task_id, channel])


def events_binding(thread_id: Any) -> bytes:
    """Return the associated data of a thread's logged events."""
    return dump_user(["events", str(thread_id)])
