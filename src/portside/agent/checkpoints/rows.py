"""Between langgraph's checkpoints and the rows that keep them.

Metadata is kept as `jsonb`, because history is filtered by it. `jsonb` refuses the NUL character: langgraph drops it
from the strings it copies into metadata, and deeper down it is replaced here, in what is stored and in what is searched
for alike. State is kept as the serializer wrote it, byte for byte, so nothing is lost there.
"""

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR

from portside.kernel.codec import dump_user, without_nul
from portside.kernel.db import Record

# Keeping short values in the checkpoint takes a run of an echo graph from 3.9 ms of CPU to 3.2.
INLINE_CHARACTERS = 256
# Who asked for a run, and in which request, is no part of what a thread remembers (spec: Authentication).
_OF_THE_REQUEST = ("langgraph_auth_", "langgraph_request_id", "graph_auth_", "graph_request_id")
_PLAIN = (type(None), bool, int, float)
CHECKPOINT_COLUMNS = (
    "c_thread", "c_ns", "c_id", "c_parent", "c_metadata", "c_kind", "c_body", "c_channels", "c_versions",
)  # fmt: skip
VALUE_COLUMNS = ("v_thread", "v_ns", "v_channel", "v_version", "v_kind", "v_data")
WRITE_COLUMNS = (
    "w_thread", "w_ns", "w_checkpoint", "w_task", "w_idx", "w_path", "w_run", "w_channel", "w_kind", "w_data",
)  # fmt: skip
PLACE = WRITE_COLUMNS.index("w_idx")
SUBGRAPH_METADATA = ("langgraph_node", "langgraph_path", "langgraph_step", "langgraph_triggers")


Row = tuple[Any, ...]


class Rows:
    """Rows of the three tables by their keys, as parameters of `write_checkpoints`."""

    __slots__ = ("checkpoints", "size", "values", "writes")

    def __init__(self) -> None:
        self.checkpoints: dict[Row, Row] = {}
        self.values: dict[Row, Row] = {}
        self.writes: dict[Row, Row] = {}
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.values or self.writes)

    def merge(self, other: "Rows") -> None:
        """Add rows as the tables take them: values and ordinary writes stay as first made, the rest is replaced."""
        self.checkpoints |= other.checkpoints
        self.values = other.values | self.values
        for key, row in other.writes.items():
            if row[PLACE] < 0:
                self.writes[key] = row
            else:
                self.writes.setdefault(key, row)
        self.size += other.size

    def columns(self) -> dict[str, list[Any]]:
        """Turn the rows into one list for each column. Raises ValueError on metadata that has no JSON form."""
        named: dict[str, list[Any]] = {}
        for names, rows in (
            (CHECKPOINT_COLUMNS, self.checkpoints),
            (VALUE_COLUMNS, self.values),
            (WRITE_COLUMNS, self.writes),
        ):
            columns = zip(*rows.values(), strict=True) if rows else ((),) * len(names)
            named.update((name, list(column)) for name, column in zip(names, columns, strict=True))
        named["c_metadata"] = [each if isinstance(each, str) else each.text() for each in named["c_metadata"]]
        return named


class Metadata:
    """The metadata of a checkpoint as it was when that was put. It is written out when it is stored: much never is."""

    __slots__ = ("_config", "_metadata")

    def __init__(self, config: RunnableConfig, metadata: CheckpointMetadata) -> None:
        known, given = config.get("metadata") or {}, config["configurable"]
        self._config = RunnableConfig(metadata={**known}, configurable={**given})
        self._metadata: CheckpointMetadata = {**metadata}

    def text(self) -> str:
        """Return it as JSON that `jsonb` takes."""
        return metadata_json(self._config, self._metadata)


