"""The graph configuration file as a text: its keys, and errors that say where a mistake is.

Builds, agent servers and the command line read the file, each another part of it. This module says what they all say of
a file that none of them can read, and of a key that none of them knows.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from portside.kernel.aliases import CONFIG_FILES, is_javascript
from portside.kernel.errors import UserMistake
from portside.kernel.spelling import nearest

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

_SHOWN_CHARACTERS = 80


def parse_config(content: str | bytes, source: str) -> dict[str, Any]:
    """Parse the file. Raises UserMistake that names the source, and the line and column of a mistake in its JSON."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content.removeprefix("\ufeff")
    except UnicodeDecodeError as exc:
        raise UserMistake(f"{source} is not UTF-8 text") from exc

    parsed = parse_json(text, source)
    if not isinstance(parsed, dict):
        raise UserMistake(f"{source} must be a JSON object such as {EXAMPLE}")

    return parsed


def parse_json(text: str, source: str) -> Any:
    """Parse a JSON text. Raises UserMistake that names the source, the line and the column of the mistake."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        place = f"line {exc.lineno}, column {exc.colno}"
        raise UserMistake(f"{source} is not valid JSON: {exc.msg} ({place}){_hint(text, exc.pos)}") from exc
    except RecursionError as exc:
        raise UserMistake(f"{source} is not valid JSON: its values are nested too deeply") from exc


def _hint(text: str, position: int) -> str:
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

    return f": {line[:_SHOWN_CHARACTERS]}" if line else ""


def misspelt_keys(content: Mapping[str, object]) -> dict[str, str]:
    """Return the unknown keys of a file that are similar to a known one that the file lacks, with that one."""
    found = {key: nearest(key, CONFIG_KEYS - content.keys()) for key in content.keys() - CONFIG_KEYS}
    return {key: meant for key, meant in sorted(found.items()) if meant is not None}


def missing_graphs(content: Mapping[str, object], source: str) -> str:
    """Return the error for a file without graphs, which names a key that was written instead."""
    others = {key: value for key, value in content.items() if key != "graphs"}
    instead = next((key for key, meant in misspelt_keys(others).items() if meant == "graphs"), None)
    if instead is not None:
        return f'{source}: there is a key "{instead}", which must be "graphs", such as {EXAMPLE}'

    return f'{source}: "graphs" must name at least one graph, such as {EXAMPLE}'


FOLDERS_ABOVE = 3
"""How many folders above the file's own one may be meant by a path in it."""


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


def with_paths_from_above(content: Mapping[str, Any], folder: Path, top: Path | None = None) -> dict[str, Any]:
    """Return the content of a file in which each path counts from the file's folder.

    Other servers read the paths from the folder in which they are started, which is often above a file in a folder of
    its own. The file's own folder wins; without the path there, it is the nearest folder above that has it, up to
    `top`. Graphs and handlers in Python are left as they are: who imports them adds their folder to the import path.
    """
    own = folder.resolve()
    above = [each for each in own.parents[:FOLDERS_ABOVE] if top is None or each.is_relative_to(top.resolve())]

    def moved(text: str) -> str:
        path, export = _parts(text)
        if path is None or _exists(own / path):
            return text

        found = next((each / path for each in above if _exists(each / path)), None)
        if found is None:
            return text

        relative = os.path.relpath(found.resolve(), own)
        return f"{relative if relative.startswith('..') else f'./{relative}'}{export}"

    changed: Any = content
    for keys in _PATHS:
        changed = _changed(changed, keys, moved)

    return dict(changed)


def _changed(value: Any, keys: tuple[str, ...], change: Callable[[str], str]) -> Any:
    """Return a copy of a value in which the texts at some keys are changed; what is of another kind stays."""
    if not keys:
        return change(value) if isinstance(value, str) else value

    first = keys[0]
    rest = keys[1:]
    if isinstance(value, dict):
        return {key: _changed(each, rest, change) if first in {key, "*"} else each for key, each in value.items()}
    if isinstance(value, list) and first == "*":
        return [_changed(each, rest, change) for each in value]

    return value


def _parts(text: str) -> tuple[str | None, str]:
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


def configs_in(folder: Path) -> list[str]:
    """Return the configuration files in a folder and two levels below it, by their paths from there."""
    patterns = [f"{above}{name}" for above in ("", "*/", "*/*/") for name in CONFIG_FILES]
    return [
        str(found.relative_to(folder))
        for pattern in patterns
        for found in sorted(folder.glob(pattern))
        if found.is_file() and "node_modules" not in found.parts
    ]
