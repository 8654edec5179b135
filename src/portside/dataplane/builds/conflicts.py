"""Why the dependencies of a project cannot be installed, said in one sentence.

The resolver proves in many lines that there is no solution, so its output is read, and compared with what the agent
server requires.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from portside.dataplane.builds.config import BuildConfig
from portside.dataplane.builds.pyproject import is_poetry_alone
from portside.kernel.project_files import POETRY_BUILD_SYSTEM

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+?)(?:\s.*?)?(?:\s+# via (?P<via>.+))?$")
# How many packages a sentence names, because most of a project may require the same old library.
_SHOWN_NAMES = 3
# How uv says that an index lacks a package, or each version that fits.
_NO_PACKAGE = re.compile(r"Because (?P<name>\S+) was not found in the (?:package registry|provided package locations)")
_NO_VERSION = re.compile(
    r"Because (?P<has>there is no version of|only) (?P<name>[\w.-]+?)(?P<versions>[<>=!~]=?\S+)?[ ,]"
)


class ResolvedPin(NamedTuple):
    """A version that the project's dependencies resolve to, and what requires it: `-r PATH`, or packages."""

    version: Version
    via: list[str]


def read_pins(lines: Iterable[str]) -> dict[str, ResolvedPin]:
    """Parse the output of `uv pip compile --annotation-style line`."""
    matches = (match for line in lines if (match := _PIN.match(line.strip())))
    return {
        canonicalize_name(match["name"]): ResolvedPin(Version(match["version"]), (match["via"] or "").split(", "))
        for match in matches
    }


def explain_conflict(
    pins: Mapping[str, ResolvedPin], requirements: Sequence[str], names: Mapping[Path, str]
) -> str | None:
    """Explain which pins conflict with the agent server and what requires them; None without a conflict.

    The resolver proves in many lines that there is no solution. One line helps more: so the project's dependencies are
    resolved without the agent server, and the result is compared with what the agent server requires. `names` has the
    names under which the user knows the requirements files that the build itself wrote.
    """
    required: dict[str, Requirement] = {
        canonicalize_name(requirement.name): requirement for requirement in map(Requirement, requirements)
    }
    conflicting = {
        name: pin
        for name, pin in pins.items()
        if name in required and not required[name].specifier.contains(pin.version, prereleases=True)
    }

    # A pin that only conflicting packages require disappears with them.
    causes = [
        name for name, pin in conflicting.items() if not all(canonicalize_name(via) in conflicting for via in pin.via)
    ]

    sentences = []
    for name in causes or conflicting:
        origins = _list_origins(conflicting[name], pins, names)
        sentences.append(_explain_pin(name, conflicting[name], required[name], origins))

    return "; ".join(sentences) or None


def _explain_pin(name: str, pin: ResolvedPin, requirement: Requirement, origins: list[str]) -> str:
    floor = next((specifier.version for specifier in requirement.specifier if specifier.operator == ">="), None)
    is_old = floor is not None and pin.version < Version(floor)
    ours = f"{floor} or newer" if is_old else str(requirement.specifier)
    verb = "give" if len(origins) > 1 else "gives"
    return f"{_join_names(origins)} {verb} {name} {pin.version}; the agent server needs {ours}"


def _join_names(names: list[str]) -> str:
    """Return `a`, `a and b`, or `a, b, c and 4 more`."""
    if len(names) > _SHOWN_NAMES:
        names = [*names[:_SHOWN_NAMES], f"{len(names) - _SHOWN_NAMES} more"]

    *first_names, last_name = names
    return f"{', '.join(first_names)} and {last_name}" if first_names else last_name


def _list_origins(pin: ResolvedPin, pins: Mapping[str, ResolvedPin], names: Mapping[Path, str]) -> list[str]:
    """Return what requires a pin: the project's own files and packages if any, else other packages."""
    origins = [via for via in pin.via if canonicalize_name(via) not in pins]
    return [_name_origin(via, names) for via in origins or pin.via]


def _name_origin(via: str, names: Mapping[Path, str]) -> str:
    """Return the name of a package, or the one under which the user knows a requirements file (`-r PATH`)."""
    if not via.startswith("-r "):
        return via

    path = Path(via.removeprefix("-r "))
    return names.get(path) or path.name


def find_missing_requirement(tail: Sequence[str], config: BuildConfig) -> str | None:
    """Say which requirement no package index has, and which file of the project names it; None for another failure."""
    output = " ".join(" ".join(tail).split())
    if match := _NO_PACKAGE.search(output):
        return f"no package index has {match['name']}{_find_mention(config, match['name'])}; correct its name"

    match = _NO_VERSION.search(output)
    if match is None:
        return None

    name = match["name"]
    mention = _find_mention(config, name)
    if not mention:
        return None

    versions = match["versions"] or ""
    if match["has"] == "only":
        return f"no package index has the version of {name} that is wanted{mention}, only {name}{versions}"

    return f"no package index has {name}{versions}{mention}; name a version that exists"


def find_missing_build_system(config: BuildConfig) -> str | None:
    """Say which project is poetry's and names no build system, because uv then takes another one; None without one."""
    folder = next((folder for folder in config.projects if is_poetry_alone(folder)), None)
    if folder is None:
        return None

    path = Path(os.path.relpath(folder / "pyproject.toml", config.path.parent))
    return (
        f"{path} has [tool.poetry] and no [build-system], so it is built by setuptools, which does not know poetry's "
        f"fields: {POETRY_BUILD_SYSTEM}"
    )


def _find_mention(config: BuildConfig, package: str) -> str:
    """Return which file of the project names a package, as a part of a sentence; empty if none does."""
    pattern = re.compile(
        rf"(?<![\w.-]){re.sub(r'[-_.]+', '[-_.]+', canonicalize_name(package))}(?![\w-])", re.IGNORECASE
    )

    files = [config.path, *config.requirements, *(folder / "pyproject.toml" for folder in config.projects)]
    for file in files:
        with contextlib.suppress(OSError):
            if pattern.search(file.read_text("utf-8", "replace")):
                return f" ({file.name} names it)"

    return ""
