"""Importing the user's code, and explaining failures in the user's own terms.

A graph is named by file (`./agent.py:graph`) or by module (`package.module:graph`). A file is imported under its name
in its package, or relative to the project's folders. So every import yields the same module, and its classes are found
again when a checkpoint is read.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import threading
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard

from portside.executor.project import Project
from portside.kernel.errors import UserMistake
from portside.kernel.project_files import FOLDERS_ABOVE, POETRY_BUILD_SYSTEM, lacks_build_system

if TYPE_CHECKING:
    from pydantic import ValidationError

log = logging.getLogger(__name__)
SLOW_AFTER_S = 10.0
_MAX_CAUSES = 5
# Of the project, in the stack of an import that hangs.
_SHOWN_FRAMES = 8
# A project may have its virtual environment in its folder.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_ENVIRONMENT = re.compile(r"\benv(?:ironment)?[ _]var", re.IGNORECASE)
_MISSING = re.compile(
    r"must be set|not set|not found|did not find|missing|required|please (?:set|provide)", re.IGNORECASE
)
_CREDENTIAL = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_URL", "_URI", "_ENDPOINT")
_PACKAGE_FILES = ("pyproject.toml", "setup.py", "requirements.txt")


def add_to_path(project: Project) -> list[Path]:
    """Put the project and its local dependencies on the import path; a `src` folder comes before its parent.

    Raises UserMistake if a local dependency is not a folder.
    """
    roots: list[Path] = []
    for entry in [*(entry for entry in project.dependencies if entry.startswith(".")), "."]:
        path = (project.folder / entry).resolve()
        # Some configurations name the project's own file, such as `./pyproject.toml`.
        folder = path.parent if path.is_file() else path
        if not folder.is_dir():
            raise UserMistake(f'{project.file}: dependencies names "{entry}", but {folder} is not a folder')

        source = folder / "src"
        folders = [source, folder] if source.is_dir() and not (source / "__init__.py").exists() else [folder]
        roots.extend(root for root in folders if root not in roots)

    sys.path[:0] = [str(root) for root in roots if str(root) not in sys.path]
    return roots


def import_export(project: Project, graph_id: str, roots: list[Path]) -> Any:
    """Import the graph or factory of `graphs.<graph_id>`. Raises UserMistake with the line of the user's code."""
    return import_object(project, *_locate_graph(project, graph_id), roots)


def import_object(project: Project, label: str, source: str, roots: list[Path]) -> Any:
    """Import an object by its source, such as `./file.py:name`; `label` says in errors what it is for.

    Raises UserMistake with the failing line of the user's code.
    """
    location, _, name = source.rpartition(":")
    try:
        with _logging_slow_import(project, label, source):
            if location.endswith(".py") or "/" in location:
                module = _import_file(_find_file(project, label, location), roots)
            else:
                module = importlib.import_module(location)
    except UserMistake:
        raise
    except (Exception, SystemExit) as exc:
        raise describe_failure(project, label, source, exc) from exc

    try:
        return getattr(module, name)
    except AttributeError:
        raise UserMistake(
            f"{project.file}: {label}: {location} has no {name!r}; it defines {_list_names(module)}"
        ) from None


def describe_graph_failure(project: Project, graph_id: str, exc: BaseException) -> UserMistake:
    """Describe an exception of a graph's code, with the line of the project."""
    return describe_failure(project, *_locate_graph(project, graph_id), exc)


def describe_failure(project: Project, label: str, source: str, exc: BaseException) -> UserMistake:
    """Describe an exception of the user's code, with the line of the project; `label` says what was imported."""
    message = _get_message(exc)
    described = f"{type(exc).__name__}: {message}" if message else type(exc).__name__
    hint = describe_missing_variables(find_missing_variables(exc))

    if isinstance(exc, ModuleNotFoundError):
        hint = _describe_missing_package(project)

    return UserMistake(
        f"{project.file}: {label} ({source}) does not load: {described}{_describe_place(project.folder, exc)}{hint}"
    )


def find_missing_variables(exc: BaseException) -> list[str]:
    """Return the environment variables whose absence caused an exception of the user's code, if any."""
    for cause in _iterate_causes(exc):
        if names := [*_find_in_environ(cause), *_find_in_settings(cause)] or _find_in_message(cause):
            return names

    return []


