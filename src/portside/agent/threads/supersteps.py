"""Supersteps that a thread is made with: what its nodes did elsewhere, to be replayed here (contract: section 4)."""

from collections.abc import Sequence
from typing import Any

from langgraph.types import StateUpdate

from portside.agent.graphs.commands import parse_command
from portside.agent.types.threads import NodeUpdate, Superstep, ThreadCreate
from portside.kernel.errors import Invalid, Problem


def graph_of(request: ThreadCreate, known: Sequence[str]) -> str:
    """Return the graph that the thread's metadata names. Raises Invalid when it names none that is known."""
    graph_id = (request.metadata or {}).get("graph_id")
    if graph_id is None:
        raise Invalid.field(["body", "metadata", "graph_id"], "supersteps need the graph they are of", "missing")
    if graph_id not in known:
        message = f"Graph '{graph_id}' not found. Expected one of: {', '.join(known)}"
        raise Invalid.field(["body", "metadata", "graph_id"], message)
    return str(graph_id)


def read_supersteps(supersteps: Sequence[Superstep]) -> list[list[StateUpdate]]:
    """Turn supersteps into langgraph's updates. Raises Invalid that names the field."""
    return [
        [_update(update, ["body", "supersteps", step, "updates", place]) for place, update in enumerate(given.updates)]
        for step, given in enumerate(supersteps)
    ]


def _update(update: NodeUpdate, where: list[str | int]) -> StateUpdate:
    values: Any = update.values
    try:
        if update.command is not None:
            values = parse_command(update.command)
    except Invalid as exc:
        raise Invalid([Problem([*where, *one.loc[1:]], one.msg, one.type) for one in exc.problems]) from exc
    return StateUpdate(values, update.as_node)