def checkpoint_rows(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Rows:
    """Make the row of a checkpoint and the rows of the values it changed."""
    thread_id, checkpoint_ns = _place(config)
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    inline = {channel: value for channel, value in values.items() if _is_inline(value)}
    stored = [channel for channel in values if channel not in inline and channel in versions]
    kind, body = serde.dumps_typed({**checkpoint, "channel_values": inline})
    rows = Rows()
    rows.checkpoints[thread_id, checkpoint_ns, checkpoint["id"]] = (
        thread_id, checkpoint_ns, checkpoint["id"], config["configurable"].get("checkpoint_id"),
        Metadata(config, metadata), kind, body,
        _array(stored), _array([str(versions[channel]) for channel in stored]),
    )  # fmt: skip
    rows.size = len(body)
    for channel in stored:
        if channel in new_versions:
            kind, data = serde.dumps_typed(values[channel])
            key = (thread_id, checkpoint_ns, channel, str(new_versions[channel]))
            rows.values[key] = (*key, kind, data)
            rows.size += len(data)
    return rows


def write_rows(
    serde: SerializerProtocol, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: tuple[str, str]
) -> Rows:
    """Make the rows of the writes of a task, which is named by its id and its path.

    Of a task that was cut off only what marks it is kept. With some of its output langgraph would take it for finished:
    a node whose edges were not yet followed would end the run there when it is resumed.
    """
    thread_id, checkpoint_ns = _place(config)
    task_id, task_path = task
    configurable = config["configurable"]
    checkpoint_id = configurable["checkpoint_id"]
    run_id = configurable.get("run_id") or config.get("metadata", {}).get("run_id")
    rows = Rows()
    is_cut_off = any(isinstance(value, CancelledError) for channel, value in writes if channel == ERROR)
    for number, (channel, value) in enumerate(writes):
        if is_cut_off and channel not in WRITES_IDX_MAP:
            continue
        place = WRITES_IDX_MAP.get(channel, number)
        kind, data = serde.dumps_typed(value)
        key = (thread_id, checkpoint_ns, checkpoint_id, task_id, place)
        rows.writes[key] = (*key, task_path, run_id, channel, kind, data)
        rows.size += len(data)
    return rows


def metadata_json(config: RunnableConfig, metadata: CheckpointMetadata) -> str:
    """Write the metadata of a checkpoint, with what the config adds to it, as JSON that `jsonb` takes."""
    told = get_serializable_checkpoint_metadata(config, metadata)
    kept = {name: value for name, value in told.items() if not name.startswith(_OF_THE_REQUEST)}
    return without_nul(dump_user({**kept, **_whereabouts(config)})).decode()


def _whereabouts(config: RunnableConfig) -> dict[str, Any]:
    """Tell of a subgraph's checkpoint which step of the graph around it it belongs to; langgraph leaves that out."""
    if not config.get("configurable", {}).get("checkpoint_ns"):
        return {}
    known = config.get("metadata", {})
    return {key: known[key] for key in SUBGRAPH_METADATA if key in known}


def filter_json(wanted: dict[str, Any]) -> str:
    """Write a filter the way metadata is written, so that the two compare."""
    return metadata_json({}, cast("CheckpointMetadata", wanted))


def read_tuple(serde: SerializerProtocol, row: Record) -> CheckpointTuple:
    """Rebuild a checkpoint from its row of `checkpoint_tuples`."""
    checkpoint: Checkpoint = serde.loads_typed((row["kind"], row["body"]))
    stored = zip(row["value_channels"] or (), row["value_kinds"] or (), row["value_datas"] or (), strict=True)
    checkpoint["channel_values"].update({channel: serde.loads_typed((kind, data)) for channel, kind, data in stored})
    writes = zip(
        row["write_tasks"] or (), row["write_channels"] or (), row["write_kinds"] or (), row["write_datas"] or (),
        strict=True,
    )  # fmt: skip
    parent_id = row["parent_id"]
    return CheckpointTuple(
        config=_config(row, row["checkpoint_id"]),
        checkpoint=checkpoint,
        metadata=row["metadata"],
        parent_config=_config(row, parent_id) if parent_id else None,
        pending_writes=[(task, channel, serde.loads_typed((kind, data))) for task, channel, kind, data in writes],
    )


def thread_of(config: RunnableConfig) -> str:
    """Return the thread a config speaks of. Raises ValueError when it names none."""
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        raise ValueError("a checkpointed graph needs config['configurable']['thread_id']")
    return str(thread_id)


def _place(config: RunnableConfig) -> tuple[str, str]:
    return thread_of(config), config["configurable"].get("checkpoint_ns", "")


def _array(texts: Sequence[str]) -> str:
    """Write texts as an array of Postgres: arrays of different lengths cannot be rows of one parameter."""
    return "{" + ",".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts) + "}"


def _config(row: Record, checkpoint_id: str) -> RunnableConfig:
    place = {"thread_id": row["thread_id"], "checkpoint_ns": row["checkpoint_ns"], "checkpoint_id": checkpoint_id}
    return {"configurable": place}


def _is_inline(value: Any) -> bool:
    """Whether a value goes into the checkpoint itself. By exact type: an enum member must keep its class."""
    kind = type(value)
    return kind in _PLAIN or (kind is str and len(value) <= INLINE_CHARACTERS)