def describe_missing_variables(names: list[str]) -> str:
    """Return the end of an error message: how to set missing variables."""
    if not names:
        return ""

    options = " ".join(f"--secret {name}=…" for name in names)
    verb = "is" if len(names) == 1 else "are"
    return (
        f"; {', '.join(names)} {verb} not set: deploy with {options}, use 'portside secrets set', or write it to the "
        "env file of the configuration"
    )


def _describe_missing_package(project: Project) -> str:
    """Return the end of an error message: what to do about a package that is not installed."""
    for entry in project.dependencies:
        folder = project.folder / entry
        if not entry.startswith(".") or not folder.is_dir():
            continue

        if not any((folder / name).is_file() for name in _PACKAGE_FILES):
            return (
                f'; the dependency "{entry}" has no requirements.txt and no pyproject.toml, so a build installs '
                "nothing for it: add one there, or name the file that lists the packages as a dependency"
            )

        if lacks_build_system(folder, _read_pyproject(folder)):
            return (
                f'; pyproject.toml of the dependency "{entry}" has [tool.poetry] and no [build-system], so a build '
                f"does not read the packages that it lists: {POETRY_BUILD_SYSTEM}"
            )

    return "; add the package that has it to the project's dependencies"


def _read_pyproject(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _get_message(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError):
        return exc.msg

    if _is_invalid(exc):
        # Its own text shows the input, which contains the other variables of the environment.
        problems = exc.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, problem['loc'])) or exc.title}: {problem['msg']}" for problem in problems)

    return str(exc)


def _is_invalid(exc: BaseException) -> "TypeGuard[ValidationError]":
    """Whether pydantic raised an exception for invalid values. Servers that import no project have no pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(exc, pydantic.ValidationError)


def _iterate_causes(exc: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if current is None:
            return

        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _iterate_tracebacks(exc: BaseException) -> Iterator[TracebackType]:
    step = exc.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def _find_in_environ(exc: BaseException) -> list[str]:
    """Return the key of a failed `os.environ[…]`."""
    steps = list(_iterate_tracebacks(exc))
    is_environ = isinstance(exc, KeyError) and steps and steps[-1].tb_frame.f_locals.get("self") is os.environ
    return [str(exc.args[0])] if is_environ else []


def _find_in_settings(exc: BaseException) -> list[str]:
    """Return the variables of required fields that a `pydantic-settings` class did not find."""
    settings = sys.modules.get("pydantic_settings")
    if settings is None or not _is_invalid(exc):
        return []

    instances = [step.tb_frame.f_locals.get("__pydantic_self__") for step in _iterate_tracebacks(exc)]
    kinds = [type(item) for item in instances if isinstance(item, settings.BaseSettings)]
    if not kinds:
        return []

    names = [str(item["loc"][0]) for item in exc.errors() if item["type"] == "missing" and item["loc"]]
    return [_get_variable(kinds[0], name) for name in names]


def _get_variable(settings: Any, name: str) -> str:
    # The error names a field by its alias, which is the variable.
    variable = settings.model_config.get("env_prefix", "") + name if name in settings.model_fields else name
    return variable if settings.model_config.get("case_sensitive") else variable.upper()


def _find_in_message(exc: BaseException) -> list[str]:
    """Return the first variable that the message of a provider's package names."""
    message = _get_message(exc)
    names_environment = _ENVIRONMENT.search(message) is not None
    for name in _VARIABLE.findall(message) if names_environment or _MISSING.search(message) else ():
        if (names_environment or name.endswith(_CREDENTIAL)) and not os.environ.get(name):
            return [name]

    return []


@contextlib.contextmanager
def _logging_slow_import(project: Project, label: str, source: str) -> Iterator[None]:
    """Log the stack of an import that takes long, from another thread, and again when the stack has changed."""
    importing = threading.get_ident()
    is_imported = threading.Event()

    def watch() -> None:
        seconds = SLOW_AFTER_S
        logged = ""
        while not is_imported.wait(seconds):
            frames = traceback.extract_stack(sys._current_frames().get(importing))  # noqa: SLF001
            stack = "".join(traceback.format_list(_select_frames(project.folder, frames))).rstrip()
            if stack != logged:
                line = _find_project_line(project.folder, frames)
                message = f"{project.file}: {label} ({source}) is still importing after {seconds:g} s{line}"
                log.warning(message, extra={"fields": {"stack": stack}})

            seconds = 2 * seconds
            logged = stack

    threading.Thread(target=watch, name="import watch", daemon=True).start()
    try:
        yield
    finally:
        is_imported.set()


