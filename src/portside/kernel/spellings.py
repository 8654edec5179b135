"""The one table of names that real clients spell differently from the contract (spec: Names).

The contract's own names are canonical; what is on the right is accepted beside them on input.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

FIELDS: dict[str, tuple[str, ...]] = {
    "graph_config_path": ("langgraph_config_path",),
    "is_enabled": ("enabled",),
    "on_not_exist": ("if_not_exists",),
}

SOURCES: dict[str, str] = {
    "github": "git_hosting",
    "external_docker": "external_image",
}

PATH_SEGMENTS: dict[str, str] = {"github": "git_hosting"}

CONFIG_FILES = ("graph.json", "langgraph.json")

ENVIRONMENT_PREFIXES: dict[str, tuple[str, ...]] = {"GRAPH_": ("LANGGRAPH_",), "LANGSMITH_": ("LANGCHAIN_",)}

_CANONICAL = {other: canonical for canonical, others in FIELDS.items() for other in others}

V = TypeVar("V")


def canonical_field(name: str) -> str:
    """Return the contract's name for a field."""
    return _CANONICAL.get(name, name)


def canonical_source(name: str) -> str:
    """Return the contract's name for a deployment source."""
    return SOURCES.get(name, name)


def environment_names(name: str) -> tuple[str, ...]:
    """Return every name under which an environment variable may be given, the contract's first."""
    for prefix, others in ENVIRONMENT_PREFIXES.items():
        if name.startswith(prefix):
            return (name, *(other + name.removeprefix(prefix) for other in others))
    return (name,)


def with_both_spellings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the other spellings of the fields that have some, for answers that real clients read."""
    doubled = dict(fields)
    for canonical, others in FIELDS.items():
        if canonical in fields:
            doubled.update(dict.fromkeys(others, fields[canonical]))
    return doubled
