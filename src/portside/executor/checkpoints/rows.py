"""Converts langgraph's checkpoints to rows and back.

Metadata is stored as `jsonb`, because history is filtered by it. `jsonb` refuses the NUL character: langgraph drops it
from the strings that it copies into metadata; deeper down it is replaced here, in stored metadata and in filters alike.
State is stored as the serializer wrote it, byte for byte, so nothing is lost there.
"""

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR

from portside.executor.checkpoints.backend import Rows
from portside.executor.checkpoints.pieces import (
    CONTAINERS,
    MIN_BYTES,
    CheckpointValues,
    CutValue,
    PreviousValue,
    StoredValue,
    ValuePieces,
    encode_header,
    is_worth_cutting,
    read_previous,
    shares_much,
)
from portside.executor.checkpoints.serde import SafeSerializer
from portside.executor.checkpoints.stored_pieces import PIECE_SIZE, encode_array, parse_ranges
from portside.executor.errors import OtherLanguage
from portside.kernel.user_json import dump_jsonb

# Shorter values are stored in the checkpoint itself, which reduces a run of an echo graph from 3.9 ms of CPU to 3.2.
INLINE_CHARACTERS = 256
# The size of a body that is not encoded yet is taken to be this.
BODY_BYTES = 1024
# The serializer's name for the encoding of everything but bytes, and the range of its integers.
MSGPACK = "msgpack"
MIN_INT = -(2**63)
MAX_INT = 2**64 - 1
# The caller and the request of a run are not stored with the thread's state: others may read it, and other callers'
# runs continue it.
_REQUEST_PREFIXES = ("langgraph_auth_", "langgraph_request_id", "graph_auth_", "graph_request_id")
_PLAIN = (type(None), bool, int, float)
# The task of writes that belong to no task: input, and the values of an interrupted run's `Command`.
NULL_TASK = "00000000-0000-0000-0000-000000000000"
# The kind of bodies that JavaScript graphs write (executor-js/src/saver.ts).
JAVASCRIPT = "javascript"
SUBGRAPH_METADATA = ("langgraph_node", "langgraph_path", "langgraph_step", "langgraph_triggers")


