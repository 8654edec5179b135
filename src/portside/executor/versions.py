"""Features that need a newer version of one of the project's libraries.

A project decides its versions. If one is too old for a feature, that feature is off and everything else works. The
server logs this at start, and a request for the feature gets an error that says so.
"""

import importlib.metadata
import re
from collections.abc import Mapping
from typing import NamedTuple

from portside.kernel.errors import UserMistake

LIBRARIES = ("langgraph", "langgraph-checkpoint", "langchain-core", "langgraph-sdk", "langsmith")
_NUMBER = re.compile(r"\d+")


class Feature(NamedTuple):
    """A feature, and the first version of a library that supports it."""

    name: str
    library: str
    since: tuple[int, ...]

    @property
    def is_available(self) -> bool:
        """Whether the installed version is new enough."""
        return self.is_in({self.library: importlib.metadata.version(self.library)})

    def is_in(self, libraries: Mapping[str, str]) -> bool:
        """Whether the version in a map is new enough. A library that is not in the map counts as new enough."""
        version = libraries.get(self.library)
        return version is None or _parse_version(version) >= self.since

    def describe_requirement(self, libraries: Mapping[str, str]) -> str:
        """Return a sentence that names the needed version and the installed one."""
        needed = ".".join(map(str, self.since))
        installed = libraries.get(self.library)
        return f"{self.name} needs {self.library} {needed} or newer; installed is {installed}"

    def require(self) -> None:
        """Raise UserMistake if the installed version is too old."""
        if not self.is_available:
            requirement = self.describe_requirement({self.library: importlib.metadata.version(self.library)})
            raise UserMistake(f"{requirement}; raise the version in the project's dependencies")


ENCRYPTION = Feature("encryption.path", "langgraph-sdk", (0, 2, 14))
CONTEXT = Feature("the context of a run", "langgraph", (0, 6))
SERVER_RUNTIME = Feature("a graph factory that takes a runtime", "langgraph-sdk", (0, 3, 5))
INTERRUPTS_IN_VALUES = Feature("interrupts in the values of a stream", "langgraph", (1, 0, 4))
RESPONSE_SCHEMAS = Feature("interrupts with a schema for their answer", "langgraph", (1, 2, 12))
CACHE = Feature("langgraph_sdk.cache", "langgraph-sdk", (0, 3, 10))
STRICT_RESUME = Feature("refusing an answer to an interrupt that is not open", "langgraph", (1, 2, 20))
TOOL_EVENTS = Feature("events of tools", "langgraph", (1, 2, 0))
_LOGGED_AT_START = (CONTEXT, ENCRYPTION, SERVER_RUNTIME, CACHE, TOOL_EVENTS, STRICT_RESUME)


def list_installed_libraries() -> dict[str, str]:
    """Return the versions of the libraries that are installed in this process's environment."""
    return {name: version for name in LIBRARIES if (version := _find_version(name))}


def list_missing_features(libraries: Mapping[str, str]) -> list[str]:
    """Return the requirement of each feature that is off with these versions of libraries."""
    return [feature.describe_requirement(libraries) for feature in _LOGGED_AT_START if not feature.is_in(libraries)]


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _parse_version(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version; a release candidate counts as its release."""
    return tuple(int(part) for part in _NUMBER.findall(version)[:3])
