"""Remembers the lasting problems of this server, which the status of its deployment shows to the owner.

Examples: the tracing platform refuses the server's key, a webhook answers 401 or 403, executors do not start. A problem
is removed after a success, or when it has not come again for a while.
"""

import os
import time

from portside.executor import tracing
from portside.kernel.aliases import environment_names

FORGET_AFTER_S = 600.0
# More would make the status hard to read.
LIMIT = 5
_TRACING_VARIABLES = (*environment_names("LANGSMITH_TRACING_V2"), *environment_names("LANGSMITH_TRACING"))
_TRACING = "tracing"
_TRACES = (
    "The tracing platform refuses the API key of this server, so its traces are lost. Correct LANGSMITH_API_KEY and "
    "LANGSMITH_ENDPOINT among the secrets of the deployment."
)


def sends_traces() -> bool:
    """Whether the environment asks for traces. The tracing client, which only the graphs need, has the same rule."""
    setting = next((value for name in _TRACING_VARIABLES if (value := os.environ.get(name))), "")
    return setting == "true"


class Problems:
    """The problems of this process, each with the time when it came last. Safe to call in any thread."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[float, str]] = {}

    def note(self, about: str, message: str) -> None:
        """Record a problem with another server or with a part of this one; `about` identifies it."""
        self._noted.pop(about, None)
        self._noted[about] = time.monotonic(), message

    def forget(self, about: str) -> None:
        """Remove a problem, because the part works again."""
        self._noted.pop(about, None)

    def current(self) -> list[str]:
        """Return the messages of the problems that still last."""
        oldest = time.monotonic() - FORGET_AFTER_S
        for about, (moment, _message) in list(self._noted.items()):
            if moment < oldest:
                self.forget(about)

        return [message for _moment, message in list(self._noted.values())[-LIMIT:]]


PROBLEMS = Problems()


def note_refused_traces() -> None:
    """Remember that the tracing platform refuses the traces of this server or of its executors."""
    PROBLEMS.note(_TRACING, _TRACES)


def watch_tracing() -> None:
    """Note refusals of the tracing platform from now on."""
    tracing.watch_tracing(note_refused_traces)
