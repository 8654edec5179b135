"""Importing the user's code, and saying in the user's own terms why that failed.

A graph is named by file (`./agent.py:graph`) or by module (`package.module:graph`). A file is imported under the name
it has in its package, or relative to the project's folders, so that it is the same module for everybody who imports it
and its classes can be found again when a checkpoint is read.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from portside.agent.config import AgentConfig
from portside.kernel.errors import UserMistake


def add_to_path(config: AgentConfig) -> list[Path]:
    """Put the project and its local dependencies on the import path; a `src` folder comes before the one it is in.

    Raises UserMistake when a local dependency is no folder.
    """
    roots: list[Path] = []
    for entry in [*(entry for entry in config.dependencies if entry.startswith(".")), "."]:
        folder = (config.folder / entry).resolve()
        if not folder.is_dir():
            raise UserMistake(f'{config.file}: dependencies names "{entry}", but {folder} is not a folder')
        source = folder / "src"
        found = [source, folder] if source.is_dir() and not (source / "__init__.py").exists() else [folder]
        roots.extend(root for root in found if root not in roots)
    sys.path[:0] = [str(root) for root in roots if str(root) not in sys.path]
    return roots


def import_export(config: AgentConfig, graph_id: str, roots: list[Path]) -> Any:
    """Import what `graphs.<graph_id>` names. Raises UserMistake with the line of the user's code that failed."""
    return import_named(config, *_graph(config, graph_id), roots)


def import_named(config: AgentConfig, label: str, source: str, roots: list[Path]) -> Any:
    """Import what a source such as `./file.py:name` names; `label` says in a mistake what it is for.

    Raises UserMistake with the line of the user's code that failed.
    """
    place, _, name = source.rpartition(":")
    try:
        if place.endswith(".py") or "/" in place:
            module = _import_file(_existing(config, label, place), roots)
        else:
            module = importlib.import_module(place)
    except UserMistake:
        raise
    except (Exception, SystemExit) as exc:
        raise named_failure(config, label, source, exc) from exc
    try:
        return getattr(module, name)
    except AttributeError:
        raise UserMistake(f"{config.file}: {label}: {place} has no {name!r}; it defines {_names_in(module)}") from None


def load_failure(config: AgentConfig, graph_id: str, exc: BaseException) -> UserMistake:
    """Describe an exception of the user's code: what, in which graph, and at which line of the project."""
    return named_failure(config, *_graph(config, graph_id), exc)


def named_failure(config: AgentConfig, label: str, source: str, exc: BaseException) -> UserMistake:
    """Describe an exception of the user's code, in what `label` names: what, and at which line of the project."""
    what = exc.msg if isinstance(exc, SyntaxError) else str(exc)
    said = f"{type(exc).__name__}: {what}" if what else type(exc).__name__
    hint = ""
    if isinstance(exc, ModuleNotFoundError):
        hint = "; add the package that has it to the project's dependencies"
    return UserMistake(f"{config.file}: {label} ({source}) does not load: {said}{_where(config.folder, exc)}{hint}")


def _graph(config: AgentConfig, graph_id: str) -> tuple[str, str]:
    return f"graph {graph_id!r}", config.graphs[graph_id].path


def _existing(config: AgentConfig, label: str, place: str) -> Path:
    file = (config.folder / place).resolve()
    if not file.is_file():
        raise UserMistake(f'{config.file}: {label} is in "{place}", but there is no file {file}')
    return file


def _import_file(file: Path, roots: list[Path]) -> ModuleType:
    root, name = _module_name(file, roots)
    if all(part.isidentifier() for part in name.split(".")) and _is_free(name, file):
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        module = importlib.import_module(name)
        if _is_from(module, file):
            return module
    return _import_alone(file)


def _module_name(file: Path, roots: list[Path]) -> tuple[Path, str]:
    """Find the folder to import from and the dotted name of a file in it."""
    root = file.parent
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        root = root.parent
    if root == file.parent:
        root = max((r for r in roots if file.is_relative_to(r)), key=lambda r: len(r.parts), default=root)
    parts = file.relative_to(root).with_suffix("").parts
    return root, ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _is_free(name: str, file: Path) -> bool:
    """Whether a module name is not taken by another file, such as one of the standard library."""
    return name not in sys.modules or _is_from(sys.modules[name], file)


def _is_from(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file


def _import_alone(file: Path) -> ModuleType:
    """Import a file whose own name is taken, under one that no other file has."""
    name = f"graph_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _where(folder: Path, exc: BaseException) -> str:
    """Name the innermost line of the project that the exception went through."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f" ({_short(folder, exc.filename)}, line {exc.lineno}: {(exc.text or '').strip()})"
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if Path(frame.filename).is_relative_to(folder) and "site-packages" not in frame.filename:
            return f" ({_short(folder, frame.filename)}, line {frame.lineno}: {frame.line})"
    return ""


def _short(folder: Path, file: str) -> str:
    return str(Path(file).relative_to(folder)) if Path(file).is_relative_to(folder) else file


def _names_in(module: ModuleType) -> str:
    """List what could have been meant: the module's own functions, and its values."""
    names = [name for name, value in vars(module).items() if not name.startswith("_") and _is_own(module, value)]
    return ", ".join(names[:20]) or "nothing that could be a graph"


def _is_own(module: ModuleType, value: Any) -> bool:
    if inspect.isroutine(value):
        return value.__module__ == module.__name__
    return not isinstance(value, (ModuleType, type))
