"""What a project's `pyproject.toml` says: what kind of package it is, and which versions of Python it allows."""

import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from portside.dataplane.failures import BuildFailed
from portside.kernel.project_files import lacks_build_system

_MAX_BYTES = 1_000_000
OLDEST_PYTHON = (3, 11)
_NEWEST_MINOR = 14
_PATCHES = 40
_POETRY = re.compile(r"(?P<sign>[\^~])(?P<major>\d+)(?:\.(?P<minor>\d+))?(?P<patch>\.\d+)?")


def is_project(folder: Path) -> bool:
    """Whether a folder is a package that can be installed in place."""
    if (folder / "setup.py").is_file():
        return True

    content = _read_pyproject(folder)
    if content and (folder / "setup.cfg").is_file():
        return True

    has_tool = bool({"poetry", "setuptools"} & _table(content, "tool").keys())
    return "build-system" in content or has_tool or bool(_table(content, "project").get("dynamic"))


def is_virtual(folder: Path) -> bool:
    """Whether a folder only lists dependencies: a `[project]` without a build system."""
    return not is_project(folder) and "project" in _read_pyproject(folder)


def is_poetry_alone(folder: Path) -> bool:
    """Whether a folder is a project that only poetry can read: it names no build system."""
    return lacks_build_system(folder, _read_pyproject(folder))


def read_required_python(folder: Path) -> str:
    """Return the version specifier of Python in a folder's `pyproject.toml`; empty without one."""
    content = _read_pyproject(folder)
    specifier = _table(content, "project").get("requires-python")
    if specifier is None:
        poetry = _table(_table(content, "tool"), "poetry")
        specifier = _translate_poetry(_table(poetry, "dependencies").get("python"))

    try:
        return str(SpecifierSet(specifier)) if isinstance(specifier, str) else ""
    except InvalidSpecifier:
        return ""  # The installation of the package will report the invalid specifier.


def check_version(version: str | None, specifier: str, name: str) -> None:
    """Raise BuildFailed if a specifier excludes the wanted version, or every version that Portside supports."""
    if version is not None and not _allows(specifier, version):
        raise BuildFailed(
            f"python_version {version} is outside requires-python '{specifier}' of {name}; change one of the two"
        )

    if not list_suitable_versions(specifier):
        raise BuildFailed(
            f"requires-python '{specifier}' of {name} allows no version that Portside supports: change it to allow one "
            f"from {'.'.join(map(str, OLDEST_PYTHON))} to {OLDEST_PYTHON[0]}.{_NEWEST_MINOR}"
        )


def list_suitable_versions(specifier: str) -> list[str]:
    """Return the minor versions that a specifier allows, the oldest first."""
    minors = (f"{OLDEST_PYTHON[0]}.{minor}" for minor in range(OLDEST_PYTHON[1], _NEWEST_MINOR + 1))
    return [minor for minor in minors if _allows(specifier, minor)]


def is_allowed(version: str, specifier: str) -> bool:
    """Whether a specifier allows one exact version."""
    return SpecifierSet(specifier).contains(version, prereleases=True)


def _allows(specifier: str, version: str) -> bool:
    """Whether a specifier allows a version, or any patch of it if it has none."""
    has_patch = version.count(".") > 1
    versions = [version] if has_patch else [f"{version}.{patch}" for patch in range(_PATCHES)]
    return any(is_allowed(candidate, specifier) for candidate in versions)


def _translate_poetry(specifier: Any) -> Any:
    """Translate Poetry's `^3.11` and `~3.11` into a version specifier."""
    match = _POETRY.fullmatch(specifier.strip()) if isinstance(specifier, str) else None
    if match is None:
        return specifier

    major = int(match["major"])
    minor = match["minor"]
    is_tilde = match["sign"] == "~" and minor is not None
    below = f"{major}.{int(minor) + 1}" if is_tilde else str(major + 1)

    return f">={specifier.strip()[1:]},<{below}"


def _read_pyproject(folder: Path) -> dict[str, Any]:
    path = folder / "pyproject.toml"
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return {}

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BuildFailed(f"{path.name} of {folder.name} cannot be read: {exc}") from exc


def _table(parent: dict[str, Any], name: str) -> dict[str, Any]:
    child = parent.get(name)
    return child if isinstance(child, dict) else {}


def is_workspace(folder: Path) -> bool:
    return "workspace" in _table(_table(_read_pyproject(folder), "tool"), "uv")
