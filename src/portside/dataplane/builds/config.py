"""The few things that a build reads from the graph configuration file.

The file's other keys are the agent server's business. Every path must stay inside the repository, links followed.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from portside.dataplane.builds.pip_config import PipConfig, read_pip_config
from portside.dataplane.failures import BuildFailed

T = TypeVar("T")
_MAX_BYTES = 1_000_000
_PYTHON = re.compile(r"3\.\d{1,2}")
_OLDEST_PYTHON = (3, 11)
_NODE = re.compile(r"\d{1,3}")
_OLDEST_NODE = 20
_SCRIPT_SUFFIXES = (".ts", ".tsx", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs")


# What only an image build could act on; each is named in the log when a file has it.
_SKIPPED = ("api_version", "base_image", "dockerfile_lines", "image_distro", "keep_pkg_tools", "pip_installer")


class UvSource(msgspec.Struct, frozen=True):
    """A project of uv whose lock file says what to install; `package` is one member of its workspace."""

    root: Path
    package: str | None


class BuildConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What to install, and for which Python and Node.

    `projects` are installed in place, so that their files stay where they are. `wants_node` says that the project has
    JavaScript that must be installed.
    """

    path: Path
    requirements: list[Path] = []
    packages: list[str] = []
    projects: list[Path] = []
    uv: UvSource | None = None
    pip: PipConfig = msgspec.field(default_factory=PipConfig)
    python_version: str | None = None
    node_version: int | None = None
    wants_node: bool = False
    skipped: list[str] = []


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
    ui: Any = None
    pip_config_file: str | None = None


def read_config(repository: Path, config_path: str) -> BuildConfig:
    """Read the configuration file of a fetched source. Raises BuildFailed that names the file."""
    path = _inside(repository, repository / config_path, config_path)
    if not path.is_file():
        raise BuildFailed(f"{config_path}: there is no such file in the repository")
    content = _read(path, config_path)
    file = _decode(content, config_path, _File)
    if not file.graphs:
        raise BuildFailed(f"{config_path}: no graphs are named under 'graphs'")
    node_version = _node_version(file.node_version, config_path)
    requirements, packages, projects = _dependencies(repository, path, config_path, file.dependencies)
    return BuildConfig(
        path=path,
        requirements=requirements,
        packages=packages,
        projects=projects,
        uv=_uv_source(repository, path, config_path, file),
        pip=_pip_config(repository, path, file.pip_config_file),
        python_version=_python_version(file.python_version, config_path),
        node_version=node_version,
        wants_node=node_version is not None or bool(file.ui) or _has_scripts(file, config_path),
        skipped=[key for key in _SKIPPED if _decode(content, config_path, dict[str, Any]).get(key)],
    )


def _read(path: Path, name: str) -> bytes:
    if path.stat().st_size > _MAX_BYTES:
        raise BuildFailed(f"{name}: larger than {_MAX_BYTES} bytes")
    return path.read_bytes()


def _decode(content: bytes, name: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as exc:
        raise BuildFailed(f"{name}: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BuildFailed(f"{name}: not valid JSON: {exc}") from exc


def _has_scripts(file: _File, name: str) -> bool:
    targets = [graph if isinstance(graph, str) else str(graph.get("path", "")) for graph in _graphs(file, name)]
    return any(target.split(":")[0].endswith(_SCRIPT_SUFFIXES) for target in targets)


def _graphs(file: _File, name: str) -> list[Any]:
    for graph_id, graph in file.graphs.items():
        if not isinstance(graph, (str, dict)):
            raise BuildFailed(f"{name}: graph {graph_id!r} must be 'path:name' or an object with 'path'")
    return list(file.graphs.values())


def _dependencies(
    repository: Path, path: Path, name: str, dependencies: list[str]
) -> tuple[list[Path], list[str], list[Path]]:
    """Sort what to install: lists of requirements, packages of an index, and projects in folders."""
    requirements: list[Path] = []
    packages: list[str] = []
    projects: list[Path] = []
    for dependency in dependencies:
        if dependency.startswith("."):
            folder = _folder(repository, path.parent, dependency)
            if (folder / "pyproject.toml").is_file() or (folder / "setup.py").is_file():
                projects.append(folder)
            elif (folder / "requirements.txt").is_file():
                requirements.append(_inside(repository, folder / "requirements.txt", f"{dependency}/requirements.txt"))
        elif dependency.startswith("-") or not dependency.strip() or len(dependency.splitlines()) > 1:
            raise BuildFailed(f"{name}: {dependency!r} is not a dependency")
        else:
            packages.append(dependency)
    return requirements, packages, projects


def _folder(repository: Path, base: Path, dependency: str) -> Path:
    folder = _inside(repository, base / dependency, dependency)
    if not folder.is_dir():
        raise BuildFailed(f"dependency {dependency!r}: there is no such folder in the repository")
    return folder


def _uv_source(repository: Path, path: Path, name: str, file: _File) -> UvSource | None:
    if file.source is None:
        return None
    try:
        source = msgspec.convert(file.source, _UvSource)
    except msgspec.ValidationError as exc:
        raise BuildFailed(f"{name}: source: {exc}; the one kind is 'uv'") from exc
    if file.dependencies:
        raise BuildFailed(f"{name}: with source.kind 'uv' the lock file says what to install; remove 'dependencies'")
    root = _inside(repository, path.parent / source.root, source.root)
    if not (root / "uv.lock").is_file() or not (root / "pyproject.toml").is_file():
        raise BuildFailed(f"{name}: source.root {source.root!r} has no pyproject.toml with a uv.lock beside it")
    return UvSource(root, source.package)


def _pip_config(repository: Path, path: Path, name: str | None) -> PipConfig:
    return PipConfig() if not name else read_pip_config(_inside(repository, path.parent / name, name), name)


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


def _node_version(value: str | int | None, name: str) -> int | None:
    if value is None:
        return None
    text = str(value)
    if not _NODE.fullmatch(text) or int(text) < _OLDEST_NODE:
        raise BuildFailed(f"{name}: node_version {text!r} must be {_OLDEST_NODE} or newer, as the major version alone")
    return int(text)
