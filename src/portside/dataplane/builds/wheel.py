"""The wheels that the environments of projects get, packed from the installed files of the platform.

So deployments run the platform's version, and no package index is needed. In the split layout a project gets the
executor alone, which constrains nothing but langgraph; in the combined layout it gets the agent server. Both are named
like the whole platform, so that a project that requires `portside` gets this wheel and never both. An editable and a
normal installation give the same wheels, except for the commit if that is known. Equal contents give an equal file.
"""

import base64
import contextlib
import hashlib
import importlib.util
import io
import os
import re
import time
import zipfile
from functools import lru_cache
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NamedTuple

from portside.kernel.version import COMMIT_FILE, commit, read_commit, with_commit

NAME = "portside"
# The time of all files in a wheel, so that equal contents give an equal file.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: portside\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# Old wheels stay for so long, because a build may be installing one.
_KEPT_S = 24 * 3600.0
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra == ['"]([^'"]+)['"]""")


class WheelContent(NamedTuple):
    """What a wheel has: files and folders of the package (folders end in a slash), and requirements by their names.

    `changed` has the requirements that differ from those of the platform.
    """

    summary: str
    files: tuple[str, ...]
    required: tuple[str, ...]
    extras: tuple[str, ...] = ()
    has_command: bool = False
    changed: tuple[tuple[str, str], ...] = ()


# pyproject.toml has the versions.
SERVER = WheelContent(
    summary="The agent server of Portside, as deployments run it.",
    files=(
        "__init__.py",
        "__main__.py",
        "agent/",
        "cli/__init__.py",
        "cli/main.py",
        "cli/output.py",
        "cli/serve.py",
        "executor/",
        "kernel/",
    ),
    required=(
        "asyncpg",
        "cachetools",
        "click",
        "cronsim",
        "cryptography",
        "httptools",
        "httpx",
        "langchain-core",
        "langgraph",
        "langgraph-checkpoint",
        "langgraph-sdk",
        "langsmith",
        "msgspec",
        "orjson",
        "prometheus-client",
        "pydantic",
        "python-dotenv",
        "starlette",
        "structlog",
        "tzdata",
        "uvicorn",
        "uvloop",
        "websockets",
    ),
    extras=("grpc", "redis"),
    has_command=True,
)
# langgraph brings everything else that the executor imports. It executes graphs of older versions than the server does.
EXECUTOR = WheelContent(
    summary="The part of Portside that executes a project's graphs.",
    files=(
        "__init__.py",
        "executor/",
        "kernel/__init__.py",
        "kernel/errors.py",
        "kernel/http/__init__.py",
        "kernel/http/in_process.py",
        "kernel/project_files.py",
        "kernel/startup.py",
        "kernel/tasks.py",
        "kernel/timeouts.py",
        "kernel/user_json.py",
    ),
    required=("langgraph",),
    changed=(("langgraph", "langgraph>=0.4,<2"),),
)
_EXECUTORS = EXECUTOR._replace(files=(*EXECUTOR.files, "executor_js/"))


def pack_wheel(folder: Path, content: WheelContent = SERVER) -> Path:
    """Return a wheel in a folder, written if it is missing; old wheels are removed."""
    if not content.has_command:
        # It names no commit, so its files alone tell whether it is there, and need not be read.
        path = _wheel_path(folder, wheel_version(content))
        if path.exists():
            return path

    platform = distribution(NAME)
    files, version = _pack_files(platform, content)
    path = _wheel_path(folder, version)
    if path.exists():
        return path

    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = _build_metadata(platform, content, version).encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()

    if content.has_command:
        files[f"{info}/entry_points.txt"] = (platform.read_text("entry_points.txt") or "").encode()

    files[f"{info}/RECORD"] = _build_record(files, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{path.name}.{os.getpid()}"
    temporary.write_bytes(_zip(files))
    temporary.replace(path)
    _remove_old_wheels(path)

    return path


def _wheel_path(folder: Path, version: str) -> Path:
    return folder / f"{NAME}-{version}-py3-none-any.whl"


def wheel_version(content: WheelContent = SERVER) -> str:
    """Return the version of a wheel, which changes with each file in it.

    Files are read again only when one of them has changed: hundreds of deployments ask when they start together.
    """
    return _version_at(content, _hash_file_states(_package_folder()))


def server_versions(*, has_javascript: bool) -> tuple[str, str]:
    """Return the version of the agent server, and that of the executors that describe a project's graphs to it."""
    state = _hash_file_states(_package_folder())
    return _version_at(SERVER, state), _version_at(_EXECUTORS if has_javascript else EXECUTOR, state)


@lru_cache(maxsize=8)
def _version_at(content: WheelContent, _state: str) -> str:
    return _pack_files(distribution(NAME), content)[1]


