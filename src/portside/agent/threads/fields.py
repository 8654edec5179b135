"""The fields of a thread's state, and picking some of them (contract: section 4.1)."""

from typing import Any

from portside.kernel.errors import Invalid

_NOTHING: dict[str, Any] = {
    "values": {}, "next": [], "tasks": [], "metadata": None, "created_at": None, "checkpoint": None,
    "parent_checkpoint": None, "interrupts": [], "checkpoint_id": None, "parent_checkpoint_id": None,
}  # fmt: skip


def empty_state() -> dict[str, Any]:
    """Return the state of a thread that has no checkpoint."""
    return dict(_NOTHING)


def check_fields(fields: list[str] | None) -> None:
    """Raise Invalid for a field that states do not have."""
    for field in fields or ():
        if field not in _NOTHING and not field.startswith("values."):
            raise Invalid.field(["select"], f"{field[:80]!r} is neither one of {', '.join(_NOTHING)} nor values.<key>")


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
