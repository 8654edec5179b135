"""The few things that a build reads from the graph configuration file.

The file's other keys are the agent server's business. Every path must stay inside the repository, links followed.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from portside.dataplane.failures import BuildFailed

_MAX_BYTES = 1_000_000
_PYTHON = re.compile(r"3\.\d{1,2}")
_OLDEST_PYTHON = (3, 11)
_SCRIPT_SUFFIXES = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs")


class BuildConfig(msgspec.Struct, frozen=True):
    """What to install, and for which Python."""

    path: Path
    requirements: list[Path]
    packages: list[str]
    python_version: str | None = None


class _File(msgspec.Struct):
    graphs: dict[str, Any] = {}
    dependencies: list[str] = []
    python_version: str | float | None = None
    node_version: Any = None
    source: Any = None


def read_config(repository: Path, config_path: str) -> BuildConfig:
    """Read the configuration file of a checked-out repository. Raises BuildFailed that names the file."""
    path = _inside(repository, repository / config_path, config_path)
    if not path.is_file():
        raise BuildFailed(f"{config_path}: there is no such file in the repository")
    file = _decode(path, config_path)
    if not file.graphs:
        raise BuildFailed(f"{config_path}: no graphs are named under 'graphs'")
    _refuse_scripts(file, config_path)
    if file.source is not None:
        raise BuildFailed(f"{config_path}: 'source' is not supported; list what to install under 'dependencies'")
    requirements: list[Path] = []
    packages: list[str] = []
    for dependency in file.dependencies:
        if dependency.startswith("."):
            _add_folder(repository, path.parent, dependency, (requirements, packages))
        elif dependency.startswith("-") or not dependency.strip():
            raise BuildFailed(f"{config_path}: {dependency!r} is not a dependency")
        else:
            packages.append(dependency)
    return BuildConfig(path, requirements, packages, _python_version(file.python_version, config_path))


def _decode(path: Path, name: str) -> _File:
    if path.stat().st_size > _MAX_BYTES:
        raise BuildFailed(f"{name}: larger than {_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except msgspec.ValidationError as exc:
        raise BuildFailed(f"{name}: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BuildFailed(f"{name}: not valid JSON: {exc}") from exc


def _refuse_scripts(file: _File, name: str) -> None:
    targets = [graph if isinstance(graph, str) else str(graph.get("path", "")) for graph in _graphs(file, name)]
    if file.node_version is not None or any(t.split(":")[0].endswith(_SCRIPT_SUFFIXES) for t in targets):
        raise BuildFailed(f"{name}: JavaScript graphs cannot be built here")


def _graphs(file: _File, name: str) -> list[Any]:
    for graph_id, graph in file.graphs.items():
        if not isinstance(graph, (str, dict)):
            raise BuildFailed(f"{name}: graph {graph_id!r} must be 'path:name' or an object with 'path'")
    return list(file.graphs.values())


def _add_folder(repository: Path, base: Path, dependency: str, into: tuple[list[Path], list[str]]) -> None:
    """Sort a local folder: a project is installed, a plain folder brings its requirements if it lists any."""
    requirements, packages = into
    folder = _inside(repository, base / dependency, dependency)
    if not folder.is_dir():
        raise BuildFailed(f"dependency {dependency!r}: there is no such folder in the repository")
    if (folder / "pyproject.toml").is_file() or (folder / "setup.py").is_file():
        packages.append(str(folder))
    elif (folder / "requirements.txt").is_file():
        requirements.append(_inside(repository, folder / "requirements.txt", f"{dependency}/requirements.txt"))


def _inside(repository: Path, path: Path, name: str) -> Path:
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError) as exc:
        raise BuildFailed(f"{name!r} is not a usable path") from exc
    if not real.is_relative_to(repository.resolve()):
        raise BuildFailed(f"{name!r} leads out of the repository")
    return real


def _python_version(value: str | float | None, name: str) -> str | None:
    if value is None:
        return None
    text = str(value)
    if not _PYTHON.fullmatch(text) or tuple(int(part) for part in text.split(".")) < _OLDEST_PYTHON:
        raise BuildFailed(f"{name}: python_version {text!r} must be 3.11 or newer, as major.minor")
    return text
