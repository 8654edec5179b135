"""Interrupts of older versions of langgraph, in the form that newer ones have.

Before langgraph 0.6 an interrupt had a namespace instead of an id. Clients know the id alone.
"""

from collections.abc import Mapping
from typing import Any

from langgraph.types import Interrupt

from portside.executor.requests import INTERRUPT


def get_interrupt_id(interrupt: Any) -> str:
    """Return the id of an interrupt."""
    interrupt_id: str = interrupt.id if hasattr(interrupt, "id") else interrupt.interrupt_id
    return interrupt_id


def add_id(interrupt: Any) -> Any:
    """Return an interrupt that has an id: the same one, or what clients see of an older one."""
    return interrupt if hasattr(interrupt, "id") else {"value": interrupt.value, "id": interrupt.interrupt_id}


def add_ids(mode: str, payload: Any) -> Any:
    """Return an item of a graph's stream, in which interrupts have ids."""
    if not isinstance(payload, Mapping):
        return payload
    if mode in ("values", "updates") and payload.get(INTERRUPT):
        return {**payload, INTERRUPT: tuple(map(add_id, payload[INTERRUPT]))}
    if mode == "debug" and isinstance(payload.get("payload"), Mapping):
        return {**payload, "payload": _add_ids_in_tasks(payload["payload"])}

    return payload


def _add_ids_in_tasks(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task of a `debug` event, or a checkpoint with its tasks, whose interrupts have ids."""
    complete = dict(task)
    if complete.get("interrupts"):
        complete["interrupts"] = [_add_id_to_fields(fields) for fields in complete["interrupts"]]

    if complete.get("tasks"):
        complete["tasks"] = [_add_ids_in_tasks(subtask) for subtask in complete["tasks"]]

    return complete


def _add_id_to_fields(fields: Mapping[str, Any]) -> Any:
    return fields if "id" in fields else add_id(Interrupt(**fields))
