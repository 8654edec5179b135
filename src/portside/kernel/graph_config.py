"""The graph configuration file as a text: its keys, and errors that say where a mistake is.

Builds, agent servers and the command line read the file, each another part of it. This module says what they all say of
a file that none of them can read, and of a key that none of them knows.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from portside.kernel.aliases import CONFIG_FILES, is_javascript
from portside.kernel.errors import UserMistake
from portside.kernel.project_files import FOLDERS_ABOVE
from portside.kernel.spelling import find_nearest

EXAMPLE = '{"graphs": {"agent": "./agent.py:graph"}}'

CONFIG_KEYS = frozenset(
    {
        "$schema",
        "api_version",
        "auth",
        "base_image",
        "build_command",
        "checkpointer",
        "dependencies",
        "disable_persistence",
        "dockerfile_lines",
        "encryption",
        "env",
        "graphs",
        "http",
        "image_distro",
        "install_command",
        "keep_pkg_tools",
        "node_version",
        "pip_config_file",
        "pip_installer",
        "priority",
        "python_version",
        "recursion_limit",
        "source",
        "store",
        "ui",
        "ui_config",
        "webhooks",
    }
)
"""The keys that this platform or another server of such files reads."""

# Where a file has paths; `*` stands for each entry.
_PATHS = (
    ("graphs", "*"),
    ("graphs", "*", "path"),
    ("dependencies", "*"),
    ("ui", "*"),
    ("pip_config_file",),
    ("auth", "path"),
    ("http", "app"),
    ("store", "index", "embed"),
)
# Of a line with a mistake, in its error.
_LINE_CHARACTERS = 80


def parse_config(content: str | bytes, source: str) -> dict[str, Any]:
    """Parse the file. Raises UserMistake that names the source, and the line and column of a mistake in its JSON."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content.removeprefix("\ufeff")
    except UnicodeDecodeError as exc:
        raise UserMistake(f"{source} is not UTF-8 text") from exc

    config = parse_json(text, source)
    if not isinstance(config, dict):
        raise UserMistake(f"{source} must be a JSON object such as {EXAMPLE}")

    return config


def parse_json(text: str, source: str) -> Any:
    """Parse a JSON text. Raises UserMistake that names the source, the line and the column of the mistake."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        place = f"line {exc.lineno}, column {exc.colno}"
        raise UserMistake(f"{source} is not valid JSON: {exc.msg} ({place}){_build_hint(text, exc.pos)}") from exc
    except RecursionError as exc:
        raise UserMistake(f"{source} is not valid JSON: its values are nested too deeply") from exc


def _build_hint(text: str, position: int) -> str:
    """Return what to change for two mistakes that editors accept; else the line, so that nobody has to count."""
    before = text[:position].rstrip()
    after = text[position:].lstrip()
    if after.startswith(("//", "/*", "#")):
        return "; JSON has no comments: remove it"

    # Older Pythons point behind the comma, newer ones at it.
    is_after_comma = before.endswith(",") or after.startswith(",")
    if is_after_comma and after.removeprefix(",").lstrip().startswith(("}", "]")):
        return "; remove the comma after the last entry"

    lines = text.splitlines()
    number = text.count("\n", 0, position)
    line = lines[number].strip() if number < len(lines) else ""

    return f": {line[:_LINE_CHARACTERS]}" if line else ""


def find_misspelt_keys(content: Mapping[str, object]) -> dict[str, str]:
    """Return the unknown keys of a file that are similar to a known one that the file lacks, with that one."""
    missing_keys = CONFIG_KEYS - content.keys()
    corrections: dict[str, str] = {}
    for key in sorted(content.keys() - CONFIG_KEYS):
        correction = find_nearest(key, missing_keys)
        if correction is not None:
            corrections[key] = correction

    return corrections


def missing_graphs(content: Mapping[str, object], source: str) -> str:
    """Return the error for a file without graphs, which names a key that was written instead."""
    other_keys = {key: value for key, value in content.items() if key != "graphs"}
    misspellings = [key for key, correction in find_misspelt_keys(other_keys).items() if correction == "graphs"]
    if misspellings:
        return f'{source}: there is a key "{misspellings[0]}", which must be "graphs", such as {EXAMPLE}'

    return f'{source}: "graphs" must name at least one graph, such as {EXAMPLE}'


def with_paths_from_above(content: Mapping[str, Any], folder: Path, top: Path | None = None) -> dict[str, Any]:
    """Return the content of a file in which each path counts from the file's folder.

    Other servers read the paths from the folder in which they are started, which is often above a file in a folder of
    its own. The file's own folder wins; without the path there, it is the nearest folder above that has it, up to
    `top`. Graphs and handlers in Python are left as they are: who imports them adds their folder to the import path.
    """
    own_folder = folder.resolve()
    folders_above = own_folder.parents[:FOLDERS_ABOVE]
    if top is not None:
        folders_above = [parent for parent in folders_above if parent.is_relative_to(top.resolve())]

    def move(text: str) -> str:
        path, export = _split_path(text)
        if path is None or _exists(own_folder / path):
            return text

        target = next((parent / path for parent in folders_above if _exists(parent / path)), None)
        if target is None:
            return text

        relative = os.path.relpath(target.resolve(), own_folder)
        prefix = "" if relative.startswith("..") else "./"
        return f"{prefix}{relative}{export}"

    config: Any = content
    for keys in _PATHS:
        config = _replace_texts(config, keys, move)

    return dict(config)


def _replace_texts(value: Any, keys: tuple[str, ...], replace: Callable[[str], str]) -> Any:
    """Return a copy of a value in which the texts at some keys are replaced; what is of another kind stays."""
    if not keys:
        return replace(value) if isinstance(value, str) else value

    first, *others = keys
    inner_keys = tuple(others)
    if isinstance(value, dict):
        return {
            key: _replace_texts(item, inner_keys, replace) if first in {key, "*"} else item
            for key, item in value.items()
        }
    if isinstance(value, list) and first == "*":
        return [_replace_texts(item, inner_keys, replace) for item in value]

    return value


def _split_path(text: str) -> tuple[str | None, str]:
    """Return the path in a text, and the export behind it; the path is None if it is no path or is in Python."""
    if is_javascript(text):
        file, separator, name = text.rpartition(":")
        return (file, f":{name}") if separator else (text, "")

    is_code = text.rpartition(":")[0].endswith(".py")
    is_path = text.strip().startswith(".") or text.endswith((".tsx", ".jsx", ".conf"))
    return (text.strip() if is_path and not is_code else None), ""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def find_env_file(name: str, folders: Iterable[Path]) -> Path | None:
    """Return the file that `env` of a configuration names: in the first of these folders that has it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def read_env_file(file: Path) -> dict[str, str]:
    """Return the variables of an env file that have values. Raises OSError and UnicodeDecodeError."""
    from dotenv import dotenv_values

    return {name: value for name, value in dotenv_values(file).items() if value is not None}


def find_configs(folder: Path) -> list[str]:
    """Return the configuration files in a folder and two levels below it, by their paths from there."""
    patterns = [f"{levels}{name}" for levels in ("", "*/", "*/*/") for name in CONFIG_FILES]
    return [
        str(file.relative_to(folder))
        for pattern in patterns
        for file in sorted(folder.glob(pattern))
        if file.is_file() and "node_modules" not in file.parts
    ]