class Encoding(NamedTuple):
    """The encoding of values: the serializer, and the pieces that versions of a value share."""

    serde: SerializerProtocol
    pieces: ValuePieces
    cuts_writes: bool = True

    def find_values(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> CheckpointValues | None:
        """Return the values of a checkpoint, if any of them are known: in a run none are before the first long one."""
        has_any = self.pieces.run_values.get(thread_id, True)
        return self.pieces.find_values(thread_id, checkpoint_ns, checkpoint_id) if has_any else None

    def encode(
        self, thread_id: str, value: Any, before: PreviousValue | None
    ) -> tuple[StoredValue, PreviousValue | None]:
        """Encode a value. Return its stored form, and the value that the next version can share pieces with, if any."""
        if type(value) in CONTAINERS and isinstance(before, CutValue):
            cut = self.pieces.cut(self.serde, thread_id, value, before)
            if cut is not None:
                return cut

        kind, data = self.serde.dumps_typed(value)
        if len(data) < MIN_BYTES or not is_worth_cutting(value, kind, data):
            return StoredValue(kind, data), None

        if isinstance(before, bytes) and shares_much(before, data):
            cut = self.pieces.cut(self.serde, thread_id, value, None)
            if cut is not None:
                return cut

        return StoredValue(kind, data), data


def build_checkpoint_rows(
    encoding: Encoding,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Rows:
    """Return the row of a checkpoint and the rows of the values that it changed.

    Long values share pieces with those of the checkpoint that the config names, if that is known.
    """
    serde, pieces, _ = encoding
    thread_id = get_thread_id(config)
    checkpoint_ns = config["configurable"].get("checkpoint_ns", "")
    values = checkpoint["channel_values"]
    versions = checkpoint["channel_versions"]

    # By exact type: an enum member must keep its class.
    inline = {
        channel: value
        for channel, value in values.items()
        if type(value) in _PLAIN or (type(value) is str and len(value) <= INLINE_CHARACTERS)
    }

    stored_channels = [channel for channel in values if channel not in inline and channel in versions]
    # Snapshots, which are encoded only when they are stored: many checkpoints never are. What may fail is encoded now.
    kind, body = _prepare_body(serde, {**checkpoint, "channel_values": inline})
    source = RunnableConfig(metadata={**(config.get("metadata") or {})}, configurable={**config["configurable"]})
    encode_metadata = partial(dump_metadata, source, {**metadata})
    rows = Rows()

    rows.checkpoints[thread_id, checkpoint_ns, checkpoint["id"]] = (
        thread_id,
        checkpoint_ns,
        checkpoint["id"],
        config["configurable"].get("checkpoint_id"),
        encode_metadata,
        kind,
        body,
        partial(_encode_array, stored_channels),
        partial(_encode_array, [str(versions[channel]) for channel in stored_channels]),
    )

    rows.size = len(body) if isinstance(body, bytes) else BODY_BYTES
    parent = encoding.find_values(thread_id, checkpoint_ns, config["configurable"].get("checkpoint_id"))
    before = {} if parent is None else parent.channels

    shareable = {channel: before[channel] for channel in stored_channels if channel in before}
    for channel in stored_channels:
        if channel in new_versions:
            similar = shareable.pop(channel, None)
            if parent is not None:
                similar = parent.task_values.get(channel, similar)

            value, shared = encoding.encode(thread_id, values[channel], similar)
            key = (thread_id, checkpoint_ns, channel, str(new_versions[channel]))
            ranges = None if value.ranges is None else encode_array(value.ranges)
            rows.values[key] = (*key, value.kind, value.data, ranges, None)

            if value.new:
                _add_pieces(rows, thread_id, value)

            rows.size += len(value.data)
            if shared is not None:
                shareable[channel] = shared

    if shareable or before:
        values_to_share = CheckpointValues(
            checkpoint_id=checkpoint["id"],
            channels=shareable,
            versions={channel: str(versions[channel]) for channel in shareable},
            task_values={},
        )
        pieces.remember(thread_id, checkpoint_ns, values_to_share)

    return rows


def _prepare_body(serde: SerializerProtocol, body: dict[str, Any]) -> tuple[str, bytes | Callable[[], bytes]]:
    """Return the kind of a checkpoint's body, and its bytes or, if nothing can keep it from being encoded, a function.

    Langgraph gives the checkpointer a copy, and the values that are left in a body do not change.
    """
    if not isinstance(serde, SafeSerializer) or not all(map(_is_always_encodable, body["channel_values"].values())):
        return serde.dumps_typed(body)
    return MSGPACK, lambda: serde.dumps_typed(body)[1]


def _is_always_encodable(value: Any) -> bool:
    if isinstance(value, str):
        # Another string may hold half of a surrogate pair, which cannot be encoded.
        return value.isascii()

    return type(value) is not int or MIN_INT <= value <= MAX_INT


def build_write_rows(
    encoding: Encoding, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: tuple[str, str]
) -> Rows:
    """Return the rows of the writes of a task, which is named by its id and its path.

    Of a cancelled task only its special writes are stored. With some of its output langgraph would take it for
    finished: a node whose edges were not yet followed would end the run there when it is resumed.
    """
    thread_id = get_thread_id(config)
    checkpoint_ns = config["configurable"].get("checkpoint_ns", "")
    task_id, task_path = task
    configurable = config["configurable"]
    checkpoint_id = configurable["checkpoint_id"]
    run_id = configurable.get("run_id") or config.get("metadata", {}).get("run_id")
    rows = Rows()

    parent_values = encoding.find_values(thread_id, checkpoint_ns, checkpoint_id) if encoding.cuts_writes else None
    is_cancelled = any(isinstance(value, CancelledError) for channel, value in writes if channel == ERROR)
    for number, (channel, value) in enumerate(writes):
        if is_cancelled and channel not in WRITES_IDX_MAP:
            continue

        key = (thread_id, checkpoint_ns, checkpoint_id, task_id, WRITES_IDX_MAP.get(channel, number))
        before = None if parent_values is None else parent_values.channels.get(channel)
        if parent_values is not None and isinstance(before, CutValue) and before.may_share_with(value):
            kind, data, ranges = _cut_write(encoding, rows, (thread_id, channel, value), parent_values)
        else:
            kind, data = encoding.serde.dumps_typed(value)
            ranges = None

        rows.writes[key] = (*key, task_path, run_id, channel, kind, data, ranges, None)
        rows.size += len(data)

    return rows


def _cut_write(
    encoding: Encoding, rows: Rows, write: tuple[str, str, Any], parent_values: CheckpointValues
) -> tuple[str, bytes, str | None]:
    """Encode the write of a whole long value with the pieces of its checkpoint's value; add new pieces to the rows."""
    thread_id, channel, value = write
    stored_value, shared = encoding.encode(thread_id, value, parent_values.channels[channel])
    _add_pieces(rows, thread_id, stored_value)

    if isinstance(shared, CutValue):
        parent_values.task_values[channel] = shared

    ranges = None if stored_value.ranges is None else encode_array(stored_value.ranges)
    return stored_value.kind, stored_value.data, ranges


def _add_pieces(rows: Rows, thread_id: str, value: StoredValue) -> None:
    for piece in value.new:
        rows.pieces[thread_id, piece.series, piece.number] = (thread_id, *piece)
        rows.size += len(piece.data)


def dump_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> str:
    """Encode the metadata of a checkpoint, with the fields that the config adds, as JSON that `jsonb` accepts."""
    complete = get_checkpoint_metadata(config, metadata)
    selected = {
        name: value for name, value in complete.items() if name != "writes" and not name.startswith(_REQUEST_PREFIXES)
    }

    if config.get("configurable", {}).get("checkpoint_ns"):
        # The step of its parent graph that a subgraph's checkpoint belongs to: langgraph leaves that out.
        run_metadata = config.get("metadata", {})
        selected.update({key: run_metadata[key] for key in SUBGRAPH_METADATA if key in run_metadata})

    return dump_jsonb(selected)


def dump_filter(conditions: dict[str, Any]) -> str:
    """Encode a filter as metadata is encoded, so that the two can be compared."""
    return dump_metadata({}, cast("CheckpointMetadata", conditions))


class JsonValues:
    """Decodes the values of one or more checkpoints to encode them as JSON; messages may be dicts.

    Items that checkpoints share are decoded once and are the same objects: nothing may change them.
    """

    def __init__(self, serde: SafeSerializer) -> None:
        self._serde = serde
        self._items: dict[tuple[int, int], list[Any]] = {}

    def decode(self, row: Any) -> dict[str, Any]:
        """Return the values of a row of `checkpoint_tuples` by their channels."""
        columns = ("value_channels", "value_kinds", "value_datas", "value_pieces", "value_sizes")
        entries = zip(*(row[column] or () for column in columns), strict=True)
        return {
            channel: self._decode_value((kind, data), ranges, sizes) for channel, kind, data, ranges, sizes in entries
        }

    def _decode_value(self, typed: tuple[str, bytes], ranges: str | None, sizes: bytes | None) -> Any:
        kind, data = typed
        counts = list(PIECE_SIZE.iter_unpack(sizes or b""))
        start = len(data) - sum(size for size, _ in counts)
        places = [] if ranges is None else parse_ranges(ranges)

        # A piece without leaves opens a list or dict inside of the value.
        items_in_all = [None] * sum(leaves for _, leaves in counts)
        if (
            not places
            or len(places) != len(counts)
            or data[:start] != encode_header(items_in_all)
            or not all(leaves for _, leaves in counts)
        ):
            return self._serde.loads_for_json(typed)

        value: list[Any] = []
        for place, (size, leaves) in zip(places, counts, strict=True):
            items = self._items.get(place)
            if items is None:
                list_data = encode_header([None] * leaves) + data[start : start + size]
                items = self._items[place] = self._serde.loads_for_json((kind, list_data))

            value += items
            start += size

        return value


def read_tuple(serde: SerializerProtocol, row: Any, json_values: JsonValues | None = None) -> CheckpointTuple:
    """Return the checkpoint of a row of `checkpoint_tuples`. Raises OtherLanguage.

    `json_values` decodes its values, unless it has input that langgraph still applies to them.
    """
    if row["kind"] == JAVASCRIPT:
        raise OtherLanguage

    checkpoint: Checkpoint = serde.loads_typed((row["kind"], row["body"]))
    if json_values is not None and NULL_TASK not in (row["write_tasks"] or ()):
        checkpoint["channel_values"].update(json_values.decode(row))
    else:
        entries = zip(row["value_channels"] or (), row["value_kinds"] or (), row["value_datas"] or (), strict=True)
        checkpoint["channel_values"].update({name: serde.loads_typed((kind, data)) for name, kind, data in entries})

    writes = zip(
        row["write_tasks"] or (),
        row["write_channels"] or (),
        row["write_kinds"] or (),
        row["write_datas"] or (),
        strict=True,
    )

    names = {"thread_id": row["thread_id"], "checkpoint_ns": row["checkpoint_ns"]}
    parent_id = row["parent_id"]
    return CheckpointTuple(
        config={"configurable": {**names, "checkpoint_id": row["checkpoint_id"]}},
        checkpoint=checkpoint,
        metadata=row["metadata"],
        parent_config={"configurable": {**names, "checkpoint_id": parent_id}} if parent_id else None,
        pending_writes=[(task, channel, serde.loads_typed((kind, data))) for task, channel, kind, data in writes],
    )


def read_values(row: Any, checkpoint_tuple: CheckpointTuple) -> CheckpointValues:
    """Return the long values of a checkpoint that was read, which the next one may share pieces with."""
    channels: dict[str, PreviousValue] = {}
    columns = ("value_channels", "value_kinds", "value_datas", "value_pieces", "value_sizes")
    for channel, kind, data, ranges, sizes in zip(*(row[column] or () for column in columns), strict=True):
        value = checkpoint_tuple.checkpoint["channel_values"][channel]
        previous = read_previous(value, (kind, data), ranges=ranges, sizes=sizes)
        if previous is not None:
            channels[channel] = previous

    versions = checkpoint_tuple.checkpoint["channel_versions"]
    return CheckpointValues(
        checkpoint_id=row["checkpoint_id"],
        channels=channels,
        versions={channel: str(versions[channel]) for channel in channels},
        task_values={},
    )


def get_thread_id(config: RunnableConfig) -> str:
    """Return the thread that a config names. Raises ValueError without one."""
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        raise ValueError("a checkpointed graph needs config['configurable']['thread_id']")

    return str(thread_id)


def _encode_array(texts: Sequence[str]) -> str:
    """Encode texts as a Postgres array literal: one parameter cannot hold arrays of different lengths."""
    return "{" + ",".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts) + "}"
