"""The fields of a thread's state, and picking some of them (contract: section 4.1)."""

from typing import Any

_NOTHING: dict[str, Any] = {
    "values": {}, "next": [], "tasks": [], "metadata": None, "created_at": None, "checkpoint": None,
    "parent_checkpoint": None, "interrupts": [], "checkpoint_id": None, "parent_checkpoint_id": None,
}  # fmt: skip


def empty_state() -> dict[str, Any]:
    """Return the state of a thread that has no checkpoint."""
    return dict(_NOTHING)


def select_fields(state: dict[str, Any], fields: list[str] | None) -> dict[str, Any]:
    """Return the fields of a state that were selected, or all of them; `values.<key>` picks a part of the values."""
    if not fields:
        return state
    selected = {field: state[field] for field in fields if field in state}
    keys = [field.removeprefix("values.") for field in fields if field.startswith("values.")]
    if keys and "values" not in fields:
        values = state["values"] if isinstance(state["values"], dict) else {}
        selected["values"] = {key: values[key] for key in keys if key in values}
    return selected
