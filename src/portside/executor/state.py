"""The state of a thread as clients see it: reading, history and updates (spec: section 4.1).

The results hold values of the user's graph; encode them with `dump_user`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.types import Interrupt, PregelTask, StateSnapshot, StateUpdate

from portside.executor.commands import parse_command
from portside.executor.execute import checkpoint_of
from portside.executor.load import Graph
from portside.kernel.errors import BadRequest, Invalid, Problem

# What langgraph raises for invalid values, and what the reducers and conditions of a user's graph raise on them.
REFUSALS = (InvalidUpdateError, EmptyInputError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


async def read_state(graph: Graph, config: RunnableConfig, *, subgraphs: bool = False) -> dict[str, Any]:
    """Return the state that a config names, or the latest. Without one, `metadata` and `created_at` are None.

    Raises BadRequest if the config names an unknown subgraph.
    """
    with _refusing_unknown_subgraph(config):
        try:
            return thread_state(await graph.aget_state(config, subgraphs=subgraphs))
        except REFUSALS:
            # A reducer fails on the pending writes, for example on the input of a run that failed the same way.
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

    Raises Invalid if `before` names no checkpoint, and BadRequest if the config names an unknown subgraph.
    """
    history = graph.aget_state_history(
        config, filter=dict(filter) if filter else None, before=_before(before), limit=limit
    )
    with _refusing_unknown_subgraph(config):
        return [thread_state(snapshot) async for snapshot in history]


async def update_state(graph: Graph, config: RunnableConfig, values: Any, as_node: str | None) -> dict[str, Any]:
    """Update the state as if the node had returned these values; return the new checkpoint.

    Raises BadRequest if the graph refuses the values.
    """
    try:
        made = await graph.aupdate_state(config, values, as_node=as_node)
    except REFUSALS as exc:
        raise BadRequest(_reason(exc)) from exc
    return checkpoint_of(made) or {}


async def apply_supersteps(graph: Graph, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]) -> None:
    """Apply steps of another thread's nodes. Raises Invalid that names the field if the graph refuses them."""
    try:
        await graph.abulk_update_state(config, supersteps)
    except REFUSALS as exc:
        raise Invalid.field(["body", "supersteps"], _reason(exc)) from exc


def read_supersteps(supersteps: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[StateUpdate]]:
    """Convert `{values, as_node, command}` to langgraph's updates. Raises Invalid that names the field."""
    return [
        [_read_update(update, ["body", "supersteps", step, "updates", index]) for index, update in enumerate(updates)]
        for step, updates in enumerate(supersteps)
    ]


def _read_update(update: Mapping[str, Any], loc: list[str | int]) -> StateUpdate:
    command = update.get("command")
    try:
        values = update.get("values") if command is None else parse_command(command)
    except Invalid as exc:
        raise Invalid([Problem([*loc, *one.loc[1:]], one.msg, one.type) for one in exc.problems]) from exc
    return StateUpdate(values, update.get("as_node"))  # type: ignore[arg-type]


def reads_without_code(graph: Graph) -> bool:
    """Whether reading a state calls no code of the graph's author with its values: no model of the state, no cache key.

    Reducers are called for pending writes, and by channels that store their changes.
    """
    # What a version of langgraph does not have may be done in another way there.
    users_of_values: list[Any] = [getattr(graph, "cache_policy", ...)]
    users_of_values += [
        getattr(node, name, ...) for node in graph.nodes.values() for name in ("mapper", "cache_policy")
    ]
    if any(user is not None for user in users_of_values):
        return False
    kinds = {channel if isinstance(channel, type) else type(channel) for channel in graph.channels.values()}
    return all(
        kind.__module__.startswith(("langgraph.channels.", "langgraph.managed.")) and kind.__name__ != "DeltaChannel"
        for kind in kinds
    )


def _reason(exc: Exception) -> str:
    """Return why a graph refused values, with the class of the exception if the graph's own code raised it."""
    is_plain = isinstance(exc, (InvalidUpdateError, EmptyInputError, ValueError, TypeError))
    return str(exc) if is_plain else f"{type(exc).__name__}: {exc}"


def thread_state(snapshot: StateSnapshot) -> dict[str, Any]:
    """Return a snapshot of langgraph as a ThreadState."""
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
    """Return a task; that of a subgraph has its checkpoint, or its state if that was requested."""
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
    """Add the thread and the namespace to a checkpoint's metadata; a copied thread keeps its checkpoints."""
    if snapshot.metadata is None:
        return None
    configurable = snapshot.config["configurable"]
    metadata = {**snapshot.metadata, "thread_id": configurable["thread_id"]}
    if checkpoint_ns := configurable.get("checkpoint_ns"):
        metadata |= {"checkpoint_ns": checkpoint_ns, "langgraph_checkpoint_ns": checkpoint_ns}
        metadata["checkpoint_map"] = snapshot.metadata.get("parents") or {}
    return metadata


def _interrupt(interrupt: Interrupt) -> dict[str, Any]:
    return {"id": interrupt.id, "value": interrupt.value}


@contextmanager
def _refusing_unknown_subgraph(config: RunnableConfig) -> Iterator[None]:
    """Turn the ValueError that older versions of langgraph raise for an unknown namespace into BadRequest."""
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