def _locate_graph(project: Project, graph_id: str) -> tuple[str, str]:
    return f"graph {graph_id!r}", project.graphs[graph_id].path


def _find_file(project: Project, label: str, location: str) -> Path:
    file = (project.folder / location).resolve()
    if file.is_file():
        return file

    # Other servers read the paths from the folder in which they are started, which is often above a file in a folder
    # of its own.
    for above in project.folder.resolve().parents[:FOLDERS_ABOVE]:
        candidate = (above / location).resolve()
        if candidate.is_file() and candidate.is_relative_to(above):
            if str(above) not in sys.path:
                sys.path.append(str(above))
            return candidate

    raise UserMistake(f'{project.file}: {label} is in "{location}", but {file} does not exist')


def _import_file(file: Path, roots: list[Path]) -> ModuleType:
    root, name = _find_module(file, roots)
    if all(part.isidentifier() for part in name.split(".")) and _is_free(name, file):
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))

        if not _is_hidden(name, root):
            module = importlib.import_module(name)
            if _is_from(module, file):
                return module

    return _import_alone(file)


def _find_module(file: Path, roots: list[Path]) -> tuple[Path, str]:
    """Find the folder to import from and the dotted name of a file in it."""
    root = file.parent
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        root = root.parent

    if root == file.parent:
        root = max((r for r in roots if file.is_relative_to(r)), key=lambda r: len(r.parts), default=root)

    parts = file.relative_to(root).with_suffix("").parts
    return root, ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _is_free(name: str, file: Path) -> bool:
    """Whether no other file has this module name, such as one of the standard library."""
    return name not in sys.modules or _is_from(sys.modules[name], file)


def _is_hidden(name: str, root: Path) -> bool:
    """Whether an installed package has the name of the file's folder.

    Python prefers a package with an `__init__.py` to a folder without one, wherever the two are on the import path.
    """
    top, dot, _rest = name.partition(".")
    if not dot:
        return False

    spec = importlib.util.find_spec(top)
    places = (spec.submodule_search_locations if spec else None) or ()
    return str(root / top) not in places


def _is_from(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file


def _import_alone(file: Path) -> ModuleType:
    """Import a file under a unique name, because another module has its own."""
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


def _describe_place(folder: Path, exc: BaseException) -> str:
    """Return the innermost line of the project in an exception's traceback."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f" ({_shorten(folder, exc.filename)}, line {exc.lineno}: {(exc.text or '').strip()})"
    return _find_project_line(folder, traceback.extract_tb(exc.__traceback__))


def _find_project_line(folder: Path, frames: Iterable[traceback.FrameSummary]) -> str:
    for frame in reversed(list(frames)):
        if _is_of_project(folder, frame):
            return f" ({_shorten(folder, frame.filename)}, line {frame.lineno}: {frame.line})"

    return ""


def _select_frames(folder: Path, frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames of the project, and the innermost one, which may be a library's.

    Before the project's first frame are this program and the machinery of imports, which say nothing about a cause.
    """
    project_frames = [frame for frame in frames if _is_of_project(folder, frame)]
    innermost = [frame for frame in frames[-1:] if frame not in project_frames]
    return [*project_frames[-_SHOWN_FRAMES:], *innermost]


def _is_of_project(folder: Path, frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(folder) and not _INSTALLED.intersection(Path(frame.filename).parts)


def _shorten(folder: Path, file: str) -> str:
    return str(Path(file).relative_to(folder)) if Path(file).is_relative_to(folder) else file


def _list_names(module: ModuleType) -> str:
    """List the names that the user may have meant: the module's own functions and values."""
    names = [name for name, value in vars(module).items() if not name.startswith("_") and _is_defined_in(module, value)]
    return ", ".join(names[:20]) or "nothing that could be a graph"


def _is_defined_in(module: ModuleType, value: Any) -> bool:
    if inspect.isroutine(value):
        return value.__module__ == module.__name__
    return not isinstance(value, (ModuleType, type))
