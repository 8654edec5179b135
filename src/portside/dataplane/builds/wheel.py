"""The wheel of the agent server that every deployment gets, packed from the installed files of the platform.

So deployments run the platform's version of the agent server, and no package index is needed. The wheel has only the
agent server, so that the platform's own dependencies do not constrain a project. It is named like the whole platform,
so that a project that requires `portside` gets this wheel and never both. An editable and a normal installation give
the same wheel, except for the commit if that is known. Equal contents give an equal file.
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
from importlib.metadata import Distribution, distribution
from pathlib import Path

from portside.kernel.version import COMMIT_FILE, commit, read_commit, with_commit

NAME = "portside"
# Files and folders of the package; folders end in a slash.
PACKED = (
    "__init__.py", "__main__.py", "agent/", "cli/__init__.py", "cli/main.py", "cli/output.py", "cli/serve.py",
    "executor/", "kernel/",
)  # fmt: skip
# Dependencies of the agent server; pyproject.toml has their versions.
REQUIRED = (
    "asyncpg", "cachetools", "click", "cronsim", "cryptography", "httptools", "httpx", "langchain-core", "langgraph",
    "langgraph-checkpoint", "langgraph-sdk", "langsmith", "msgspec", "orjson", "prometheus-client", "pydantic",
    "python-dotenv", "starlette", "structlog", "tzdata", "uvicorn", "uvloop", "websockets",
)  # fmt: skip
EXTRAS = ("redis",)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: portside\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_KEPT_S = 24 * 3600.0
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra == ['"]([^'"]+)['"]""")


def pack_wheel(folder: Path) -> Path:
    """Return the wheel of the agent server in a folder, written if it is missing; old wheels are removed."""
    installed = distribution(NAME)
    files = {f"{NAME}/{name}": content for name, content in _package_files().items()}
    if (known := commit()) is not None:
        files[f"{NAME}/{COMMIT_FILE}"] = f"{known}\n".encode()
    digest = _digest(files, _metadata(installed, ""))
    version = f"{installed.version}{'.' if '+' in installed.version else '+'}{digest}"
    path = folder / f"{NAME}-{version}-py3-none-any.whl"
    if path.exists():
        return path
    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(installed, version).encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{path.name}.{os.getpid()}"
    temporary.write_bytes(_zip(files))
    temporary.replace(path)
    _remove_old_wheels(path)
    return path


def requirements_of(platform: Distribution) -> list[str]:
    """Return the platform's requirements that the agent server has too. Raises KeyError for a missing one."""
    lines = platform.requires or []
    needed = {match[0]: line for line in lines if not _EXTRA.search(line) and (match := _REQUIREMENT.match(line))}
    extras = [line for line in lines if (match := _EXTRA.search(line)) and match[1] in EXTRAS]
    return [*(needed[name] for name in REQUIRED), *extras]


def _metadata(platform: Distribution, version: str) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {NAME}",
        f"Version: {version}",
        "Summary: The agent server of Portside, as deployments run it.",
        f"Requires-Python: {platform.metadata['Requires-Python']}",
        *(f"Requires-Dist: {requirement}" for requirement in requirements_of(platform)),
        *(f"Provides-Extra: {extra}" for extra in EXTRAS),
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
    built = next(venv.glob(f"lib/*/site-packages/{NAME}"), venv)
    ours, theirs = (
        {file.name for file in folder.glob("agent/migrations/*.sql")} for folder in (_package_folder(), built)
    )
    return not ours <= theirs or _functions_revision(_package_folder()) > _functions_revision(built)


def _functions_revision(package: Path) -> int:
    try:
        return int((package / "agent" / "functions" / "revision.txt").read_text("utf-8").split()[0])
    except FileNotFoundError:
        return 0


def version_in(venv: Path) -> str | None:
    """Return the version and commit of the agent server in a build, or None when it has no agent server."""
    found = next(iter(sorted(venv.glob(f"lib/*/site-packages/{NAME}-*.dist-info"))), None)
    if found is None:
        return None
    version = found.name.removeprefix(f"{NAME}-").removesuffix(".dist-info").partition("+")[0]
    return with_commit(version, read_commit(found.parent / NAME))


def _package_folder() -> Path:
    found = importlib.util.find_spec(NAME)
    assert found is not None  # noqa: S101 - this module is part of it
    assert found.origin is not None  # noqa: S101 - the package has an __init__.py
    return Path(found.origin).parent


def _package_files() -> dict[str, bytes]:
    root = _package_folder()
    paths = (path for path in root.rglob("*") if path.is_file() and _is_packed(path.relative_to(root)))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _is_packed(path: Path) -> bool:
    is_left_out = path.suffix == ".pyc" or any(part == "__pycache__" or part.startswith(".") for part in path.parts)
    name = path.as_posix()
    return not is_left_out and (name in PACKED or name.startswith(tuple(each for each in PACKED if each[-1] == "/")))


def _digest(files: dict[str, bytes], metadata: str) -> str:
    digest = hashlib.sha256(metadata.encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()[:16]


def _record(files: dict[str, bytes], own_name: str) -> bytes:
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
