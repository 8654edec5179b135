"""Packs a folder for `portside deploy`: its files in an archive.

An archive has all files of a folder except those that `.gitignore` and `.dockerignore` exclude, and caches and virtual
environments, which the build creates itself. It also has folders outside that the graph configuration names as
dependencies, and all of the workspaces that a JavaScript project belongs to. It contains plain files only: a link to a
file inside is packed as that file, other links are left out.
"""

import contextlib
import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from portside.cli.project_check import describe_missing_config
from portside.kernel.errors import UserMistake
from portside.kernel.graph_config import find_env_file, parse_config, with_paths_from_above

# Of an archive that is too large.
_SHOWN_FILES = 5
MAX_ARCHIVE_BYTES = 200 * 1024 * 1024
NEVER = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".mypy_cache", ".DS_Store"})


class ProjectFiles(msgspec.Struct):
    """A folder to deploy: the common root of all files, the folders to pack, and the configuration file below the root.

    `missing_env` is the reason why an env file in the configuration is not used.
    """

    root: Path
    folders: list[Path]
    config: str
    env_file: Path | None
    missing_env: str | None = None


class Packed(msgspec.Struct):
    """The result of packing: the number of files, the archive's size in bytes, and the links that were left out."""

    files: int
    size: int
    left_out: list[str]


def read_project(folder: Path, config_name: str) -> ProjectFiles:
    """Find the files of the agent in a folder. Raises UserMistake for a missing file."""
    folder = folder.resolve()
    config = folder / config_name
    content = _read_config(config, folder)
    dependencies = [part for part in content.get("dependencies", []) if isinstance(part, str) and part.startswith(".")]
    folders = [
        folder,
        *(_get_dependency_folder(config, part) for part in dependencies),
        *_find_workspace(config.resolve().parent),
    ]
    root = Path(os.path.commonpath(folders))

    env = content.get("env")
    env_file = None
    missing_env = None
    if isinstance(env, str) and env:
        env_file = _find_env_file(env, [config.parent, folder], root)
        missing_env = None if env_file else f'{config}: env is "{env}", but there is no such file in {root}'

    return ProjectFiles(
        root=root,
        folders=_drop_nested(folders),
        config=config.resolve().relative_to(root).as_posix(),
        env_file=env_file,
        missing_env=missing_env,
    )


def _drop_nested(folders: list[Path]) -> list[Path]:
    """Return the folders that are not inside another one of them, each once: those inside are packed with the other."""
    distinct = list(dict.fromkeys(folders))
    return [folder for folder in distinct if not any(parent in distinct for parent in folder.parents)]


def _find_env_file(name: str, folders: list[Path], root: Path) -> Path | None:
    """Return the file that `env` names, unless it is outside of what is deployed."""
    file = find_env_file(name, folders)
    return file.resolve() if file is not None and file.resolve().is_relative_to(root) else None


def _find_workspace(folder: Path) -> list[Path]:
    """Return the root of a JavaScript project's workspaces, which has its lock file and the packages beside it."""
    from portside.dataplane.builds.javascript import find_workspace
    from portside.dataplane.failures import BuildFailed

    try:
        root = find_workspace(folder)
    except BuildFailed as exc:
        raise UserMistake(f"{folder}: {exc}") from exc

    return [] if root is None else [root]


def _get_dependency_folder(config: Path, dependency: str) -> Path:
    """Return the folder of a local dependency, which may name a file in it. Raises UserMistake."""
    path = (config.parent / dependency).resolve()
    if not path.exists():
        raise UserMistake(f"{config} names the dependency {dependency}, but there is no such folder")

    return path.parent if path.is_file() else path


def _read_config(config: Path, folder: Path) -> dict[str, Any]:
    if not config.resolve().is_relative_to(folder):
        raise UserMistake(f"{config} is not inside {folder}; name a file in it with --config")

    try:
        content = parse_config(config.read_bytes(), str(config))
    except (FileNotFoundError, IsADirectoryError) as exc:
        raise UserMistake(describe_missing_config(folder, config.name)) from exc
    except OSError as exc:
        raise UserMistake(f"cannot read {config}: {exc.strerror}") from exc

    if not isinstance(content.get("dependencies", []), list):
        raise UserMistake(f"{config}: dependencies must be a list")

    return with_paths_from_above(content, config.parent, folder)


def pack(project: ProjectFiles, target: IO[bytes]) -> Packed:
    """Write a project's files as .tar.gz; the same files always give the same bytes. Raises UserMistake."""
    packed = Packed(0, 0, [])
    has_config = False
    sizes: dict[str, int] = {}

    # No name and no time in the gzip header: both would differ in every archive.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in sorted(_list_files(project, packed)):
            sizes[name] = _add_file(archive, project, name, file)
            packed.files += 1
            has_config = has_config or name == project.config
            _check_size(target, sizes)

    if not has_config:
        raise UserMistake(
            f"a .dockerignore or .gitignore in {project.root} excludes {project.config}: change it, or deploy the "
            "repository instead of the folder"
        )

    packed.size = _check_size(target, sizes)
    return packed


