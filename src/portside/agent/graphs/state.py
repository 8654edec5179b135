"""A thread's state as clients see it: reading it, its history, and changing it (contract: section 4.1).

The results hold values of the user's graph; encode them with `dump_user`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.types import Interrupt, PregelTask, StateSnapshot, StateUpdate

from portside.agent.graphs.events import checkpoint_of
from portside.agent.graphs.factories import Graph
from portside.kernel.errors import BadRequest, Invalid

# What langgraph raises for values it cannot take, and what reducers and conditions of the user's graph trip over.
REFUSALS = (InvalidUpdateError, EmptyInputError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


async def read_state(graph: Graph, config: RunnableConfig, *, subgraphs: bool = False) -> dict[str, Any]:
    """Return the state a config names, or the latest. Where there is none, `metadata` and `created_at` are None.

    Raises BadRequest when the config names a subgraph that is not there.
    """
    with _known_subgraph(config):
        try:
            return thread_state(await graph.aget_state(config, subgraphs=subgraphs))
        except REFUSALS:
            # A reducer does not take the writes that wait there, such as the input of a run that failed on it.
            async for snapshot in graph.aget_state_history(config, limit=1):
                return thread_state(snapshot)
            raise


async def read_history(
    graph: Graph,
    config: RunnableConfig,
    *,
    limit: int,
    before: Any = None,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - langgraph's name for it
) -> list[dict[str, Any]]:
    """Return states, newest first. `before` may be a checkpoint id, a checkpoint or a config that holds one.

    Raises Invalid when `before` names no checkpoint, and BadRequest when the config names a subgraph that is not there.
    """
    history = graph.aget_state_history(
        config, filter=dict(filter) if filter else None, before=_before(before), limit=limit
    )
    with _known_subgraph(config):
        return [thread_state(snapshot) async for snapshot in history]


async def update_state(graph: Graph, config: RunnableConfig, values: Any, as_node: str | None) -> dict[str, Any]:
    """Change the state as if the node had returned these values; return the names of the new checkpoint.

    Raises BadRequest when the graph cannot take them.
    """
    try:
        made = await graph.aupdate_state(config, values, as_node=as_node)
    except REFUSALS as exc:
        raise BadRequest(_reason(exc)) from exc
    return named_checkpoint(checkpoint_of(made) or {})


async def apply_supersteps(graph: Graph, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]) -> None:
    """Replay steps that nodes took elsewhere. Raises Invalid that names the field when the graph cannot take them."""
    try:
        await graph.abulk_update_state(config, supersteps)
    except REFUSALS as exc:
        raise Invalid.field(["body", "supersteps"], _reason(exc)) from exc


def named_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Name a checkpoint that was just made or changed, in each of the ways clients look for it."""
    return {"checkpoint": checkpoint, "configurable": checkpoint, "checkpoint_id": checkpoint.get("checkpoint_id")}


def _reason(exc: Exception) -> str:
    """Say why a graph refused; what its own code raised is told by its kind as well."""
    is_plain = isinstance(exc, (InvalidUpdateError, EmptyInputError, ValueError, TypeError))
    return str(exc) if is_plain else f"{type(exc).__name__}: {exc}"


def thread_state(snapshot: StateSnapshot) -> dict[str, Any]:
    """Show a snapshot of langgraph as a ThreadState."""
    checkpoint = checkpoint_of(snapshot.config) if _is_named(snapshot.config) else None
    parent = checkpoint_of(snapshot.parent_config)
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": [_task(task) for task in snapshot.tasks],
        "metadata": _metadata(snapshot),
        "created_at": snapshot.created_at,
        "checkpoint": checkpoint,
        "parent_checkpoint": parent,
        "interrupts": [_interrupt(interrupt) for interrupt in snapshot.interrupts],
        "checkpoint_id": (checkpoint or {}).get("checkpoint_id"),
        "parent_checkpoint_id": (parent or {}).get("checkpoint_id"),
    }


def _task(task: PregelTask) -> dict[str, Any]:
    """Show a task; one that is a subgraph names its checkpoint, or holds its state where that was asked for."""
    is_snapshot = isinstance(task.state, StateSnapshot)
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": [_interrupt(interrupt) for interrupt in task.interrupts],
        "checkpoint": None if is_snapshot else checkpoint_of(task.state),  # type: ignore[arg-type]
        "state": thread_state(task.state) if is_snapshot else None,  # type: ignore[arg-type]
        "result": task.result,
    }


def _metadata(snapshot: StateSnapshot) -> dict[str, Any] | None:
    """Add its place to a checkpoint's metadata: that is not stored there, so that copies of a thread tell the truth."""
    if snapshot.metadata is None:
        return None
    place = snapshot.config["configurable"]
    told = {**snapshot.metadata, "thread_id": place["thread_id"]}
    if checkpoint_ns := place.get("checkpoint_ns"):
        told |= {"checkpoint_ns": checkpoint_ns, "langgraph_checkpoint_ns": checkpoint_ns}
        told["checkpoint_map"] = snapshot.metadata.get("parents") or {}
    return told


def _interrupt(interrupt: Interrupt) -> dict[str, Any]:
    return {"id": interrupt.id, "value": interrupt.value}


@contextmanager
def _known_subgraph(config: RunnableConfig) -> Iterator[None]:
    """Explain the complaint of older versions of langgraph about a namespace that no subgraph has."""
    try:
        yield
    except ValueError as exc:
        if not config["configurable"].get("checkpoint_ns"):
            raise
        raise BadRequest(str(exc)) from exc


def _is_named(config: RunnableConfig) -> bool:
    return bool(config.get("configurable", {}).get("checkpoint_id"))


def _before(raw: Any) -> RunnableConfig | None:
    if raw is None:
        return None
    holder = raw.get("configurable", raw) if isinstance(raw, dict) else {"checkpoint_id": raw}
    checkpoint_id = holder.get("checkpoint_id") if isinstance(holder, dict) else None
    if not isinstance(checkpoint_id, str):
        raise Invalid.field(["body", "before"], "Expected a checkpoint id, a checkpoint, or a config with one")
    return {"configurable": {"checkpoint_id": checkpoint_id}}
