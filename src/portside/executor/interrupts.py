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


def with_id(interrupt: Any) -> Any:
    """Return an interrupt that has an id: the same one, or what clients see of an older one."""
    return interrupt if hasattr(interrupt, "id") else {"value": interrupt.value, "id": interrupt.interrupt_id}


def with_ids(mode: str, payload: Any) -> Any:
    """Return an item of a graph's stream, in which interrupts have ids."""
    if not isinstance(payload, Mapping):
        return payload
    if mode in ("values", "updates") and payload.get(INTERRUPT):
        return {**payload, INTERRUPT: tuple(map(with_id, payload[INTERRUPT]))}
    if mode == "debug" and isinstance(payload.get("payload"), Mapping):
        return {**payload, "payload": _with_ids_in_tasks(payload["payload"])}

    return payload


def _with_ids_in_tasks(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task of a `debug` event, or a checkpoint with its tasks, whose interrupts have ids."""
    complete = dict(task)
    if complete.get("interrupts"):
        complete["interrupts"] = [_with_id_of_fields(fields) for fields in complete["interrupts"]]

    if complete.get("tasks"):
        complete["tasks"] = [_with_ids_in_tasks(subtask) for subtask in complete["tasks"]]

    return complete


def _with_id_of_fields(fields: Mapping[str, Any]) -> Any:
    return fields if "id" in fields else with_id(Interrupt(**fields))