def _check_size(target: IO[bytes], sizes: Mapping[str, int]) -> int:
    """Return the size of the archive. Raises UserMistake that names the largest files, which have these sizes."""
    size = target.tell()
    if size > MAX_ARCHIVE_BYTES:
        largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_SHOWN_FILES]
        names = ", ".join(f"{name} ({_format_megabytes(sizes[name])})" for name in largest)
        raise UserMistake(
            f"the archive is larger than {_format_megabytes(MAX_ARCHIVE_BYTES)}. The largest files so far: {names}. "
            "Exclude what the agent does not need in .dockerignore, or deploy a git repository"
        )

    return size


def _format_megabytes(size: int) -> str:
    return f"{size / 1024**2:.1f}".removesuffix(".0") + " MB"


def _add_file(archive: tarfile.TarFile, project: ProjectFiles, name: str, file: Path) -> int:
    """Add a file to the archive, and return its size. Raises UserMistake."""
    entry = tarfile.TarInfo(name)
    # The values are sent as secrets, which are encrypted; the file only has to exist.
    content = b"" if file == project.env_file else None
    try:
        with contextlib.closing(io.BytesIO(content) if content is not None else file.open("rb")) as source:
            status = file.stat()
            entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
            entry.size = len(content) if content is not None else os.fstat(source.fileno()).st_size
            archive.addfile(entry, source)
    except OSError as exc:
        raise UserMistake(f"cannot pack {file}: {exc.strerror or exc}") from exc

    return entry.size


def _list_files(project: ProjectFiles, packed: Packed) -> Iterator[tuple[str, Path]]:
    """Yield every file to pack with its name in the archive."""
    if project.env_file is not None:
        yield project.env_file.relative_to(project.root).as_posix(), project.env_file

    for folder in project.folders:
        for file in _walk(folder, [*_read_rules_above(folder), *_read_docker_rules(folder)]):
            name = file.relative_to(project.root).as_posix()
            if file == project.env_file:
                continue

            if not file.is_symlink():
                if file.is_file():
                    yield name, file
                continue

            target = file.resolve()
            if target.is_file() and target.is_relative_to(project.root):
                yield name, target
            else:
                packed.left_out.append(name)


def _walk(folder: Path, rules: list[tuple[Path, Any]]) -> Iterator[Path]:
    """Yield the files and links below a folder that no rule excludes, without entering excluded folders."""
    rules = [*rules, *_read_rules(folder, ".gitignore")]
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as exc:
        raise UserMistake(f"cannot read {folder}: {exc.strerror}") from exc

    for entry in entries:
        path = Path(entry.path)
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in NEVER or entry.name.endswith(".pyc") or _is_excluded(path, rules, is_folder=is_folder):
            continue

        if is_folder:
            yield from _walk(path, rules)
        else:
            yield path


def _is_excluded(path: Path, rules: list[tuple[Path, Any]], *, is_folder: bool) -> bool:
    """Apply the rules from the outermost inwards; the last match decides, as in git."""
    excluded = False
    for base, spec in rules:
        decision = spec.check_file(path.relative_to(base).as_posix() + ("/" if is_folder else "")).include
        excluded = excluded if decision is None else decision

    return excluded


def _read_rules(folder: Path, name: str) -> list[tuple[Path, Any]]:
    """Return the rules of an ignore file in a folder; none if it has no such file."""
    from pathspec import GitIgnoreSpec

    try:
        lines = (folder / name).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []

    return [(folder, GitIgnoreSpec.from_lines(lines))]


def _read_rules_above(folder: Path) -> list[tuple[Path, Any]]:
    """Return the rules of the enclosing folders of a folder's repository, outermost first."""
    above: list[Path] = []
    while not (folder / ".git").exists():
        if folder.parent == folder:
            return []

        folder = folder.parent
        above.append(folder)

    return [rule for parent in reversed(above) for rule in _read_rules(parent, ".gitignore")]


def _read_docker_rules(folder: Path) -> list[tuple[Path, Any]]:
    """Return the rules of `.dockerignore`, whose patterns are relative to the folder, not to any folder below it."""
    from pathspec import GitIgnoreSpec

    try:
        lines = (folder / ".dockerignore").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []

    return [(folder, GitIgnoreSpec.from_lines([_anchor(line.strip()) for line in lines]))]


def _anchor(pattern: str) -> str:
    """Return a pattern of `.dockerignore` as one of git's that only matches from its own folder on."""
    if not pattern or pattern.startswith("#"):
        return ""

    sign = "!" if pattern.startswith("!") else ""
    path = pattern.removeprefix("!").removeprefix("./").lstrip("/")
    return f"{sign}/{path}"
