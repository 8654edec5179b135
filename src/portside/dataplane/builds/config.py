"""The graph configuration of a project, as far as a build reads it.

The other keys of the configuration file belong to the agent server. Of a pip configuration file that it names, the
options become variables for uv. Every path must stay inside the repository, also when links are followed.
"""

import configparser
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from portside.dataplane.builds.pyproject import (
    OLDEST_PYTHON,
    check_version,
    is_project,
    is_virtual,
    is_workspace,
    read_required_python,
)
from portside.dataplane.failures import BuildFailed
from portside.kernel.aliases import is_javascript
from portside.kernel.errors import UserMistake
from portside.kernel.graph_config import (
    find_configs,
    find_misspelt_keys,
    missing_graphs,
    parse_config,
    with_paths_from_above,
)

T = TypeVar("T")
_MAX_BYTES = 1_000_000
# How many configuration files an error names.
_SHOWN_FILES = 3
_PYTHON = re.compile(r"(?P<version>(?P<minor>3\.\d{1,2})(?:\.\d{1,2})?)(?:-[a-z]+)?")
_NODE = re.compile(r"\d{1,3}")
_OLDEST_NODE = 20
# Keys that name code of the project, which runs beside the graphs.
_HANDLERS = ("auth.path", "encryption.path", "http.app", "store.index.embed")
_FILES = ("package.json", "pyproject.toml", "setup.py")
# Keys that a build ignores; the build log names those that a file has.
_SKIPPED = (
    "api_version",
    "base_image",
    "dockerfile_lines",
    "image_distro",
    "keep_pkg_tools",
    "pip_installer",
)
_Command = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None
_MAX_PIP_CONFIG_BYTES = 100_000
_PIP_SECTIONS = ("global", "install")
_UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
}


@dataclass(frozen=True)
class PipConfig:
    """Variables for uv, and the names of the options for which uv has none.

    Addresses may contain passwords, so they are passed as variables and never as arguments.
    """

    variables: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


class UvSource(msgspec.Struct, frozen=True):
    """A uv project whose lock file lists what to install; `package` is a member of its workspace."""

    root: Path
    package: str | None


class FoundLock(msgspec.Struct, frozen=True):
    """A `uv.lock` that nobody asked for, of a project among the dependencies; `name` is its path in the source."""

    project: Path
    file: Path
    name: str


class BuildConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What to install, and for which Python and Node."""

    path: Path
    requirements: list[Path] = []
    packages: list[str] = []
    # Folders that are installed in place (editable).
    projects: list[Path] = []
    uv: UvSource | None = None
    found_locks: list[FoundLock] = []
    pip: PipConfig = msgspec.field(default_factory=PipConfig)
    python_version: str | None = None
    # A specifier that combines those of all projects; empty when any version will do.
    requires_python: str = ""
    node_version: int | None = None
    # Whether there are graphs or handlers in Python, or something to install.
    has_python: bool = True
    # The locations of the JavaScript graphs by their ids.
    javascript_graphs: dict[str, str] = {}
    # Whether there are graphs or handlers in JavaScript.
    has_javascript: bool = False
    # Whether there are React components for browsers (`ui`).
    has_ui: bool = False
    # For JavaScript; the commands of the deployment replace them.
    install_command: str | None = None
    build_command: str | None = None
    # Keys of the file that a build ignores.
    skipped: list[str] = []
    # Unknown keys of the file, with the known ones that somebody may have meant.
    misspelt: dict[str, str] = {}
    # Whether the project has a web application of its own (`http.app`) in Python.
    has_web_app: bool = False


class _UvSource(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["uv"]
    root: Annotated[str, msgspec.Meta(min_length=1)] = "."
    package: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None


class _File(msgspec.Struct):
    graphs: dict[str, Any] = {}
    dependencies: list[str] = []
    python_version: str | float | None = None
    node_version: str | int | None = None
    source: Any = None
    pip_config_file: str | None = None
    http: dict[str, Any] | None = None
    ui: dict[str, str] | None = None
    install_command: _Command = None
    build_command: _Command = None


def read_config(repository: Path, config_path: str) -> BuildConfig:
    """Read the configuration file of a fetched source. Raises BuildFailed with the name of the file."""
    path = _resolve_inside(repository, repository / config_path, config_path)
    if not path.is_file():
        raise BuildFailed(_describe_missing_file(repository, path, config_path))

    content = _read(path, config_path)
    every_key = with_paths_from_above(_decode(content, config_path, dict[str, Any]), path.parent, repository)
    if not isinstance(every_key.get("graphs"), dict) or not every_key["graphs"]:
        raise BuildFailed(missing_graphs(every_key, config_path))

    file = _convert(every_key, config_path, _File)
    requirements, packages, projects = _sort_dependencies(repository, path, config_path, file.dependencies)
    uv = _read_uv_source(repository, path, config_path, file)
    python_version = _parse_python_version(file.python_version, config_path)
    javascript_graphs = _find_javascript_graphs(file, config_path)
    handlers = {key: _get_text(every_key, key) for key in _HANDLERS}
    components = [_resolve_inside(repository, path.parent / name, name) for name in (file.ui or {}).values()]

    requirement_folders = [file.parent for file in requirements]
    lock_folders = [*projects, *(file.parent for file in requirements if file.name == "pyproject.toml")]
    python_folders = [uv.root] if uv else [*projects, *requirement_folders]

    installs_python = bool(requirements or packages or projects or uv)
    has_python_graphs = len(javascript_graphs) < len(file.graphs)
    has_python_handlers = any(handler and not is_javascript(handler) for handler in handlers.values())
    has_javascript_handlers = any(map(is_javascript, handlers.values()))
    web_app = handlers["http.app"]

    return BuildConfig(
        path=path,
        requirements=requirements,
        packages=packages,
        projects=projects,
        uv=uv,
        found_locks=_find_locks(repository, lock_folders),
        pip=_read_project_pip_config(repository, path, file.pip_config_file),
        python_version=python_version,
        requires_python=_combine_requires_python(repository, python_folders, python_version),
        node_version=_parse_node_version(file.node_version, config_path),
        has_python=installs_python or has_python_graphs or has_python_handlers,
        javascript_graphs=javascript_graphs,
        has_javascript=bool(javascript_graphs) or has_javascript_handlers,
        has_ui=bool(components),
        install_command=file.install_command,
        build_command=file.build_command,
        has_web_app=bool(web_app) and not is_javascript(web_app),
        skipped=[key for key in _SKIPPED if every_key.get(key)],
        misspelt=find_misspelt_keys(every_key),
    )


def _describe_missing_file(repository: Path, path: Path, name: str) -> str:
    """Return the error for a configuration file that is not there, which names the files that are."""
    if path.is_dir():
        return f"{name} is a folder; name the configuration file in it"

    names = find_configs(repository)[:_SHOWN_FILES]
    others = f"; it has {' and '.join(names)}: name one as the configuration file" if names else ""
    return f"{name}: the repository has no such file{others}"


def _get_text(content: dict[str, Any], key: str) -> str:
    """Return the text at a dotted key; "" if there is none."""
    value: Any = content
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None

    return value if isinstance(value, str) else ""


def read_node_version(path: Path) -> int | None:
    """Read `node_version` of a configuration file; None if there is no such file. Raises BuildFailed."""
    if not path.is_file():
        return None

    file = _decode(_read(path, path.name), path.name, _File)
    return _parse_node_version(file.node_version, path.name)


def _read(path: Path, name: str) -> bytes:
    if path.stat().st_size > _MAX_BYTES:
        raise BuildFailed(f"{name}: larger than {_MAX_BYTES} bytes")
    return path.read_bytes()


def _decode(content: bytes, name: str, kind: type[T]) -> T:
    try:
        content_by_key = parse_config(content, name)
    except UserMistake as exc:
        raise BuildFailed(str(exc)) from exc

    return _convert(content_by_key, name, kind)


def _convert(content: dict[str, Any], name: str, kind: type[T]) -> T:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as exc:
        raise BuildFailed(f"{name}: {exc}") from exc


def _find_javascript_graphs(file: _File, name: str) -> dict[str, str]:
    """Return the locations of the graphs in JavaScript. Raises BuildFailed for an entry that names no file."""
    locations: dict[str, str] = {}
    for graph_id, graph in file.graphs.items():
        if not isinstance(graph, (str, dict)):
            raise BuildFailed(f"{name}: graph {graph_id!r} must be 'path:name' or an object with 'path'")

        location = graph if isinstance(graph, str) else str(graph.get("path", ""))
        if is_javascript(location):
            locations[graph_id] = location

    return locations


def _sort_dependencies(
    repository: Path, path: Path, name: str, dependencies: list[str]
) -> tuple[list[Path], list[str], list[Path]]:
    """Sort the dependencies into requirements files, packages of an index, and projects in folders."""
    requirements: list[Path] = []
    packages: list[str] = []
    projects: list[Path] = []
    for dependency in dependencies:
        # Each becomes a line of a requirements file, in which a line with a dash is an option.
        if dependency.startswith("-") or len(dependency.splitlines()) > 1:
            raise BuildFailed(
                f"{name}: the dependency {dependency!r} begins with a dash or has several lines; name one package or "
                "path"
            )

        if not _is_local(path.parent, dependency):
            packages.append(dependency)
            continue

        local = _resolve_inside(repository, path.parent / dependency.strip(), dependency)
        if local.suffix == ".txt" and local.is_file():
            requirements.append(local)
            continue

        folder = local.parent if local.name in _FILES and local.is_file() else local
        if not folder.is_dir():
            raise BuildFailed(f"{name}: dependency {dependency!r}: the repository has no such folder")

        if is_project(folder):
            projects.append(folder)
        elif is_virtual(folder):
            requirements.append(_resolve_inside(repository, folder / "pyproject.toml", f"{dependency}/pyproject.toml"))
        elif (folder / "requirements.txt").is_file():
            requirements.append(
                _resolve_inside(repository, folder / "requirements.txt", f"{dependency}/requirements.txt")
            )

    return requirements, packages, projects


def _is_local(base: Path, dependency: str) -> bool:
    """Whether a dependency is a path in the repository; an empty string is the folder of the configuration file."""
    text = dependency.strip()
    if not text or text.startswith("."):
        return True

    return text.endswith((".txt", *_FILES)) and "\0" not in text and (base / text).is_file()


def _combine_requires_python(repository: Path, folders: list[Path], version: str | None) -> str:
    """Return the specifier that combines those of all folders. Raises BuildFailed when it excludes the version."""
    specifiers = []
    for folder in dict.fromkeys(folders):
        specifier = read_required_python(folder)
        if specifier:
            name = (folder / "pyproject.toml").relative_to(repository.resolve())
            check_version(version, specifier, str(name))
            specifiers.append(specifier)

    return ",".join(dict.fromkeys(specifiers))


def _find_locks(repository: Path, folders: list[Path]) -> list[FoundLock]:
    """Return the lock file of each folder, which lies in it or in the root of its workspace."""
    top = repository.resolve()
    locks: list[FoundLock] = []
    for folder in dict.fromkeys(folders):
        above = [parent for parent in folder.parents if parent.is_relative_to(top) and is_workspace(parent)]
        for root in [folder, *above]:
            lock = root / "uv.lock"
            if lock.is_file() and lock.resolve().is_relative_to(top):
                locks.append(FoundLock(folder, lock, str(lock.relative_to(top))))
                break

    return locks


def _read_uv_source(repository: Path, path: Path, name: str, file: _File) -> UvSource | None:
    if file.source is None:
        return None

    try:
        source = msgspec.convert(file.source, _UvSource)
    except msgspec.ValidationError as exc:
        raise BuildFailed(f"{name}: source: {exc}; the only supported kind is 'uv'") from exc

    if file.dependencies:
        raise BuildFailed(f"{name}: with source.kind 'uv' the lock file lists what to install; remove 'dependencies'")

    root = _resolve_inside(repository, path.parent / source.root, source.root)
    if not (root / "uv.lock").is_file() or not (root / "pyproject.toml").is_file():
        raise BuildFailed(f"{name}: source.root {source.root!r} has no pyproject.toml with a uv.lock beside it")

    return UvSource(root, source.package)


def _read_project_pip_config(repository: Path, path: Path, name: str | None) -> PipConfig:
    if not name:
        return PipConfig()

    return read_pip_config(_resolve_inside(repository, path.parent / name, name), name)


def _resolve_inside(repository: Path, path: Path, name: str) -> Path:
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError) as exc:
        raise BuildFailed(f"{name!r} is not a usable path") from exc

    if not real.is_relative_to(repository.resolve()):
        raise BuildFailed(f"{name!r} leads out of the repository")

    return real


def _parse_python_version(value: str | float | None, name: str) -> str | None:
    """Return the version, which may have a patch, without the suffix of an image name as in 3.12-slim."""
    if value is None:
        return None

    match = _PYTHON.fullmatch(str(value))
    if match is None or tuple(int(part) for part in match["minor"].split(".")) < OLDEST_PYTHON:
        raise BuildFailed(f"{name}: python_version '{value}' must be 3.11 or newer, as major.minor or with a patch")

    return match["version"]


def _parse_node_version(value: str | int | None, name: str) -> int | None:
    if value is None:
        return None

    text = str(value)
    if not _NODE.fullmatch(text) or int(text) < _OLDEST_NODE:
        raise BuildFailed(f"{name}: node_version {text!r} must be {_OLDEST_NODE} or newer, as the major version alone")

    return int(text)


def read_pip_config(path: Path, name: str) -> PipConfig:
    """Read a pip configuration file. Raises BuildFailed with its name."""
    if not path.is_file() or path.stat().st_size > _MAX_PIP_CONFIG_BYTES:
        raise BuildFailed(
            f"pip_config_file {name!r}: there is no such file, or it is larger than {_MAX_PIP_CONFIG_BYTES} bytes"
        )

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text())
    except (configparser.Error, UnicodeDecodeError) as exc:
        raise BuildFailed(f"pip_config_file {name!r} is not a valid pip configuration file") from exc

    config = PipConfig()
    for section in parser.sections():
        for option, value in parser.items(section):
            variable = _UV_VARIABLES.get(option.replace("_", "-")) if section in _PIP_SECTIONS else None
            if variable is None:
                config.skipped.append(f"{section}.{option}")
            else:
                config.variables[variable] = _uv_value(variable, value)

    return config


def _uv_value(variable: str, value: str) -> str:
    words = value.split()
    return ",".join(words) if variable == "UV_FIND_LINKS" else " ".join(words)
