"""Packing a folder for a deploy: what goes in, under which names, and what stays out.

Everything in the folder goes in but for what `.gitignore` and `.dockerignore` leave out, and for caches and
environments that are made anew. Folders outside that the graph configuration names as dependencies come along. The
archive holds plain files alone: a link to a file inside is packed as that file, every other link is left out.
"""

import contextlib
import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from portside.kernel.errors import UserMistake

MAX_ARCHIVE_BYTES = 200 * 1024 * 1024
NEVER = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".mypy_cache", ".DS_Store"})


class Project(msgspec.Struct):
    """A folder to deploy: the ancestor of all that is packed, what of it, and the configuration file below it."""

    root: Path
    folders: list[Path]
    config: str
    env_file: Path | None


class Packed(msgspec.Struct):
    """What was packed: how many files, the archive's size in bytes, and the links that were left out."""

    files: int
    size: int
    left_out: list[str]


def read_project(folder: Path, config_name: str) -> Project:
    """Find what belongs to the agent in a folder. Raises UserMistake that names what is missing."""
    folder = folder.resolve()
    config = folder / config_name
    content = _read_config(config, folder)
    named = [part for part in content.get("dependencies", []) if isinstance(part, str) and part.startswith(".")]
    folders = [folder, *((config.parent / part).resolve() for part in named)]
    for part, found in zip(named, folders[1:], strict=True):
        if not found.is_dir():
            raise UserMistake(f"{config} names the dependency {part}, but there is no such folder")
    root = Path(os.path.commonpath(folders))
    env = content.get("env")
    env_file = (config.parent / env).resolve() if isinstance(env, str) else None
    if env_file is not None and not (env_file.is_file() and env_file.is_relative_to(root)):
        raise UserMistake(f'{config}: env is "{env}", but there is no such file in {root}')
    # What lies inside another folder comes with that one.
    outer = [
        one for one in dict.fromkeys(folders) if not any(one != two and one.is_relative_to(two) for two in folders)
    ]
    return Project(root, outer, config.resolve().relative_to(root).as_posix(), env_file)


def _read_config(config: Path, folder: Path) -> dict[str, Any]:
    if not config.resolve().is_relative_to(folder):
        raise UserMistake(f"{config} is not inside {folder}")
    try:
        content = msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as exc:
        raise UserMistake(f"{folder} holds no {config.name}; name the graph configuration file with --config") from exc
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise UserMistake(f"{config} cannot be read: {exc}") from exc
    if not isinstance(content.get("dependencies", []), list):
        raise UserMistake(f"{config}: dependencies must be a list")
    return content


def pack(project: Project, target: IO[bytes]) -> Packed:
    """Write a project's files as .tar.gz; the same files always give the same bytes. Raises UserMistake."""
    packed = Packed(0, 0, [])
    # Without a name and a time in its head: both would differ with every archive.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in sorted(_files(project, packed)):
            _add(archive, project, name, file)
            packed.files += 1
            _check_size(target)
    packed.size = _check_size(target)
    return packed


def _check_size(target: IO[bytes]) -> int:
    size = target.tell()
    if size > MAX_ARCHIVE_BYTES:
        raise UserMistake(
            f"the archive is larger than {MAX_ARCHIVE_BYTES // 1024**2} MB; leave out what the agent does not need in "
            ".dockerignore"
        )
    return size


def _add(archive: tarfile.TarFile, project: Project, name: str, file: Path) -> None:
    entry = tarfile.TarInfo(name)
    # The values travel as secrets, which are sealed; the file itself only has to be there.
    content = b"" if file == project.env_file else None
    try:
        with contextlib.closing(io.BytesIO(content) if content is not None else file.open("rb")) as source:
            status = file.stat()
            entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
            entry.size = len(content) if content is not None else os.fstat(source.fileno()).st_size
            archive.addfile(entry, source)
    except OSError as exc:
        raise UserMistake(f"{file} cannot be packed: {exc.strerror or exc}") from exc


def _files(project: Project, packed: Packed) -> Iterator[tuple[str, Path]]:
    """Yield every file to pack, under its name in the archive."""
    if project.env_file is not None:
        yield project.env_file.relative_to(project.root).as_posix(), project.env_file
    for folder in project.folders:
        for file in _walk(folder, [*_rules_above(folder), *_docker_rules(folder)]):
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
    """Yield the files and links below a folder that no rule leaves out; a folder that is left out is not entered."""
    rules = [*rules, *_rules_of(folder, ".gitignore")]
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as exc:
        raise UserMistake(f"{folder} cannot be read: {exc.strerror}") from exc
    for entry in entries:
        path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
        if entry.name in NEVER or entry.name.endswith(".pyc") or _is_left_out(path, rules, is_folder=is_folder):
            continue
        if is_folder:
            yield from _walk(path, rules)
        else:
            yield path


def _is_left_out(path: Path, rules: list[tuple[Path, Any]], *, is_folder: bool) -> bool:
    """Ask the rules from the outermost in; the last one that says anything decides, as git does."""
    is_out = False
    for base, spec in rules:
        said = spec.check_file(path.relative_to(base).as_posix() + ("/" if is_folder else "")).include
        is_out = is_out if said is None else said
    return is_out


def _rules_of(folder: Path, name: str) -> list[tuple[Path, Any]]:
    from pathspec import GitIgnoreSpec

    try:
        lines = (folder / name).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [(folder, GitIgnoreSpec.from_lines(lines))]


def _rules_above(folder: Path) -> list[tuple[Path, Any]]:
    """Return the rules of the repository that a folder is part of, outermost first."""
    above: list[Path] = []
    while not (folder / ".git").exists():
        if folder.parent == folder:
            return []
        folder = folder.parent
        above.append(folder)
    return [rule for parent in reversed(above) for rule in _rules_of(parent, ".gitignore")]


def _docker_rules(folder: Path) -> list[tuple[Path, Any]]:
    """Return the rules of `.dockerignore`, whose patterns are about the folder itself and not about any below it."""
    from pathspec import GitIgnoreSpec

    try:
        lines = (folder / ".dockerignore").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [(folder, GitIgnoreSpec.from_lines([_anchored(line.strip()) for line in lines]))]


def _anchored(pattern: str) -> str:
    if not pattern or pattern.startswith("#"):
        return ""
    sign, rest = ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)
    return f"{sign}/{rest.removeprefix('./').lstrip('/')}"
