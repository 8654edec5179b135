"""Names that real clients spell differently from the documented API.

The documented names are canonical. Input may also use their aliases.
"""

FIELDS: dict[str, tuple[str, ...]] = {
    "graph_config_path": ("langgraph_config_path",),
    "is_enabled": ("enabled",),
    "on_not_exist": ("if_not_exists",),
}

SOURCES: dict[str, str] = {
    "github": "git_hosting",
    "external_docker": "external_image",
}

CONFIG_FILES = ("graph.json", "langgraph.json")
JAVASCRIPT_SUFFIXES = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs")

ENVIRONMENT_PREFIXES: dict[str, tuple[str, ...]] = {"GRAPH_": ("LANGGRAPH_",), "LANGSMITH_": ("LANGCHAIN_",)}

EXECUTOR_VARIABLE = "EXECUTOR_ENVIRONMENT_"
"""The prefix of variables that a server does not use itself: its executors get them, without the prefix."""

_CANONICAL = {alias: canonical for canonical, aliases in FIELDS.items() for alias in aliases}


def is_javascript(location: str) -> bool:
    """Whether the location of a graph is in JavaScript or TypeScript: `file.ts:name`, or `file.ts` for its default."""
    file, separator, _name = location.rpartition(":")
    return (file if separator else location).endswith(JAVASCRIPT_SUFFIXES)


def canonical_field(name: str) -> str:
    """Return the canonical name of a field."""
    return _CANONICAL.get(name, name)


def canonical_source(name: str) -> str:
    """Return the canonical name of a deployment source."""
    return SOURCES.get(name, name)


def source_names(canonical: str) -> list[str]:
    """Return every name of a deployment source, the canonical one first."""
    return [canonical, *(alias for alias, name in SOURCES.items() if name == canonical)]


def environment_names(name: str) -> tuple[str, ...]:
    """Return every name of an environment variable, the canonical one first."""
    for prefix, aliases in ENVIRONMENT_PREFIXES.items():
        if name.startswith(prefix):
            return (name, *(alias + name.removeprefix(prefix) for alias in aliases))

    return (name,)
