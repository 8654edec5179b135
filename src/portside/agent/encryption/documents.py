"""Which keys of a document are looked for in SQL, and so stay in clear, and which of them hold documents themselves."""

from collections.abc import Mapping
from typing import Any

_IDS = frozenset(
    {"run_id", "thread_id", "graph_id", "assistant_id", "user_id", "checkpoint_id", "run_attempt", "cron_id"}
)
_STEPS = frozenset({"source", "step", "parents", "counters_since_delta_snapshot"})
_CLEAR = {
    "metadata": _IDS | {"created_by"},
    "configurable": _IDS,
    "kwargs": frozenset({"langsmith_tracer", "encryption_context", "temporary", "resumable", "webhook"}),
    "payload": frozenset({"assistant_id", "encryption_context"}),
}
# The second labels the tasks of another protocol.
_SYSTEM_PREFIXES = ("langgraph_", "a2a.")
# It tells who somebody is.
_NOT_SYSTEM = "langgraph_auth_user"
_WITHIN = {"kwargs": ("config",), "config": ("configurable", "metadata")}
# No key of these may be encrypted by name: statements look below them.
STRUCTURE = (
    _IDS
    | _STEPS
    | {"config", "configurable", "metadata", "langsmith_tracer", "encryption_context", "created_by", "webhook"}
)


def documents_in(field: str, value: Mapping[str, Any]) -> list[str]:
    """Return the keys of a document that hold documents of their own."""
    return [key for key in _WITHIN.get(field, ()) if isinstance(value.get(key), dict)]


def stays_clear(model: str, field: str, key: str) -> bool:
    """Whether a key is the server's own, and looked for in SQL."""
    if key in _CLEAR.get(field, ()) or (model == "checkpoint" and key in _STEPS):
        return True
    return field in {"metadata", "configurable"} and key.startswith(_SYSTEM_PREFIXES) and key != _NOT_SYSTEM
