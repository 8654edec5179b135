"""Between langgraph's checkpoints and the rows that keep them.

Metadata is kept as `jsonb`, because history is filtered by it. `jsonb` refuses the NUL character: langgraph drops it
from the strings it copies into metadata, and deeper down it is replaced here, in what is stored and in what is searched
for alike. State is kept as the serializer wrote it, byte for byte, so nothing is lost there.
"""

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

from portside.kernel.codec import dump_user, without_nul
from portside.kernel.db import Record

# Keeping short values in the checkpoint takes a run of an echo graph from 3.9 ms of CPU to 3.2.
INLINE_CHARACTERS = 256
_PLAIN = (type(None), bool, int, float)


def checkpoint_row(
    serde: SerializerProtocol, config: RunnableConfig, checkpoint: Checkpoint, new_versions: ChannelVersions
) -> dict[str, Any]:
    """Make the row of a checkpoint and the rows of the values it changed, as the parameters of `put_checkpoint`."""
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    inline = {channel: value for channel, value in values.items() if _is_inline(value)}
    stored = [channel for channel in values if channel not in inline and channel in versions]
    changed = [channel for channel in stored if channel in new_versions]
    kind, body = serde.dumps_typed({**checkpoint, "channel_values": inline})
    typed = [serde.dumps_typed(values[channel]) for channel in changed]
    return {
        **_place(config),
        "checkpoint_id": checkpoint["id"],
        "parent_id": config["configurable"].get("checkpoint_id"),
        "kind": kind,
        "body": body,
        "channels": stored,
        "versions": [str(versions[channel]) for channel in stored],
        "new_channels": changed,
        "new_versions": [str(new_versions[channel]) for channel in changed],
        "new_kinds": [kind for kind, _ in typed],
        "new_datas": [data for _, data in typed],
    }


def write_rows(serde: SerializerProtocol, config: RunnableConfig, writes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make the rows of a task's writes, as the parameters of `put_writes`."""
    placed = {
        WRITES_IDX_MAP.get(channel, place): (channel, *serde.dumps_typed(value))
        for place, (channel, value) in enumerate(writes)
    }
    configurable = config["configurable"]
    return {
        **_place(config),
        "checkpoint_id": configurable["checkpoint_id"],
        "run_id": configurable.get("run_id") or config.get("metadata", {}).get("run_id"),
        "idxs": list(placed),
        "channels": [channel for channel, _, _ in placed.values()],
        "kinds": [kind for _, kind, _ in placed.values()],
        "datas": [data for _, _, data in placed.values()],
    }


def metadata_json(config: RunnableConfig, metadata: CheckpointMetadata) -> str:
    """Write the metadata of a checkpoint, with what the config adds to it, as JSON that `jsonb` takes."""
    return without_nul(dump_user(get_serializable_checkpoint_metadata(config, metadata))).decode()


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


def _place(config: RunnableConfig) -> dict[str, str]:
    return {"thread_id": thread_of(config), "checkpoint_ns": config["configurable"].get("checkpoint_ns", "")}


def _config(row: Record, checkpoint_id: str) -> RunnableConfig:
    place = {"thread_id": row["thread_id"], "checkpoint_ns": row["checkpoint_ns"], "checkpoint_id": checkpoint_id}
    return {"configurable": place}


def _is_inline(value: Any) -> bool:
    """Whether a value goes into the checkpoint itself. By exact type: an enum member must keep its class."""
    kind = type(value)
    return kind in _PLAIN or (kind is str and len(value) <= INLINE_CHARACTERS)
