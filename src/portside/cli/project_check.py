"""What `portside deploy` says about a project before anything is packed, sent or built.

A build finds the same mistakes, but minutes later. This looks only at what is certain from the files themselves: it
installs and imports nothing.
"""

import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any

from portside.cli.output import say
from portside.kernel.errors import UserMistake
from portside.kernel.graph_config import (
    CONFIG_KEYS,
    find_configs,
    find_misspelt_keys,
    missing_graphs,
    parse_config,
)
from portside.kernel.project_files import FOLDERS_ABOVE
from portside.kernel.spelling import did_you_mean

Exists = Callable[[str], bool]
"""Whether a source has a file, by its path from the top."""


def check_project(content: bytes, config: str, exists: Exists) -> None:
    """Check a configuration file, and that its Python files are there. Raises UserMistake; says what has no effect."""
    parsed = parse_config(content, config)
    graphs = parsed.get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise UserMistake(missing_graphs(parsed, config))

    for key in find_misspelt_keys(parsed):
        say(f"{config}: the key {key!r} is unknown and has no effect{did_you_mean(key, CONFIG_KEYS - parsed.keys())}")

    if parsed.get("priority"):
        say(f"{config}: the key 'priority' has no effect: runs are ordered by run_priority of their assistants")

    for graph_id, graph in graphs.items():
        _check_file(f"graph {graph_id!r}", graph, config, exists)

    for section, key in (("auth", "path"), ("http", "app"), ("encryption", "path")):
        if isinstance(parsed.get(section), dict) and key in parsed[section]:
            _check_file(f"{section}.{key}", parsed[section][key], config, exists)


def has_own_logins(content: bytes, config: str) -> bool:
    """Return whether the agent of a configuration file accepts only callers of its own, and no key of the platform."""
    auth = parse_config(content, config).get("auth")
    return isinstance(auth, dict) and bool(auth.get("path")) and not auth.get("allow_langsmith_api_keys")


def _check_file(label: str, entry: Any, config: str, exists: Exists) -> None:
    """Check that the Python file of a graph or handler is there; a build may create files in other languages."""
    location = entry.get("path") if isinstance(entry, dict) else entry
    if not isinstance(location, str):
        return

    file = location.rpartition(":")[0] or location
    if not file.endswith(".py"):
        return

    # The executor imports it from the folder of the configuration file, or from the nearest one above that has it.
    folder = posixpath.dirname(config)
    folders = [folder]
    while folder:
        folder = posixpath.dirname(folder)
        folders.append(folder)

    if not any(exists(posixpath.normpath(posixpath.join(path, file))) for path in folders[: FOLDERS_ABOVE + 1]):
        raise UserMistake(f"{config}: {label} is in {file}, but there is no such file")


def check_source_path(source: Path, config: str) -> None:
    """Raise UserMistake if a file was named where a folder belongs."""
    if not source.is_file():
        return

    if source.suffix == ".json":
        raise UserMistake(f"{source} is a file; name its folder: {source.parent} --config {source.name}")

    raise UserMistake(f"{source} is a file; name the folder that has it and {config}")


def describe_missing_config(folder: Path, config: str) -> str:
    """Return the error for a folder without the configuration file, which names one that it has."""
    if (folder / config).is_dir():
        return f"{folder / config} is a folder; name the configuration file in it with --config"

    if others := find_configs(folder):
        return f"{folder} has no {config}, but {others[0]}: deploy with --config {others[0]}"

    return f"{folder} has no {config}; name the graph configuration file with --config"
