"""The platform's own wheel, packed from the very files that run now.

Deployments run the same version of the agent server as the platform without asking an index for it. It is packed the
same from an editable and from a normal installation; equal contents give an equal file.
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
from importlib.metadata import distribution
from pathlib import Path

NAME = "portside"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: portside\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_KEPT_S = 24 * 3600.0
_VERSION = re.compile(r"^Version: (.*)$", re.MULTILINE)


def pack_wheel(folder: Path) -> Path:
    """Return the wheel of the installed platform, writing it into the folder unless it is there; old ones go."""
    installed = distribution(NAME)
    metadata = installed.read_text("METADATA") or ""
    files = {f"{NAME}/{name}": content for name, content in _package_files().items()}
    digest = _digest(files, metadata)
    version = f"{installed.version}{'.' if '+' in installed.version else '+'}{digest}"
    path = folder / f"{NAME}-{version}-py3-none-any.whl"
    if path.exists():
        return path
    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = _VERSION.sub(f"Version: {version}", metadata, count=1).encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{path.name}.{os.getpid()}"
    temporary.write_bytes(_zip(files))
    temporary.replace(path)
    _forget_others(path)
    return path


def _forget_others(wheel: Path) -> None:
    """Remove the wheels of other versions, but for those that a build may be installing at this moment."""
    for other in wheel.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if other != wheel and time.time() - other.stat().st_mtime > _KEPT_S:
                other.unlink()


def is_behind(venv: Path) -> bool:
    """Whether the agent server in a build lacks migrations of this version: it refuses a database that has them."""
    ours = {file.name for file in _package_folder().glob("agent/migrations/*.sql")}
    theirs = {file.name for file in venv.glob(f"lib/*/site-packages/{NAME}/agent/migrations/*.sql")}
    return not ours <= theirs


def _package_folder() -> Path:
    found = importlib.util.find_spec(NAME)
    assert found is not None  # noqa: S101 - this module is part of it
    assert found.origin is not None  # noqa: S101 - the package has an __init__.py
    return Path(found.origin).parent


def _package_files() -> dict[str, bytes]:
    root = _package_folder()
    paths = (path for path in root.rglob("*") if path.is_file() and not _is_left_out(path.relative_to(root)))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _is_left_out(path: Path) -> bool:
    return path.suffix == ".pyc" or any(part == "__pycache__" or part.startswith(".") for part in path.parts)


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
