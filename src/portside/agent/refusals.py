"""Remembers which other servers refuse this one, so that the owner of a deployment reads it in its status.

Only refusals that last are kept: a wrong key of the tracing platform, a webhook that answers 401 or 403. A refusal is
forgotten after a success, or after a while without another one.
"""

import os
import time

from portside.executor import tracing
from portside.kernel.aliases import environment_names

FORGET_AFTER_S = 600.0
# One line for each server; more would hide the others.
LIMIT = 5
_TRACING_VARIABLES = (*environment_names("LANGSMITH_TRACING_V2"), *environment_names("LANGSMITH_TRACING"))
_TRACING = "tracing"
_TRACES = (
    "The tracing platform refuses the API key of this server, so its traces are lost. Correct LANGSMITH_API_KEY and "
    "LANGSMITH_ENDPOINT among the secrets of the deployment."
)


def sends_traces() -> bool:
    """Whether the environment asks for traces. The tracing client, which only the graphs need, has the same rule."""
    given = next((value for name in _TRACING_VARIABLES if (value := os.environ.get(name))), "")
    return given == "true"


class Refusals:
    """The refusals of this process, each with its last moment. Safe to call in any thread."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[float, str]] = {}

    def note(self, server: str, message: str) -> None:
        """Remember that a server refuses this one."""
        self._noted.pop(server, None)
        self._noted[server] = time.monotonic(), message

    def forget(self, server: str) -> None:
        """Forget a refusal, because the server accepted a call."""
        self._noted.pop(server, None)

    def current(self) -> list[str]:
        """Return the messages of the refusals that still last."""
        oldest = time.monotonic() - FORGET_AFTER_S
        for server, (moment, _message) in list(self._noted.items()):
            if moment < oldest:
                self.forget(server)
        return [message for _moment, message in list(self._noted.values())[-LIMIT:]]


REFUSALS = Refusals()


def note_refused_traces() -> None:
    """Remember that the tracing platform refuses the traces of this server or of its executors."""
    REFUSALS.note(_TRACING, _TRACES)


def watch_tracing() -> None:
    """Note refusals of the tracing platform from now on."""
    tracing.watch_tracing(note_refused_traces)
