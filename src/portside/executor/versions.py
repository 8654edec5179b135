"""Features that need a newer version of one of the project's libraries.

A project decides its versions. If one is too old for a feature, that feature is off and everything else works. The
server logs this at start, and a request for the feature gets an error that says so.
"""

import importlib.metadata
import re
from typing import NamedTuple

from portside.kernel.errors import UserMistake

_NUMBER = re.compile(r"\d+")


class Feature(NamedTuple):
    """A feature, and the first version of a library that supports it."""

    name: str
    library: str
    since: tuple[int, ...]

    @property
    def is_available(self) -> bool:
        """Whether the installed version is new enough."""
        return _parts(importlib.metadata.version(self.library)) >= self.since

    @property
    def requirement(self) -> str:
        """The installed version and the one that is needed."""
        needed = ".".join(map(str, self.since))
        installed = importlib.metadata.version(self.library)
        return f"{self.name} needs {self.library} {needed} or newer; installed is {installed}"

    def require(self) -> None:
        """Raise UserMistake if the installed version is too old."""
        if not self.is_available:
            raise UserMistake(f"{self.requirement}; raise the version in the project's dependencies")


ENCRYPTION = Feature("encryption.path", "langgraph-sdk", (0, 2, 14))
SERVER_RUNTIME = Feature("a graph factory that takes a runtime", "langgraph-sdk", (0, 3, 5))
INTERRUPTS_IN_VALUES = Feature("interrupts in the values of a stream", "langgraph", (1, 0, 4))
RESPONSE_SCHEMAS = Feature("interrupts with a schema for their answer", "langgraph", (1, 2, 12))
CACHE = Feature("langgraph_sdk.cache", "langgraph-sdk", (0, 3, 10))
STRICT_RESUME = Feature("refusing an answer to an interrupt that is not open", "langgraph", (1, 2, 20))
TOOL_EVENTS = Feature("events of tools", "langgraph", (1, 2, 0))
_LOGGED_AT_START = (ENCRYPTION, SERVER_RUNTIME, CACHE, TOOL_EVENTS, STRICT_RESUME)


def missing_features() -> list[str]:
    """Return the requirement of each feature that is off."""
    return [feature.requirement for feature in _LOGGED_AT_START if not feature.is_available]


def _parts(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version; a release candidate counts as its release."""
    return tuple(int(part) for part in _NUMBER.findall(version)[:3])