def _hash_file_states(package: Path) -> str:
    """Return what changes when a file of the package is written or replaced."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in (f"{folder}/{name}" for name in sorted(names)):
            with contextlib.suppress(FileNotFoundError):
                state = os.stat(path)  # noqa: PTH116 - names only, of all files for each deployment
                digest.update(f"{path}\0{state.st_ino} {state.st_size} {state.st_mtime_ns}\0".encode())

    return digest.hexdigest()


def _pack_files(platform: Distribution, content: WheelContent) -> tuple[dict[str, bytes], str]:
    """Return the package's files in a wheel, and its version."""
    files = {f"{NAME}/{name}": data for name, data in _package_files(content).items()}
    platform_commit = commit() if content.has_command else None
    if platform_commit is not None:
        files[f"{NAME}/{COMMIT_FILE}"] = f"{platform_commit}\n".encode()

    digest = _hash_files(files, _build_metadata(platform, content, ""))
    separator = "." if "+" in platform.version else "+"
    return files, f"{platform.version}{separator}{digest}"


def list_requirements(platform: Distribution, content: WheelContent = SERVER) -> list[str]:
    """Return the platform's requirements that a wheel has too. Raises KeyError for a missing one."""
    lines = platform.requires or []
    requirements = {}
    extras = []
    for line in lines:
        name = _REQUIREMENT.match(line)
        extra = _EXTRA.search(line)
        if extra is not None:
            if extra[1] in content.extras:
                extras.append(line)
        elif name is not None:
            requirements[name[0]] = line

    requirements.update(content.changed)
    return [*(requirements[name] for name in content.required), *extras]


def _build_metadata(platform: Distribution, content: WheelContent, version: str) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {NAME}",
        f"Version: {version}",
        f"Summary: {content.summary}",
        f"Requires-Python: {platform.metadata['Requires-Python']}",
        *(f"Requires-Dist: {requirement}" for requirement in list_requirements(platform, content)),
        *(f"Provides-Extra: {extra}" for extra in content.extras),
    ]

    return "".join(f"{line}\n" for line in lines)


def _remove_old_wheels(wheel: Path) -> None:
    """Remove the wheels of other versions, except recent ones, which a build may be installing right now."""
    for other in wheel.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if other != wheel and time.time() - other.stat().st_mtime > _KEPT_S:
                other.unlink()


def is_behind(venv: Path) -> bool:
    """Whether the agent server in a build lacks migrations or has older SQL functions than this version.

    It refuses a database that this version has migrated.
    """
    build_package = next(venv.glob(f"lib/*/site-packages/{NAME}"), venv)
    platform_package = _package_folder()
    lacks_migrations = not _list_migrations(platform_package) <= _list_migrations(build_package)
    return lacks_migrations or _functions_revision(platform_package) > _functions_revision(build_package)


def _list_migrations(package: Path) -> set[str]:
    return {file.name for file in package.glob("agent/migrations/*.sql")}


def _functions_revision(package: Path) -> int:
    try:
        return int((package / "agent" / "functions" / "revision.txt").read_text("utf-8").split()[0])
    except FileNotFoundError:
        return 0


def read_server_version(venv: Path) -> str | None:
    """Return the version and commit of the agent server in a build, or None when it has no agent server."""
    info = _find_wheel_info(venv)
    if info is None:
        return None

    version = _parse_version(info).partition("+")[0]
    return with_commit(version, read_commit(info.parent / NAME))


def read_wheel_version(venv: Path) -> str | None:
    """Return the `wheel_version` of the wheel in a build, or None when it has none."""
    info = _find_wheel_info(venv)
    return None if info is None else _parse_version(info)


def list_wheel_folders(venv: Path) -> list[Path]:
    """Return the folders of the wheel in a build: the package and what pip knows of it."""
    info = _find_wheel_info(venv)
    return [] if info is None else [info.parent / NAME, info]


def packages_folder(venv: Path) -> Path:
    """Return the folder of the packages in a virtual environment."""
    return next(venv.glob("lib/*/site-packages"))


def _find_wheel_info(venv: Path) -> Path | None:
    return next(iter(sorted(venv.glob(f"lib/*/site-packages/{NAME}-*.dist-info"))), None)


def _parse_version(info: Path) -> str:
    return info.name.removeprefix(f"{NAME}-").removesuffix(".dist-info")


def _package_folder() -> Path:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None  # noqa: S101 - this module is part of it
    assert spec.origin is not None  # noqa: S101 - the package has an __init__.py
    return Path(spec.origin).parent


def _package_files(content: WheelContent) -> dict[str, bytes]:
    root = _package_folder()
    paths = (path for path in root.rglob("*") if path.is_file() and _is_packed(path.relative_to(root), content.files))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _is_packed(path: Path, names: tuple[str, ...]) -> bool:
    if path.suffix == ".pyc" or any(part == "__pycache__" or part.startswith(".") for part in path.parts):
        return False

    name = path.as_posix()
    folders = tuple(entry for entry in names if entry.endswith("/"))
    return name in names or name.startswith(folders)


def _hash_files(files: dict[str, bytes], metadata: str) -> str:
    digest = hashlib.sha256(metadata.encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])

    return digest.hexdigest()[:16]


def _build_record(files: dict[str, bytes], own_name: str) -> bytes:
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(files[name])}\n")

    return "".join([*lines, f"{own_name},,\n"]).encode()


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])

    return buffer.getvalue()
